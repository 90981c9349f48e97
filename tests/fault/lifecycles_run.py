#!/usr/bin/env python3
"""Life cycles of sets and members, on real processes: kills during initiation and reconfiguration, a primary that is
suspended, a standalone with a backlog of expired documents that becomes a set and goes back, seven members of all
kinds, all kinds of addresses, write concerns while members are away, a member that is cut off for long, clocks that
jump.

Arguments name the parts to run; without any, all run. MAYFLY_SEED, MAYFLY_FAULT_ROUNDS (5). The last line says "N
passed, N failed".
"""

import datetime, os, random, shutil, socket, threading, time

from bson import Binary, Int64
import pymongo
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from fault_test import Deadline, memory_mb, random_moment, rnd, run_parts, skip
from load import Writers
from proxy import Network
from replica_set import FAULTY, Checks, Member, ReplicaSet, code
from run import Client

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "5"))
check = Checks()


def beginning():
    """A member dies while it begins a set, or all do: what is there afterwards is one set or none, and can be made
    one."""
    for r in range(ROUNDS):
        s = ReplicaSet(3)
        try:

            def initiate():
                code(lambda: s.members[0].client.admin.command("replSetInitiate", s.config()))

            t = threading.Thread(target=initiate)
            t.start()
            random_moment(0, 0.3)
            victims = s.members if r % 2 else s.members[:1]
            for m in victims:
                m.kill()
            t.join()
            for m in victims:
                m.start()
            for m in s.members:
                m.wait_up()
            s.wait(
                lambda: code(lambda: s.members[0].client.admin.command("replSetInitiate", s.config())) in (0, 23),
                "the set to be begun, now or before",
                30,
            )
            s.in_place()
            s.all_vote()
            s.primary().client.test.get_collection(
                "c", write_concern=WriteConcern(w=3, wtimeout=Deadline().millis)
            ).insert_one({"_id": r})
            ids = {
                str(m.client.admin.command("replSetGetConfig")["config"]["settings"]["replicaSetId"]) for m in s.members
            }
            check(len(ids) == 1 and s.same(), f"killed while it began ({'all' if r % 2 else 'the first'}): one set")
        finally:
            s.close()


def changing():
    """The primary, or all, die while the configuration changes or leadership moves."""
    s = ReplicaSet(3)
    try:
        s.initiate()
        s.all_vote()
        load = Writers(s.uri, 2, "load", 8)
        for r in range(ROUNDS * 2):
            p = s.primary()

            def change():
                def run():
                    c = p.client.admin.command("replSetGetConfig")["config"]
                    c["version"] += 1
                    c["members"][2]["tags"] = {"round": str(r)}
                    c["members"][2].update(votes=1 - c["members"][2]["votes"], priority=0)
                    p.client.admin.command("replSetReconfig", c)

                code(run)

            t = threading.Thread(
                target=change if r % 3 else lambda: code(lambda: p.client.admin.command("replSetStepDown", 5))
            )
            t.start()
            random_moment(0, 0.1)
            victims = rnd.sample(s.members, 3) if r % 4 == 3 else [p]
            for m in victims:
                m.kill() if r % 2 else m.proc.terminate()
            for m in victims:
                m.proc.wait(Deadline().seconds)
                m.start()
            t.join()
            for m in s.members:
                m.wait_up()
            s.in_place()
            load.go_on(s, 30)
        load.finish()
        s.settled()
        have = {d["_id"] for d in s.primary().client.test.kept.find({}, {"_id": 1})}
        check(
            load.acknowledged <= have,
            f"{ROUNDS * 2} changes with a death in the middle: "
            f"no acknowledged write is lost ({len(load.acknowledged)})",
        )
        check(
            len({str(m.client.admin.command("replSetGetConfig")["config"]) for m in s.members}) == 1,
            "all have the same configuration",
        )
        check(
            len({m.client.admin.command("replSetGetStatus")["votingMembersCount"] for m in s.members}) == 1,
            "and count the same votes",
        )
        check(s.same(), "all hold the same")
    finally:
        s.close()


def sleeping():
    """A primary that is stopped (SIGSTOP) beyond the election timeout acknowledges nothing and shows nothing old when
    it goes on."""
    s = ReplicaSet(3)
    try:
        s.initiate()
        s.all_vote()
        acknowledged, stale, answered = set(), [], 0
        for r in range(ROUNDS * 2):
            p = s.primary()
            p.client.test.c.update_one({"_id": "x"}, {"$set": {"v": f"old {r}"}}, upsert=True)
            renewed, over = threading.Event(), threading.Event()

            def write(w):
                """To this member alone, all the time: before it falls asleep, while it sleeps, when it wakes up."""
                c = pymongo.MongoClient(
                    p.host, directConnection=True, retryWrites=False, socketTimeoutMS=Deadline().millis
                )
                coll, n = c.test.get_collection("d", write_concern=WriteConcern(w=w)), 0
                while not over.is_set():
                    n += 1
                    if code(lambda: coll.insert_one({"_id": f"{r}-{w}-{n}"})) == 0:
                        acknowledged.add(f"{r}-{w}-{n}")
                c.close()

            def read(m):
                nonlocal answered
                c = pymongo.MongoClient(
                    m.host, directConnection=True, retryReads=False, socketTimeoutMS=Deadline().millis
                )
                coll = c.test.get_collection("c", read_concern=ReadConcern("linearizable"))
                while not over.is_set():
                    late = renewed.is_set()
                    try:
                        v = coll.find_one({"_id": "x"})["v"]
                    except PyMongoError:
                        continue
                    if late:
                        answered += 1
                        if v != f"new {r}":
                            stale.append((m.port, v))
                c.close()

            threads = [threading.Thread(target=write, args=(w,)) for w in (1, "majority")] + [
                threading.Thread(target=read, args=(m,)) for m in s.members
            ]
            had = len(acknowledged)
            for t in threads:
                t.start()
            s.wait(lambda: len(acknowledged) > had + 20, "writes")
            p.pause()
            s.wait(
                lambda: any(m.running() and m.hello().get("isWritablePrimary") for m in s.others(p)), "another primary"
            )
            q = next(m for m in s.others(p) if m.hello().get("isWritablePrimary"))
            q.client.test.c.update_one({"_id": "x"}, {"$set": {"v": f"new {r}"}})
            renewed.set()
            p.resume()
            s.wait(lambda: p.hello().get("secondary"), "the sleeper to follow")
            over.set()
            for t in threads:
                t.join()
            s.in_place()
        s.settled()
        have = {d["_id"] for d in s.primary().client.test.d.find({}, {"_id": 1})}
        check(
            acknowledged <= have,
            f"a primary that slept {ROUNDS * 2} times: none of {len(acknowledged)} acknowledged writes is lost",
        )
        check(
            not stale and answered > 0, f"no linearizable read shows what was before ({answered} answered, {stale[:3]})"
        )
        check(s.same(), "all hold the same")
    finally:
        s.close()


def there_and_back():
    """A standalone with a backlog of due documents becomes a set, and a standalone again."""
    s = ReplicaSet(0)
    try:
        off = ["--setParameter", "ttlMonitorEnabled=false"]
        first = Member(f"{s.folder}/0", off)
        first.start(replica_set=False)
        first.wait_up()
        past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
        later = past + datetime.timedelta(days=30)
        db = first.client.test
        db.backlog.create_index("at", expireAfterSeconds=0)
        db.backlog.insert_many([{"_id": i, "at": past if i % 3 else later} for i in range(6000)])
        db.command("insert", "own", documents=[{"_id": i} for i in range(500)], expireAt=later)
        first.stop()
        for trip in range(2):
            first.start()
            first.wait_up()
            if trip == 0:
                s.members = [first]
                first.client.admin.command(
                    "replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": first.host}]}
                )
            s.wait(lambda: first.hello()["isWritablePrimary"], "the former standalone to lead")
            check(first.client.test.backlog.count_documents({}) == 6000 + trip, "the backlog is there in the set")
            check(first.client.test.own.count_documents({}) == 500, "and what has a deadline of its own")
            if trip == 0:
                first.stop()
                first.start(replica_set=False)
                first.wait_up()
                check(first.client.test.backlog.count_documents({}) == 6000, "back as a standalone it has everything")
                first.client.test.backlog.insert_one({"_id": "as a standalone", "at": later})
                first.stop()
        for i in (1, 2):
            s.join(i, off)
        s.in_place()
        s.all_vote()
        check(s.same(), "new members get it all, deadlines included")
        check(
            [m.client.test.backlog.count_documents({}) for m in s.members] == [6001] * 3,
            "due and not removed, on every member",
        )
        for m in s.members:
            m.client.admin.command("setParameter", 1, ttlMonitorEnabled=True)
        s.wait(lambda: s.primary().client.test.backlog.count_documents({}) == 2001, "the backlog to be removed")
        s.settled()
        check(
            [m.client.test.backlog.count_documents({}) for m in s.members] == [2001] * 3 and s.same(),
            "the backlog is removed everywhere",
        )
        deletes = [
            op["o"]["_id"]
            for e in s.primary().client.local["oplog.rs"].find({"op": "c", "o.applyOps.op": "d"})
            for op in e["o"]["applyOps"]
            if op["ns"] == "test.backlog"
        ]
        deletes += [e["o"]["_id"] for e in s.primary().client.local["oplog.rs"].find({"op": "d", "ns": "test.backlog"})]
        check(len(deletes) == len(set(deletes)) == 4000, f"each delete is in the log once: {len(deletes)}")
        # A member of several that was written to outside of the set is not let in again.
        m = s.others(s.primary())[0]
        m.stop()
        m.start(replica_set=False)
        m.wait_up()
        check(m.client.test.backlog.count_documents({}) == 2001, "a member's directory serves as a standalone")
        m.client.test.backlog.insert_one({"_id": "strange", "at": later})
        m.stop()
        m.start()
        check(
            m.proc.wait(Deadline().seconds) != 0 and "opened without --replSet" in m.tail(),
            "and is refused by the set afterwards, with the reason",
        )
        shutil.rmtree(f"{m.folder}/data")
        m.start()
        m.wait_up()
        s.in_place()
        check(
            s.same() and m.client.test.backlog.find_one({"_id": "strange"}) is None, "emptied it gets everything again"
        )
    finally:
        s.close()


def seven():
    """Seven members, one hidden, one delayed, one of priority 0; three may die; starts in any order."""
    s = ReplicaSet(7)
    try:
        config = s.config()
        config["members"][4]["priority"] = 0
        config["members"][5].update(priority=0, hidden=True)
        config["members"][6].update(priority=0, secondaryDelaySecs=2)
        s.members[0].client.admin.command("replSetInitiate", config)
        s.in_place()
        s.all_vote()
        load = Writers(s.uri, 2, "seven", 15, retry=True)
        load.go_on(s, 100)
        for r in range(max(2, ROUNDS // 2)):
            dead = rnd.sample(s.members, 3)
            for m in dead:
                m.kill()
            s.wait(
                lambda: any(m.running() and m.hello().get("isWritablePrimary") for m in s.others(*dead)),
                "a primary among four of seven",
            )
            leader = next(m for m in s.others(*dead) if m.hello().get("isWritablePrimary"))
            check(s.members.index(leader) < 4, "nobody of priority 0 leads")
            load.go_on(s, 50)
            rnd.shuffle(dead)
            for m in dead:
                m.start()
            for m in dead:
                m.wait_up()
            s.in_place()
        for m in s.members:
            m.stop()
        for m in rnd.sample(s.members, 7):
            m.start()
        for m in s.members:
            m.wait_up()
        s.in_place()
        load.go_on(s, 50)
        load.finish()
        s.primary().client.test.get_collection(
            "w7", write_concern=WriteConcern(w=7, wtimeout=Deadline().millis)
        ).insert_one({})
        check(True, "w: 7 waits for all, the delayed one too")
        have = {d["_id"] for d in s.primary().client.test.kept.find({}, {"_id": 1})}
        check(
            load.acknowledged <= have and not load.unknown,
            f"none of {len(load.acknowledged)} writes is lost, "
            f"and none failed a driver that retries ({len(load.unknown)})",
        )
        check(s.same(), "all seven hold the same")
    finally:
        s.close()


def addresses():
    """Members by name, by localhost, by IPv4 and IPv6, on any interface."""
    kinds = {
        "localhost": ("localhost", []),
        "IPv4": ("127.0.0.1", []),
        "another loopback address": ("127.0.0.2", ["--bind_ip", "127.0.0.2,127.0.0.1"]),
        "this machine's name": (socket.gethostname(), ["--bind_ip_all"]),
    }
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            kinds["IPv6"] = ("[::1]", ["--ipv6", "--bind_ip", "::1,127.0.0.1"])
    except OSError:
        skip("IPv6", "this machine has none")
    for what, (host, extra) in kinds.items():
        s = ReplicaSet(3, extra)
        try:
            names = [f"{host}:{m.port}" for m in s.members]
            got = code(
                lambda: s.members[0].client.admin.command(
                    "replSetInitiate", {"_id": "rs0", "members": [{"_id": i, "host": n} for i, n in enumerate(names)]}
                )
            )
            check(got == 0, f"initiated by {what}: {got}")
            s.in_place()
            s.all_vote()
            check([m.hello()["me"] for m in s.members] == names, f"every member knows itself by {what}")
            driver = pymongo.MongoClient(names, replicaSet="rs0", serverSelectionTimeoutMS=Deadline().millis)
            driver.test.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=Deadline().millis)).insert_one({})
            p = s.primary()
            p.kill()
            driver.test.c.insert_one({})
            p.start()
            p.wait_up()
            s.in_place()
            check(driver.test.c.count_documents({}) == 2, "a driver fails over by these names")
            driver.close()
        finally:
            s.close()


def concerns():
    """w, wtimeout and j while members are away."""
    s = ReplicaSet(3)
    try:
        s.initiate()
        s.all_vote()
        p = s.primary()
        a, b = s.others(p)

        def insert(key, **wc):
            return code(
                lambda: p.client.test.get_collection("c", write_concern=WriteConcern(**wc)).insert_one({"_id": key})
            )

        counts = lambda: p.client.admin.command("serverStatus")["metrics"]["getLastError"]
        before = counts()
        check(
            [insert(1, w=1, j=False), insert(2, w=3, j=False), insert(3, w="majority", j=True)] == [0, 0, 0],
            "j false, j true, w 1, 3 and majority",
        )
        a.kill()
        check(insert(4, w=3, wtimeout=500) == 64, "w: 3 with a member away: 64 after wtimeout")
        check(p.client.test.c.find_one({"_id": 4}) is not None, "the write is there all the same")
        majority = insert(6, w="majority", wtimeout=Deadline().millis)
        check([insert(5, w=2), majority] == [0, 0], "w: 2 and majority go on")
        check(
            [insert(7, w=4), insert(8, w=50)] == [100, 100], "more than there are members: 100, and the write is done"
        )
        counted = counts()
        # w: 3 twice and w: 2; a majority is part of the write, and what cannot be met is not waited for.
        check(counted["wtime"]["num"] == before["wtime"]["num"] + 3, f"waits are counted: {counted}")
        check(counted["wtimeouts"] == before["wtimeouts"] + 1, f"and those that were in vain: {counted}")
        check(counted["default"] == {"unsatisfiable": 0, "wtimeouts": 0}, f"none is of the default: {counted}")
        # The primary goes while a retryable write waits for the third: done, not as asked, and safe to ask for again.
        write = {
            "insert": "c",
            "documents": [{"_id": "again"}],
            "lsid": {"id": Binary(os.urandom(16), 4)},
            "txnNumber": Int64(1),
            "writeConcern": {"w": 3, "wtimeout": 20000},
        }
        answers = []
        t = threading.Thread(target=lambda: answers.append(Client("127.0.0.1", p.port).command("test", write)))
        t.start()
        s.wait(lambda: p.client.test.c.count_documents({"_id": "again"}) == 1, "the write to be there")
        check(code(lambda: p.client.admin.command("replSetStepDown", 15)) == 0, "the primary hands over")
        t.join(Deadline().seconds)
        r = answers[0]
        check(
            (r["ok"], r["n"], r.get("writeConcernError", {}).get("code"), r.get("errorLabels"))
            == (1, 1, 189, ["RetryableWriteError"]),
            f"a primary that steps down says so with the label for drivers: {r}",
        )
        p = s.primary()
        r = Client("127.0.0.1", p.port).command("test", {**write, "writeConcern": {"w": "majority"}})
        check(
            r["n"] == 1 and "writeConcernError" not in r and p.client.test.c.count_documents({"_id": "again"}) == 1,
            "asked again it is answered as the first time, once",
        )
        t = threading.Thread(target=lambda: insert(9, w=3))
        t.start()
        a.start()
        a.wait_up()
        t.join(Deadline().seconds)
        check(not t.is_alive(), "w: 3 without a limit is met when the member is back")
        # Nobody else: what is not on a majority is not acknowledged, w: 1 or not.
        p = s.primary()
        a, b = s.others(p)
        for m in (a, b):
            m.pause()
        got = insert(10, w=1, wtimeout=1000)
        check(got in (64, 189, 11602, 10107), f"w: 1 without a majority is not acknowledged: {got}")
        for m in (a, b):
            m.resume()
        s.in_place()
        check(s.same(), "all hold the same")
    finally:
        s.close()


def cut_off():
    """A member is without network for longer than the log reaches back, comes back, and copies what it has missed."""
    net = Network()
    s = ReplicaSet(3, ["--oplogSize", "8"], network=net)
    try:
        s.initiate()
        s.all_vote()
        p = s.primary()
        away = s.others(p)[0]
        term = p.client.admin.command("replSetGetStatus")["term"]
        net.set({(x.name, away.name) for x in s.others(away)} | {(away.name, x.name) for x in s.others(away)})
        for i in range(60):
            p.client.test.big.insert_many([{"_id": i * 10 + n, "bytes": rnd.randbytes(100_000)} for n in range(10)])
        seen = lambda: {m["name"]: m["health"] for m in away.client.admin.command("replSetGetStatus")["members"]}
        s.wait(lambda: sum(seen().values()) == 1, "it to have given up on all others, several election timeouts long")
        check(
            p.hello()["isWritablePrimary"] and p.client.admin.command("replSetGetStatus")["term"] == term,
            "a member that is cut off disturbs nobody",
        )
        net.heal()
        s.wait(
            lambda: (
                p.client.admin.command("replSetGetStatus")["term"] == term
                and away.hello().get("secondary")
                and away.client.test.big.count_documents({}) == 600
            ),
            "it to have everything",
            90,
        )
        check(True, "it comes back without an election and has everything")
        s.in_place()
        check(s.same(), "all hold the same")
    finally:
        s.close()
        net.close()


def jumps():
    """Clocks that go wrong by hours, by themselves: documents with deadlines of their own are neither hidden nor
    deleted by it, on no member and by no later primary."""
    s = ReplicaSet(3, binary=FAULTY)
    try:
        s.initiate()
        s.all_vote()
        p = s.primary()
        soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=30)
        p.client.test.command("insert", "own", documents=[{"_id": i} for i in range(100)], expireAt=soon)
        p.client.test.ttl.create_index("at", expireAfterSeconds=0)
        p.client.test.ttl.insert_many([{"_id": i, "at": soon} for i in range(100)])
        s.settled()

        def counts():
            return [(m.client.test.own.count_documents({}), m.client.test.ttl.count_documents({})) for m in s.members]

        for millis in (7_200_000, -7_200_000):
            p = s.primary()
            p.tell(f"clock {millis}")
            for i in range(30):
                p.client.test.log.insert_one({"of": millis, "i": i})
                check(
                    counts() == [(100, 100)] * 3,
                    f"a primary's clock jumps {millis / 3.6e6:+.0f} h: nothing is hidden or deleted {counts()}",
                ) if i in (0, 29) else None
            s.wait(
                lambda: p.client.admin.command("serverStatus")["metrics"]["ttl"]["clockHolds"] > 0,
                "the guard to hold",
                30,
            )
            wall = p.client.local["oplog.rs"].find_one({"op": "i", "ns": "test.log"}, sort=[("$natural", -1)])["wall"]
            off = abs((wall - datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)).total_seconds())
            even = off < 3600  # clock: a date; two hours if it jumped
            check(even, f"the log's time goes on evenly ({off:.1f} s from the right one)")
            p.kill()
            s.wait(
                lambda: any(m.running() and m.hello().get("isWritablePrimary") for m in s.others(p)), "another primary"
            )
            q = next(m for m in s.others(p) if m.hello().get("isWritablePrimary"))
            q.client.test.log.insert_one({"by": "the next"})
            check(q.client.test.own.count_documents({}) == 100, "nor does the next primary hide anything")
            check(
                q.client.test.own.update_many({}, {"$inc": {"n": 1}}).matched_count == 100,
                "or take it for gone when it writes",
            )
            q.client.test.command({"touch": "own", "q": {}, "expireAt": soon, "multi": True})
            p.start()
            p.wait_up()
            s.in_place()
        # By seconds: what was hidden once is not shown by the next one, whose clock is right.
        p = s.primary()
        p.tell("clock 15000")
        p.client.admin.command("setParameter", 1, ttlMonitorEnabled=False)
        now = datetime.datetime.now(datetime.timezone.utc)
        p.client.test.command("insert", "short", documents=[{"_id": 1}], expireAt=now + datetime.timedelta(seconds=16))
        check(p.client.test.short.count_documents({}) == 1, "a document that has a second by the primary's clock")
        s.wait(lambda: p.client.test.short.count_documents({}) == 0, "it to be hidden", 20)
        p.client.admin.command("replSetStepDown", 30)
        q = s.primary()
        seen = [m.client.test.short.count_documents({}) for m in s.members]
        check(
            seen == [0, 0, 0],
            f"what one primary has hidden the next does not show again, though its clock is 15 s behind: {seen}",
        )
        check(q.client.test.short.find_one({}) is None and s.same(), "and all hold the same")
    finally:
        s.close()


def memory():
    """A member needs at most 50 MB more than a standalone that has the same done to it."""

    def work(client):
        client.test.c.create_index("n")
        some = random.Random(1)
        for i in range(100):
            client.test.c.insert_many(
                [{"_id": i * 1000 + n, "n": n, "bytes": some.randbytes(200)} for n in range(1000)]
            )

        def singly(k):
            for i in range(1000):
                client.test.one.insert_one({"_id": f"{k} {i}", "pad": "y" * 200})

        threads = [threading.Thread(target=singly, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        list(client.test.c.aggregate([{"$group": {"_id": None, "sum": {"$sum": "$n"}}}]))

    cache = ["--wiredTigerCacheSizeGB", "0.25"]
    s = ReplicaSet(0)
    try:
        alone = Member(f"{s.folder}/alone", cache)
        alone.start(replica_set=False)
        alone.wait_up()
        work(alone.client)
        one = memory_mb(alone.proc.pid)
        alone.stop()
    finally:
        s.close()
    s = ReplicaSet(3, cache)
    try:
        s.initiate()
        work(s.primary().client)
        s.settled()
        p = s.primary()
        many = [memory_mb(m.proc.pid) for m in (p, *s.others(p))]
        check(max(many) <= one + 50, f"resident: standalone {one} MB, primary {many[0]} MB, secondaries {many[1:]} MB")
    finally:
        s.close()


PARTS = (beginning, changing, sleeping, there_and_back, seven, addresses, concerns, cut_off, jumps, memory)


run_parts("lifecycles", PARTS, check)
