#!/usr/bin/env python3
"""Commands of all kinds, each retried by the driver, while members of a set of three are killed (kill -9), stopped,
told to step down and restarted.

Looked at: findAndModify gives out each number once; an unordered bulk that a unique index refuses in part counts right;
collections that are made, indexed, renamed and dropped are there or not as acknowledged; documents with their own
deadline are seen to leave once by a change stream that is resumed, and do not come back to a session, wherever it
reads; what one session has written it reads everywhere, at every read concern; documents of 5 MB; no command takes
longer than 30 s; memory does not grow from round to round. In the end all members hold the same and every index fits.
MAYFLY_FAULT_ROUNDS (6), MAYFLY_SEED. The last line says "N passed, N failed".
"""

import os, threading, time

import pymongo
from pymongo import InsertOne, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Nearest, Primary, SecondaryPreferred

from fault_test import SEED, Deadline, figure, memory_mb, random_moment, rnd
from replica_set import Checks, ReplicaSet

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "6"))
faults = 0  # that began and that ended: odd while somebody is disturbed


class Worker(threading.Thread):
    """Repeats `work` with a client of its own; remembers what took longest."""

    def __init__(self, s, **options):
        super().__init__(daemon=True)
        self.client = pymongo.MongoClient(  # clock: what fails is tried again
            s.uri,
            serverSelectionTimeoutMS=Deadline().millis,
            socketTimeoutMS=40000,
            heartbeatFrequencyMS=500,
            **options,
        )
        self.db, self.stop, self.done, self.failed, self.longest, self.wrong = (
            self.client.mixed,
            False,
            0,
            [],
            (0, ""),
            [],
        )
        self.begin()

    def begin(self):
        pass

    def run(self):
        while not self.stop:
            began = time.monotonic()
            try:
                self.work()
                self.done += 1
            except PyMongoError as e:
                self.failed.append(e)
                self.lost(e)
            took = time.monotonic() - began
            self.longest = max(self.longest, (took, repr(self.failed[-1])[:300] if self.failed else ""))
        self.client.close()

    def lost(self, e):
        pass


class Numbers(Worker):
    """findAndModify: no number twice."""

    def begin(self):
        self.given = []

    def work(self):
        n = self.db.numbers.find_one_and_update({"_id": "next"}, {"$inc": {"n": 1}}, upsert=True, return_document=True)[
            "n"
        ]
        if self.given and n <= self.given[-1]:
            self.wrong.append(f"{n} after {self.given[-1]}")
        self.given.append(n)


class Bulks(Worker):
    """Unordered bulks with some duplicates of a unique field: what is acknowledged is there, what was refused is
    not."""

    def begin(self):
        self.n, self.there = 0, set()

    def work(self):
        base = self.n
        self.n += 20
        ops = [InsertOne({"_id": f"{base}-{i}", "u": base + i}) for i in range(10)]
        ops += [InsertOne({"_id": f"{base}-{i} again", "u": base + i}) for i in range(3)]
        ops += [UpdateOne({"_id": f"{base}-0"}, {"$inc": {"touched": 1}})]
        try:
            self.db.bulks.bulk_write(ops, ordered=False)
            self.wrong.append(f"{base}: no duplicate was refused")
        except BulkWriteError as e:
            if e.details.get("writeConcernErrors"):
                return
            if e.details["nInserted"] != 10 or e.details["nModified"] != 1 or len(e.details["writeErrors"]) != 3:
                self.wrong.append(
                    f"{base}: {e.details['nInserted']} {e.details['nModified']} "
                    f"{[(w['index'], w['code'], w['errmsg'][:100]) for w in e.details['writeErrors']]}"
                )
            self.there.update(f"{base}-{i}" for i in range(10))


class Collections(Worker):
    """Makes, indexes, fills, renames and drops collections."""

    def begin(self):
        self.n, self.kept, self.dropped, self.unsure = 0, {}, set(), set()

    def work(self):
        self.n += 1
        name = f"made{self.n}"
        self.unsure = {name, name + "r"}
        coll = self.db[name]
        coll.insert_many([{"_id": i, "a": i % 7, "tags": [i, i + 1]} for i in range(300)])
        coll.create_index([("a", 1), ("tags", -1)])
        if self.n % 3 == 0:
            coll.drop()
            self.dropped.add(name)
        elif self.n % 3 == 1:
            coll.rename(name + "r")
            self.kept[name + "r"] = 300
            self.dropped.add(name)
        else:
            coll.delete_many({"a": 3})
            self.kept[name] = sum(1 for i in range(300) if i % 7 != 3)
        self.unsure = set()

    def lost(self, e):
        # createIndexes, drop and rename are not retried by drivers: what became of this collection is not known.
        for name in self.unsure:
            self.kept.pop(name, None)
            self.dropped.discard(name)


class Leaving(Worker):
    """Documents with their own deadline; one session, wherever it reads: gone is gone. A primary that loses its place
    in the meantime may have hidden by its own clock what the others do not know to be due: only sessions without a
    fault of a member count."""

    def begin(self):
        self.n, self.sent = 0, set()

    def work(self):
        with self.client.start_session(causal_consistency=True) as session:
            gone, seen, before = set(), set(), faults
            for _ in range(6):
                self.n += 1
                ids = [f"{self.n}-{i}" for i in range(4)]
                self.db.command(
                    "insert", "leaving", documents=[{"_id": i} for i in ids], expireAfterSeconds=1, session=session
                )
                self.sent.update(ids)
                for preference, level in (
                    (Primary(), "local"),
                    (SecondaryPreferred(), "local"),
                    (SecondaryPreferred(), "majority"),
                    (Primary(), "majority"),
                ):
                    coll = self.db.get_collection(
                        "leaving", read_preference=preference, read_concern=ReadConcern(level)
                    )
                    now = {d["_id"] for d in coll.find({}, {"_id": 1}, session=session)}
                    if gone & now and before % 2 == 0 and before == faults:
                        self.wrong.append(f"{sorted(gone & now)[:3]} seen again ({preference.name}, {level})")
                    gone |= seen - now
                    seen |= now
                random_moment(0, 0.1)


class OwnWrites(Worker):
    """A causally consistent session reads what it has written, everywhere and at every level."""

    def begin(self):
        self.n = 0

    def work(self):
        with self.client.start_session(causal_consistency=True) as session:
            self.n += 1
            self.db.own.replace_one({"_id": "x"}, {"n": self.n}, upsert=True, session=session)
            for preference, level in (
                (SecondaryPreferred(), "majority"),
                (Nearest(), "local"),
                (Primary(), "linearizable"),
                (Nearest(), "majority"),
            ):
                coll = self.db.get_collection("own", read_preference=preference, read_concern=ReadConcern(level))
                found = coll.find_one({"_id": "x"}, session=session if level != "linearizable" else None)
                if found is None or found["n"] < self.n:
                    self.wrong.append(f"wrote {self.n}, read {found} ({preference.name}, {level})")


class Large(Worker):
    """Documents of 5 MB, three in one entry of the log."""

    def begin(self):
        self.n, self.bytes = 0, os.urandom(5_000_000)

    def work(self):
        self.n += 1
        self.db.large.delete_many({})
        self.db.large.insert_many([{"_id": f"{self.n}-{i}", "bytes": self.bytes} for i in range(3)])
        random_moment(0.3, 0.7)


class Departures(Worker):
    """Every document of `leaving` leaves once, by its deadline."""

    def begin(self):
        self.token, self.left, self.came = None, {}, set()
        self.start_at = self.client.admin.command("hello")["lastWrite"]["opTime"]["ts"]

    def work(self):
        where = {"resume_after": self.token} if self.token else {"start_at_operation_time": self.start_at}
        coll = self.db.get_collection("leaving", read_preference=rnd.choice([SecondaryPreferred(), Primary()]))
        with coll.watch(max_await_time_ms=200, **where) as stream:
            for _ in range(200):
                event = stream.try_next()
                if self.stop and event is None:
                    return
                if event is None:
                    continue
                self.token = event["_id"]
                key = event["documentKey"]["_id"]
                if event["operationType"] == "insert":
                    self.came.add(key)
                elif event["operationType"] == "delete":
                    self.left[key] = self.left.get(key, 0) + 1


def main():
    global faults
    print(f"seed {SEED}")
    check = Checks()
    s = ReplicaSet(extra=["--setParameter", "enableTestCommands=1"])
    workers = []
    try:
        s.initiate()
        p = s.primary()
        p.client.mixed.bulks.create_index("u", unique=True)
        p.client.mixed.create_collection("leaving")
        workers = [Numbers(s), Bulks(s), Collections(s), Leaving(s), OwnWrites(s), Large(s), Departures(s)]
        for w in workers:
            w.start()

        def all_go_on():
            before = [w.done for w in workers]
            s.wait(
                lambda: all(w.done > b for w, b in zip(workers, before)),
                "every kind of work to go on: " + ", ".join(type(w).__name__ for w in workers),
                60,
            )

        memory = []
        for r in range(ROUNDS):
            all_go_on()
            faults += 1
            primary = s.primary()
            kind = ("kill", "pause", "stepDown", "restart", "killSecondary", "killTwo")[r % 6]
            print(f"     round {r}: {kind}", flush=True)
            victims = [primary]
            if kind == "kill":
                primary.kill()
            elif kind == "pause":
                primary.pause()
                s.wait(lambda: any(m.hello()["isWritablePrimary"] for m in s.others(primary)), "another primary")
                primary.resume()
            elif kind == "stepDown":
                try:
                    primary.client.admin.command("replSetStepDown", 5, secondaryCatchUpPeriodSecs=3)
                except OperationFailure as e:
                    print(f"     {e.code}", flush=True)
            elif kind == "restart":
                check(primary.stop() == 0, "a primary in the middle of everything stops cleanly")
            else:
                victims = s.others(primary)[:1] + ([primary] if kind == "killTwo" else [])
                for m in victims:
                    m.kill()
            all_at = time.monotonic()
            for m in victims:
                if not m.running():
                    m.start()
                    m.wait_up()
            s.in_place()
            print(f"     back after {time.monotonic() - all_at:.1f} s", flush=True)
            faults += 1
            memory.append(max(memory_mb(m.proc.pid) for m in s.members))
        all_go_on()
        for w in workers[:-1]:
            w.stop = True
        for w in workers[:-1]:
            w.join(Deadline(90).seconds)
        check(
            not any(w.is_alive() for w in workers[:-1]),
            f"all work ends: {[type(w).__name__ for w in workers[:-1] if w.is_alive()]}",
        )
        numbers, bulks, collections, leaving, own, large, departures = workers
        client = pymongo.MongoClient(s.uri)
        db = client.mixed
        s.wait(lambda: db.leaving.count_documents({}) == 0, "what has a deadline to leave", 60)
        s.wait(lambda: leaving.sent <= set(departures.left), "the stream to show who left", 60)
        departures.stop = True
        departures.join(Deadline().seconds)
        for w in workers:
            print(
                f"     {type(w).__name__}: {w.done} done, {len(w.failed)} failed, "
                f"longest {w.longest[0]:.1f} s {w.longest[1]}",
                flush=True,
            )
            check(not w.wrong, f"{type(w).__name__}: {w.done} times right {w.wrong[:3]}")
            figure(f"{type(w).__name__}, the longest", w.longest[0], "s")
        last = db.numbers.find_one({"_id": "next"})["n"]
        check(
            len(set(numbers.given)) == len(numbers.given)
            and len(numbers.given) <= last <= len(numbers.given) + len(numbers.failed),
            f"findAndModify gave out {len(numbers.given)} numbers, the last one is {last}, "
            f"{len(numbers.failed)} failed",
        )
        there = {d["_id"] for d in db.bulks.find({}, {"_id": 1})}
        check(
            bulks.there <= there and not any("again" in i for i in there),
            f"{len(bulks.there)} documents of bulks are there, {len(bulks.there - there)} lost",
        )
        names = set(db.list_collection_names())
        wrong = [
            n
            for n, count in collections.kept.items()
            if n not in names or db[n].count_documents({}) != count or len(list(db[n].list_indexes())) != 2
        ]
        check(
            not wrong and not collections.dropped & names,
            f"{len(collections.kept)} collections are as they were left, "
            f"{len(collections.dropped)} are gone {wrong[:3]}",
        )
        twice = [k for k, n in departures.left.items() if n > 1]
        check(not twice, f"{len(departures.left)} documents left once each {twice[:3]}")
        check(s.same("mixed"), "all members hold the same")
        bad = [(m.port, n) for m in s.members for n in names if not m.client.mixed.command("validate", n)["valid"]]
        check(not bad, f"every index fits its documents {bad[:3]}")
        check(memory[-1] < max(memory[:2]) + 200, f"memory does not grow: {memory} MiB at most in each round")
    finally:
        for w in workers:
            w.stop = True
        s.close()
    check.end("mixed")


if __name__ == "__main__":
    main()
