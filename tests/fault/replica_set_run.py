#!/usr/bin/env python3
"""Kills and pauses members of a set of three under load, again and again (MAYFLY_FAULT_ROUNDS, 6), and looks afterwards:

  - every acknowledged write is there, and none is there that was refused;
  - no document that had expired is seen again;
  - all members hold the same (dbHash: documents, indexes, deadlines).

The last line says "N passed, N failed".
"""
import datetime, os, random, sys, threading, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pymongo
from pymongo.errors import PyMongoError, WriteError
from replica_set import ReplicaSet

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "6"))
SEED = int(os.environ.get("MAYFLY_FAULT_SEED", str(random.randrange(1 << 30))))


class Writers:
    """Threads that write and note what was acknowledged."""

    def __init__(self, uri, threads=3):
        self.stop, self.acknowledged, self.unknown, self.gaps = False, set(), set(), []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(uri, i)) for i in range(threads)]
        for t in self.threads:
            t.start()

    def run(self, uri, number):
        client = pymongo.MongoClient(uri, serverSelectionTimeoutMS=30000, retryWrites=False, socketTimeoutMS=15000)
        n, last = 0, time.monotonic()
        while not self.stop:
            key = f"{number}-{n}"
            n += 1
            now = datetime.datetime.now(datetime.timezone.utc)
            doc = {"_id": key, "n": n, "at": now + datetime.timedelta(milliseconds=500 if n % 5 == 0 else 86_400_000)}
            try:
                client.test.short.insert_one(doc) if n % 5 == 0 else client.test.kept.insert_one(doc)
                with self.lock:
                    if n % 5:
                        self.acknowledged.add(key)
                    gap, last = time.monotonic() - last, time.monotonic()
                    if gap > 1:
                        self.gaps.append(gap)
            except PyMongoError:
                with self.lock:
                    self.unknown.add(key)

    def go_on(self, s, documents):
        """Waits until so many more have been acknowledged."""
        wanted = len(self.acknowledged) + documents
        s.wait(lambda: len(self.acknowledged) >= wanted, f"{documents} more writes")

    def finish(self):
        self.stop = True
        for t in self.threads:
            t.join()


class Watcher(threading.Thread):
    """Reads what expires from the primary: once gone, for ever gone."""

    def __init__(self, uri):
        super().__init__()
        self.stop, self.gone, self.back, self.uri, self.reads = False, set(), set(), uri, 0
        self.start()

    def run(self):
        client = pymongo.MongoClient(self.uri, serverSelectionTimeoutMS=30000, socketTimeoutMS=15000)
        seen = set()
        while not self.stop:
            try:
                now = {d["_id"] for d in client.test.short.with_options(read_concern=pymongo.read_concern.ReadConcern("linearizable")).find({}, {"_id": 1})}
            except PyMongoError:
                continue
            self.reads += 1
            self.back |= now & self.gone
            self.gone |= seen - now
            seen |= now


def main():
    random.seed(SEED)
    print(f"seed {SEED}")
    passed, failed = 0, 0

    def check(ok, what):
        nonlocal passed, failed
        passed, failed = passed + bool(ok), failed + (not ok)
        print(("ok   " if ok else "FAIL ") + what, flush=True)

    s = ReplicaSet()
    try:
        s.initiate()
        p = s.primary()
        p.client.test.short.create_index("at", expireAfterSeconds=0)
        p.client.test.kept.create_index("n")
        writers, watcher = Writers(s.uri), Watcher(s.uri)
        for r in range(ROUNDS):
            writers.go_on(s, 300)  # load between the faults
            primary = s.primary()
            fault = ["kill primary", "kill secondary", "pause primary", "kill all"][r % 4]
            print(f"     round {r}: {fault}", flush=True)
            if fault == "kill all":
                for m in s.members:
                    m.kill()
                victims = s.members
            else:
                victims = [primary] if "primary" in fault else [random.choice([m for m in s.members if m is not primary])]
                victims[0].pause() if "pause" in fault else victims[0].kill()
                s.wait(lambda: any(m.running() and m not in victims and m.hello().get("isWritablePrimary") for m in s.members),
                       "a primary among those that are left")
                writers.go_on(s, 50)
            for m in victims:
                m.resume() if "pause" in fault else m.start()
            for m in victims:
                m.wait_up()
            s.wait(lambda: all(m.hello().get("isWritablePrimary") or m.hello().get("secondary") for m in s.members), "all back")
        writers.go_on(s, 300)
        writers.finish()
        watcher.stop = True
        watcher.join()
        s.settled()
        primary = s.primary()
        have = {d["_id"] for d in primary.client.test.kept.find({}, {"_id": 1})}
        lost = writers.acknowledged - have
        strange = have - writers.acknowledged - writers.unknown
        print(f"     {ROUNDS} faults, {len(writers.acknowledged)} acknowledged, {len(writers.unknown)} failed, {len(watcher.gone)} seen to expire, "
              f"{watcher.reads} reads, longest gap {max(writers.gaps, default=0):.1f} s")
        check(not lost, f"no acknowledged write is lost ({len(lost)})")
        check(not strange, f"no write came from nowhere ({len(strange)})")
        check(not watcher.back, f"nothing that expired came back ({len(watcher.back)})")
        check(len(writers.acknowledged) > 100, "there was load")
        s.wait(lambda: primary.client.test.short.count_documents({}) == 0, "what is due is removed by the last primary")
        s.settled()
        hashes = s.hashes("test")
        check(len(set(hashes)) == 1, f"all members hold the same: {hashes}")
        check(all(m.client.test.command("validate", "kept")["valid"] for m in s.members), "every member's indexes fit its documents")
        check(all(m.stop() == 0 for m in s.members), "every member stops cleanly")
    finally:
        s.close()
    print(f"replica set faults: {passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
