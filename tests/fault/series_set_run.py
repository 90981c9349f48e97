#!/usr/bin/env python3
"""Time series of a replica set whose primaries are killed while buckets are merged: each acknowledged point is there
once, members have the same, and the next primary goes on merging.
"""

import collections, datetime, os, random, threading

from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from fault_test import SEED, Checks, random_moment, rnd
from replica_set import ReplicaSet

ROUNDS = int(os.environ.get("MAYFLY_SERIES_ROUNDS", "3"))
BEGIN = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
check = Checks(quiet=True)
the_set = ReplicaSet(3, ["--setParameter", "timeSeriesSealIdleSecs=0"])


class Writer(threading.Thread):
    """Points with numbers that go up, to whoever is primary; a step that fails leaves its points unsure."""

    def __init__(self, number, seed):
        super().__init__()
        self.number, self.rnd, self.next = number, random.Random(seed), 0
        self.known, self.unsure, self.gone, self.end = set(), set(), set(), threading.Event()

    def run(self):
        while not self.end.is_set():
            try:
                member = the_set.primary(30)
                points = member.client.test.get_collection("points", write_concern=WriteConcern("majority"))
                while not self.end.is_set():
                    self.step(points)
            except (PyMongoError, AssertionError):
                pass

    def step(self, points):
        r = self.rnd
        if r.random() < 0.9 or not self.known:
            ids = [f"{self.number}-{self.next + i}" for i in range(r.choice([1, 7, 100]))]
            self.next += len(ids)
            self.unsure.update(ids)
            points.insert_many(
                {
                    "_id": i,
                    "t": BEGIN + datetime.timedelta(seconds=r.randrange(9000)),
                    "m": r.randrange(5),
                    "v": r.random(),
                }
                for i in ids
            )
            self.known.update(ids)
        else:
            ids = r.sample(sorted(self.known), min(3, len(self.known)))
            self.known.difference_update(ids)
            self.unsure.update(ids)
            points.delete_many({"_id": {"$in": ids}})
            self.gone.update(ids)
        self.unsure.difference_update(ids)


class Replacer(threading.Thread):
    """Puts all points there are into another time series, again and again."""

    def __init__(self, end):
        super().__init__()
        self.end, self.done = end, 0

    def run(self):
        out = {"db": "test", "coll": "copied", "timeseries": {"timeField": "t", "metaField": "m"}}
        while not self.end.is_set():
            try:
                the_set.primary(30).client.test.points.aggregate([{"$out": out}])
                self.done += 1
            except (PyMongoError, AssertionError):
                pass


def compare(writers, what):
    member = the_set.primary()
    there = collections.Counter(d["_id"] for d in member.client.test.points.find({}, {"_id": 1}, batch_size=200))
    lost = sum(i not in there for w in writers for i in w.known)
    back = sum(i in there for w in writers for i in w.gone)
    twice = sum(n > 1 for n in there.values())
    check(lost == back == twice == 0, f"{what}: {lost} lost, {back} came back, {twice} twice, of {len(there)}")
    return there


try:
    the_set.initiate()
    the_set.primary().client.test.create_collection("points", timeseries={"timeField": "t", "metaField": "m"})
    writers = [Writer(n, rnd.randrange(1 << 30)) for n in range(3)]
    replacer = Replacer(writers[0].end)
    for w in [*writers, replacer]:
        w.start()
    for round_no in range(ROUNDS):
        random_moment(1, 2)
        primary = the_set.primary()
        if round_no % 2 == 0:
            primary.kill()
            the_set.members.remove(primary)
            the_set.primary()
            primary.start()
            the_set.members.append(primary)
            primary.wait_up()
        else:
            try:
                primary.client.admin.command("replSetStepDown", 5)
            except PyMongoError:
                pass
        the_set.in_place()
    for w in writers:
        w.end.set()
    for w in [*writers, replacer]:
        w.join()
    the_set.settled()
    before = compare(writers, "after the failovers")

    def stats():
        return the_set.primary().client.test.command("collStats", "points")["timeseries"]

    # The primary of now finds what those before it left: as they were inserted there are 5 points a bucket.
    the_set.wait(lambda: len(before) / stats()["bucketCount"] > 10, "what earlier primaries left is merged", 60)
    check(compare(writers, "after the last merges") == before, "other points than before")
    check(replacer.done > 0, "$out has come to its end")
    names = sorted(the_set.primary().client.test.list_collection_names())
    expected = ["copied", "points", "system.buckets.copied", "system.buckets.points"]
    check(names == expected, f"collections: {names}")
    check(the_set.same(), "members have the same")
    for m in the_set.members:
        n = m.client.test.points.count_documents({})
        check(n == len(before), f"{n} of {len(before)} points on a member")
        v = m.client.test.command("validate", "points", full=True)
        check(v["valid"], f"validate: {str(v)[:1000]}")
    print(f"series of a set: {ROUNDS} failovers, {len(before)} points in {stats()['bucketCount']} buckets, seed {SEED}")
finally:
    for w in threading.enumerate():
        if isinstance(w, Writer):
            w.end.set()
    the_set.close()
check.end("series of a set")
