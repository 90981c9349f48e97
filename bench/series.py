#!/usr/bin/env python3
"""What queries of a time series cost beside the same queries of an ordinary collection with the same points.

    bench/series.py [--points 1000000] [--batch 10000]

100 hosts, ten fields, a point every 10 seconds; the ordinary collection has an index on the host and the time. Each
question is asked until a second has passed, of buckets that are sealed; the processor time of the server for one answer
is shown, with the ratio.
MAYFLYD names another binary.
"""

import argparse, os, random, shutil, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fault"))
from fault_test import start, stop

import bson

ARGS = argparse.ArgumentParser()
ARGS.add_argument("--points", type=int, default=1_000_000)
ARGS.add_argument("--batch", type=int, default=10_000)
HOSTS, BEGIN = 100, 1_900_000_000_000
work = tempfile.mkdtemp(prefix="mayfly-bench-series-")
FIELDS = [f"usage_{name}" for name in "user system idle nice iowait irq softirq steal guest guest_nice".split()]


def date(millis):
    return bson.datetime_ms.DatetimeMS(millis)


def points(n, r):
    """Host by host in pieces of an hour, as agents send them."""
    values = [[r.uniform(0, 100) for _ in FIELDS] for _ in range(HOSTS)]
    made, hour = 0, 0
    while made < n:
        for host in range(HOSTS):
            for step in range(360):
                v = values[host]
                for i in range(len(v)):
                    v[i] = min(100.0, max(0.0, v[i] + r.gauss(0, 1)))
                d = {"_id": made, "at": date(BEGIN + (hour * 360 + step) * 10_000), "host": f"host_{host}"}
                d.update((name, round(x, 2)) for name, x in zip(FIELDS, v))
                yield d
                made += 1
                if made == n:
                    return
        hour += 1


class Server:
    def __init__(self):
        self.proc, self.client = start(work + "/db")

    def command(self, doc):
        reply = self.client.command("bench", doc)
        if reply["ok"] != 1 or reply.get("writeErrors"):
            raise AssertionError(str(reply)[:300])
        return reply

    def cpu(self):
        """Seconds of processor time so far."""
        with open(f"/proc/{self.proc.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(server, ask):
    """Milliseconds of processor time and of waiting, of one answer."""
    ask()
    times, cpu, began = 0, server.cpu(), time.monotonic()
    while time.monotonic() - began < 1 or times < 3:
        ask()
        times += 1
    return (server.cpu() - cpu) * 1000 / times, (time.monotonic() - began) * 1000 / times


def settle(server):
    """Until nothing is merged any more."""
    server.client.command("admin", {"setParameter": 1, "timeSeriesSealIdleSecs": 0})
    before, still, cpu = None, 0, server.cpu()
    while still < 5:
        count = server.command({"collStats": "series"})["timeseries"]["bucketCount"]
        before, still = count, still + 1 if count == before else 0
        time.sleep(0.5)
    print(f"{before} buckets, {(server.cpu() - cpu) * 1000:.0f} ms to seal them", flush=True)


def main():
    args = ARGS.parse_args()
    server = Server()
    try:
        server.command({"create": "plain"})
        server.command({"createIndexes": "plain", "indexes": [{"key": {"host": 1, "at": 1}, "name": "host_at"}]})
        server.command({"create": "series", "timeseries": {"timeField": "at", "metaField": "host"}})
        spent = {"plain": 0.0, "series": 0.0}
        batch, r = [], random.Random(1)
        last = 0

        def flush():
            for name in spent:
                cpu = server.cpu()
                server.command({"insert": name, "documents": batch, "ordered": False})
                spent[name] += server.cpu() - cpu
            batch.clear()

        for d in points(args.points, r):
            batch.append(d)
            last = max(last, int(d["at"]))
            if len(batch) == args.batch:
                flush()
        if batch:
            flush()
        settle(server)
        middle = BEGIN + (last - BEGIN) // 2
        hour = {"$gte": date(middle), "$lt": date(middle + 3_600_000)}
        minutes = {"$gte": date(middle), "$lt": date(middle + 300_000)}
        whole = {"singleBatch": True, "batchSize": 1_000_000}
        roll = [
            {"$group": {"_id": {"h": "$host", "t": {"$dateTrunc": {"date": "$at", "unit": "hour"}}},
                        "avg": {"$avg": "$usage_user"}}},
            {"$count": "n"},
        ]
        last_of = [
            {"$sort": {"host": 1, "at": -1}},
            {"$group": {"_id": "$host", "at": {"$first": "$at"}, "v": {"$first": "$usage_user"}}},
        ]
        counts = [{"$group": {"_id": "$host", "n": {"$sum": 1}, "most": {"$max": "$usage_user"}}}]
        first = [{"$sort": {"at": -1}}, {"$limit": 100}]

        def aggregate(name, pipeline):
            return lambda: server.command({"aggregate": name, "pipeline": pipeline, "cursor": {}})

        questions = {
            "an hour of one host": lambda n: lambda: server.command(
                {"find": n, "filter": {"host": "host_7", "at": hour}, **whole}
            ),
            "five minutes of one host": lambda n: lambda: server.command(
                {"find": n, "filter": {"host": "host_7", "at": minutes}, **whole}
            ),
            "five minutes of one host, one field": lambda n: lambda: server.command(
                {
                    "find": n,
                    "filter": {"host": "host_7", "at": minutes},
                    "projection": {"usage_user": 1, "_id": 0},
                    **whole,
                }
            ),
            "last point of each host": lambda n: aggregate(n, last_of),
            "hourly means by host": lambda n: aggregate(n, roll),
            "count and greatest by host": lambda n: aggregate(n, counts),
            "the newest 100 points of one host": lambda n: aggregate(n, [{"$match": {"host": "host_7"}}] + first),
        }
        print(f"| {args.points} points, ms of processor time (of waiting) | ordinary | time series | ratio |")
        print("| --- | --- | --- | --- |")
        print(f"| insert, microseconds a point | {spent['plain'] * 1e6 / args.points:.2f} "
              f"| {spent['series'] * 1e6 / args.points:.2f} | {spent['plain'] / spent['series']:.1f} |")
        for what, ask in questions.items():
            plain, series = cost(server, ask("plain")), cost(server, ask("series"))
            ratio = plain[0] / max(series[0], 0.001)
            row = f"| {what} | {plain[0]:.2f} ({plain[1]:.1f}) | {series[0]:.2f} ({series[1]:.1f}) | {ratio:.1f} |"
            print(row, flush=True)
    finally:
        stop(server.proc)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
