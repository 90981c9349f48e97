#!/usr/bin/env python3
"""Units that go through the log in chunks: large transactions and large documents, on a set of three.

One transaction of many MB: all of it at once, as a chain of entries in the oplog and as events in order, beside another
client whose small writes are measured. Then, on members whose logs are too small for one (16 MB), so that they are
trimmed while it is under way, primaries are killed or told to step down while such transactions commit, before, between
and behind their chunks: each is there as a whole or not at all, a commit that is asked for again says which, nothing of
the others is left, and members are equal, also one whose directory was emptied meanwhile.

MAYFLY_LARGE_MB (40): of a transaction. MAYFLY_FAULT_ROUNDS (4): primaries lost.
"""

import os, threading, time

import pymongo
from bson import Timestamp, encode
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from fault_test import Checks, Deadline, figure, rnd, run_parts, until, wait_for
from replica_set import ReplicaSet, code

MB = int(os.environ.get("MAYFLY_LARGE_MB", "40"))
ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "4"))
DOC, BATCH = 20_000, 400
check = Checks(quiet=True)
MAJORITY = WriteConcern("majority")
POSITION_LOST = 136


def client(s):
    return pymongo.MongoClient(
        s.uri, replicaSet="rs0", serverSelectionTimeoutMS=Deadline().millis, heartbeatFrequencyMS=500
    )


def documents(which, n):
    return [{"_id": f"{which}-{i}", "which": which, "i": i, "text": "x" * DOC} for i in range(n)]


def fill(coll, session, which, n):
    for at in range(0, n, BATCH):
        coll.insert_many(documents(which, n)[at : at + BATCH], session=session)


def new_set(*options):
    s = ReplicaSet(3, extra=options)
    s.initiate()
    s.all_vote()
    return s


class SmallWrites:
    """Another client: its majority writes, and how long each took."""

    def __init__(self, mongo):
        self.coll = mongo.get_database("beside", write_concern=MAJORITY).c
        self.coll.insert_one({"_id": 1, "n": 0})
        self.took, self.over = [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.is_set():
            began = time.monotonic()
            self.coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
            self.took.append(time.monotonic() - began)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def __str__(self):
        took = sorted(self.took)
        return f"{len(took)} writes, p99 {took[len(took) * 99 // 100] * 1000:.0f} ms, slowest {took[-1] * 1000:.0f} ms"


def events_of(stream, n):
    """The next n events of its documents, and the token in the middle."""
    got, middle = [], None
    while len(got) < n:
        e = stream.next()
        got.append((e["documentKey"]["_id"], e["clusterTime"], e.get("txnNumber")))
        if len(got) == n // 2:
            middle = stream.resume_token
    return got, middle


def check_chain(s, n, number):
    """The entries of the transaction of that number in the oplog, on each member."""
    for m in s.members:
        chain = list(m.client.local["oplog.rs"].find({"ns": "admin.$cmd", "o.applyOps.ns": "large.c"}))
        ops = [op["o"]["_id"] for e in chain for op in e["o"]["applyOps"]]
        check(ops == [f"a-{i}" for i in range(n)], f"{len(ops)} operations in {len(chain)} entries, in order")
        fewest = -(-n * DOC // (16 << 20))
        check(fewest <= len(chain) <= fewest + 1, f"{len(chain)} entries for {n * DOC >> 20} MB")
        check(all(len(encode(e["o"])) < (17 << 20) for e in chain), "each is a document")
        before = {"ts": Timestamp(0, 0), "t": -1}
        for e in chain[:-1]:
            check(e["o"].get("partialTxn") is True and "count" not in e["o"], "all but the last are parts")
            check(e["prevOpTime"] == before and e.get("txnNumber") == number, "each names the one before")
            before = {"ts": e["ts"], "t": e["t"]}
        last = chain[-1]
        check(last["o"].get("count") == n and "partialTxn" not in last["o"], "the last one has the count")
        check(last["prevOpTime"] == before and last.get("txnNumber") == number, "the last one names the one before")


def one_transaction():
    s = new_set()
    mongo = client(s)
    coll = mongo.large.create_collection("c")
    n = MB * 1_000_000 // DOC
    stages = [{"$match": {"operationType": "insert"}}, {"$changeStreamSplitLargeEvent": {}}]
    with coll.watch(stages, max_await_time_ms=500) as stream:
        with mongo.start_session() as session:
            session.start_transaction(write_concern=MAJORITY)
            fill(coll, session, "a", n)
            check(coll.count_documents({}) == 0, "nothing is seen before the commit")
            with SmallWrites(mongo) as beside:
                wait_for(lambda: beside.took)
                began = time.monotonic()
                session.commit_transaction()
                took = time.monotonic() - began
            session.commit_transaction()  # asked for again
        figure(f"the commit of a transaction of {MB} MB", took, "s")
        figure("another client's slowest majority write beside it", max(beside.took) * 1000)
        print(f"     beside it {beside}")
        check(coll.count_documents({}) == n, "all of it is there")
        events, middle = events_of(stream, n)
    check([e[0] for e in events] == [f"a-{i}" for i in range(n)], "events come in order, each once")
    check(len({e[1:] for e in events}) == 1, "they have one time and one transaction")
    check(None not in events[0][1:], f"which they name: {events[0]}")
    with coll.watch(stages, resume_after=middle, max_await_time_ms=500) as stream:
        rest, _ = events_of(stream, n - n // 2)
        check(rest == events[n // 2 :], "a stream goes on in the midst of it")
    check_chain(s, n, events[0][2])
    with mongo.start_session() as session:
        session.start_transaction()
        fill(coll, session, "b", n)
        session.abort_transaction()
    check(coll.count_documents({"which": "b"}) == 0, "nothing of an aborted one")
    with mongo.start_session() as session:
        session.start_transaction()

        def too_much():
            for part in range(8):
                fill(coll, session, f"c{part}", 20_000_000 // DOC)
            session.commit_transaction()

        check(code(too_much) == 257, "TransactionTooLarge above 128 MiB")
    check(coll.count_documents({}) == n, "nothing of it is there")
    check(s.same("large"), "all members hold the same")
    mongo.close()
    s.close()


class Writer:
    """Commits large transactions, each once; `sure` are those that were acknowledged."""

    def __init__(self, s, n):
        self.mongo, self.n, self.sure, self.gone = client(s), n, [], []
        self.coll = self.mongo.large.c
        self.over, self.committing, self.problems = threading.Event(), threading.Event(), []
        # Cleared while a member copies everything: a log this small is soon written over, so on a busy machine a copy
        # would begin again and again.
        self.may_begin = threading.Event()
        self.may_begin.set()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        number = 0
        while not self.over.is_set():
            number += 1
            self.may_begin.wait()
            try:
                self.commit(f"t{number}")
            except PyMongoError as e:
                if not e.has_error_label("TransientTransactionError") and not isinstance(
                    e, pymongo.errors.ConnectionFailure
                ):
                    self.problems.append(repr(e)[:300])

    def commit(self, which):
        with self.mongo.start_session() as session:
            session.start_transaction(write_concern=MAJORITY)
            fill(self.coll, session, which, self.n)
            self.committing.set()
            for _ in range(20):
                try:
                    session.commit_transaction()
                    self.sure.append(which)
                    return
                except PyMongoError as e:
                    if e.has_error_label("UnknownTransactionCommitResult"):
                        continue
                    self.gone.append(which)  # it was not, and never will be
                    raise


def in_the_midst(s, primary, writer, size):
    """Waits until the log has grown by so many bytes with what is being committed; False: the commit was faster."""
    ended, seen, grown = len(writer.sure) + len(writer.gone), None, 0

    def far():
        nonlocal seen, grown
        now = primary.client.local.command({"collStats": "oplog.rs"})["size"]
        grown += max(0, now - (seen or now))
        seen = now
        return grown >= size or len(writer.sure) + len(writer.gone) > ended

    s.wait(far, "the log to grow", 120)
    return len(writer.sure) + len(writer.gone) == ended


def in_order(read):
    """What `read` gives, again when its cursor says that what was to come next has been trimmed."""
    seen = []

    def done():
        try:
            seen[:] = read()
        except OperationFailure as e:
            if e.code != POSITION_LOST:
                raise
            return False
        return True

    return seen if until(done) else []


def lost_primaries():
    s = new_set("--oplogSize", "16")
    mongo = client(s)
    coll = mongo.large.create_collection("c")
    mongo.large.create_collection("plain")
    n = MB * 500_000 // DOC
    writer, moments = Writer(s, n), []
    for i in range(ROUNDS):
        writer.committing.clear()
        s.wait(writer.committing.is_set, "a commit", 120)
        old = s.primary()
        moments.append(in_the_midst(s, old, writer, rnd.random() * n * DOC))
        if i % 4 == 3:
            code(lambda p=old: p.client.admin.command({"replSetStepDown": 1, "force": True}))
        else:
            old.kill()
            if i % 4 == 2:
                s.wait(lambda o=s.others(old): any(m.hello().get("isWritablePrimary") for m in o), "another primary")
                writer.may_begin.clear()
                os.system(f"rm -rf {old.folder}/data")
            old.start()
            old.wait_up()
        s.in_place(120)
        writer.may_begin.set()
    writer.over.set()
    writer.thread.join()
    s.in_place(120)
    found = {d["_id"]: d["n"] for d in coll.aggregate([{"$group": {"_id": "$which", "n": {"$sum": 1}}}])}
    print(f"     {ROUNDS} primaries lost, {sum(moments)} of them between the chunks and the end of a commit")
    print(f"     {len(writer.sure)} commits acknowledged, {len(writer.gone)} refused")
    check(not writer.problems, f"no other errors: {writer.problems[:3]}")
    check(all(k == n for k in found.values()), f"each is there as a whole: {found}")
    check(set(writer.sure) <= set(found), f"each that was acknowledged is there: {writer.sure}, {found}")
    check(not set(writer.gone) & set(found), f"none that was refused is there: {writer.gone}, {found}")
    check(s.same("large"), "all members hold the same")
    # The log is trimmed to what it may be once nothing needs it, chunks without an end too. What is left of a unit of
    # which chunks are gone is not shown.
    plain = mongo.large.plain
    for i in range(24):
        plain.insert_one({"_id": i, "text": "x" * 3_000_000})
    for m in s.members:
        log = m.client.local["oplog.rs"]
        s.wait(
            lambda m=m: m.client.local.command({"collStats": "oplog.rs"})["size"] < (48 << 20), "the log to be trimmed"
        )
        s.wait(lambda log=log: not list(log.find({"ns": "admin.$cmd"})), "the transactions to be gone from it")
        numbers = lambda log=log: [e["o"]["_id"] for e in log.find({"ns": "large.plain", "op": "i"})]
        s.wait(lambda: 23 in in_order(numbers), "the last document to be in the log")
        shown = in_order(numbers)
        check(shown and shown == list(range(24))[-len(shown) :], f"the newest documents are in the log: {shown}")
    check(all(m.client.large.command("validate", "c")["valid"] for m in s.members), "all members are valid")
    writer.mongo.close()
    mongo.close()
    s.close()


if __name__ == "__main__":
    run_parts("large units", [one_transaction, lost_primaries], check)
