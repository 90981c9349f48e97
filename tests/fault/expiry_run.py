#!/usr/bin/env python3
"""kill -9 while documents expire, move their deadlines, are recovered, and tombstones are purged: afterwards each
document that was acknowledged is in exactly one place, in the collection or on record as expired, and indexes,
deadlines and counters agree.

MAYFLY_EXPIRY_ROUNDS (20) rounds on one data directory; MAYFLY_SEED replays the random choices.
"""

import os, tempfile, time

import bson

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

ROUNDS = int(os.environ.get("MAYFLY_EXPIRY_ROUNDS", "20"))
# Nothing is removed until what a kill has left behind has been looked at.
RESTING = ("--setParameter", "ttlMonitorEnabled=false")
check = Checks(quiet=True)


def now():
    return int(time.time() * 1000)


class Writer(UntilGone):
    """Inserts documents that expire within a moment, by their own deadline or by the TTL index, and moves the deadlines
    of some."""

    def __init__(self, n, seed):
        super().__init__(proc.port, seed)
        self.n, self.known, self.next = n, [], 0

    def step(self, c):
        r = self.rnd
        ids = [f"{round_no}-{self.n}-{self.next + i}" for i in range(r.choice([1, 20, 100]))]
        self.next += len(ids)
        at = bson.DatetimeMS(now() + r.randrange(60))
        if r.random() < 0.5:
            cmd = {
                "insert": "docs",
                "documents": [{"_id": i, "u": i, "t": [i, "x"]} for i in ids],
                "expireAt": at,
            }
        else:
            cmd = {"insert": "docs", "documents": [{"_id": i, "u": i, "t": [i, "x"], "at": at} for i in ids]}
        reply = c.command("kill", cmd)
        if reply["ok"] == 1 and reply["n"] == len(ids):
            self.known += ids
            self.acknowledged += 1
        if r.random() < 0.3:
            c.command(
                "kill", {"touch": "docs", "q": {"_id": {"$in": ids}}, "expireAfterSeconds": 1, "multi": True}
            )
        if r.random() < 0.2:
            c.command("kill", {"ttlRecover": "docs", "q": {"_id": {"$in": ids}}, "expireAfterSeconds": 1})
        if r.random() < 0.05:
            c.command(
                "kill", {"collMod": "docs", "index": {"name": "at", "expireAfterSeconds": r.randrange(2)}}
            )


def rows(c, cmd):
    reply = c.command("kill", cmd)
    assert reply["ok"] == 1, reply
    out = reply["cursor"]["firstBatch"]
    while reply["cursor"]["id"]:
        reply = c.command("kill", {"getMore": reply["cursor"]["id"], "collection": "docs", "batchSize": 100_000})
        out += reply["cursor"]["nextBatch"]
    return out


def tombstones(began, limit=1_000_000):
    """What is on record as expired since a round began."""
    pipeline = [{"$tombstones": {"since": bson.DatetimeMS(began - 1000)}}, {"$limit": limit}]
    return rows(client, {"aggregate": "docs", "pipeline": pipeline, "cursor": {"batchSize": 100_000}})


data = tempfile.mkdtemp(prefix="mayfly-expiry-kill-") + "/data"
proc, client = start(data, *RESTING)
client.command("kill", {"create": "docs"})
client.command(
    "kill",
    {
        "createIndexes": "docs",
        "indexes": [
            {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 0, "expireReads": "exact"},
            {"key": {"t": 1}, "name": "t"},
            {"key": {"u": 1}, "name": "u", "unique": True},
        ],
    },
)
written = expired = 0
for round_no in range(ROUNDS):
    began = now()
    client.command("admin", {"setParameter": 1, "ttlMonitorEnabled": True})
    client.command("kill", {"collMod": "docs", "expiry": {"recoverSeconds": rnd.randrange(2)}})
    writers = [Writer(n, rnd.randrange(1 << 30)) for n in range(3)]
    for w in writers:
        w.start()
    wait_for_load(writers)
    if round_no % 2 == 0:  # otherwise it may hit the very first that expires
        wait_for(lambda: tombstones(began, 1))
    random_moment(0, 0.5)
    kill(proc)
    for w in writers:
        w.join()
    proc, client = start(data, *RESTING)
    stored = {
        d["_id"]
        for d in rows(client, {"find": "docs", "batchSize": 100_000, "includeExpired": True, "projection": {"_id": 1}})
    }
    gone = tombstones(began)
    names = {d["id"] for d in gone}
    known = {i for w in writers for i in w.known}
    written, expired = written + len(known), expired + len(gone)
    check(
        known <= stored | names, f"round {round_no}: {len(known - stored - names)} acknowledged documents are nowhere"
    )
    check(not stored & names, f"round {round_no}: {len(stored & names)} documents are stored and on record as gone")
    check(
        len(names) == len(gone) and all(d["reason"] == "expired" for d in gone),
        f"round {round_no}: a document went twice, or for another reason",
    )
    v = client.command("kill", {"validate": "docs", "full": True})
    check(v.get("valid") is True and v.get("nrecords") == len(stored), f"round {round_no}: validate: {str(v)[:2000]}")
    seen = len(rows(client, {"find": "docs", "batchSize": 100_000, "projection": {"_id": 1}}))
    check(
        seen >= client.command("kill", {"count": "docs"})["n"],
        f"round {round_no}: count shows more than find did before it",
    )
    if round_no % 4 == 3:
        client.command("admin", {"setParameter": 1, "metadataPurgeIntervalSecs": rnd.choice([1, 259_200])})
# In the end all of them go.
client.command("kill", {"collMod": "docs", "expiry": {"recoverSeconds": 0}})
client.command("admin", {"setParameter": 1, "ttlMonitorEnabled": True})
left = lambda: client.command("kill", {"find": "docs", "includeExpired": True, "limit": 1})["cursor"]["firstBatch"]
check(expired > 0, "nothing had expired before a kill")
check(until(lambda: not left()), "documents were left")
check(client.command("kill", {"validate": "docs"})["nrecords"] == 0, "records are left")
check(stop(proc) == 0, "clean stop")
discard(os.path.dirname(data))
print(f"kill -9 during expiry: {ROUNDS} rounds, {written} documents, {expired} expired before the kill, seed {SEED}")
check.end("expiry kill")
