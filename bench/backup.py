#!/usr/bin/env python3
"""What backups cost: the speed of a full one, of an incremental one after 1 % of the documents has changed, of a
restore, what reads and writes beside a backup take, and how fast an archived log is replayed.

    bench/backup.py [BINARY] [--gigabytes N] [--folder DIR] [--reads N] [--writes N] [--replay OPERATIONS]

With --gigabytes 0 only the replay is measured.

Data directory, backups and restored data are in DIR (the temporary directory); the disk they are on is what is
measured, so it should be the one that is asked about. Beside a backup, documents are read by _id and others inserted at
a steady rate; the times are shown with and without a backup.
"""

import argparse, multiprocessing, os, random, resource, shutil, socket, struct, subprocess, sys, tempfile, time
from pathlib import Path

import bson
import pymongo
from bson.int64 import Int64

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/golden"))
from run import launch

p = argparse.ArgumentParser()
p.add_argument("binary", nargs="?", default=str(ROOT / "build/release/mayflyd"))
p.add_argument("--gigabytes", type=float, default=1.0)
p.add_argument("--folder")
p.add_argument("--reads", type=int, default=20_000, help="a second, beside a backup")
p.add_argument("--writes", type=int, default=5_000)
p.add_argument("--replay", type=int, default=1_000_000)
args = p.parse_args()
work = os.path.realpath(tempfile.mkdtemp(prefix="mayfly-bench-backup-", dir=args.folder))
SIZE, BATCH = 1000, 1000
DOCUMENTS = int(args.gigabytes * (1 << 30) / SIZE) // BATCH * BATCH
rnd = random.Random(4711)


def percentile(times, part):
    times = sorted(times)
    return times[min(len(times) - 1, int(len(times) * part))] * 1e6 if times else float("nan")


def message(document):
    """A request as the wire has it."""
    body = b"\0\0\0\0\0" + bson.encode(document)
    return struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body


def paced(port, writes, rate, ended, out):
    """Requests at a steady rate, a burst each millisecond on one connection, and how long after its time the last reply
    of each burst came: when the server is late, so are the bursts behind it."""
    each = max(1, rate // 1000)
    find = lambda k: {"find": "docs", "filter": {"_id": k}, "limit": 1, "singleBatch": True, "$db": "app"}
    if writes:
        # One message for all; the last eight bytes but one are the _id.
        document = {"pad": "x" * 200, "_id": Int64(0)}
        insert = bytearray(message({"insert": "beside", "$db": "app", "documents": [document]}))
        at, n = len(insert) - 11, time.monotonic_ns()
    else:
        ready = [b"".join(message(find(rnd.randrange(DOCUMENTS))) for _ in range(each)) for _ in range(2000)]
    s = socket.create_connection(("127.0.0.1", port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times, had = [], bytearray()
    due = time.monotonic()
    while not ended.is_set():
        due += each / rate
        ahead = due - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)  # sleeps: a steady rate
        if writes:
            burst = b""
            for _ in range(each):
                n += 1
                struct.pack_into("<q", insert, at, n)
                burst += insert
        else:
            burst = ready[rnd.randrange(len(ready))]
        s.sendall(burst)
        left = each
        while left:
            had += s.recv(1 << 20)
            while left and len(had) >= 4 and len(had) >= (size := struct.unpack_from("<i", had)[0]):
                del had[:size]
                left -= 1
        times.append(time.monotonic() - due)
    out.put((writes, each, times))


class Beside:
    """Reads and writes at a steady rate, each by a process of its own."""

    def __init__(self, port):
        self.ended, self.out = multiprocessing.Event(), multiprocessing.Queue()
        self.workers = [
            multiprocessing.Process(target=paced, args=(port, writes, rate, self.ended, self.out))
            for writes, rate in ((False, args.reads), (True, args.writes))
        ]

    def __enter__(self):
        for w in self.workers:
            w.start()
        self.began = time.monotonic()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.seconds = time.monotonic() - self.began
        self.got = [self.out.get() for _ in self.workers]
        for w in self.workers:
            w.join()

    def show(self, what):
        for writes, each, times in sorted(self.got):
            p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
            name = "writes" if writes else "reads"
            print(f"  {what}: {len(times) * each / self.seconds:,.0f} {name}/s, p50 {p50:.0f} us, p99 {p99:.0f} us")


def server(data):
    proc, port = launch(args.binary, ["--dbpath", data, "--quiet"], data + ".log")
    return proc, port, pymongo.MongoClient("127.0.0.1", port, directConnection=True)


def made(what, r):
    seconds = r["durationMillis"] / 1000
    print(
        f"{what}: {r['bytes'] / 1e6:.0f} MB in {r['files']} files,"
        f" copied {r['bytesCopied'] / 1e6:.0f} MB in {seconds:.2f} s"
        f" ({r['bytesCopied'] / 1e6 / max(seconds, 1e-3):.0f} MB/s)",
        flush=True,
    )
    return seconds


def restored(*options):
    """Seconds and seconds of processor time of a restore into a new directory."""
    shutil.rmtree(f"{work}/restored", ignore_errors=True)
    cpu = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    began, used = time.monotonic(), cpu()
    subprocess.run(
        [args.binary, "--restore", *options, "--dbpath", f"{work}/restored", "--logpath", f"{work}/restore.log"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - began, cpu() - used


def replay():
    """A set of one whose log is archived: inserts, updates, deletes and expiry behind its backup are brought in."""
    archive = f"{work}/archive"
    os.mkdir(archive)
    options = ["--dbpath", f"{work}/member", "--quiet", "--replSet", "rs0", "--logArchivePath", archive]
    proc, port = launch(args.binary, [*options, "--setParameter", "logArchiveSegmentSecs=1"], f"{work}/member.log")
    try:
        client = pymongo.MongoClient("127.0.0.1", port, directConnection=True)
        client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{port}"}]})
        while not client.admin.command("hello").get("isWritablePrimary"):
            time.sleep(0.05)  # until it leads
        client.admin.command("backup", 1, path=f"{work}/base")
        done, c = 0, client.app.replayed
        while done < args.replay:
            c.insert_many([{"_id": done + i, "n": i, "pad": "x" * 100} for i in range(BATCH)])
            c.update_many({"_id": {"$gte": done, "$lt": done + BATCH // 2}}, {"$inc": {"n": 1}})
            c.delete_many({"_id": {"$gte": done, "$lt": done + BATCH // 10}})
            done += BATCH + BATCH // 2 + BATCH // 10
        status = lambda: client.admin.command("serverStatus")["logArchive"]
        while status()["waitingEntries"]:
            time.sleep(0.1)  # until all is archived
        size = status()["bytes"]
        left = c.count_documents({})
    finally:
        proc.terminate()
        proc.wait()
    base, base_cpu = restored(f"{work}/base")
    seconds, cpu = restored(f"{work}/base", "--archive", archive)
    proc, port, client = server(f"{work}/restored")
    assert client.app.replayed.count_documents({}) == left
    proc.terminate()
    proc.wait()
    print(
        f"replay: {done} operations, {size / 1e6:.0f} MB, in {seconds - base:.2f} s"
        f" ({done / (seconds - base):,.0f}/s), {1e6 * (cpu - base_cpu) / done:.1f} us of processor time for each;"
        f" without it {base:.2f} s, {base_cpu:.2f} s of processor time"
    )


def backups():
    global proc
    proc, port, client = server(f"{work}/data")
    pad = [rnd.randbytes(SIZE - 60) for _ in range(BATCH)]
    for first in range(0, DOCUMENTS, BATCH):
        client.app.docs.insert_many(
            [
                {"_id": first + i, "n": rnd.random(), "pad": pad[i][: SIZE - 90] + rnd.randbytes(30)}
                for i in range(BATCH)
            ],
            ordered=False,
        )
    client.app.docs.create_index("n")
    client.admin.command("fsync", 1)
    backup = lambda **more: client.admin.command("backup", 1, path=f"{work}/backups", **more)
    full = made("full", backup())
    made("again, unchanged", backup())
    # 1 %: new documents, as most changes of a log-structured store are new files.
    for first in range(DOCUMENTS, DOCUMENTS + DOCUMENTS // 100, BATCH):
        client.app.docs.insert_many([{"_id": first + i, "n": rnd.random(), "pad": pad[i]} for i in range(BATCH)])
    changed = made("incremental, 1 % new", backup())
    print(f"  of the time of the full one: {100 * changed / full:.1f} %")
    with Beside(port):
        time.sleep(5)  # compactions of what was loaded end
    with Beside(port) as alone:
        time.sleep(10)  # measures for so long
    alone.show("no backup")
    with Beside(port) as beside:
        r = backup(incremental=False)
    beside.show("beside a full backup")
    made("full, beside reads and writes", r)
    client.close()
    proc.terminate()
    proc.wait()
    seconds, cpu = restored(f"{work}/backups")
    size = sum(f.stat().st_size for f in Path(f"{work}/restored").iterdir())
    print(
        f"restore: {size / 1e6:.0f} MB in {seconds:.2f} s ({size / 1e6 / seconds:.0f} MB/s),"
        f" {cpu:.2f} s of processor time ({size / 1e6 / cpu:.0f} MB/s)",
        flush=True,
    )


try:
    if DOCUMENTS:
        backups()
    if args.replay:
        replay()
finally:
    if "proc" in globals() and proc.poll() is None:
        proc.kill()
    shutil.rmtree(work, ignore_errors=True)
