#!/usr/bin/env python3
"""Faults of single members, or of all members at once, under load: a rolling restart, slow and full disks, power lost
on all members, a log that was trimmed while a member was away, clocks that jump. Checked afterwards: as in
replica_set_run.py. The last line says "N passed, N failed".
"""

import datetime, random, time
from pathlib import Path

from pymongo.write_concern import WriteConcern

from fault_test import Deadline, figure
from load import Watcher, Writers, verdict
from replica_set import FAULTY, Checks, ReplicaSet

check = Checks()


def back(s, *members):
    for m in members:
        if not m.running():
            m.start()
            m.wait_up()
    s.in_place()


def rolling_restart(s, writers):
    calm = Writers(s.uri, 3, "calm", 30, retry=True)
    calm.go_on(s, 100)
    first = s.primary()
    clean = True
    for m in [*s.others(first), first]:
        clean &= m.stop() == 0
        calm.go_on(s, 50)
        back(s, m)
        calm.go_on(s, 50)
    calm.finish()
    check(clean, "every member stops cleanly under load")
    check(
        not calm.unknown,
        f"a rolling restart costs a driver that retries no write: "
        f"{len(calm.acknowledged)} were acknowledged, {len(calm.unknown)} failed, "
        f"longest gap {max(calm.gaps, default=0):.1f} s {[repr(e)[:300] for e in calm.errors[:3]]}",
    )
    writers.append(calm)


def slow_disk(s, load):
    secondary = s.others(s.primary())[0]
    secondary.tell("slow 2000")  # two hundred of them are far behind any deadline
    began = time.monotonic()
    load.go_on(s, 200)
    figure("200 writes beside a secondary whose syncs take 2 s", time.monotonic() - began, "s")
    secondary.tell("slow 0")
    primary = s.primary()
    primary.tell("slow 100")
    began = time.monotonic()
    load.go_on(s, 100)
    check(True, f"with a primary whose every sync takes 100 ms: 100 writes in {time.monotonic() - began:.1f} s")
    primary.tell("slow 0")
    load.go_on(s, 100)


def stalled_disk(s):
    """Syncs that take longer than an election timeout: the members still hear of each other, so nobody else has to
    lead."""
    for which in ("primary", "secondaries", "set"):
        primary = s.primary()
        term = primary.client.admin.command("replSetGetStatus")["term"]
        stalled = {"primary": [primary], "secondaries": s.others(primary), "set": s.members}[which]
        for m in stalled:
            m.tell("slow 2500")
        coll, took = (
            primary.client.test.get_collection(
                "stalled", write_concern=WriteConcern(w="majority", wtimeout=Deadline().millis)
            ),
            0,
        )
        for n in range(20):  # what a member is told it takes in a moment later
            began = time.monotonic()
            coll.insert_one({"_id": f"{which} {n}"})
            took = time.monotonic() - began
            if took > 2:  # clock: at least; what slows each sync on purpose has begun
                break
        for m in stalled:
            m.tell("slow 0")
        now = primary.client.admin.command("replSetGetStatus")
        check(
            took > 2  # clock: at least, as each sync is slowed on purpose
            and now["term"] == term and now["myState"] == 1,
            f"each sync of the {which} takes 2.5 s, the election timeout is "
            f"{primary.client.admin.command('replSetGetConfig')['config']['settings']['electionTimeoutMillis']} ms: "
            f"a write in {took:.1f} s, term {term} -> {now['term']}",
        )


WAITS = "The replication log cannot be written now"
GOES_ON = "The replication log is written again"


def full_disk(s, load):
    for which in ("secondary", "primary"):
        primary = s.primary()
        full = primary if which == "primary" else s.others(primary)[0]
        logged = lambda line, m=full: Path(f"{m.folder}/log").read_text(errors="replace").count(line)
        waited, went_on = logged(WAITS), logged(GOES_ON)
        full.tell("free 0")
        s.wait(lambda: logged(WAITS) > waited, f"the {which} without space to wait", 40)
        s.wait(lambda: not full.hello().get("isWritablePrimary"), f"the {which} without space not to lead", 40)
        load.go_on(s, 100)
        check(full.running(), f"a {which} whose disk is full waits and says why; the others go on")
        full.tell("free none")
        s.wait(lambda: logged(GOES_ON) > went_on, f"the {which} to go on", 40)
        s.in_place()
        load.go_on(s, 100)
        check(full.running(), "with space it goes on by itself")


def power(s, load):
    for _ in range(2):
        load.go_on(s, 200)
        for m in s.members:
            m.tell("power")
        codes = [m.proc.wait(Deadline().seconds) for m in s.members]
        # 9: what was not synced is dropped; 14: the server has noticed that its disk is gone a moment before that.
        check(set(codes) <= {9, 14}, f"the power failed everywhere at once: {codes}")
        back(s, *s.members)
    load.go_on(s, 100)


def trimmed(s, load):
    away = s.others(s.primary())[0]
    away.kill()
    had = Path(f"{away.folder}/log").read_text(errors="replace").count("Initial sync: the copy is complete")
    rnd = random.Random(1)
    for i in range(60):
        s.primary().client.test.big.insert_many(
            [{"_id": i * 10 + n, "bytes": rnd.randbytes(100_000)} for n in range(10)]
        )
    back(s, away)
    s.wait(
        lambda: (
            Path(f"{away.folder}/log").read_text(errors="replace").count("Initial sync: the copy is complete") > had
        ),
        "the member to copy everything",
        60,
    )
    back(s, away)
    load.go_on(s, 100)
    check(True, "a member that was away longer than the log reaches copies everything by itself")


def clocks(s):
    """No writers beside it: their times are real."""
    primary = s.primary()
    secondary = s.others(primary)[0]
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=30)
    primary.client.test.short.insert_many([{"_id": f"clock {i}", "at": soon} for i in range(100)])
    s.settled()

    def count(m):
        return m.client.test.short.count_documents({"_id": {"$regex": "^clock"}})

    secondary.client.admin.command("clock", {"advanceSeconds": 3000})
    s.wait(
        lambda: (
            next(m for m in primary.client.admin.command("replSetGetStatus")["members"] if m["name"] == secondary.host)[
                "clockSkewMillis"
            ]
            > 2_990_000
        ),
        "the skew to be shown",
        30,
    )
    s.wait(
        lambda: "clock is more than a second" in Path(f"{primary.folder}/log").read_text(errors="replace"),
        "the skew to be logged",
        30,
    )
    primary.client.test.kept.update_one({"_id": "nobody"}, {"$set": {"n": 1}}, upsert=True)
    primary.client.test.kept.delete_one({"_id": "nobody"})
    s.settled()
    check([count(m) for m in s.members] == [100] * 3, "a secondary whose clock is ahead deletes and hides nothing")
    secondary.client.admin.command("clock", "real")
    # The primary's clock goes wrong, by more than the guard takes for real.
    primary.client.admin.command("clock", {"advanceSeconds": 7200, "jump": True})
    s.wait(
        lambda: primary.client.admin.command("serverStatus")["metrics"]["ttl"]["clockHolds"] > 0,
        "the guard to hold",
        30,
    )
    primary.client.test.kept.update_one({"_id": "nobody"}, {"$set": {"n": 1}}, upsert=True)
    primary.client.test.kept.delete_one({"_id": "nobody"})
    s.settled()
    check([count(m) for m in s.members] == [100] * 3, "a primary whose clock jumps two hours deletes and hides nothing")
    primary.client.admin.command("clock", "real")
    # Backwards: the oplog's times never do.
    primary.client.admin.command("clock", {"advanceSeconds": -1800})
    before = primary.client.admin.command("replSetGetStatus")["optimes"]["appliedOpTime"]["ts"]
    primary.client.test.kept.update_one({"_id": "nobody"}, {"$set": {"n": 1}}, upsert=True)
    primary.client.test.kept.delete_one({"_id": "nobody"})
    check(
        primary.client.admin.command("replSetGetStatus")["optimes"]["appliedOpTime"]["ts"] > before,
        "a clock that goes back takes the log's time on",
    )
    primary.client.admin.command("clock", "real")
    s.settled()
    check([count(m) for m in s.members] == [100] * 3, "and nothing is lost by it")
    primary.client.test.short.delete_many({"_id": {"$regex": "^clock"}})


def main():
    s = ReplicaSet(extra=["--testClock", "--oplogSize", "8"], binary=FAULTY)
    writers = []
    try:
        s.initiate()
        p = s.primary()
        p.patient.test.short.create_index("at", expireAfterSeconds=0)
        p.patient.test.kept.create_index("n")
        load, watcher = Writers(s.uri, timeout=4), Watcher(s.uri, 4)  # clock: what fails is tried again
        writers.append(load)
        for part in (rolling_restart, slow_disk, full_disk, power, trimmed):
            print(f"     {part.__name__}", flush=True)
            part(s, writers if part is rolling_restart else load)
        watcher.finish(s)
        load.finish()
        for part in (stalled_disk, clocks):
            print(f"     {part.__name__}", flush=True)
            part(s)
        verdict(s, check, writers, [watcher], "faults of members")
    finally:
        for w in writers:
            w.stop = True
        s.close()
    check.end("faults of members")


if __name__ == "__main__":
    main()
