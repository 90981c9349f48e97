#!/usr/bin/env python3
"""Retryable writes of a driver while primaries die: every value is there exactly once.

Three members on this machine. A client inserts values and increments a counter; now and then the primary is killed
(kill -9) and started again once another one leads. Every write must succeed, by the driver's own retry, and be there
once.
"""

import os, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
import pymongo
from fault_test import Checks, Deadline
from topologies import ReplicaSet, until

WRITES = int(os.environ.get("MAYFLY_FAILOVER_WRITES", "300"))
KILLS = int(os.environ.get("MAYFLY_FAILOVER_KILLS", "3"))


def main():
    servers = ReplicaSet(3)
    check, dead = Checks(), None
    try:
        client = pymongo.MongoClient(servers.uri, serverSelectionTimeoutMS=Deadline().millis, heartbeatFrequencyMS=500)
        coll = client.failover.values
        coll.insert_one({"_id": "sum", "n": 0})
        every = WRITES // (KILLS + 1)
        for i in range(WRITES):
            if i and i % every == 0 and i // every <= KILLS:
                if dead:
                    servers.restart(dead)
                    until("the restarted member to follow", lambda: servers.state(dead) in ("primary", "secondary"))
                dead = servers.primary()
                servers.kill(dead)
            coll.insert_one({"v": i})
            coll.update_one({"_id": "sum"}, {"$inc": {"n": 1}})
            coll.find_one_and_update({"v": i}, {"$set": {"seen": True}}, return_document=True)
        got = sorted(d["v"] for d in coll.find({"v": {"$exists": True}}))
        rounds = f"{KILLS} primaries killed in {WRITES} rounds"
        check(got == list(range(WRITES)), f"every value once: {rounds}")
        check(coll.find_one({"_id": "sum"})["n"] == WRITES, f"every increment once: {rounds}")
        check(coll.count_documents({"seen": True}) == WRITES, f"every document found: {rounds}")
        client.close()
        if dead:
            servers.restart(dead)
    finally:
        clean = servers.stop()
    check(clean, "a clean stop")
    check.end("failover")


if __name__ == "__main__":
    main()
