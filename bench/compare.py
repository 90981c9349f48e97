#!/usr/bin/env python3
"""What a change of the server costs or saves: instructions of the same operations on two binaries, side by side, by
callgrind. The machine may be busy.

    bench/compare.py BEFORE AFTER [--rounds N] [--only TEXT]   a table; TEXT: rows, as a regular expression
    bench/compare.py BEFORE AFTER --apart TEXT [--lines N]      the functions whose own instructions differ most
    -- OPTION…                                                 behind all of it: options of both servers

A count is that of the whole process in user space, with all threads, over a number of equal operations once warm; start
and load are not counted. The least of three such counts is taken, since what the server does beside them at times, such
as a compaction, only adds. What is read was compacted and is in the cache; what is written gathers in memtables. Each
round starts both servers anew, with other seeds and addresses; shown are the medians and, as noise, the largest
distance of a round from its median.
"""

import os
import random
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/fault"), str(ROOT / "tests/golden")]
from counted import Counted, annotated

DOCUMENTS, BATCH = 20_000, 1000
TEXT = (
    "The quick brown mayfly dances over the quiet stream for the one evening that it has, and then is gone "
    "without leaving any trace behind it."
)
# Under callgrind everything takes fifty times as long: what looks at a clock is told so.
SLOW = "--slowms", "1000000", "--setParameter", "shortReadSliceMicros=100000"


def document(i):
    return {"_id": i, "a": i % 1000, "b": i, "text": TEXT, "n": 0}


class Rows:
    """The operations, and how many of them are counted at once."""

    def __init__(self):
        self.draw, self.inserted, self.deleted = random.Random(42), 0, 0
        find = lambda f, **o: {"find": "read", "filter": f, **o}
        once = {"limit": 1, "singleBatch": True}
        span = lambda v, n: {"$gte": v, "$lt": v + n}
        group = {"$group": {"_id": "$a", "total": {"$sum": "$b"}}}
        self.rows = {
            "ping": (lambda: {"ping": 1}, 500),
            "find by `_id`": (lambda: find({"_id": self.any()}, **once), 500),
            "find by secondary index": (lambda: find({"b": self.any()}), 500),
            "range of 100 by `_id`": (lambda: find({"_id": span(self.any(100), 100)}, batchSize=101), 100),
            "range of 100 by secondary index": (lambda: find({"b": span(self.any(100), 100)}, batchSize=101), 100),
            "count by index (200)": (lambda: {"count": "read", "query": {"b": span(self.any(200), 200)}}, 100),
            "`$group` of 2000 documents": (
                lambda: {"aggregate": "read", "pipeline": [{"$match": {"_id": span(self.any(2000), 2000)}}, group],
                         "cursor": {"batchSize": 10_000}},
                5,
            ),
            "a filter on 2000 documents": (
                lambda: {"count": "read", "query": {"_id": span(self.any(2000), 2000), "n": -1}},
                5,
            ),
            "updateOne `$inc` by `_id`": (
                lambda: {"update": "read", "updates": [{"q": {"_id": self.any()}, "u": {"$inc": {"n": 1}}}]},
                500,
            ),
            "insertOne, two indexes": (lambda: self.insert("ins", 1), 500),
            "insertOne, two indexes, `j: true`": (
                lambda: self.insert("ins", 1) | {"writeConcern": {"w": 1, "j": True}},
                500,
            ),
            "insertMany(1000), no index": (lambda: self.insert("many", BATCH), 5),
            "deleteOne by `_id`": (self.delete, 500),
        }  # fmt: skip

    def any(self, room=1):
        return self.draw.randrange(DOCUMENTS - room + 1)

    def insert(self, collection, n):
        self.inserted += n
        return {"insert": collection, "documents": [document(i) for i in range(self.inserted - n, self.inserted)]}

    def delete(self):
        self.deleted += 1
        return {"delete": "read", "deletes": [{"q": {"_id": self.deleted - 1}, "limit": 1}]}


class Side:
    """One of the two servers, with its own copy of the rows, so that both are asked the same."""

    def __init__(self, binary, options):
        self.server, self.rows = Counted(binary, *SLOW, *options), Rows()
        for name in ("read", "ins"):
            indexes = [{"key": {k: 1}, "name": k} for k in ("a", "b")]
            self.ask({"createIndexes": name, "indexes": indexes})
        for at in range(0, DOCUMENTS, BATCH):
            self.ask({"insert": "read", "documents": [document(i) for i in range(at, at + BATCH)]})
        self.ask({"compact": "read"})  # else the store would do so beside the operations
        for query in ({"n": -1}, {"a": {"$gte": 0}}, {"b": {"$gte": 0}}):
            self.ask({"count": "read", "query": query})

    def ask(self, command):
        reply = self.server.nobody.command("shop", command)
        assert reply["ok"] == 1 and not reply.get("writeErrors"), reply

    def times(self, row, n):
        """A function that runs a row so often."""
        make = self.rows.rows[row][0]

        def act():
            for _ in range(n):
                self.ask(make())

        return act

    def each(self, row):
        """Instructions of one operation."""
        n = self.rows.rows[row][1]
        self.times(row, n // 2)()
        return min(self.server.instructions(self.times(row, n)) for _ in range(3)) / n

    def functions(self, row):
        """{function: its own instructions in one operation}."""
        n = self.rows.rows[row][1]
        self.times(row, n // 2)()
        out = {}
        for p in self.server.counted(self.times(row, n)):
            for value, what in annotated(p, inclusive=False):
                # File and object are left out: they moved; so are addresses of labels and suffixes of clones.
                name = re.sub(r"^\S+?:(?=\S)| \[.*\]$|'\d+|\[abi:\w+\]|\[clone .*?\]", "", what).strip()
                out[name] = out.get(name, 0) + value / n
            p.unlink()
        return out


def table(binaries, options, rounds, only):
    counts = {}
    for _ in range(rounds):
        sides = [Side(b, options) for b in binaries]
        for row in sides[0].rows.rows:
            if re.search(only, row):
                counts.setdefault(row, []).append([s.each(row) for s in sides])
                print(f"{row}: {' '.join(f'{n:,.0f}' for n in counts[row][-1])}", file=sys.stderr, flush=True)
        for s in sides:
            s.server.end()
    print("| operation | before | after | % | noise, % |\n| --- | ---: | ---: | ---: | ---: |")
    for row, pairs in counts.items():
        middle = [sorted(x)[len(x) // 2] for x in zip(*pairs)]
        noise = max(abs(x / m - 1) * 100 for pair in pairs for x, m in zip(pair, middle))
        before, after = middle
        print(f"| {row} | {before:,.0f} | {after:,.0f} | {(after / before - 1) * 100:+.1f} | {noise:.1f} |", flush=True)


def apart(binaries, options, only, lines):
    sides = [Side(b, options) for b in binaries]
    for row in [r for r in sides[0].rows.rows if re.search(only, r)]:
        before, after = [s.functions(row) for s in sides]
        print(f"\n{row}: {before['PROGRAM TOTALS']:,.0f} -> {after['PROGRAM TOTALS']:,.0f}")
        change = {f: after.get(f, 0) - before.get(f, 0) for f in before.keys() | after.keys()}
        for f in sorted(change, key=lambda f: -abs(change[f]))[:lines]:
            print(f"{change[f]:+10.1f} {before.get(f, 0):10.1f} {after.get(f, 0):10.1f}  {f[:160]}")
    for s in sides:
        s.server.end()


def main():
    args, options = sys.argv[1:], []
    if "--" in args:
        at = args.index("--")
        args, options = args[:at], args[at + 1 :]
    value = lambda name, otherwise: args[args.index(name) + 1] if name in args else otherwise
    binaries = args[:2]
    if len(binaries) < 2 or not all(os.access(b, os.X_OK) for b in binaries):
        sys.exit(__doc__)
    if "--apart" in args:
        apart(binaries, options, value("--apart", ""), int(value("--lines", "40")))
    else:
        table(binaries, options, int(value("--rounds", "3")), value("--only", ""))


main()
