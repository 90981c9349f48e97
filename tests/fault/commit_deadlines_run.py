#!/usr/bin/env python3
"""What expiry means while a commit is on its way to a majority (docs/expiry.md, X2, X5 and X7).

Three members with test clocks. The two that follow stand still (SIGSTOP) while a transaction commits on the third, and
its clock is moved behind deadlines:

  kept      documents that the commit has written anew in time are never hidden; what it left alone is, on the moment
  refused   a large unit that gets its time in the log behind a deadline of one of its documents is WriteConflict 112:
            the document was hidden, and does not come back
  moved     deadlines that are so many seconds away, and tombstones, count from the time in the log, also where the unit
            was cut into chunks before that; on all members alike
  waited    a plain write that has waited for a transaction finds nothing that fell due meanwhile
  local     writes that go into no log, with a wtimeout that has passed: they are stored as they came
  lost      of a commit that never was, because its primary stepped down, nothing is kept
"""

import datetime, sys, threading, uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
import bson
from topologies import Client

from fault_test import Checks, Deadline, random_moment, run_parts, until
from replica_set import ReplicaSet

check = Checks(quiet=True)
START = datetime.datetime(2037, 6, 5, tzinfo=datetime.timezone.utc)
LARGE = 24  # MB: above 16, so that the oplog has several entries
LATE = 112


def at(seconds):
    return Set.start + datetime.timedelta(seconds=seconds)


def code(reply):
    errors = reply.get("writeErrors")
    return errors[0]["code"] if errors else 0 if reply.get("ok") == 1 else reply.get("code")


class Set:
    """One set for all parts, each of which has a day of its own: members follow each other's clocks."""

    start = START

    def __init__(self):
        parameter = "transactionLifetimeLimitSeconds=1000000"
        self.set = ReplicaSet(3, extra=["--testClock", "--setParameter", parameter])
        # A primary goes on for so long without the others.
        config = {**self.set.config(), "settings": {"electionTimeoutMillis": 15000}}
        self.set.members[0].client.admin.command("replSetInitiate", config)
        self.set.in_place()
        self.set.all_vote()

    def begin(self, name):
        """A collection of a part, and clocks that stand where it begins."""
        for m in self.set.members:
            m.resume()  # a part that ended early may have left them so
        self.leader, self.name = self.set.primary(), name
        self.others = self.set.others(self.leader)
        self.client = Client("127.0.0.1", self.leader.port)
        Set.start += datetime.timedelta(days=1)
        self.clock(set=at(0), freeze=True)
        self.number, self.session = 0, bson.Binary(uuid.uuid4().bytes, 4)
        self.run({"create": name})

    def clock(self, **to):
        for m in self.set.members:
            m.client.admin.command({"clock": to})

    def clock_of_leader(self, seconds):
        """The command itself waits for what is due to be gone, which the others hold up."""
        client, to = Client("127.0.0.1", self.leader.port), {"clock": {"set": at(seconds)}}
        threading.Thread(target=client.command, args=("admin", to), daemon=True).start()
        moved = until(lambda: self.run({"clock": 1}, db="admin")["now"] >= at(seconds), 20)
        check(moved, f"{self.name}: the clock at {seconds}")

    def run(self, command, db="t"):
        reply = self.client.command(db, command)
        check(code(reply) == 0, f"{self.name}: {str(command)[:200]}: {str(reply)[:500]}")
        return reply

    def insert(self, key, **more):
        self.run({"insert": self.name, "documents": [{"_id": key}], "writeConcern": {"w": "majority"}, **more})

    def txn(self, command, begins=False, db="t", client=None):
        self.number += begins
        start = {"startTransaction": True} if begins else {}
        of = {"lsid": {"id": self.session}, "txnNumber": bson.Int64(self.number), "autocommit": False}
        return (client or self.client).command(db, {**command, **of, **start})

    def update(self, key, update, begins=False, **more):
        reply = self.txn({"update": self.name, "updates": [{"q": {"_id": key}, "u": update, **more}]}, begins)
        check(code(reply) == 0 and reply["n"] == 1, f"{self.name}: update of {key}: {reply}")

    def fill(self, megabytes):
        """Makes the transaction a large one."""
        for _ in range(megabytes):
            docs = [{"_id": bson.ObjectId(), "x": "x" * 20_000} for _ in range(50)]
            reply = self.txn({"insert": "filler", "documents": docs})
            check(code(reply) == 0, f"{self.name}: filler: {str(reply)[:300]}")

    def ids(self, member=None, **more):
        client = self.client if member is None else Client("127.0.0.1", member.port)
        reply = client.command(
            "t", {"find": self.name, "sort": {"_id": 1}, "$readPreference": {"mode": "secondaryPreferred"}, **more}
        )
        return [d["_id"] for d in reply["cursor"]["firstBatch"]] if reply.get("ok") == 1 else reply

    def commits(self):
        """Begins to commit while the others stand still; returns once that waits for them."""
        for m in self.others:
            m.pause()
        self.answer = {}
        other = Client("127.0.0.1", self.leader.port)

        def commit():
            self.answer = self.txn({"commitTransaction": 1}, db="admin", client=other)

        self.thread = threading.Thread(target=commit)
        self.thread.start()

        def waits():
            ops = self.client.command("admin", {"currentOp": 1})["inprog"]
            return any("commitTransaction" in op.get("command", {}) for op in ops)

        check(until(waits, 20), f"{self.name}: a commit that waits")
        random_moment(0.3, 0.5)  # that it is in the log by then is not told from outside

    def goes_on(self):
        for m in self.others:
            m.resume()
        self.thread.join(Deadline().seconds)
        check(not self.thread.is_alive(), f"{self.name}: the commit ends")
        return self.answer


def kept():
    s = SET
    s.begin("kept")
    index = {"key": {"t": 1}, "name": "t", "expireAfterSeconds": 10, "expireReads": "exact"}
    s.run({"createIndexes": "kept", "indexes": [index]})
    for key in ("later", "never", "soon", "left alone"):
        s.insert(key, expireAt=at(10))
    s.run({"insert": "kept", "documents": [{"_id": "rule", "t": at(0)}, {"_id": "rule left alone", "t": at(0)}]})
    s.update("later", {"$set": {"x": 1}, "$expire": {"at": at(60)}}, begins=True)
    s.update("never", {"$set": {"x": 1}, "$expire": {"never": True}})
    s.update("soon", {"$set": {"x": 1}, "$expire": {"at": at(20)}})
    s.update("rule", {"$set": {"t": at(60)}})
    s.commits()
    every = ["later", "left alone", "never", "rule", "rule left alone", "soon"]
    check(s.ids() == every, f"kept: before the deadline: {s.ids()}")
    s.clock_of_leader(15)
    here = ["later", "never", "rule", "soon"]
    check(s.ids() == here, f"kept: behind it, in a scan: {s.ids()}")
    for key in every:
        check((s.ids(filter={"_id": key}) == [key]) == (key in here), f"kept: behind it, one by one: {key}")
        n = s.run({"count": "kept", "query": {"_id": key}})["n"]
        check(n == (key in here), f"kept: behind it, counted: {key} {n}")
    check(s.run({"count": "kept"})["n"] == 4, "kept: the counter")
    reply = s.client.command("t", {"aggregate": "kept", "pipeline": [{"$count": "n"}], "cursor": {}})
    check(reply["cursor"]["firstBatch"] == [{"n": 4}], f"kept: an aggregation {reply}")
    covered = s.ids(filter={"t": {"$gte": at(0)}}, projection={"t": 1})
    check(covered == ["rule"], f"kept: by the index: {covered}")
    s.clock_of_leader(25)
    check(s.ids() == ["later", "never", "rule"], f"kept: behind the deadline that the commit gives: {s.ids()}")
    answer = s.goes_on()
    check(code(answer) == 0, f"kept: committed {answer}")
    check(s.ids() == ["later", "never", "rule"], f"kept: after it: {s.ids()}")
    s.clock(set=at(65))
    check(s.ids() == ["never", "rule"], f"kept: behind the new deadline: {s.ids()}")


def refused():
    s = SET
    s.begin("refused")
    for key in ("a", "b"):
        s.insert(key, expireAt=at(10))
    s.update("a", {"$set": {"x": 1}, "$expire": {"at": at(60)}}, begins=True)
    s.fill(LARGE)
    s.commits()
    check(s.ids() == ["a", "b"], f"refused: before the deadline {s.ids()}")
    s.clock_of_leader(15)
    check(s.ids() == [], f"refused: hidden, as its time is not fixed {s.ids()}")
    answer = s.goes_on()
    check(code(answer) == LATE, f"refused: {str(answer)[:300]}")
    check("TransientTransactionError" in answer.get("errorLabels", []), f"refused: labels {answer}")
    check("UnknownTransactionCommitResult" not in answer.get("errorLabels", []), f"refused: labels {answer}")
    check(s.ids() == [], f"refused: it does not come back {s.ids()}")
    again = s.txn({"commitTransaction": 1}, db="admin")
    check(code(again) == 251, f"refused: asked again {again}")
    check(s.run({"count": "filler"})["n"] == 0, "refused: nothing of it")


def moved():
    s = SET
    s.begin("moved")
    s.run({"create": "bounded", "expiry": {"maxTTL": 30}})
    s.insert("gone")
    s.txn({"insert": "moved", "documents": [{"_id": "new"}], "expireAfterSeconds": 10}, begins=True)
    s.txn({"insert": "moved", "documents": [{"_id": "at"}], "expireAt": at(40)})
    s.txn({"insert": "bounded", "documents": [{"_id": 1}]})
    s.txn({"insert": "bounded", "documents": [{"_id": 2}], "expireAt": at(33)})
    s.txn({"delete": "moved", "deletes": [{"q": {"_id": "gone"}, "limit": 1}]})
    s.fill(LARGE)
    s.commits()
    s.clock_of_leader(5)
    answer = s.goes_on()
    s.clock(set=at(5))
    check(code(answer) == 0, f"moved: {str(answer)[:300]}")
    s.set.settled()
    for m in s.set.members:
        client = Client("127.0.0.1", m.port)

        def rows(name, pipeline):
            command = {"aggregate": name, "pipeline": pipeline, "cursor": {}}
            reply = client.command("t", {**command, "$readPreference": {"mode": "secondaryPreferred"}})
            return [tuple(d.values()) for d in reply["cursor"]["firstBatch"]] if reply.get("ok") == 1 else reply

        deadline = [{"$sort": {"_id": 1}}, {"$project": {"at": {"$meta": "expireAt"}}}]
        got = rows("moved", deadline)
        check(got == [("at", at(40)), ("new", at(15))], f"moved: deadlines {got}")
        got = rows("bounded", deadline)
        check(got == [(1, at(35)), (2, at(33))], f"moved: by maxTTL {got}")
        got = rows("moved", [{"$tombstones": {}}, {"$project": {"_id": 0, "id": 1, "at": 1}}])
        check(got == [("gone", at(5))], f"moved: tombstones {got}")
    check(s.run({"validate": "moved"})["valid"], "moved: valid")
    s.clock(set=at(14))
    check(s.ids() == ["at", "new"], f"moved: not yet {s.ids()}")
    s.clock(set=at(15))
    check(s.ids() == ["at"], f"moved: on the moment {s.ids()}")
    s.run({"drop": "filler"})


def waited():
    s = SET
    s.begin("waited")
    s.insert("a", expireAt=at(10))
    s.insert("b", expireAt=at(60))
    s.update("a", {"$set": {"x": 1}}, begins=True, preserveExpiry=True)
    s.update("b", {"$set": {"x": 1}}, preserveExpiry=True)
    answers = {}

    def write(key):
        updates = [{"q": {"_id": key}, "u": {"$set": {"late": True}, "$expire": {"never": True}}}]
        client = Client("127.0.0.1", s.leader.port)
        answers[key] = client.command("t", {"update": "waited", "updates": updates})

    threads = [threading.Thread(target=write, args=(key,)) for key in ("a", "b")]
    for t in threads:
        t.start()

    def waiting():
        ops = s.client.command("admin", {"currentOp": 1, "command.update": "waited"})["inprog"]
        return len([op for op in ops if op.get("active")]) == 2

    check(until(waiting, 20), "waited: two writes that wait")
    s.clock_of_leader(15)
    check(s.ids() == ["b"], f"waited: hidden {s.ids()}")
    reply = s.txn({"abortTransaction": 1}, db="admin")
    check(code(reply) == 0, f"waited: {reply}")
    for t in threads:
        t.join(Deadline().seconds)
    n = {key: answer.get("n") for key, answer in answers.items()}
    check(n == {"a": 0, "b": 1}, f"waited: {answers}")
    check(s.ids() == ["b"], f"waited: it does not come back {s.ids()}")


def local():
    port = SET.set.primary().port
    sizes = (200_000, 1_500_000, 8_000_000)

    def write(k):
        client = Client("127.0.0.1", port)
        for i in range(12):
            document = {"_id": f"{k} {i}", "b": bytes([65 + k]) * sizes[(i + k) % 3]}
            concern = {"w": 1, "wtimeout": 1}
            reply = client.command("local", {"insert": "w", "documents": [document], "writeConcern": concern})
            check(code(reply) == 0, f"local: {reply}")

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(Deadline(120).seconds)
    client = Client("127.0.0.1", port)
    found = client.command("local", {"validate": "w"})
    check(found["valid"] and found["nrecords"] == 48, f"local: {found}")
    for k in range(4):
        for i in range(12):
            batch = client.command("local", {"find": "w", "filter": {"_id": f"{k} {i}"}})["cursor"]["firstBatch"]
            check(len(batch) == 1 and not batch[0]["b"].strip(bytes([65 + k])), f"local: {k} {i} is as it came")
    client.command("local", {"drop": "w"})


def lost():
    s = SET
    s.begin("lost")
    s.insert("a", expireAt=at(10))
    s.update("a", {"$set": {"x": 1}, "$expire": {"at": at(600)}}, begins=True)
    s.commits()
    s.clock_of_leader(15)
    check(s.ids() == ["a"], f"lost: kept {s.ids()}")
    # The others come back without it: they were stopped before it, and the leader is.
    s.leader.pause()
    for m in s.others:
        m.resume()
    s.set.wait(lambda: any(m.hello().get("isWritablePrimary") for m in s.others), "another primary", 60)
    for m in s.others:
        m.client.admin.command({"clock": {"set": at(15), "freeze": True}})
    s.leader.resume()
    s.set.wait(lambda: s.leader.hello().get("secondary"), "the former primary to follow", 60)
    s.thread.join(Deadline().seconds)
    s.set.settled()
    now = s.set.primary()
    committed = Client("127.0.0.1", now.port).command("t", {"count": "lost", "query": {"x": 1}})["n"]
    for m in s.set.members:
        check(s.ids(member=m) == (["a"] if committed else []), f"lost: {committed} {s.ids(member=m)}")


SET = Set()
try:
    run_parts("commit deadlines", [kept, refused, moved, waited, local, lost], check)
finally:
    SET.set.close()
