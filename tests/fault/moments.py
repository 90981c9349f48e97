"""Whether all members show the same at one time of the set, while it goes on (isolation_run.py)."""

import threading

import pymongo
from pymongo.errors import PyMongoError

from fault_test import SEED
from histories import MAJORITY, QUICK


def read_at(member, db, ts):
    """What the member has at this time (None: now), and that time."""
    concern = {"level": "snapshot", **({"atClusterTime": ts} if ts is not None else {})}
    reply = member.client[db].command("find", "moments", filter={}, readConcern=concern, batchSize=1000)
    return {d["_id"]: d["n"] for d in reply["cursor"]["firstBatch"]}, reply["cursor"]["atClusterTime"]


class Moments:
    """Writers that never rest, and readers that ask one member for a moment and then the others for the same."""

    def __init__(self, s, db, wanted):
        self.s, self.db, self.wanted = s, db, wanted
        self.compared, self.differ, self.stop = 0, [], False

    def write(self, number):
        with pymongo.MongoClient(self.s.uri, **QUICK) as mongo:
            coll = mongo[self.db].get_collection("moments", write_concern=MAJORITY)
            while not self.stop:
                try:
                    coll.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)
                except PyMongoError:
                    pass

    def compare(self, number):
        first, *others = self.s.members[number:] + self.s.members[:number]
        while not self.stop:
            try:
                found, ts = read_at(first, self.db, None)
            except PyMongoError:
                continue
            for m in others:
                try:
                    same, _ = read_at(m, self.db, ts)
                except PyMongoError:
                    continue  # it has no snapshot of that time
                self.compared += 1
                if same != found:
                    self.differ.append(f"at {ts} {first.name} has {found}, {m.name} {same}")

    def run(self):
        threads = [threading.Thread(target=self.write, args=(i,)) for i in range(3)]
        threads += [threading.Thread(target=self.compare, args=(i,)) for i in range(len(self.s.members))]
        for t in threads:
            t.start()
        try:
            self.s.wait(lambda: self.compared >= self.wanted, f"{self.wanted} moments of two members (seed {SEED})", 60)
        finally:
            self.stop = True
            for t in threads:
                t.join()
