#!/usr/bin/env python3
"""Members that the log does not reach take a copy of the data, whatever happens on the way.

  - a standalone server with data becomes the first member; empty members are added and get everything;
  - the joiner, then the donor, is killed (kill -9) while data is copied: it goes on;
  - MAYFLY_SYNC_LONG=1: a member is away until more has been written than the log keeps (990 MB), and copies everything
    again by itself.

Afterwards all members hold the same (dbHash). The last line says "N passed, N failed". MAYFLY_SYNC_MB (64): data to
copy.
"""

import os, subprocess, time

import replica_set
from fault_test import random_moment, rnd
from replica_set import Checks, Member, ReplicaSet

MEGABYTES = int(os.environ.get("MAYFLY_SYNC_MB", "64"))
LONG = os.environ.get("MAYFLY_SYNC_LONG") == "1"
check = Checks()


def fill(coll, megabytes, start=0, size=10_000):
    for i in range(megabytes):
        coll.insert_many(
            [{"_id": start + i * 100 + n, "n": n, "bytes": rnd.randbytes(size)} for n in range(1_000_000 // size)]
        )


def new_member(s):
    m = Member(f"{s.folder}/{len(s.members)}")
    m.start()
    m.wait_up()
    s.members.append(m)
    return m


def follows(s, member, what):
    s.wait(lambda: member.hello().get("secondary"), what, 120)


def main():
    s = ReplicaSet(0)
    try:
        first = Member(f"{s.folder}/0")
        os.makedirs(first.folder)
        with open(f"{first.folder}/log", "ab") as log:
            first.proc = subprocess.Popen(
                [replica_set.BINARY, "--port", str(first.port), "--dbpath", f"{first.folder}/data", "--nounixsocket"],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        first.wait_up()
        first.client.test.kept.create_index("n")
        fill(first.client.test.kept, MEGABYTES)
        first.stop()
        first.start()
        first.wait_up()
        s.members.append(first)
        first.client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": first.host}]})
        s.wait(lambda: first.hello()["isWritablePrimary"], "the first member to lead")
        check(
            first.client.test.kept.estimated_document_count() == MEGABYTES * 100,
            "a standalone's data is there in a set",
        )

        second = new_member(s)
        began = time.monotonic()
        s.add(second)
        follows(s, second, "the second member to follow")
        check(True, f"an empty member has {MEGABYTES} MB and follows after {time.monotonic() - began:.1f} s")

        third = new_member(s)
        s.add(third)
        for _ in range(4):
            random_moment(0.02, 0.4)
            third.kill()
            third.start()
        follows(s, third, "the killed joiner to follow")
        check(True, "a joiner that is killed again and again gets there")

        fourth = new_member(s)
        s.add(fourth)
        random_moment(0.05, 0.3)
        donor = s.primary()
        donor.kill()
        donor.start()
        follows(s, fourth, "the joiner whose donor was killed to follow")
        check(True, "a joiner whose donor is killed gets there")

        if LONG:
            away = fourth
            away.kill()
            fill(s.primary().client.test.more, 1100, size=100_000)
            away.start()
            follows(s, away, "the member that was away to follow")
            s.settled(180)
            check(
                "Initial sync" in open(f"{away.folder}/log", errors="replace").read(),
                "a member beyond the log's reach copies everything again",
            )

        s.primary().client.test.kept.insert_one({"_id": "after"})
        s.settled(120)
        hashes = s.hashes("test")
        check(len(set(hashes)) == 1, f"all members hold the same: {hashes}")
        check(
            all(m.client.test.kept.find_one({"_id": "after"}) for m in s.members),
            "what was written after the copies is everywhere",
        )
    finally:
        s.close()
    check.end("initial sync")


if __name__ == "__main__":
    main()
