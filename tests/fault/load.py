"""Load on a replica set while it is disturbed, and what its clients remember of it."""

import datetime, threading, time

import pymongo
from pymongo.errors import PyMongoError


class Writers:
    """Threads that write and note what was acknowledged."""

    def __init__(self, uri, threads=3, name="", timeout=15, retry=False):  # clock: what fails is tried again
        self.name, self.timeout, self.retry = name, timeout, retry
        self.stop, self.acknowledged, self.unknown, self.gaps, self.errors = False, set(), set(), [], []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(uri, i), daemon=True) for i in range(threads)]
        for t in self.threads:
            t.start()

    def run(self, uri, number):
        client = pymongo.MongoClient(
            uri,
            serverSelectionTimeoutMS=1000 * self.timeout,
            connectTimeoutMS=1000 * self.timeout,
            retryWrites=self.retry,
            socketTimeoutMS=1000 * self.timeout,
            heartbeatFrequencyMS=500,
        )
        n, last = 0, time.monotonic()
        while not self.stop:
            key = f"{self.name}{number}-{n}"
            n += 1
            now = datetime.datetime.now(datetime.timezone.utc)
            doc = {"_id": key, "n": n, "at": now + datetime.timedelta(milliseconds=500 if n % 5 == 0 else 86_400_000)}
            try:
                client.test.short.insert_one(doc) if n % 5 == 0 else client.test.kept.insert_one(doc)
                with self.lock:
                    if n % 5:
                        self.acknowledged.add(key)
                    gap, last = time.monotonic() - last, time.monotonic()
                    self.gaps.append(gap)
            except PyMongoError as e:
                with self.lock:
                    self.unknown.add(key)
                    self.errors.append(e)

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

    def __init__(self, uri, timeout=15):  # clock: what fails is tried again
        super().__init__(daemon=True)
        self.timeout = timeout
        self.stop, self.gone, self.back, self.uri, self.reads = False, set(), set(), uri, 0
        self.start()

    def run(self):
        client = pymongo.MongoClient(
            self.uri,
            serverSelectionTimeoutMS=1000 * self.timeout,
            connectTimeoutMS=1000 * self.timeout,
            socketTimeoutMS=1000 * self.timeout,
            heartbeatFrequencyMS=500,
        )
        seen = set()
        while not self.stop:
            try:
                now = {
                    d["_id"]
                    for d in client.test.short.with_options(
                        read_concern=pymongo.read_concern.ReadConcern("linearizable")
                    ).find({}, {"_id": 1})
                }
            except PyMongoError:
                continue
            self.reads += 1
            self.back |= now & self.gone
            self.gone |= seen - now
            seen |= now

    def finish(self, s):
        """Ends it beside the writers once it has seen something go: until then it could not see anything come back."""
        s.wait(lambda: self.gone, "a watcher to see something go")
        self.stop = True
        self.join()


def verdict(s, check, writers, watchers, what):
    """What every fault run looks at in the end: `writers` and `watchers` have finished, everybody is reachable."""
    s.settled()
    primary = s.primary()
    acknowledged, unknown = set().union(*(w.acknowledged for w in writers)), set().union(*(w.unknown for w in writers))
    gone, back = set().union(*(w.gone for w in watchers)), set().union(*(w.back for w in watchers))
    have = {d["_id"] for d in primary.patient.test.kept.find({}, {"_id": 1})}
    lost, strange = acknowledged - have, have - acknowledged - unknown
    print(
        f"     {what}, {len(acknowledged)} acknowledged, {len(unknown)} failed, {len(gone)} seen to expire, "
        f"{sum(w.reads for w in watchers)} reads, "
        f"longest gap {max((g for w in writers for g in w.gaps), default=0):.1f} s",
        flush=True,
    )
    check(not lost, f"no acknowledged write is lost ({len(lost)})")
    check(not strange, f"no write came from nowhere ({len(strange)})")
    check(not back, f"nothing that expired came back ({len(back)})")
    check(len(acknowledged) > 100, "there was load")
    check(all(w.gone for w in watchers), f"each watcher has seen documents go: {[len(w.gone) for w in watchers]}")
    s.wait(lambda: s.primary().client.test.short.count_documents({}) == 0, "what is due is removed by the last primary")
    s.settled()
    hashes = s.hashes("test")
    check(len(set(hashes)) == 1, f"all members hold the same: {hashes}")
    check(
        all(m.patient.test.command("validate", "kept")["valid"] for m in s.members),
        "every member's indexes fit its documents",
    )
    check(all(m.stop() == 0 for m in s.members), "every member stops cleanly")
