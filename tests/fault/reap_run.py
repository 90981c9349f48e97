#!/usr/bin/env python3
"""kill -9 while documents are reaped and archived: afterwards each is in exactly one place, indexes agree, counters are
right.

MAYFLY_REAP_KILL_ROUNDS (12) rounds on one data directory; MAYFLY_SEED replays the random choices. What is due is so by
the hour, so nothing here depends on how fast the machine is.
"""

import datetime, os, tempfile

from fault_test import SEED, Checks, discard, kill, random_moment, rnd, start, stop, wait_for

ROUNDS = int(os.environ.get("MAYFLY_REAP_KILL_ROUNDS", "12"))
REAPING, RESTING = ("--setParameter", "ttlMonitorEnabled=true"), ("--setParameter", "ttlMonitorEnabled=false")
check = Checks(quiet=True)
NOW = datetime.datetime.now(datetime.timezone.utc)
DUE, LATER = NOW - datetime.timedelta(hours=1), NOW + datetime.timedelta(days=1)


def ids(c, coll):
    out, reply = [], c.command("kill", {"find": coll, "projection": {"_id": 1}, "batchSize": 100000})
    while True:
        cur = reply["cursor"]
        out += [d["_id"] for d in cur.get("firstBatch", cur.get("nextBatch"))]
        if not cur["id"]:
            return out
        reply = c.command("kill", {"getMore": cur["id"], "collection": coll, "batchSize": 100000})


data = tempfile.mkdtemp(prefix="mayfly-reap-kill-") + "/data"
proc, c = start(data, *RESTING)
c.command("kill", {"create": "old"})
c.command("kill", {"createIndexes": "old", "indexes": [{"key": {"u": 1}, "name": "u"}]})
for coll, options in (
    ("moved", {"onExpire": {"action": "archive", "into": {"db": "kill", "coll": "old"}}}),
    ("gone", {}),
):
    c.command("kill", {"create": coll, **options})
    c.command(
        "kill",
        {
            "createIndexes": coll,
            "indexes": [
                {"key": {"t": 1}, "name": "t", "expireAfterSeconds": 0},
                {"key": {"u": 1}, "name": "u", "unique": True},
            ],
        },
    )
next_id, due, kept, seen_in_the_middle, span = 0, set(), set(), 0, 0.06
for round_no in range(ROUNDS):
    for _ in range(3):
        docs = []
        for _ in range(1000):
            at_once = rnd.random() < 0.8
            (due if at_once else kept).add(next_id)
            docs.append(
                {"_id": next_id, "t": DUE if at_once else LATER, "u": f"u{next_id}", "x": "x" * rnd.randrange(200)}
            )
            next_id += 1
        for coll in ("moved", "gone"):
            reply = c.command("kill", {"insert": coll, "documents": docs})
            assert reply["ok"] == 1 and reply["n"] == 1000, reply
    kill(proc)
    proc, c = start(data, *REAPING)
    random_moment(0, span)
    kill(proc)
    proc, c = start(data, *RESTING)
    moved, old, gone = ids(c, "moved"), ids(c, "old"), ids(c, "gone")
    left = len(set(moved) & due)
    seen_in_the_middle += 0 < left < len(due)
    # How fast the machine is shows in the rounds before.
    span = min(span * 2, 5) if left == len(due) else span / 2 if left == 0 else span
    check(sorted(moved + old) == list(range(next_id)), f"round {round_no}: a document is lost or in two places")
    check(set(old) <= due and kept <= set(moved), f"round {round_no}: one that is not due was archived")
    check(len(gone) == len(set(gone)) and kept <= set(gone), f"round {round_no}: one that is not due is gone")
    for coll, there in (("moved", moved), ("old", old), ("gone", gone)):
        n = c.command("kill", {"count": coll})["n"]
        check(n == len(there), f"round {round_no}: {coll} counts {n}, has {len(there)}")
        v = c.command("kill", {"validate": coll, "full": True})
        check(v.get("valid") is True, f"round {round_no}: validate {coll}: {str(v)[:2000]}")
# What is left goes in the end, all of it.
kill(proc)
proc, c = start(data, *REAPING)
count = lambda coll: c.command("kill", {"count": coll})["n"]
wait_for(lambda: count("moved") + count("gone") <= 2 * len(kept))
check(
    set(ids(c, "moved")) == kept and set(ids(c, "gone")) == kept and set(ids(c, "old")) == due,
    "not everything due has gone",
)
check(seen_in_the_middle > 0, "no kill came while documents were moved")
check(stop(proc) == 0, "clean stop")
discard(os.path.dirname(data))
print(f"reap and kill -9: {ROUNDS} rounds, {next_id} documents, {seen_in_the_middle} kills in the middle, seed {SEED}")
check.end("reap")
