#!/usr/bin/env python3
"""SIGTERM at a random moment of every kind of work: the server ends in order and soon, and what it acknowledged is
there afterwards.

MAYFLY_FAULT_ROUNDS: rounds, half of them of a standalone and half of a set of one member. MAYFLY_SEED replays the
choices.
"""

import itertools, os, signal, subprocess, sys, tempfile, threading, time

import pymongo
from pymongo.errors import BulkWriteError, PyMongoError

from fault_test import BINARY, Checks, Deadline, discard, figure, free_port, rnd, until

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", 6))
check = Checks(quiet=True)
numbers = itertools.count()


class Load:
    """Threads of clients; each goes on until its server is gone."""

    def __init__(self, port, in_set):
        self.port, self.done, self.lost_at = port, threading.Event(), None
        self.rounds, self.progress = 0, threading.Condition()
        self.acknowledged = set()
        kinds = [
            self.writes,
            self.writes,
            self.bulk,
            self.scans,
            self.groups,
            self.indexes,
            self.catalog,
            self.expiry,
            self.tails,
            self.waits,
        ]
        if in_set:
            kinds.append(self.watches)
        self.threads = [threading.Thread(target=self.loop, args=(k,)) for k in kinds]
        for t in self.threads:
            t.start()

    def loop(self, kind):
        with pymongo.MongoClient(  # clock: asked again
            "127.0.0.1",
            self.port,
            directConnection=True,
            serverSelectionTimeoutMS=300,
            retryWrites=False,
            retryReads=False,
        ) as client:
            while not self.done.is_set():
                try:
                    kind(client.load)
                except PyMongoError:
                    pass  # it is going, or an index or a collection is gone
                with self.progress:
                    self.rounds += 1
                    self.progress.notify_all()

    def has_done(self, rounds):
        """Waits until its threads have been round so often together: at any moment of their work, on any machine."""
        with self.progress:
            assert self.progress.wait_for(lambda: self.rounds >= rounds, 60), "the clients do nothing"

    def writes(self, db):
        n = next(numbers)
        if db.docs.insert_one({"_id": n, "a": n % 7, "text": "x" * 300}).acknowledged:
            self.acknowledged.add(n)
        db.docs.update_one({"_id": n}, {"$inc": {"a": 1}})
        db.docs.find_one({"_id": n})

    def bulk(self, db):
        ids = [next(numbers) for _ in range(500)]
        try:
            self.acknowledged.update(db.docs.insert_many([{"_id": n, "a": n % 7} for n in ids]).inserted_ids)
        except BulkWriteError:
            pass
        db.docs.update_many({"_id": {"$in": ids}}, {"$set": {"b": 1}})

    def scans(self, db):
        for _ in db.docs.find({"text": {"$regex": "y"}}, batch_size=10):
            pass
        list(db.docs.find().sort("text", 1).limit(1000))

    def groups(self, db):
        list(
            db.docs.aggregate([{"$group": {"_id": "$a", "n": {"$sum": 1}, "all": {"$push": "$_id"}}}, {"$out": "out"}])
        )
        list(
            db.docs.aggregate(
                [
                    {"$limit": 300},
                    {
                        "$lookup": {
                            "from": "docs",
                            "localField": "a",
                            "foreignField": "a",
                            "as": "x",
                            "pipeline": [{"$limit": 2}],
                        }
                    },
                ]
            )
        )

    def indexes(self, db):
        db.docs.create_index("a")
        db.docs.create_index([("b", 1), ("text", 1)])
        db.docs.drop_indexes()

    def catalog(self, db):
        db.temporary.insert_one({})
        db.temporary.rename("renamed", dropTarget=True)
        db.renamed.drop()
        db.command("validate", "docs")

    def expiry(self, db):
        db.gone.create_index("at", expireAfterSeconds=0)
        from datetime import datetime, timezone

        db.gone.insert_many([{"at": datetime.now(timezone.utc)} for _ in range(200)])
        db.command("insert", "gone", documents=[{"x": i} for i in range(50)], expireAfterSeconds=1)

    def tails(self, db):
        if "capped" not in db.list_collection_names():
            db.create_collection("capped", capped=True, size=1 << 16)
        db.capped.insert_one({})
        cursor = db.capped.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(60000)
        for _ in cursor:
            pass

    def waits(self, db):
        db.client.admin.command(
            "hello",
            topologyVersion={
                "processId": db.client.admin.command("hello")["topologyVersion"]["processId"],
                "counter": 0,
            },
            maxAwaitTimeMS=500,
        )
        db.client.admin.command("currentOp", 1)

    def watches(self, db):
        with db.watch(max_await_time_ms=60000) as stream:
            for _ in stream:
                if self.done.is_set():
                    return

    def join(self):
        self.done.set()
        for t in self.threads:
            t.join(Deadline().seconds)
        return not any(t.is_alive() for t in self.threads)


def start(folder, port, in_set):
    log = open(f"{folder}/log", "ab")
    proc = subprocess.Popen(
        [
            BINARY,
            "--port",
            str(port),
            "--dbpath",
            f"{folder}/data",
            "--nounixsocket",
            "--httpPort",
            "0",
            *(["--replSet", "rs0"] if in_set else []),
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    client = pymongo.MongoClient("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=Deadline().millis)
    if in_set:
        try:
            client.admin.command("replSetInitiate")
        except PyMongoError:
            pass  # the second start
        assert until(lambda: client.admin.command("hello")["isWritablePrimary"]), "no primary"
    client.admin.command("ping")
    return proc, client


slowest = 0
for n in range(ROUNDS):
    in_set = n % 2 == 1
    folder = tempfile.mkdtemp(prefix="mayfly-stop-")
    port = free_port()
    proc, client = start(folder, port, in_set)
    client.close()
    load = Load(port, in_set)
    load.has_done(rnd.choice([0, 3, 20, 100, 300]) * rnd.random())
    began = time.monotonic()
    proc.send_signal(signal.SIGTERM)
    try:
        code = proc.wait(Deadline().seconds)
    except subprocess.TimeoutExpired:
        code = f"still there after {Deadline().seconds:.0f} s"
        proc.kill()
    slowest = max(slowest, time.monotonic() - began)
    what = f"round {n}, {'set' if in_set else 'standalone'}"
    check(code == 0, f"{what}: ended with {code}, see {folder}")
    check(load.join(), f"{what}: every client saw the end")
    proc, client = start(folder, port, in_set)
    there = {d["_id"] for d in client.load.docs.find({}, {"_id": 1})}
    check(
        load.acknowledged <= there,
        f"{what}: {len(load.acknowledged - there)} of {len(load.acknowledged)} acknowledged documents are gone",
    )
    for name in client.load.list_collection_names(
        filter={"name": {"$not": {"$regex": "^tmp"}}}
    ):  # what $out had begun goes by itself
        check(client.load.command("validate", name)["valid"], f"{what}: {name} is valid")
    client.close()
    proc.send_signal(signal.SIGTERM)
    check(proc.wait(Deadline().seconds) == 0, f"{what}: the second end")
    discard(folder)
figure("the slowest end beside a load", slowest, "s")

# Operations that go on until they are ended, on a machine on which every pause takes long: what runs has 15 s by the
# clock, not by the count of pauses. The count was above the limit of 30 s, behind which the store is not closed (14).
folder = tempfile.mkdtemp(prefix="mayfly-stop-")
port = free_port()
proc, client = start(folder, port, False)
client.load.docs.insert_one({})
work = {"$range": [0, 10_000]}
endless = {"$reduce": {"input": {"$range": [0, 1_000_000]}, "initialValue": 0, "in": {"$size": work}}}


def run():
    try:
        client.load.docs.aggregate([{"$project": {"x": {"$add": [endless, "$y"]}}}])
    except PyMongoError:
        pass


threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
for t in threads:
    t.start()
running = [{"$currentOp": {}}, {"$match": {"command.aggregate": "docs"}}]
while len(list(client.admin.aggregate(running))) < len(threads):
    pass
for task in os.listdir(f"/proc/{proc.pid}/task"):
    with open(f"/proc/{task}/timerslack_ns", "w") as f:
        f.write("100000000")
began = time.monotonic()
proc.send_signal(signal.SIGTERM)
code = proc.wait(Deadline().seconds)
figure("the end beside operations that do not end", time.monotonic() - began, "s")
check(code == 0, f"beside operations that do not end: ended with {code}, see {folder}")
discard(folder)
check.end("stop")
