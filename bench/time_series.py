#!/usr/bin/env python3
"""Time series against an ordinary collection of the same points: bytes on disk, inserts, roll-up, last points.

    bench/time_series.py [--points N] [--hosts N] [--batch N] [--values whole|decimal|random] [--meta host|tags]

The points are like those of TSBS's cpu measurements: 100 hosts, each with ten fields every ten seconds, random walks
from 0 to 100 (whole: int64, as TSBS sends them; decimal: doubles of two digits; random: doubles of all bits). `tags` is
TSBS's ten tags of a host as the meta value, `host` its name alone. Each collection has a server and a directory of its
own. MAYFLYD names another binary.
"""

import argparse, os, random, shutil, socket, struct, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fault"))
from fault_test import start, stop

import bson

parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int, default=1_000_000)
parser.add_argument("--hosts", type=int, default=100)
parser.add_argument("--batch", type=int, default=1000)
parser.add_argument("--values", choices=["whole", "decimal", "random"], default="whole")
parser.add_argument("--meta", choices=["host", "tags"], default="tags")
args = parser.parse_args()
BEGIN = 1_893_456_000_000  # 2030-01-01
FIELDS = ["user", "system", "idle", "nice", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"]
rnd = random.Random(7)


def meta(host):
    if args.meta == "host":
        return f"host_{host}"
    return {
        "hostname": f"host_{host}",
        "region": rnd.choice(["eu-west-1", "us-east-1", "ap-south-1"]),
        "datacenter": rnd.choice(["a", "b", "c"]),
        "rack": str(rnd.randrange(100)),
        "os": rnd.choice(["Ubuntu16.10", "Ubuntu15.10"]),
        "arch": rnd.choice(["x64", "x86"]),
        "team": rnd.choice(["SF", "NYC", "LON", "CHI"]),
        "service": str(rnd.randrange(20)),
        "service_version": str(rnd.randrange(2)),
        "service_environment": rnd.choice(["production", "staging", "test"]),
    }


class Points:
    """OP_MSGs of inserts, made beforehand: a point is the host's template with time, _id and values put in."""

    def __init__(self):
        self.format = "<q" if args.values == "whole" else "<d"
        number = 1 if args.values == "whole" else 1.5
        self.templates, self.places = [], []
        for host in range(args.hosts):
            doc = {"_id": bson.ObjectId(b"_" * 12), "t": bson.datetime.datetime(2000, 1, 1), "m": meta(host)}
            doc.update({f"usage_{f}": bson.Int64(1) if number == 1 else number for f in FIELDS})
            raw = bytearray(bson.encode(doc))
            names = [b"\x07_id\0", b"\x09t\0"] + [
                (b"\x12" if number == 1 else b"\x01") + f"usage_{f}\0".encode() for f in FIELDS
            ]
            self.templates.append(raw)
            self.places.append([raw.index(n) + len(n) for n in names])
        self.state = [[rnd.uniform(0, 100) for _ in FIELDS] for _ in range(args.hosts)]
        self.made = 0

    def point(self):
        host, tick = self.made % args.hosts, self.made // args.hosts
        raw, places, state = self.templates[host], self.places[host], self.state[host]
        raw[places[0] : places[0] + 12] = struct.pack(">IQ", 1_893_456_000 + tick * 10, self.made)
        struct.pack_into("<q", raw, places[1], BEGIN + tick * 10_000)
        for i, at in enumerate(places[2:]):
            v = state[i] = min(100.0, max(0.0, state[i] + rnd.gauss(0, 1)))
            shown = int(v) if args.values == "whole" else round(v, 2) if args.values == "decimal" else v
            struct.pack_into(self.format, raw, at, shown)
        self.made += 1
        return bytes(raw)

    def message(self, n):
        docs = b"".join(self.point() for _ in range(n))
        command = bson.encode({"insert": "cpu", "ordered": False, "$db": "bench"})
        section = b"documents\0" + docs
        body = struct.pack("<I", 0) + b"\0" + command + b"\1" + struct.pack("<I", len(section) + 4) + section
        return struct.pack("<iiii", len(body) + 16, 1, 0, 2013) + body


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def receive(s, n):
    out = b""
    while len(out) < n:
        part = s.recv(n - len(out))
        assert part, "the server has gone"
        out += part
    return out


def directory_bytes(path):
    return sum(f.stat().st_size for f in Path(path).rglob("*") if f.is_file())


class Side:
    def __init__(self, name, work, create):
        self.name, self.data = name, f"{work}/{name}"
        self.proc, self.client = start(self.data)
        self.command({"create": "cpu", **create})
        self.empty = directory_bytes(self.data)
        self.socket = socket.create_connection(("127.0.0.1", self.proc.port))
        self.seconds = self.cpu = 0.0

    def command(self, doc, db="bench"):
        reply = self.client.command(db, doc)
        assert reply["ok"] == 1 and not reply.get("writeErrors"), str(reply)[:300]
        return reply

    def insert(self, messages, n):
        began, cpu = time.monotonic(), cpu_seconds(self.proc.pid)
        # Two at a time, as two clients would.
        for i, m in enumerate(messages):
            self.socket.sendall(m)
            if i > 0:
                self.answer()
        self.answer()
        self.seconds += time.monotonic() - began
        self.cpu += cpu_seconds(self.proc.pid) - cpu

    def answer(self):
        size = struct.unpack("<i", receive(self.socket, 4))[0]
        reply = bson.decode(receive(self.socket, size - 4)[17:])
        assert reply["ok"] == 1 and reply["n"] == args.batch and not reply.get("writeErrors"), str(reply)[:300]

    def settle(self):
        """Until nothing is sealed any more, and compacted. Seconds of CPU that it took."""
        cpu, before, still = cpu_seconds(self.proc.pid), None, 0
        self.command({"setParameter": 1, "timeSeriesSealIdleSecs": 0}, "admin")
        while still < 5 and self.name == "series":
            stats = self.command({"collStats": "cpu"})["timeseries"]
            still = still + 1 if stats["bucketCount"] == before else 0
            before = stats["bucketCount"]
            time.sleep(1)
        self.command({"compact": "system.buckets.cpu" if self.name == "series" else "cpu"})
        return cpu_seconds(self.proc.pid) - cpu

    def timed(self, pipeline, runs=3):
        best = None
        for _ in range(runs):
            began = time.monotonic()
            reply = self.command({"aggregate": "cpu", "cursor": {"batchSize": 100_000}, "pipeline": pipeline})
            n = len(reply["cursor"]["firstBatch"])
            best = min(best or 1e9, time.monotonic() - began)
        return best, n


work = tempfile.mkdtemp(prefix="mayfly-bench-series-")
sides = [
    Side("ordinary", work, {}),
    Side("series", work, {"timeseries": {"timeField": "t", "metaField": "m"}}),
]
try:
    points = Points()
    raw = 0
    while points.made < args.points:
        messages = [points.message(args.batch) for _ in range(50)]
        raw += sum(map(len, messages))
        for side in sides:
            side.insert(messages, args.batch)
    n = points.made
    host = "m" if args.meta == "host" else "m.hostname"
    rollup = [
        {"$group": {"_id": {"h": f"${host}", "t": {"$dateTrunc": {"date": "$t", "unit": "hour"}}},
                    "avg": {"$avg": "$usage_user"}}}
    ]
    last = [{"$sort": {host: 1, "t": -1}}, {"$group": {"_id": f"${host}", "t": {"$first": "$t"}}}]
    print(f"{n} points of {raw / n:.0f} bytes, {args.hosts} hosts, batches of {args.batch}, {args.values}, {args.meta}")
    print("| | points/s | CPU us/point | sealing, CPU us/point | bytes/point on disk | roll-up s | last points s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    sizes = []
    for side in sides:
        sealing = side.settle()
        rolled, last_points = side.timed(rollup), side.timed(last, 1)
        count = side.command({"count": "cpu"})["n"]
        assert count == n, f"{count} of {n} points"
        if side.name == "series":
            stats = side.command({"collStats": "cpu"})["timeseries"]
        stop(side.proc)
        side.proc, side.client = start(side.data)  # what was in the log goes into files
        side.command({"compact": "system.buckets.cpu" if side.name == "series" else "cpu"})
        stop(side.proc)
        sizes.append((directory_bytes(side.data) - side.empty) / n)
        print(
            f"| {side.name} | {n / side.seconds:.0f} | {side.cpu / n * 1e6:.2f} | {sealing / n * 1e6:.2f} "
            f"| {sizes[-1]:.1f} | {rolled[0]:.2f} | {last_points[0]:.2f} |",
            flush=True,
        )
    print(f"bytes: 1/{sizes[0] / sizes[1]:.1f} of the ordinary collection's; {stats}")
finally:
    shutil.rmtree(work, ignore_errors=True)
