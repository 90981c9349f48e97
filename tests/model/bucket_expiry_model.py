#!/usr/bin/env python3
"""Expiry of a time series against a model: random points, deletes, changes of meta values, of rules, holds, pauses,
archives, $out over itself, dates that suspend expiry, and moves of the clock, between which buckets are merged.

    tests/model/bucket_expiry_model.py [--steps 3000] [--seed N] [--binary build/release/mayflyd]

Buckets of the collection begin at full minutes, so that a point's date says when its bucket goes. The seed is printed;
the same seed takes the same steps.
"""

import argparse, collections, os, random, sys
from pathlib import Path

import bson
from bson.int64 import Int64

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from run import ROOT, Server
from said import Said

ARGS = argparse.ArgumentParser()
ARGS.add_argument("--steps", type=int, default=3000)
ARGS.add_argument("--seed", type=int, default=os.environ.get("MAYFLY_SEED"))
ARGS.add_argument("--binary", default=os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd")))

START = 1_893_456_000_000  # 2030-01-01
SPAN = 60_000
SUSPENDS = -1000  # a date before 1970
Point = collections.namedtuple("Point", "id t a v")


class Model:
    """s: the time series; o and long: where its buckets may go."""

    def __init__(self):
        self.now, self.points = START, []
        self.archived = {"o": [], "long": []}
        self.seconds, self.short, self.archive = 120, None, None
        self.suspended = self.paused = False
        self.exact = False  # ttlReadFilter, for rules that do not say otherwise
        self.says = self.short_says = None  # expireReads of the collection, and of the index
        self.holds = {}  # id: value of a

    def due(self, p):
        """Whether the bucket of the point is due: by the collection's rule, or by the index for those with a = 2."""
        end = p.t - p.t % SPAN + SPAN
        lives = [self.seconds, self.short if p.a == 2 else None]
        return any(s is not None and end + s * 1000 <= self.now for s in lives)

    def settle(self):
        if self.suspended or self.paused:
            return
        gone = [p for p in self.points if self.due(p) and p.a not in self.holds.values()]
        if self.archive:
            self.archived[self.archive] += gone
        went = set(gone)
        self.points = [p for p in self.points if p not in went]

    def hides(self, says):
        return says == "exact" or (says is None and self.exact)

    def visible(self):
        """With exact reads a point is hidden at its own deadline."""
        if self.suspended or self.paused or self.holds:
            return self.points
        least = self.now - self.seconds * 1000 if self.seconds is not None and self.hides(self.says) else -1
        shorter = self.now - self.short * 1000 if self.short is not None and self.hides(self.short_says) else -1
        return [p for p in self.points if p.t > least and (p.a != 2 or p.t > shorter)]


class Run(Said):
    def __init__(self, server, seed):
        self.client, self.rng, self.m = server.client, random.Random(seed), Model()
        self.next, self.log = 0, collections.deque(maxlen=12)
        self.admin({"setParameter": 1, "timeSeriesSealIdleSecs": 0})
        self.admin({"clock": {"freeze": True}})
        self.admin({"clock": {"set": bson.datetime_ms.DatetimeMS(START)}})
        shape = {"timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 60, "bucketRoundingSeconds": 60}
        self.ok({"create": "s", "timeseries": shape, "expireAfterSeconds": 120})
        self.ok({"create": "long", "timeseries": shape})
        self.ok({"create": "o"})

    def send(self, cmd, db="model"):
        self.log.append(str(cmd)[:300])
        return self.client.command(db, cmd)

    # --- what a step can be ---

    def insert(self):
        m, r = self.m, self.rng
        made = []
        for _ in range(r.choice([1, 1, 5, 40])):
            t = m.now + r.randint(-200, 60) * 1000 + r.randrange(1000)
            # Points need no _id of their own.
            i = self.next if r.random() < 0.9 else r.randrange(self.next + 1)
            made.append(Point(i, t, r.randrange(4), r.random()))
            self.next += 1
        if r.random() < 0.02:
            made[-1] = made[-1]._replace(t=SUSPENDS)
            m.suspended = True
        docs = [{"_id": p.id, "t": date(p.t), "m": {"a": p.a}, "v": p.v} for p in made]
        self.same("insert", len(made), self.ok({"insert": "s", "documents": docs})["n"])
        m.points += made

    def remove(self):
        m, r = self.m, self.rng
        how, a, v, to = r.randrange(4), r.randrange(4), r.random(), m.now - 100_000
        if how == 0:
            q, fits = {"m.a": a}, lambda p: p.a == a
        elif how == 1:
            q, fits = {"v": {"$gt": 0.95}}, lambda p: p.v > 0.95
        elif how == 2:
            q, fits = {"t": {"$lt": date(to)}, "m.a": a}, lambda p: p.t < to and p.a == a
        else:
            q, fits = {"m.a": a, "v": {"$lt": v / 4}}, lambda p: p.a == a and p.v < v / 4
        # What a reader does not see is not removed either.
        went = {p for p in m.visible() if fits(p)}
        self.same("delete", len(went), self.ok({"delete": "s", "deletes": [{"q": q, "limit": 0}]})["n"])
        m.points = [p for p in m.points if p not in went]

    def update(self):
        m, r = self.m, self.rng
        # Hidden points come along with others of their bucket, and which those are is not known here.
        self.show_all()
        a, to = r.randrange(4), r.randrange(4)
        change = {"q": {"m.a": a}, "u": {"$set": {"m.a": to}}, "multi": True}
        found = sum(p.a == a for p in m.points)
        self.same("update", found, self.ok({"update": "s", "updates": [change]})["n"])
        m.points = [p._replace(a=to) if p.a == a else p for p in m.points]

    def rule(self):
        m, r = self.m, self.rng
        m.seconds = r.choice([None, 0, 60, 120, 120, 300])
        self.ok({"collMod": "s", "expireAfterSeconds": "off" if m.seconds is None else m.seconds})
        m.suspended = m.suspended and any(p.t < 0 for p in m.points)

    def shorter(self):
        m, r = self.m, self.rng
        if m.short is not None:
            m.short = None
            self.ok({"dropIndexes": "s", "index": "short"})
            return
        m.short = r.choice([0, 20, 90])
        index = {"key": {"t": 1}, "name": "short", "expireAfterSeconds": m.short}
        index["partialFilterExpression"] = {"m.a": 2}
        m.short_says = r.choice([None, None, "exact", "lazy"])
        if m.short_says:
            index["expireReads"] = m.short_says
        self.ok({"createIndexes": "s", "indexes": [index]})

    def hold(self):
        m, r = self.m, self.rng
        if m.holds:
            held = r.choice(list(m.holds))
            self.ok({"ttlHoldRelease": "s", "holdId": held})
            del m.holds[held]
        else:
            a = r.randrange(4)
            m.holds[self.ok({"ttlHold": "s", "filter": {"m.a": a}})["holdId"]] = a

    def pause(self):
        self.ok({"ttlResume" if self.m.paused else "ttlPause": "s"})
        self.m.paused = not self.m.paused

    def into(self):
        m = self.m
        m.archive = self.rng.choice([None, "o", "long"])
        to = {"action": "archive", "into": {"db": "model", "coll": m.archive}} if m.archive else {"action": "delete"}
        self.ok({"collMod": "s", "onExpire": to})

    def out(self):
        m = self.m
        least = self.rng.choice([0, 0, 0.1])
        stages = [{"$match": {"v": {"$gte": least}}}, {"$out": "s"}]
        self.ok({"aggregate": "s", "pipeline": stages, "cursor": {}})
        m.points = [p for p in m.visible() if p.v >= least]

    def reads(self):
        kind = self.rng.randrange(4)
        if kind < 2:
            self.by_default(not self.m.exact)
        elif kind == 2:
            self.say(self.rng.choice(["exact", "lazy"]))
        elif self.m.short is not None:
            self.say_short(self.rng.choice(["exact", "lazy"]))

    def by_default(self, exact):
        self.m.exact = exact
        self.admin({"setParameter": 1, "ttlReadFilter": exact})

    def say(self, reads):
        self.m.says = reads
        self.ok({"collMod": "s", "expireReads": reads})

    def say_short(self, reads):
        self.m.short_says = reads
        self.ok({"collMod": "s", "index": {"name": "short", "expireReads": reads}})

    def show_all(self):
        self.by_default(False)
        if self.m.says == "exact":
            self.say("lazy")
        if self.m.short is not None and self.m.short_says == "exact":
            self.say_short("lazy")

    def advance(self, ms=None):
        if ms is None:
            ms = self.rng.choice([0, 999, 1000, 10_000, 30_000, 60_000])
        self.m.now += ms
        self.admin({"clock": {"advanceMillis": Int64(ms)}})
        self.m.settle()

    # --- what is compared ---

    def rows(self, cmd):
        return self.ok(cmd)["cursor"]["firstBatch"]

    def compare(self):
        m, r = self.m, self.rng
        v = m.visible()
        self.same("points", key(v), read(self.rows({"find": "s", "batchSize": 100_000})))
        self.same("count", len(v), self.ok({"count": "s"})["n"])
        a = r.randrange(4)
        self.same("by meta", sum(p.a == a for p in v), self.ok({"count": "s", "query": {"m.a": a}})["n"])
        low, high = sorted(m.now + r.randint(-250, 60) * 1000 for _ in range(2))
        span = {"t": {"$gte": date(low), "$lt": date(high)}}
        want = [p for p in v if low <= p.t < high]
        self.same("by time", key(want), read(self.rows({"find": "s", "filter": span, "batchSize": 100_000})))
        group = [{"$group": {"_id": "$m.a", "n": {"$sum": 1}, "most": {"$max": "$v"}}}]
        want = {a: (sum(p.a == a for p in v), max(p.v for p in v if p.a == a)) for a in {p.a for p in v}}
        got = self.rows({"aggregate": "s", "pipeline": group, "cursor": {}})
        self.same("$group", want, {d["_id"]: (d["n"], d["most"]) for d in got})
        # Which _id a point has in a collection of documents is left to who comes first.
        got = read(self.rows({"find": "o", "batchSize": 1_000_000}))
        self.same("archived points", sorted(p[1:] for p in key(m.archived["o"])), sorted(p[1:] for p in got))
        got = read(self.rows({"find": "long", "batchSize": 1_000_000}))
        self.same("archived buckets", key(m.archived["long"]), got)
        status = self.ok({"ttlStatus": "s"})["rules"]
        want = "suspended" if m.suspended else "paused" if m.paused else "active"
        states = {rule["state"] for rule in status}
        self.same("ttlStatus", {want} if m.seconds is not None or m.short is not None else set(), states)

    def step(self, n):
        ops = [self.insert, self.remove, self.update, self.rule, self.shorter, self.hold, self.pause, self.into]
        ops += [self.out, self.reads, self.advance]
        op = self.rng.choices(ops, [30, 6, 4, 4, 3, 4, 3, 4, 3, 3, 36])[0]
        # What is due goes before and after, so that it does not matter when the reaper comes.
        self.advance(0)
        op()
        self.advance(0)
        try:
            self.compare()
        except AssertionError as e:
            last = "\n  ".join(self.log)
            raise AssertionError(f"after {op.__name__}: {e}\nlast commands:\n  {last}") from None
        if n % 200 == 0:
            for c in ["s", "o", "long"]:
                r = self.ok({"validate": c, "full": True})
                assert r["valid"], f"validate {c}: {r}"
            for c in ["o", "long"]:
                self.ok({"delete": c, "deletes": [{"q": {}, "limit": 0}]})
                self.m.archived[c] = []


def date(millis):
    return bson.datetime_ms.DatetimeMS(millis)


def ms(v):
    return round(v.timestamp() * 1000) if hasattr(v, "timestamp") else int(v)


def key(points):
    return sorted((p.id, p.t, p.a, p.v) for p in points)


def read(docs):
    numbers = ((d["_id"] if isinstance(d["_id"], int) else -1, ms(d["t"]), d["m"]["a"], d["v"]) for d in docs)
    return sorted(numbers)


def main():
    args = ARGS.parse_args()
    seed = args.seed if args.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}, {args.steps} steps", flush=True)
    server = Server(args.binary)
    run, failed, n = Run(server, seed), 0, 0
    try:
        for n in range(1, args.steps + 1):
            run.step(n)
    except AssertionError as e:
        failed = 1
        print(f"FAIL at step {n} of seed {seed}, {run.m.now - START} ms later:\n{e}")
    if not server.stop():
        failed = 1
    print(f"bucket expiry model: {1 - failed} passed, {failed} failed")
    sys.exit(failed)


if __name__ == "__main__":
    main()
