#!/usr/bin/env python3
"""Unusual data directories of members: disks that answer errors, kills while the log is trimmed, a restored older copy,
a copy of another member's directory, a directory that was written to outside of its set, and the `local` database,
which each member has for itself.

Arguments name the parts to run; without any, all run. MAYFLY_SEED, MAYFLY_FAULT_ROUNDS (6). The last line says "N
passed, N failed".
"""

import os, shutil, time
from pathlib import Path

import pymongo

from fault_test import Deadline, rnd, run_parts
from load import Watcher, Writers, verdict
from replica_set import FAULTY, Checks, ReplicaSet, code

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "6"))
check = Checks()


def again(s, *members):
    for m in members:
        m.start()
    for m in members:
        m.wait_up(60)
    s.in_place()
    s.all_vote()


def insert(s, n):
    client = pymongo.MongoClient(s.uri, serverSelectionTimeoutMS=Deadline().millis)
    client.test.kept.insert_many([{"_id": f"{time.monotonic_ns()}-{i}", "n": i} for i in range(n)])
    client.close()


def log_of(m):
    return Path(f"{m.folder}/log").read_text(errors="replace")


def begin(s):
    s.initiate()
    s.in_place()
    s.all_vote()


def failing_disks():
    """A disk that answers I/O errors ends the member, which says why; nothing acknowledged is lost."""
    s = ReplicaSet(3, binary=FAULTY)
    writers = []
    try:
        begin(s)
        p = s.primary()
        p.patient.test.short.create_index("at", expireAfterSeconds=0)
        p.patient.test.kept.create_index("n")
        load, watcher = Writers(s.uri, timeout=4), Watcher(s.uri, 4)  # clock: what fails is tried again
        writers += [load, watcher]
        for which, what in (
            ("secondary", "writes"),
            ("primary", "syncs"),
            ("primary", "writes"),
            ("secondary", "syncs"),
        ):
            load.go_on(s, 100)
            p = s.primary()
            m = p if which == "primary" else s.others(p)[0]
            m.tell(f"fail {what}")
            s.wait(lambda: not m.running(), f"the {which} whose {what} fail to end", 40)
            check(
                "could not be" in m.tail() or "I/O error" in m.tail() or "IO error" in m.tail(),
                f"a {which} whose {what} fail stops and says why",
            )
            load.go_on(s, 100)
            again(s, m)
        watcher.finish(s)
        load.finish()
        verdict(s, check, [load], [watcher], "disks that answer errors")
    finally:
        for w in writers:
            w.stop = True
        s.close()


def cut_logs():
    """Members die while the log is cut, all the time: 8 MB of log under much larger writes."""
    s = ReplicaSet(3, extra=["--oplogSize", "8"])
    writers = []
    try:
        begin(s)
        p = s.primary()
        p.patient.test.short.create_index("at", expireAfterSeconds=0)
        p.patient.test.kept.create_index("n")
        load, watcher = Writers(s.uri, timeout=6), Watcher(s.uri, 6)  # clock: what fails is tried again
        writers += [load, watcher]
        big = pymongo.MongoClient(s.uri, serverSelectionTimeoutMS=Deadline().millis)
        written = 0
        for r in range(ROUNDS):
            for _ in range(rnd.randint(8, 14)):
                big.test.big.insert_many([{"_id": written + n, "bytes": rnd.randbytes(100_000)} for n in range(10)])
                written += 10
            victims = rnd.sample(s.members, rnd.choice([1, 1, 2, 3]))
            for m in victims:
                m.kill()
            again(s, *victims)
            load.go_on(s, 50)
        big.close()
        watcher.finish(s)
        load.finish()
        s.settled()
        check(s.primary().client.test.big.count_documents({}) == written, f"{written} large documents are there")
        first = [next(iter(m.client.local["oplog.rs"].find().sort("$natural", 1).limit(1)))["ts"] for m in s.members]
        check(
            all(ts > first[0].__class__(0, 1) for ts in first)
            and all("Initial sync starts over" not in log_of(m) for m in s.members),
            "logs were cut",
        )
        verdict(s, check, [load], [watcher], f"killed {ROUNDS} times while logs are cut")
    finally:
        for w in writers:
            w.stop = True
        s.close()


def older():
    """A secondary is started with a copy of its directory that is older than what it has acknowledged since."""
    s = ReplicaSet(3)
    try:
        begin(s)
        insert(s, 200)
        m = s.others(s.primary())[0]
        m.stop()
        shutil.copytree(f"{m.folder}/data", f"{m.folder}/older")
        again(s, m)
        insert(s, 400)
        s.settled()
        m.stop()
        shutil.rmtree(f"{m.folder}/data")
        shutil.move(f"{m.folder}/older", f"{m.folder}/data")
        again(s, m)
        insert(s, 50)
        check(
            s.same() and m.client.test.kept.count_documents({}) == 650,
            "a directory that was put back from before catches up",
        )
    finally:
        s.close()


def somebody_elses():
    """A copy of another member's directory is not that member, and says so; emptied it comes back by itself."""
    s = ReplicaSet(3)
    try:
        begin(s)
        insert(s, 200)
        p = s.primary()
        m, o = s.others(p)
        m.stop()
        o.stop()
        shutil.rmtree(f"{m.folder}/data")
        shutil.copytree(f"{o.folder}/data", f"{m.folder}/data")
        had = len(log_of(m))
        o.start()
        o.wait_up()
        m.start()
        m.wait_up()
        s.wait(lambda: "a copy of another member's" in log_of(m)[had:], "it to say what is wrong", 30)
        end, n = time.monotonic() + 3, 200
        while time.monotonic() < end:  # clock: how long the others ask again and again
            insert(s, 5)
            n += 5
        check(log_of(m)[had:].count("a copy of another member's") <= 4, "once for each member, not for each attempt")
        check(
            p.client.admin.command("replSetGetStatus")["members"][s.members.index(m)]["health"] == 0,
            "it counts as not there",
        )
        check(
            o.hello()["secondary"] and o.client.test.kept.count_documents({}) == n,
            "the member that it was copied from goes on",
        )
        m.kill()
        shutil.rmtree(f"{m.folder}/data")
        again(s, m)
        check(s.same() and m.client.test.kept.count_documents({}) == n, "emptied it gets a copy")
    finally:
        s.close()


def written_outside():
    """A set of one that began empty is written to without --replSet: who joins later has that too, and a change stream
    says that it was interrupted."""
    s = ReplicaSet(1)
    try:
        s.initiate()
        a = s.members[0]
        stream = a.client.test.kept.watch()
        a.client.test.kept.insert_one({"_id": "in the set"})
        token = stream.next()["_id"]
        stream.close()
        a.stop()
        a.start(replica_set=False)
        a.wait_up()
        a.client.test.kept.insert_one({"_id": "outside"})
        a.stop()
        a.start()
        a.wait_up()
        s.wait(lambda: a.hello()["isWritablePrimary"], "it to lead")
        check(
            code(lambda: a.client.test.kept.watch(resume_after=token).try_next()) == 286,
            "a change stream does not go on over what is in no log",
        )
        a.client.test.kept.insert_one({"_id": "in the set again"})
        b = s.join("b")
        s.in_place()
        s.all_vote()
        check(
            s.same() and b.client.test.kept.count_documents({}) == 3, "a member that joins has what was written outside"
        )
    finally:
        s.close()


def its_own():
    """`local` is each member's own: a copy for a joiner has nothing of the donor's; the size of the log outlives a
    restart."""
    s = ReplicaSet(1)
    try:
        a = s.members[0]
        a.stop()
        a.start(replica_set=False)
        a.wait_up()
        a.client.test.kept.insert_many([{"_id": i} for i in range(100)])  # so that joiners need a copy
        a.stop()
        a.start()
        a.wait_up()
        s.initiate()
        a.client.local.mine.insert_many([{"_id": i, "a": i} for i in range(50)])
        a.client.local.mine.create_index("a")
        a.client.admin.command({"replSetResizeOplog": 1, "size": 1500.0, "minRetentionHours": 2.0})
        b = s.join("b")
        s.in_place()
        s.all_vote()
        check(s.same() and "Initial sync: the copy is complete" in log_of(b), "a joiner has a copy")

        def size(m):
            return m.client.local.command("collStats", "oplog.rs")["maxSize"]

        def hours(m):
            return m.client.admin.command("serverStatus")["oplogTruncation"]["oplogMinRetentionHours"]

        check(
            sorted(n for n in b.client.local.list_collection_names() if n == "mine") == [],
            "the donor's local collections are not in it",
        )
        check(size(b) != 1500 << 20 and size(a) == 1500 << 20, "nor is the size of the donor's log")
        b.client.local.other.insert_one({"_id": 1})
        check(
            b.client.local.other.count_documents({}) == 1 and b.client.local.command("validate", "other")["valid"],
            "it has local collections of its own",
        )
        check((size(a), hours(a)) == (1500 << 20, 2.0), "the log was resized")
        a.stop()
        again(s, a)
        check((size(a), hours(a)) == (1500 << 20, 0), "its size outlives a restart, the hours do not")
        check(a.client.local.mine.count_documents({"a": {"$gte": 0}}) == 50, "a member's own collections are there")
        a.stop()
        a.extra = ["--oplogSize", "1200"]
        again(s, a)
        check(size(a) == 1200 << 20, "an option at the start counts more")
    finally:
        s.close()


PARTS = (failing_disks, cut_logs, older, somebody_elses, written_outside, its_own)


run_parts("directories", PARTS, check)
