#!/usr/bin/env python3
"""What encryption at rest costs the server: CPU and time of inserts, and of finds by _id that go to the files, with
encryption beside without, taking turns in one run.

    bench/at_rest.py [BINARY] [--rounds N]
    bench/at_rest.py [BINARY] --instructions    the same counted by callgrind, and bytes, which no other load changes

The client is a process of its own; what is shown is the CPU time of the server's process, from /proc, with all threads:
flushes and compactions count. The server's block cache is as small as it can be, so that most finds read a block from a
file; how many reads there were is shown. The operating system has the files in memory: no disk is measured.
"""

import base64, os, random, shutil, struct, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/fault"), str(ROOT / "tests/golden")]
from run import launch

import bson, pymongo, socket
from counted import Counted
from threads import threads_cpu

rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 5
binary = next((a for a in sys.argv[1:] if "/" in a), str(ROOT / "build/release/mayflyd"))
DOCUMENTS, BATCH, SINGLE, FINDS, SIZE = 150_000, 500, 30_000, 30_000, 1000
folder = tempfile.mkdtemp(prefix="mayfly-bench-at-rest-")


def reads(pid):
    return int(next(l for l in open(f"/proc/{pid}/io") if l.startswith("syscr")).split()[1])


def message(body):
    payload = struct.pack("<i", 0) + b"\0" + bson.encode(body)
    return struct.pack("<iiii", 16 + len(payload), 1, 0, 2013) + payload


class Server:
    def __init__(self, name, *options):
        self.name, self.results = name, {}
        data = f"{folder}/{name}"
        self.proc, port = launch(
            binary, ["--dbpath", data, "--cacheSizeGB", "0.03125", "--quiet", *options], f"{folder}/{name}.log"
        )
        self.client = pymongo.MongoClient("127.0.0.1", port, directConnection=True)
        self.link = socket.create_connection(("127.0.0.1", port))
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request):
        self.link.sendall(request)
        reply = self.link.recv(65536)
        while len(reply) < struct.unpack_from("<i", reply)[0]:
            reply += self.link.recv(65536)

    def measure(self, what, requests, operations, settle):
        """With `settle`, flushes and compactions that follow count too."""
        self.settle()
        cpu, began = threads_cpu(self.proc.pid), time.monotonic()
        for r in requests:
            self.ask(r)
        if settle:
            self.settle()
        cpu, took = threads_cpu(self.proc.pid) - cpu, time.monotonic() - began
        self.results.setdefault(what, []).append((cpu / operations * 1e6, took / operations * 1e6))

    def settle(self):
        """Until flushes and compactions are over: they belong to what caused them."""
        calm = 0
        while calm < 3:
            before = threads_cpu(self.proc.pid)
            time.sleep(0.1)
            calm = calm + 1 if threads_cpu(self.proc.pid) - before < 0.005 else 0

    def round(self, n):
        text = lambda: os.urandom(SIZE // 2).hex()
        batches = [
            message({"insert": f"c{n}", "$db": "b", "documents": [
                {"_id": i, "k": i * 7919 % DOCUMENTS, "text": text()} for i in range(at, at + BATCH)]})
            for at in range(0, DOCUMENTS, BATCH)
        ]  # fmt: skip
        self.client.b[f"c{n}"].create_index("k")
        self.measure(f"insert, {BATCH} at once", batches, DOCUMENTS, True)
        single = [
            message({"insert": f"s{n}", "$db": "b", "documents": [{"_id": i, "text": text()}]}) for i in range(SINGLE)
        ]
        self.measure("insert, one at a time", single, SINGLE, False)
        self.client.admin.command("fsync", 1)
        draw = random.Random(n)
        ids = [draw.randrange(DOCUMENTS) for _ in range(FINDS)]
        finds = [
            message({"find": f"c{n}", "filter": {"_id": i}, "limit": 1, "singleBatch": True, "$db": "b"}) for i in ids
        ]
        before = reads(self.proc.pid)
        self.measure("find by _id, from the files", finds, FINDS, False)
        self.reads = (reads(self.proc.pid) - before) / FINDS
        self.client.b.drop_collection(f"c{n}")
        self.client.b.drop_collection(f"s{n}")
        self.settle()


def instructions(*options):
    """{what: instructions of an operation, or bytes} of a server with these options."""
    many, batches, few = 40_000, 40, 2000
    s = Counted(binary, "--cacheSizeGB", "0.03125", *options)
    made = iter(range(10**9))
    one = lambda: {"_id": next(made), "k": random.randrange(many), "text": os.urandom(SIZE // 2).hex()}
    insert = lambda n: {"insert": "c", "documents": [one() for _ in range(n)]}
    s.nobody.command("shop", {"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k"}]})
    for _ in range(0, many, BATCH):
        s.nobody.command("shop", insert(BATCH))
    s.nobody.command("admin", {"fsync": 1})
    out = {}
    count = lambda *a, **k: s.count(s.nobody, *a, **k)[0]
    out[f"insert, {BATCH} at once, and the flush"] = count(lambda i: insert(BATCH), batches, {"fsync": 1}) / BATCH
    out["insert, one at a time"] = count(lambda i: insert(1), few)
    s.nobody.command("admin", {"fsync": 1})
    before = reads(s.proc.pid)
    find = lambda i: {"find": "c", "filter": {"_id": random.randrange(many)}, "limit": 1, "singleBatch": True}
    out["find by _id"] = count(find, few)
    out["reads of files for a find"] = (reads(s.proc.pid) - before) / (few * 1.25)
    files = [p for p in Path(s.folder, "data").rglob("*") if p.suffix == ".sst"]
    out["bytes of a document in the files"] = sum(p.stat().st_size for p in files) / next(made)
    s.end()
    return out


key = f"{folder}/key"
with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
    f.write(base64.b64encode(os.urandom(32)).decode())
ENCRYPTED = "--enableEncryption", "--encryptionKeyFile", key
if "--instructions" in sys.argv:
    plain, encrypted = instructions(), instructions(*ENCRYPTED)
    print("| | plain | encrypted | difference |\n| --- | ---: | ---: | ---: |")
    for what, n in plain.items():
        digits, other = 2 if n < 100 else 0, encrypted[what]
        print(f"| {what} | {n:,.{digits}f} | {other:,.{digits}f} | {(other / n - 1) * 100:+.1f} % |")
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit()
servers = [Server("plain"), Server("encrypted", *ENCRYPTED)]
try:
    print(f"load of the machine at the beginning: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for n in range(rounds):
        for s in servers if n % 2 == 0 else servers[::-1]:
            s.round(n)
    middle = lambda x: sorted(x)[len(x) // 2]
    for what in servers[0].results:
        cpu = [middle([c for c, _ in s.results[what]]) for s in servers]
        took = [middle([t for _, t in s.results[what]]) for s in servers]
        print(
            f"{what}: {cpu[0]:.1f} us of server CPU, encrypted {cpu[1]:.1f} ({(cpu[1] / cpu[0] - 1) * 100:+.0f} %); "
            f"{took[0]:.1f} us of time, encrypted {took[1]:.1f}"
        )
    print("reads of files per find: " + ", ".join(f"{s.name} {s.reads:.2f}" for s in servers))
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")
finally:
    for s in servers:
        s.proc.terminate()
        s.proc.wait()
    shutil.rmtree(folder, ignore_errors=True)
