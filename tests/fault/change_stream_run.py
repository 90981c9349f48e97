#!/usr/bin/env python3
"""Change streams over failovers: three members, a writer, and streams that PyMongo resumes by itself, one on the
primary, one on a secondary.

The primary is killed (kill -9) while both read, then the member that leads by then; each comes back. Afterwards each
stream has shown every acknowledged write, once, in order; both have shown the same; and from one token every member
goes on with the same events and tokens. A third stream sees one document change, with what it was before and after each
change: every "before" is the "after" before it, and every member, also those that were killed and copied, has the same
ones. The last line says "N passed, N failed".
"""

import threading

import pymongo
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.read_preferences import ReadPreference

from fault_test import Deadline
from replica_set import Checks, ReplicaSet

check = Checks()


class Stream(threading.Thread):
    """Reads until the document that says "end"."""

    def __init__(self, uri, preference):
        super().__init__(daemon=True)
        self.client = pymongo.MongoClient(uri, heartbeatFrequencyMS=500)
        self.coll = self.client.test.get_collection("c", read_preference=preference)
        self.seen, self.tokens, self.error = [], [], None
        # Opened before the first write, so that it must show every one.
        self.stream = self.coll.watch([{"$match": {"operationType": "insert"}}], max_await_time_ms=200)

    def run(self):
        try:
            for event in self.stream:
                self.seen.append(event["documentKey"]["_id"])
                self.tokens.append(event["_id"])
                if "end" in event["fullDocument"]:
                    return
        except PyMongoError as e:
            self.error = e


class Images(threading.Thread):
    """Reads the changes of one document, with what it was before, until its value is "end"."""

    def __init__(self, uri):
        super().__init__(daemon=True)
        self.coll = pymongo.MongoClient(uri, heartbeatFrequencyMS=500).test.p
        self.events, self.error = [], None
        self.stream = self.watch(self.coll)
        self.start_after = self.stream.resume_token

    @staticmethod
    def watch(coll, **more):
        return coll.watch(
            [{"$match": {"operationType": "update"}}],
            full_document="required",
            full_document_before_change="required",
            max_await_time_ms=200,
            **more,
        )

    @staticmethod
    def row(e):
        return e["fullDocumentBeforeChange"]["n"], e["fullDocument"]["n"]

    def run(self):
        try:
            for event in self.stream:
                self.events.append(self.row(event))
                if event["fullDocument"]["n"] == "end":
                    return
        except PyMongoError as e:
            self.error = e


class Writer(threading.Thread):
    def __init__(self, uri):
        super().__init__(daemon=True)
        self.images = pymongo.MongoClient(uri, heartbeatFrequencyMS=500).test.p
        self.coll = pymongo.MongoClient(uri, heartbeatFrequencyMS=500).test.c
        self.acknowledged, self.next, self.stop = [], 0, False

    def run(self):
        while not self.stop:
            self.write({"_id": self.next})
            self.change(self.next)

    def change(self, n):
        try:
            return self.images.update_one({"_id": 1}, {"$set": {"n": n}}).matched_count == 1
        except PyMongoError:
            return False  # may or may not have happened

    def write(self, doc):
        try:
            self.coll.insert_one(doc)
            self.acknowledged.append(self.next)
        except DuplicateKeyError:
            self.acknowledged.append(self.next)  # the try before this one did it
        except PyMongoError:
            return False  # may or may not have happened: again
        self.next += 1
        return True


def main():
    s = ReplicaSet(3)
    try:
        s.initiate()
        setup = pymongo.MongoClient(s.uri)
        setup.test.create_collection("c")
        setup.test.create_collection("p", changeStreamPreAndPostImages={"enabled": True})
        setup.test.p.insert_one({"_id": 1, "n": -1})
        images = Images(s.uri)
        streams = [Stream(s.uri, ReadPreference.PRIMARY), Stream(s.uri, ReadPreference.SECONDARY_PREFERRED)]
        writer = Writer(s.uri)
        for t in (*streams, images, writer):
            t.start()
        for _ in range(2):
            before = writer.next
            s.wait(
                lambda: writer.next > before + 50 and all(len(x.seen) > before for x in streams), "writes and events"
            )
            gone = s.primary()
            gone.kill()
            after = writer.next
            s.wait(lambda: writer.next > after + 50, "writes after the failover")
            gone.start()
            gone.wait_up()
            s.wait(lambda: gone.hello().get("secondary"), "the killed member back")
        writer.stop = True
        writer.join(Deadline().seconds)
        s.wait(lambda: writer.write({"_id": writer.next, "end": True}), "the last write")
        s.wait(lambda: writer.change("end"), "the last change")
        for name, x in zip(("primary", "secondary"), streams):
            x.join(Deadline().seconds)
            check(x.error is None, f"the stream on the {name} goes on over two failovers ({x.error})")
            check(not x.is_alive(), f"the stream on the {name} comes to the end")
            check(len(set(x.seen)) == len(x.seen), f"no event twice on the {name} ({len(x.seen)} events)")
            check(x.seen == sorted(x.seen), f"events in order on the {name}")
            check(
                set(writer.acknowledged) <= set(x.seen),
                f"every acknowledged write on the {name} ({len(writer.acknowledged)} writes)",
            )
        check(
            streams[0].seen == streams[1].seen and streams[0].tokens == streams[1].tokens,
            "both streams have shown the same",
        )
        images.join(Deadline().seconds)
        check(
            images.error is None and not images.is_alive(),
            f"the stream with documents before a change goes on ({images.error})",
        )
        check(
            images.events
            and images.events[0][0] == -1
            and all(b[0] == a[1] for a, b in zip(images.events, images.events[1:])),
            f"every document before a change is the one after the change before ({len(images.events)} changes)",
        )
        middle = len(streams[0].tokens) // 2
        s.settled()
        for m in s.members:
            with m.client.test.c.watch([], resume_after=streams[0].tokens[middle], max_await_time_ms=100) as stream:
                rest = [
                    (e["documentKey"]["_id"], e["_id"])
                    for e in (stream.try_next() for _ in range(len(streams[0].tokens) - middle - 1))
                    if e
                ]
            with Images.watch(m.client.test.p, start_after=images.start_after) as stream:
                same = [Images.row(e) for e in (stream.try_next() for _ in images.events) if e]
            check(same == images.events, f"{m.host} has every document before a change")
            check(
                rest == list(zip(streams[0].seen, streams[0].tokens))[middle + 1 :],
                f"{m.host} goes on from a token in the middle",
            )
    finally:
        s.close()
    check.end("change streams")


main()
