#!/usr/bin/env python3
"""Kills and pauses members of a set of three under load, again and again (MAYFLY_FAULT_ROUNDS, 6), and looks
afterwards:

  - every acknowledged write is there, and none is there that was refused;
  - no document that had expired is seen again;
  - all members hold the same (dbHash: documents, indexes, deadlines).

The last line says "N passed, N failed".
"""

import os

from fault_test import SEED, rnd
from load import Watcher, Writers, verdict
from replica_set import Checks, ReplicaSet

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "6"))
FAULTS = ["kill all", "kill primary", "pause primary", "kill secondary"]  # the worst first: a short run has no others


def main():
    print(f"seed {SEED}")
    check = Checks()

    s = ReplicaSet()
    try:
        s.initiate()
        p = s.primary()
        p.patient.test.short.create_index("at", expireAfterSeconds=0)
        p.patient.test.kept.create_index("n")
        writers, watcher = Writers(s.uri), Watcher(s.uri)
        for r in range(ROUNDS):
            writers.go_on(s, 300)  # load between the faults
            primary = s.primary()
            fault = FAULTS[r % len(FAULTS)]
            print(f"     round {r}: {fault}", flush=True)
            if fault == "kill all":
                for m in s.members:
                    m.kill()
                victims = s.members
            else:
                victims = [primary] if "primary" in fault else [rnd.choice([m for m in s.members if m is not primary])]
                victims[0].pause() if "pause" in fault else victims[0].kill()
                s.wait(
                    lambda: any(
                        m.running() and m not in victims and m.hello().get("isWritablePrimary") for m in s.members
                    ),
                    "a primary among those that are left",
                )
                writers.go_on(s, 50)
            for m in victims:
                m.resume() if "pause" in fault else m.start()
            for m in victims:
                m.wait_up()
            s.in_place()
        writers.go_on(s, 300)
        watcher.finish(s)
        writers.finish()
        verdict(s, check, [writers], [watcher], f"{ROUNDS} faults")
    finally:
        s.close()
    check.end("replica set faults")


if __name__ == "__main__":
    main()
