#!/usr/bin/env python3
"""Everything at once: five members on disks, clocks and a network that fail, under writers, counters, readers of what
expires and change streams.

Each round draws two or three faults that overlap: kill -9, SIGSTOP beyond the election timeout, power loss, SIGTERM, a
data directory that is emptied, partitions, slow links and disks, clocks that are seconds ahead or behind, thousands of
documents that expire in one moment, step-downs, and changes of the configuration (a member removed and added again,
votes, priorities). MAYFLY_FAULT_ROUNDS (8), MAYFLY_FAULT_MEMBERS (5), MAYFLY_SEED draws the same again.

Looked at afterwards: no acknowledged write is lost, none came from nowhere, each increment counted once, nothing that
expired was seen again, each change stream has shown every acknowledged write once and in order, nothing is in the log
as deleted twice, all members hold the same. The last line says "N passed, N failed".
"""

import collections, datetime, os, shutil, threading, time

import pymongo
from pymongo.errors import PyMongoError
from pymongo.read_preferences import ReadPreference

from fault_test import SEED, Deadline, random_moment, rnd, until
from load import Watcher, Writers, verdict
from proxy import Network
from replica_set import FAULTY, Checks, ReplicaSet

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "8"))
MEMBERS = int(os.environ.get("MAYFLY_FAULT_MEMBERS", "5"))
ALIVE = (PyMongoError, AssertionError)


class Counter(threading.Thread):
    """Increments one document with the driver's own retry: what was acknowledged counts once, what failed once at
    most."""

    def __init__(self, uri, name):
        super().__init__()
        self.uri, self.name_, self.stop, self.done, self.unknown = uri, name, False, 0, 0
        self.start()

    def run(self):
        client = pymongo.MongoClient(  # clock: what fails is tried again
            self.uri, serverSelectionTimeoutMS=Deadline().millis, socketTimeoutMS=15000, heartbeatFrequencyMS=500
        )
        while not self.stop:
            try:
                client.test.counters.update_one({"_id": self.name_}, {"$inc": {"n": 1}}, upsert=True)
                self.done += 1
            except PyMongoError:
                self.unknown += 1
        client.close()


class Stream(threading.Thread):
    """Reads inserts of `kept` from `start` on; goes on from its token whatever happens."""

    def __init__(self, uri, preference, start):
        super().__init__(daemon=True)
        self.uri, self.preference, self.start_, self.seen, self.token, self.stop, self.resumed = (
            uri,
            preference,
            start,
            [],
            None,
            None,
            0,
        )
        self.start()

    def run(self):
        client = pymongo.MongoClient(  # clock: what fails is tried again
            self.uri, serverSelectionTimeoutMS=5000, socketTimeoutMS=10000, heartbeatFrequencyMS=500
        )
        coll = client.test.get_collection("kept", read_preference=self.preference)
        while True:
            where = {"resume_after": self.token} if self.token else {"start_at_operation_time": self.start_}
            try:
                with coll.watch([{"$match": {"operationType": "insert"}}], max_await_time_ms=200, **where) as stream:
                    # Looked at without an event too: the last one may have come before anybody said that it is the
                    # last.
                    while self.stop is None or self.stop not in self.seen[-1:]:
                        event = stream.try_next()
                        if event:
                            self.seen.append(event["documentKey"]["_id"])
                            self.token = event["_id"]
                client.close()
                return
            except PyMongoError:
                self.resumed += 1


class Expiring(Watcher):
    """Documents with their own deadline, which reads hide at once: once hidden by a member that leads, for ever
    hidden."""

    def run(self):
        client = pymongo.MongoClient(  # clock: what fails is tried again
            self.uri, serverSelectionTimeoutMS=4000, socketTimeoutMS=4000, heartbeatFrequencyMS=500, retryWrites=False
        )
        coll = client.test.get_collection("own", read_concern=pymongo.read_concern.ReadConcern("linearizable"))
        seen, n = set(), 0
        while not self.stop:
            try:
                n += 1
                client.test.command(
                    "insert",
                    "own",
                    documents=[{"_id": f"{n}-{i}"} for i in range(3)],
                    expireAt=datetime.datetime.now(datetime.timezone.utc)
                    + datetime.timedelta(milliseconds=rnd.randrange(200, 4000)),
                )
                now = {d["_id"] for d in coll.find({}, {"_id": 1})}
            except PyMongoError:
                continue
            self.reads += 1
            self.back |= now & self.gone
            self.gone |= seen - now
            seen |= now
        client.close()


class World:
    def __init__(self):
        self.net = Network()
        self.s = ReplicaSet(MEMBERS, extra=["--oplogSize", "16"], network=self.net, binary=FAULTY)
        self.counts = collections.Counter()
        self.out = None  # who is removed from the configuration

    def others(self, *not_these):
        return [m for m in self.s.members if m not in not_these]

    def few(self, most=None):
        """Some members, never so many that no majority is left."""
        return rnd.sample(self.s.members, rnd.randint(1, most or (MEMBERS - 1) // 2))

    def back(self, seconds=120):
        self.net.heal()
        for m in self.s.members:
            if m.running():
                m.resume()
                m.tell("slow 0")
                m.tell("clock 0")
            else:
                m.proc.wait()
                m.start()
        for m in self.s.members:
            m.wait_up(60)
        if self.out:
            self.add_again()
        self.s.in_place(seconds)
        # A fault in the next round may take two members: all have to count by then.
        self.s.wait(
            lambda: self.s.primary().client.admin.command("replSetGetStatus")["votingMembersCount"] == MEMBERS,
            "all to vote",
            seconds,
        )

    def reconfig(self, change, seconds=30):
        def changed():
            try:
                admin = self.s.primary(10).client.admin
                config = admin.command("replSetGetConfig")["config"]
                config["version"] += 1
                change(config)
                return admin.command("replSetReconfig", config)
            except ALIVE:
                return None

        return bool(until(changed, seconds))

    def add_again(self):
        number = self.s.members.index(self.out)

        def change(c):
            if all(m["_id"] != number for m in c["members"]):
                c["members"].append({"_id": number, "host": self.out.host})

        if not self.reconfig(change, 60):
            raise AssertionError(f"{self.out.host} could not be added again")
        self.out = None

    # --- faults: each is begun, `back` ends all -----------------------------------------------------
    def kill(self):
        for m in self.few():
            m.kill()

    def kill_primary(self):
        self.s.primary(20).kill()

    def kill_all(self):
        for m in self.s.members:
            if m.running():
                m.kill()
        for m in rnd.sample(self.s.members, MEMBERS):
            m.start()

    def power(self):
        for m in self.s.members if rnd.random() < 0.5 else self.few():
            if m.running():
                m.resume()
                m.tell("power")
                m.proc.wait(Deadline().seconds)
                m.start()

    def pause(self):
        for m in {self.s.primary(20), *self.few(1)}:
            if m.running():
                m.pause()

    def terminate(self):
        for m in self.few(1):
            if m.running():
                m.resume()
                m.stop()

    def emptied(self):
        m = self.few(1)[0]
        if m.running():
            m.kill()
        shutil.rmtree(f"{m.folder}/data", ignore_errors=True)
        m.start()

    def partition(self):
        names = [m.name for m in self.s.members]
        rnd.shuffle(names)
        cut = rnd.randint(1, MEMBERS // 2)
        one_way = rnd.random() < 0.3
        pairs = {(a, b) for a in names[:cut] for b in names[cut:]}
        self.net.set(pairs if one_way else pairs | {(b, a) for a, b in pairs})

    def slow_links(self):
        self.net.set(
            (),
            {(a.name, b.name): rnd.uniform(0.01, 0.15) for a in self.s.members for b in self.s.members if a is not b},
        )

    def slow_disk(self):
        for m in self.few(1):
            if m.running():
                m.tell(f"slow {rnd.choice([20, 100, 300])}")

    def clock(self):
        for m in self.s.members:
            if m.running():
                m.tell(f"clock {rnd.randint(-20_000, 20_000)}")

    def burst(self):
        soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(milliseconds=300)
        try:
            self.s.primary(10).client.test.short.insert_many(
                [{"_id": f"burst {time.monotonic_ns()}-{i}", "at": soon} for i in range(3000)], ordered=False
            )
        except ALIVE:
            pass

    def step_down(self):
        try:
            self.s.primary(10).client.admin.command(
                "replSetStepDown", 10, force=rnd.random() < 0.5, secondaryCatchUpPeriodSecs=1
            )
        except ALIVE:
            pass

    def votes(self):
        number = rnd.randrange(MEMBERS)

        def change(c):
            for m in c["members"]:
                if m["_id"] == number:
                    m.update({"votes": 0, "priority": 0} if m["votes"] else {"votes": 1, "priority": 1})

        self.reconfig(change, 3)

    def priorities(self):
        def change(c):
            for m in c["members"]:
                if m["votes"]:
                    m["priority"] = rnd.choice([0.5, 1, 2, 3])

        self.reconfig(change, 3)

    def removed(self):
        if self.out:
            return
        m = rnd.choice(self.s.members)
        self.out = m

        def change(c):
            c["members"] = [x for x in c["members"] if x["host"] != m.host]

        self.reconfig(change, 3)  # whether it was removed or not: it is added again if it is not there

    def all_vote(self):
        """One voter at a time, as configurations change."""
        while True:
            config = self.s.primary().client.admin.command("replSetGetConfig")["config"]
            silent = [m["_id"] for m in config["members"] if not m["votes"]]
            if not silent:
                return

            def change(c):
                for m in c["members"]:
                    if m["_id"] == silent[0]:
                        m.update(votes=1, priority=1)

            if not self.reconfig(change):
                raise AssertionError("votes could not be given back")


FAULTS = [
    World.kill,
    World.kill_primary,
    World.kill_all,
    World.power,
    World.pause,
    World.terminate,
    World.emptied,
    World.partition,
    World.slow_links,
    World.slow_disk,
    World.clock,
    World.clock,
    World.burst,
    World.burst,
    World.step_down,
    World.votes,
    World.priorities,
    World.removed,
]
# Not together: two that make a majority forget, and a clock that is ahead when nobody is left who knows it.
ALONE = {World.emptied, World.kill_all, World.power, World.clock}


def twice_deleted(client):
    """_ids that the log deletes a second time without an insert in between."""
    gone, twice, deletes = set(), [], 0

    def one(e):
        nonlocal deletes
        if not e.get("ns", "").startswith("test."):
            return
        key = (e["ns"], str(e["o"].get("_id") if e["op"] != "u" else e["o2"]["_id"]))
        if e["op"] == "d":
            deletes += 1
            if key in gone:
                twice.append(key)
            gone.add(key)
        elif e["op"] in "iu":
            gone.discard(key)

    for e in client.local["oplog.rs"].find({"op": {"$ne": "n"}}, no_cursor_timeout=True):
        for part in e["o"].get("applyOps", [e]):
            one(part)
    return twice, deletes


def main():
    print(f"seed {SEED}")
    check = Checks()
    w = World()
    s = w.s
    threads = []
    try:
        s.initiate()
        p = s.primary()
        p.patient.test.short.create_index("at", expireAfterSeconds=0)
        p.patient.test.kept.create_index("n")
        p.client.test.create_collection("own")
        p.client.test.create_collection("counters")
        w.back()
        start = p.client.admin.command("hello")["lastWrite"]["opTime"]["ts"]
        plain, retrying = Writers(s.uri, 2, "plain", 4), Writers(s.uri, 2, "retry", 15, retry=True)
        counters = [Counter(s.uri, f"c{i}") for i in range(2)]
        streams = [
            Stream(s.uri, ReadPreference.PRIMARY_PREFERRED, start),
            Stream(s.uri, ReadPreference.SECONDARY_PREFERRED, start),
        ]
        watchers = [Watcher(s.uri, 4), Expiring(s.uri, 4)]
        threads = [plain, retrying, *counters, *watchers]
        for r in range(ROUNDS):
            plain.go_on(s, 60)
            retrying.go_on(s, 60)
            kinds = []
            for f in rnd.sample(FAULTS, rnd.randint(2, 3)):
                if (
                    f not in kinds
                    and not (f in ALONE and ALONE & set(kinds))
                    and not (f is World.emptied and {World.kill, World.removed, World.votes} & set(kinds))
                    and not ({World.kill, World.removed, World.votes} & {f} and World.emptied in kinds)
                ):
                    kinds.append(f)
            print(f"     round {r}: {', '.join(f.__name__ for f in kinds)}", flush=True)
            for f in kinds:
                w.counts[f.__name__] += 1
                try:
                    f(w)
                except ALIVE:
                    pass  # there is no primary just now
                random_moment(0, 0.8)
            random_moment(0, 2.5)
            w.net.heal()
            try:
                w.back()
            except AssertionError:
                if any(
                    m["votes"] == 0 for m in s.primary().client.admin.command("replSetGetConfig")["config"]["members"]
                ):
                    pass
                else:
                    raise
            w.all_vote()
            w.back()
        for x in (plain, retrying):
            x.go_on(s, 60)
        for x in (plain, retrying):
            x.finish()
        for x in (*counters, *watchers):
            x.stop = True
        for x in (*counters, *watchers):
            x.join()
        threads = []
        print(f"     faults: {dict(w.counts)}", flush=True)
        last = f"the last one {SEED}"
        s.wait(lambda: s.primary().client.test.kept.insert_one({"_id": last}).acknowledged, "the last write")
        for x in streams:
            x.stop = last
        for x, name in zip(streams, ("primary", "secondary")):
            x.join(Deadline(120).seconds)
            check(
                not x.is_alive(),
                f"the stream on the {name} comes to the end (resumed {x.resumed} times, {len(x.seen)} events)",
            )
            check(len(set(x.seen)) == len(x.seen), f"no event twice on the {name}")
            missing = (plain.acknowledged | retrying.acknowledged) - set(x.seen)
            check(not missing, f"every acknowledged write on the {name} ({sorted(missing)[:3]})")
        check(streams[0].seen == streams[1].seen, "both streams have shown the same, in the same order")
        for c in counters:
            n = s.primary().client.test.counters.find_one({"_id": c.name_})["n"]
            check(
                c.done <= n <= c.done + c.unknown,
                f"each increment counts once: {c.done} acknowledged, {c.unknown} failed, {n} counted",
            )
        s.settled()
        twice, deletes = twice_deleted(s.primary().client)
        check(not twice, f"nothing is deleted twice in the log ({deletes} deletes; {twice[:3]})")
        # Hidden is not removed yet: the reaper goes by the primary's own clock, reads never behind one that was ahead.
        s.wait(
            lambda: (
                s.primary().client.test.command(
                    "aggregate", "own", pipeline=[{"$limit": 1}], cursor={}, includeExpired=True
                )["cursor"]["firstBatch"]
                == []
            ),
            "what is past its own deadline to be removed",
        )
        s.settled()
        whole = [m.client.test.command("dbHash")["collections"] for m in s.members]
        check(
            all(w == whole[0] for w in whole),
            f"every collection is the same everywhere: "
            f"{[n for n in whole[0] if len({w.get(n) for w in whole}) > 1] or sorted(whole[0])}",
        )
        unknown = Writers.__new__(Writers)
        unknown.acknowledged, unknown.unknown, unknown.gaps = set(), {last}, []
        verdict(s, check, [plain, retrying, unknown], watchers, f"{ROUNDS} rounds of everything")
    finally:
        for x in threads:
            x.stop = True
        s.close()
        w.net.close()
    check.end("everything at once")


if __name__ == "__main__":
    main()
