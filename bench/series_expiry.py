#!/usr/bin/env python3
"""A large time series, and how it goes: inserts, many open buckets, and all points due at once while others read.

    bench/series_expiry.py [--points 10000000] [--metas 100000]

100 hosts send ten fields every ten seconds, an hour of a host at a time; the values of an hour come again. Then points
of `--metas` meta values, one each, three times: buckets that are all open. In the end `expireAfterSeconds` makes
everything due, and a client asks for single points of another time series as fast as it gets answers. Times are of the
wall, and of the server's processor, which a busy machine does not change. MAYFLYD names another binary.
"""

import argparse, os, random, shutil, struct, sys, tempfile, threading, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fault"))
from fault_test import Client, start, stop

import bson

ARGS = argparse.ArgumentParser()
ARGS.add_argument("--points", type=int, default=10_000_000)
ARGS.add_argument("--metas", type=int, default=100_000)
args = ARGS.parse_args()
FIELDS = [f"usage_{n}" for n in "user system idle nice iowait irq softirq steal guest guest_nice".split()]
HOSTS, TICKS, BATCH = 100, 360, 10
BEGIN = 1_577_836_800_000  # 2020-01-01: long past
rnd = random.Random(7)


class Server:
    def __init__(self, folder):
        self.proc, self.client = start(folder)
        self.pid = self.proc.pid

    def command(self, doc, db="bench"):
        reply = self.client.command(db, doc)
        assert reply["ok"] == 1 and not reply.get("writeErrors"), str(reply)[:300]
        return reply

    def cpu(self):
        with open(f"/proc/{self.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self):
        with open(f"/proc/{self.pid}/status") as f:
            return int(next(line for line in f if line.startswith("VmRSS")).split()[1]) / 1024


def message(collection, docs):
    command = bson.encode({"insert": collection, "ordered": False, "$db": "bench"})
    section = b"documents\0" + docs
    body = struct.pack("<I", 0) + b"\0" + command + b"\1" + struct.pack("<I", len(section) + 4) + section
    return bytearray(struct.pack("<iiii", len(body) + 16, 1, 0, 2013) + body)


def places(m, name):
    """Where the values of this field are in a message."""
    out, at = [], m.find(name)
    while at >= 0:
        out.append(at + len(name))
        at = m.find(name, at + 1)
    return out


def hour():
    """The messages of one hour, and where their times and ids are."""
    out = []
    for first in range(0, HOSTS, BATCH):
        docs = []
        for host in range(first, first + BATCH):
            v = [rnd.uniform(0, 100) for _ in FIELDS]
            for tick in range(TICKS):
                v = [min(100.0, max(0.0, x + rnd.gauss(0, 1))) for x in v]
                d = {"_id": bson.ObjectId(b"_" * 12), "t": bson.datetime_ms.DatetimeMS(BEGIN + tick * 10_000)}
                d["m"] = f"host_{host}"
                d.update((name, round(x, 2)) for name, x in zip(FIELDS, v))
                docs.append(bson.encode(d))
        m = message("cpu", b"".join(docs))
        out.append((m, places(m, b"\x09t\0"), places(m, b"\x07_id\0")))
        assert len(out[-1][1]) == len(out[-1][2]) == BATCH * TICKS, "a value looks like a name"
    return out


def receive(s):
    size = struct.unpack("<i", s.recv(4))[0] - 4
    out = b""
    while len(out) < size:
        out += s.recv(size - len(out))
    reply = bson.decode(out[17:])
    assert reply["ok"] == 1 and not reply.get("writeErrors"), str(reply)[:300]


def load(server, socket):
    messages, made, number = hour(), 0, 0
    began, cpu, spent = time.monotonic(), server.cpu(), 0.0
    while made < args.points:
        for m, times, ids in messages:
            own = time.monotonic()
            for i, at in enumerate(times):
                struct.pack_into("<q", m, at, BEGIN + number * 3_600_000 + i % TICKS * 10_000)
            for at in ids:
                made += 1
                struct.pack_into(">IQ", m, at, 1_577_836_800 + number * 3600, made)
            spent += time.monotonic() - own
            socket.sendall(m)
            receive(socket)
        number += 1
    wall = time.monotonic() - began - spent
    used = server.cpu() - cpu
    print(f"{made} points: {made / wall / 1e3:.0f} thousand/s, {used / made * 1e6:.2f} us of processor time each, "
          f"sealing that came meanwhile with it; {server.megabytes():.0f} MB", flush=True)
    return made


def settle(server):
    """Until nothing is merged any more."""
    server.command({"setParameter": 1, "timeSeriesSealIdleSecs": 0}, "admin")
    cpu, before, still = server.cpu(), None, 0
    while still < 5:
        count = server.command({"collStats": "cpu"})["timeseries"]["bucketCount"]
        before, still = count, still + 1 if count == before else 0
        time.sleep(1)  # sleeps: looks again
    print(f"{before} buckets, {server.cpu() - cpu:.1f} s of processor time to merge the rest", flush=True)
    server.command({"setParameter": 1, "timeSeriesSealIdleSecs": 20}, "admin")


def open_buckets(server):
    before = server.megabytes()
    server.command({"create": "many", "timeseries": {"timeField": "t", "metaField": "m"}})
    for turn in range(3):
        cpu, began = server.cpu(), time.monotonic()
        for first in range(0, args.metas, 1000):
            at = bson.datetime_ms.DatetimeMS(BEGIN + turn * 10_000)
            docs = [{"t": at, "m": {"sensor": i, "room": "cellar"}, "v": i * 0.5} for i in range(first, first + 1000)]
            server.command({"insert": "many", "documents": docs, "ordered": False})
        each = (server.cpu() - cpu) / args.metas * 1e6
        print(f"{args.metas} meta values, point {turn + 1} of each: {each:.1f} us of processor time each, "
              f"{server.megabytes() - before:.0f} MB more than before", flush=True)


class Reader(threading.Thread):
    def __init__(self, port):
        super().__init__()
        self.port, self.end, self.millis = port, threading.Event(), []

    def run(self):
        c = Client("127.0.0.1", self.port)
        while not self.end.is_set():
            began = time.monotonic()
            r = c.command("bench", {"find": "other", "filter": {"m": rnd.randrange(100)}, "limit": 1})
            assert r["ok"] == 1
            self.millis.append((time.monotonic() - began) * 1000)

    def show(self):
        self.end.set()
        self.join()
        m = sorted(self.millis)
        return ", ".join(f"p{p} {m[int(len(m) * p / 100)]:.2f}" for p in (50, 95, 99)) + f" ms of {len(m)} finds"


def expire(server, points):
    now = bson.datetime_ms.DatetimeMS(int(time.time() * 1000))
    server.command({"create": "other", "timeseries": {"timeField": "t", "metaField": "m"}})
    server.command({"insert": "other", "documents": [{"t": now, "m": i, "v": i} for i in range(100)]})
    server.command({"setParameter": 1, "ttlGuardAction": "off"}, "admin")
    server.command({"setParameter": 1, "timeSeriesSealing": False}, "admin")
    idle = Reader(server.proc.port)
    idle.start()
    time.sleep(3)  # sleeps: finds of a quiet server
    print(f"before: {idle.show()}", flush=True)
    buckets = server.command({"collStats": "cpu"})["timeseries"]["bucketCount"]

    def gone():
        """As cheap a question as there is: a count would look at what is due."""
        return server.command({"serverStatus": 1}, "admin")["metrics"]["ttl"]["deletedDocuments"]

    removed = gone()
    reader = Reader(server.proc.port)
    reader.start()
    began, cpu = time.monotonic(), server.cpu()
    server.command({"collMod": "cpu", "expireAfterSeconds": 3600})
    while gone() - removed < buckets:
        time.sleep(0.02)  # sleeps: looks again
    wall, used, finds = time.monotonic() - began, server.cpu() - cpu, len(reader.millis)
    print(f"expiry of {points} points: {points / wall / 1e6:.1f} million/s, {used:.2f} s of processor time with "
          f"{finds} finds: {points / used / 1e6:.1f} million a second of it; meanwhile {reader.show()}", flush=True)


work = tempfile.mkdtemp(prefix="mayfly-bench-expiry-")
server = Server(work + "/db")
try:
    server.command({"create": "cpu", "timeseries": {"timeField": "t", "metaField": "m"}})
    made = load(server, Client("127.0.0.1", server.proc.port).sock)
    settle(server)
    open_buckets(server)
    expire(server, made)
finally:
    stop(server.proc)
    shutil.rmtree(work, ignore_errors=True)
