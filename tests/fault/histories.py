"""Clients of transactions that write down what they did, for a checker of isolation (isolation_run.py).

A history is Jepsen's: one line when a transaction begins and one when its client knows what became of it ("ok", "fail":
certainly nothing, "info": nobody knows), each with its steps: ["append", key, value], ["w", key, value], ["r", key,
what was found]. Values are written once, so that a read tells which write it saw. Keys are used up and replaced by new
ones, so that lists stay short.
"""

import json, random, threading, time

import pymongo
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from fault_test import SEED

MAJORITY = WriteConcern("majority")
SLOTS, WRITES = 5, 30  # keys in use at once, writes until another one takes a key's place
KEYS_AT_ONCE = 20  # in the last reads
COMMIT_SECONDS = 8  # how long a commit is asked for again
QUICK = dict(  # clock: what fails is of unknown outcome, and the next one is tried
    serverSelectionTimeoutMS=4000, connectTimeoutMS=3000, socketTimeoutMS=3000, heartbeatFrequencyMS=500, maxPoolSize=4
)


# Of clients that give up before they know what became of a commit, and leave transactions open.
IMPATIENT = {**QUICK, "serverSelectionTimeoutMS": 500, "socketTimeoutMS": 250}  # clock: as QUICK


class ChangedMind(Exception):
    """The client aborts."""


class History:
    """Threads: any."""

    def __init__(self):
        self.lock, self.lines, self.processes, self.ok, self.problems = threading.Lock(), [], 0, 0, []

    def process(self):
        with self.lock:
            self.processes += 1
            return self.processes

    def note(self, process, kind, steps):
        with self.lock:
            self.ok += kind == "ok"
            self.lines.append({"index": len(self.lines), "type": kind, "process": process, "value": steps})

    def count(self, kind):
        return sum(line["type"] == kind for line in self.lines)

    def save(self, path):
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))


class Keys:
    """Which ones are in use. Threads: any."""

    def __init__(self):
        self.lock, self.uses, self.value, self.seen = threading.Lock(), [0] * SLOTS, 0, set()

    def take(self, dice, writes):
        """A key, and a value that nobody else writes."""
        with self.lock:
            slot = dice.randrange(SLOTS)
            self.uses[slot] += writes
            self.value += writes
            key = slot + SLOTS * (self.uses[slot] // WRITES)
            self.seen.add(key)
            return key, self.value


class Workload:
    """Transactions over one collection, and their history. `model`: as the checker calls it."""

    write = "append"

    def __init__(self, db):
        self.db, self.keys, self.history = db, Keys(), History()

    def steps(self, dice):
        """What a transaction is going to do."""
        steps = []
        for _ in range(dice.randint(1, 6)):
            writes = dice.random() < 0.4
            key, value = self.keys.take(dice, writes)
            if dice.random() < 0.4 or not writes:
                steps.append(["r", key, None])
            if writes:
                steps.append([self.write, key, value])
            if writes and dice.random() < 0.3:
                steps.append(["r", key, None])
        return steps

    def run(self, db, session, steps, dice):
        """Does it: the steps with what was read."""
        done = []
        for kind, key, value in steps:
            if kind == "r":
                done.append(["r", key, self.read(db, session, key, dice)])
            else:
                done += self.change(db, session, key, value, dice)
        return done


class Lists(Workload):
    """A document a key, with the list in it. Read by all kinds of plans, changed by all kinds of statements."""

    model = "list-append"

    def fill(self):
        self.db.lists.create_index("k")
        self.db.lists.create_index([("v", 1), ("k", 1)])
        self.db.keys.insert_one({"_id": 0})

    def read(self, db, session, key, dice):
        how = dice.randrange(4)
        if how == 0:
            found = db.lists.find_one({"_id": key}, session=session)
        elif how == 1:
            found = next(db.lists.find({"k": key}, session=session, hint="k_1"), None)
        elif how == 2:
            joined = {"from": "lists", "pipeline": [{"$match": {"k": key}}], "as": "lists"}
            lists = next(db.keys.aggregate([{"$lookup": joined}], session=session))["lists"]
            found = lists[0] if lists else None
        else:
            # By one entry of a multikey index for each element.
            unwound = [{"$match": {"k": key, "v": {"$gte": 0}}}, {"$unwind": "$v"}]
            grouped = {"$group": {"_id": "$k", "v": {"$push": "$v"}}}
            found = next(db.lists.aggregate([*unwound, grouped], session=session, hint="v_1_k_1"), None)
        return found["v"] if found else []

    def change(self, db, session, key, value, dice):
        push = {"$push": {"v": value}, "$setOnInsert": {"k": key}}
        how = dice.randrange(4)
        if how == 0:
            db.lists.update_one({"_id": key}, push, upsert=True, session=session)
        elif how == 1:
            before = db.lists.find_one_and_update({"_id": key}, push, upsert=True, session=session)
            return [["r", key, before["v"] if before else []], ["append", key, value]]
        elif how == 2:
            before = self.read(db, session, key, dice)
            db.lists.replace_one({"_id": key}, {"k": key, "v": [*before, value]}, upsert=True, session=session)
            return [["r", key, before], ["append", key, value]]
        else:
            db.lists.bulk_write([pymongo.UpdateOne({"_id": key}, push, upsert=True)], session=session)
        return [["append", key, value]]

    def plain(self, db, dice):
        """One statement that is its own transaction."""
        key, value = self.keys.take(dice, 1)
        push = {"$push": {"v": value}, "$setOnInsert": {"k": key}}

        def run():
            before = db.lists.find_one_and_update({"_id": key}, push, upsert=True)
            return [["r", key, before["v"] if before else []], ["append", key, value]]

        return [["r", key, None], ["append", key, value]], run


class Rows(Workload):
    """A list is a range of a unique index: its elements are documents, and whoever appends takes the next number."""

    model = "list-append"

    def fill(self):
        self.db.rows.create_index([("k", 1), ("n", 1)], unique=True)
        self.db.rows.create_index([("k", 1), ("n", 1), ("x", 1)])

    def read(self, db, session, key, dice):
        how = dice.randrange(3)
        if how == 0:
            rows = db.rows.find({"k": key}, session=session).sort("n", 1)
        elif how == 1:  # covered
            rows = db.rows.find({"k": key}, {"_id": 0, "n": 1, "x": 1}, session=session, hint="k_1_n_1_x_1")
        else:
            rows = db.rows.aggregate([{"$match": {"k": key}}, {"$sort": {"n": 1}}], session=session)
        rows = list(rows)
        if [r["n"] for r in rows] != list(range(len(rows))):
            self.history.problems.append(f"numbers of {key}: {[r['n'] for r in rows]}")
        return [r["x"] for r in rows]

    def change(self, db, session, key, value, dice):
        before = self.read(db, session, key, dice)
        if before and dice.random() < 0.3:  # frees a unique key and takes it again
            last = {"k": key, "n": len(before) - 1}
            db.rows.delete_one(last, session=session)
            db.rows.insert_one({**last, "x": before[-1]}, session=session)
        db.rows.insert_one({"k": key, "n": len(before), "x": value}, session=session)
        return [["r", key, before], ["append", key, value]]


class Registers(Workload):
    """A document a key, with one value; also deleted and inserted anew."""

    model, write = "rw-register", "w"

    def fill(self):
        self.db.registers.create_index("v")

    def read(self, db, session, key, dice):
        if dice.random() < 0.5:
            found = db.registers.find_one({"_id": key}, session=session)
        else:
            match = [{"$match": {"_id": {"$in": [key, -1]}}}, {"$limit": 1}]
            found = next(db.registers.aggregate(match, session=session), None)
        return found["v"] if found else None

    def change(self, db, session, key, value, dice):
        if dice.random() < 0.5:
            db.registers.update_one({"_id": key}, {"$set": {"v": value}}, upsert=True, session=session)
        else:
            db.registers.delete_one({"_id": key}, session=session)
            db.registers.insert_one({"_id": key, "v": value}, session=session)
        return [["w", key, value]]

    def plain(self, db, dice):
        key, value = self.keys.take(dice, 1)

        def run():
            before = db.registers.find_one_and_update({"_id": key}, {"$set": {"v": value}}, upsert=True)
            return [["r", key, before["v"] if before else None], ["w", key, value]]

        return [["r", key, None], ["w", key, value]], run


def commit(session, seconds):
    """What became of it. A commit whose answer is lost is asked for again for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            session.commit_transaction()
            return "ok"
        except PyMongoError as e:
            if not e.has_error_label("UnknownTransactionCommitResult"):
                # It says that nothing of it will ever be seen, also after an earlier attempt without an answer.
                return "fail" if isinstance(e, OperationFailure) else "info"
            if time.monotonic() > deadline:  # clock: how often it is asked for; "info" is no verdict
                return "info"


class Clients:
    """Threads that work on the workloads until they are told to stop; nothing they find is an error by itself."""

    def __init__(self, uris, workloads, count, readers=0):
        self.workloads, self.stop, self.unexpected = workloads, False, []
        self.threads = [
            threading.Thread(target=self.guarded, args=(self.work, uris[i % len(uris)], i)) for i in range(count)
        ] + [threading.Thread(target=self.guarded, args=(self.look, uris[i % len(uris)], i)) for i in range(readers)]
        for t in self.threads:
            t.start()

    def finish(self):
        self.stop = True
        for t in self.threads:
            t.join()

    def guarded(self, f, uri, number):
        try:
            with pymongo.MongoClient(uri, **(IMPATIENT if number % 4 > 1 else QUICK)) as mongo:
                f(mongo, random.Random(f"{SEED} {f.__name__} {number}"))
        except Exception as e:  # not of the server: of these clients
            self.unexpected.append(repr(e))

    def work(self, mongo, dice):
        processes = [w.history.process() for w in self.workloads]
        with mongo.start_session() as session:
            while not self.stop:
                i = dice.randrange(len(self.workloads))
                w = self.workloads[i]
                db = mongo.get_database(w.db.name, write_concern=MAJORITY)
                if hasattr(w, "plain") and dice.random() < 0.15:
                    kind = self.plain(w, db, processes[i], dice)
                else:
                    kind = self.transaction(w, db, session, processes[i], dice)
                if kind == "info":  # it may still happen, so whoever comes next is another one
                    processes[i] = w.history.process()

    def plain(self, w, db, process, dice):
        steps, run = w.plain(db, dice)
        w.history.note(process, "invoke", steps)
        kind = "info"
        try:
            steps = run()
            kind = "ok"
        except PyMongoError:
            pass
        w.history.note(process, kind, steps)
        return kind

    def transaction(self, w, db, session, process, dice):
        steps = w.steps(dice)
        w.history.note(process, "invoke", steps)
        kind = "fail"
        try:
            level = dice.choice(("snapshot", "snapshot", "majority", "local"))
            session.start_transaction(ReadConcern(level), MAJORITY)
            done = w.run(db.client.get_database(db.name), session, steps, dice)
            if dice.random() < 0.05:
                raise ChangedMind
            kind = commit(session, dice.choice((0, COMMIT_SECONDS)))
            if kind == "ok":
                steps = done
        except (PyMongoError, ChangedMind):
            pass
        finally:
            if session.in_transaction:
                try:
                    session.abort_transaction()
                except PyMongoError:
                    pass
        w.history.note(process, kind, steps)
        return kind

    def look(self, mongo, dice):
        """Snapshot sessions: several reads of one moment, mostly on secondaries."""
        while not self.stop:
            w = dice.choice(self.workloads)
            db = mongo.get_database(w.db.name, read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED)
            steps = [["r", w.keys.take(dice, 0)[0], None] for _ in range(dice.randint(2, 4))]
            process = w.history.process()  # what it sees may be older than what others have read before
            w.history.note(process, "invoke", steps)
            try:
                with mongo.start_session(snapshot=True) as session:
                    steps, kind = w.run(db, session, steps, dice), "ok"
            except PyMongoError:
                kind = "fail"
            w.history.note(process, kind, steps)


def read_all(mongo, w):
    """The last word on every key that was used, some keys at a time."""
    keys = sorted(w.keys.seen)
    for i in range(0, len(keys), KEYS_AT_ONCE):
        process, some = w.history.process(), keys[i : i + KEYS_AT_ONCE]
        w.history.note(process, "invoke", [["r", key, None] for key in some])
        with mongo.start_session() as session:
            found = session.with_transaction(
                lambda s: [["r", key, w.read(mongo[w.db.name], s, key, random.Random(key))] for key in some],
                ReadConcern("snapshot"),
                MAJORITY,
            )
        w.history.note(process, "ok", found)
