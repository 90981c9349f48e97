#!/usr/bin/env python3
"""kill -9 under inserts, deletes and updates of a time series, while its buckets are merged: each acknowledged point is
there once, in one bucket, and cursors see each once. Under $out over another time series: it is the old or the new one.

MAYFLY_KILL_ROUNDS (20) rounds on one data directory that grows; MAYFLY_SEED replays the random choices.
"""

import collections, datetime, os, tempfile

from fault_test import (
    SEED,
    Checks,
    UntilGone,
    discard,
    kill,
    random_moment,
    rnd,
    start,
    stop,
    until,
    wait_for,
    wait_for_load,
)

# Merged at once, so that a kill meets it.
OPTIONS = ["--setParameter", "timeSeriesSealIdleSecs=0"]
ROUNDS = int(os.environ.get("MAYFLY_KILL_ROUNDS", "20"))
BEGIN = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
check = Checks(quiet=True)


class Writer(UntilGone):
    """Points of its own (the _id says whose), whose numbers go up. After a kill, what was in flight may be either."""

    def __init__(self, port, model, seed):
        super().__init__(port, seed)
        self.model = model

    def step(self, c):
        r, m = self.rnd, self.model
        wc = {"writeConcern": {"w": 1, "j": r.random() < 0.1}}
        kind = r.random()
        if kind < 0.85 or not m["known"]:
            ids = [f"{m['n']}-{m['next'] + i}" for i in range(r.choice([1, 1, 7, 200]))]
            m["next"] += len(ids)
            m["unsure"].update(ids)
            docs = [
                {
                    "_id": i,
                    "t": BEGIN + datetime.timedelta(seconds=r.randrange(20_000)),
                    "m": {"w": m["n"], "h": r.randrange(5)},
                    "v": r.random(),
                }
                for i in ids
            ]
            reply = c.command("kill", {"insert": "points", "documents": docs, **wc})
            if reply["ok"] == 1 and reply["n"] == len(ids):
                m["known"].update(ids)
                m["unsure"].difference_update(ids)
        elif kind < 0.95:
            gone = r.sample(sorted(m["known"]), min(3, len(m["known"])))
            m["known"].difference_update(gone)
            m["unsure"].update(gone)
            q = {"_id": {"$in": gone}, "m.w": m["n"]}
            reply = c.command("kill", {"delete": "points", "deletes": [{"q": q, "limit": 0}], **wc})
            if reply["ok"] == 1 and reply["n"] == len(gone):
                m["gone"].update(gone)
                m["unsure"].difference_update(gone)
        else:
            change = {"q": {"m.w": m["n"], "m.h": 2}, "u": {"$inc": {"m.changes": 1}}, "multi": True}
            c.command("kill", {"update": "points", "updates": [change], **wc})
        self.acknowledged += 1


class Reader(UntilGone):
    """Goes over the points in small batches meanwhile: what was there at its beginning comes once, nothing twice."""

    def __init__(self, port, models):
        super().__init__(port)
        self.models, self.rounds, self.twice, self.missed = models, 0, 0, 0

    def all_of(self, *names):
        return set().union(*(m[name].copy() for m in self.models for name in names))

    def step(self, c):
        known = self.all_of("known")
        seen, reply = collections.Counter(), c.command("kill", {"find": "points", "batchSize": 100})
        while reply["ok"] == 1:
            cur = reply["cursor"]
            seen.update(d["_id"] for d in cur.get("firstBatch", cur.get("nextBatch")))
            if not cur["id"]:
                self.rounds += 1
                self.twice += sum(n > 1 for n in seen.values())
                self.missed += len(known - seen.keys() - self.all_of("unsure", "gone"))
                break
            reply = c.command("kill", {"getMore": cur["id"], "collection": "points", "batchSize": 100})


COPIED = 700


class Replacer(UntilGone):
    """Replaces one time series as a whole again and again: each time all of its points have a higher number."""

    def __init__(self, port, begin_at):
        super().__init__(port)
        self.done, self.number, self.acknowledged = 0, begin_at, begin_at

    def step(self, c):
        self.number += 1
        stages = [
            {"$set": {"number": self.number}},
            {"$out": {"db": "kill", "coll": "copied", "timeseries": {"timeField": "t", "metaField": "m"}}},
        ]
        reply = c.command("kill", {"aggregate": "source", "pipeline": stages, "cursor": {}})
        if reply["ok"] == 1:
            self.acknowledged = self.number
            self.done += 1


def check_copied(client, replacer, what):
    """One whole set of points, no older than the last that was acknowledged; the number they have."""
    there = read_all(client, "copied", {"number": 1})
    numbers = {d["number"] for d in there}
    whole = len(there) == COPIED and len(numbers) == 1
    check(whole or (not there and replacer.acknowledged == 0), f"{what}: {len(there)} points of {sorted(numbers)}")
    number = min(numbers, default=0)
    check(number >= replacer.acknowledged, f"{what}: points of {number}, {replacer.acknowledged} was acknowledged")
    return number


def read_all(c, collection, projection):
    out, reply = [], c.command("kill", {"find": collection, "projection": projection, "batchSize": 100000})
    while True:
        cur = reply["cursor"]
        out += cur.get("firstBatch", cur.get("nextBatch"))
        if not cur["id"]:
            return out
        reply = c.command("kill", {"getMore": cur["id"], "collection": collection, "batchSize": 100000})


data = tempfile.mkdtemp(prefix="mayfly-series-") + "/data"
models = [{"n": n, "known": set(), "unsure": set(), "gone": set(), "next": 0} for n in range(3)]
proc, client = start(data, *OPTIONS)
made = client.command("kill", {"create": "points", "timeseries": {"timeField": "t", "metaField": "m"}})
check(made["ok"] == 1, f"create: {made}")
acknowledged = rounds_read = merged = replaced = copy = 0
source = [
    {"_id": i, "t": BEGIN + datetime.timedelta(seconds=i * 40), "m": i % 3, "text": "x" * (i % 50)}
    for i in range(COPIED)
]
made = client.command("kill", {"insert": "source", "documents": source})
check(made["ok"] == 1, f"insert: {made}")
for round_no in range(ROUNDS):
    writers = [Writer(proc.port, m, rnd.randrange(1 << 30)) for m in models]
    reader = Reader(proc.port, models)
    replacer = Replacer(proc.port, copy)
    for w in [*writers, reader, replacer]:
        w.start()
    wait_for_load(writers)
    random_moment(0, 0.3)
    if round_no == ROUNDS - 1:  # on a slow machine no round before may have come so far
        wait_for(lambda: rounds_read + reader.rounds > 0 and replaced + replacer.done > 0, 60)
    kill(proc)
    reader.join()
    replacer.join()
    replaced += replacer.done
    check(
        reader.twice == reader.missed == 0,
        f"round {round_no}: a cursor saw {reader.twice} twice and missed {reader.missed}",
    )
    rounds_read += reader.rounds
    for w in writers:
        w.join()
        acknowledged += w.acknowledged
    proc, client = start(data, *OPTIONS)
    copy = check_copied(client, replacer, f"round {round_no}")
    there = collections.Counter(d["_id"] for d in read_all(client, "points", {"_id": 1}))
    twice = [i for i, n in there.items() if n > 1]
    lost = back = 0
    for m in models:
        lost += sum(i not in there for i in m["known"])
        back += sum(i in there for i in m["gone"])
        m["known"].update(i for i in m["unsure"] if i in there)
        m["unsure"].clear()
        m["gone"].clear()
    check(
        lost == back == 0 and not twice,
        f"round {round_no}: {lost} lost, {len(twice)} twice, {back} came back after a delete",
    )
    n = client.command("kill", {"count": "points"})["n"]
    check(n == len(there), f"round {round_no}: count says {n}, there are {len(there)}")
    merged += client.command("kill", {"collStats": "points"})["timeseries"]["numBucketsMerged"]
    if round_no % 5 == 4 or round_no == ROUNDS - 1:
        v = client.command("kill", {"validate": "points", "full": True})
        check(v.get("valid") is True, f"round {round_no}: validate: {str(v)[:2000]}")
names = [c["name"] for c in client.command("kill", {"listCollections": 1})["cursor"]["firstBatch"]]
expected = ["copied", "points", "source", "system.buckets.copied", "system.buckets.points", "system.views"]
check(sorted(names) == expected, f"collections: {names}")
check(client.command("kill", {"validate": "copied", "full": True}).get("valid") is True, "validate of the copy")


def left_over():
    """Meta values and spans with more small buckets than merges leave, and the points of each: the search after a start
    is to find them. Large ones (512 points) are not merged any more."""
    small = {"$match": {"control.count": {"$lt": 512}}}
    of_one = {"_id": {"m": "$meta", "t": "$control.min.t"}, "n": {"$sum": 1}, "points": {"$push": "$control.count"}}
    pipeline = [small, {"$group": of_one}, {"$match": {"n": {"$gt": 6}}}]
    return client.command("kill", {"aggregate": "system.buckets.points", "pipeline": pipeline, "cursor": {}})["cursor"][
        "firstBatch"
    ]


check(until(lambda: not left_over(), 60), f"not merged after the last start: {left_over()}")
after = collections.Counter(d["_id"] for d in read_all(client, "points", {"_id": 1}))
check(after == there, f"{len(there)} points before the last merges, {sum(after.values())} after")
merged += client.command("kill", {"collStats": "points"})["timeseries"]["numBucketsMerged"]
check(merged > 0, "nothing was merged")
check(rounds_read > 0, "no cursor came to its end")
check(replaced > 0, "nothing was replaced")
check(stop(proc) == 0, "clean stop")
discard(os.path.dirname(data))
print(
    f"time series: {ROUNDS} rounds, {acknowledged} acknowledged commands, {merged} buckets merged, "
    f"{rounds_read} cursors read, {replaced} times replaced, seed {SEED}"
)
check.end("time series")
