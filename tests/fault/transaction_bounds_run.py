#!/usr/bin/env python3
"""What transactions may take of the server's memory, of its log and of other clients' time, on a set of one member:

  ended        of a transaction that has ended hardly anything is kept with its session
  definitions  what a transaction makes counts as its memory at once, and has its limit; an abort gives all of it back
  entries      the oplog entries of what a transaction makes are documents that can be read, however much that is
  many         at most so many collections; others make theirs while they are committed
  messages     large plain writes that wait for a transaction do not keep others from sending large ones
"""

import socket, struct, sys, threading, time, uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
import bson
from fault_test import Deadline, figure, memory_kb
from topologies import Client, ReplicaSet, run, until
from transaction_ends_run import OnMember, Transaction, code, increment

KB, MB = 1 << 10, 1 << 20
ENDED, KEPT = 20_000, 3 * KB  # sessions; and what each may leave, with the session itself
COLLECTIONS = 10_000  # docs/limits.md
BAD_VALUE, CONFLICT, TOO_LARGE, DOCUMENT_TOO_LARGE = 2, 112, 257, 10334
WRITERS, TEXT = 24, "y" * (15 * MB)


def described(size):
    return {"validator": {"$jsonSchema": {"description": "y" * size}}}


class Run(OnMember):
    def bytes(self):
        return self.ask({"serverStatus": 1}, "admin")["transactions"]["bytes"]

    def memory(self):
        return memory_kb(self.member.proc.pid) * KB

    def ended(self):
        t, began = Transaction(self.member), self.memory()
        for _ in range(ENDED):
            t.session, t.number = bson.Binary(uuid.uuid4().bytes, 4), 0
            # Nothing that a client chooses freely may be in what is kept.
            large = {"level": "local", "provenance": "x" * 16000}
            refused = t.begin({"find": "c", "filter": {"_id": 1}, "readConcern": large})
            found = t.begin({"find": "c", "filter": {"_id": 1}, "readConcern": {"level": "local"}})
            ended = t.run({"abortTransaction": 1}, db="admin")
            if code(found) or code(ended) or code(refused) != BAD_VALUE:
                self.check(False, "begin and abort", (refused, found, ended))
                break
        each = (self.memory() - began) // ENDED
        self.check(each < KEPT, "what an ended transaction leaves", each)
        print(f"ended: {each} bytes for each session and its transaction")

    def definitions(self):
        t, made, size = Transaction(self.member), None, 10 * MB
        for n in range(40):
            before = self.bytes()
            made = t.run({"create": f"d{n}", **described(size)}, begins=n == 0)
            if code(made):
                break
            self.check(self.bytes() - before >= 2 * size, "a definition counts", self.bytes() - before)
        self.check(code(made) == TOO_LARGE, "and has its limit", made)
        self.check(5 <= n <= 25, "at so many", n)
        self.check(code(t.commit()) == 251 and self.bytes() == 0, "and nothing is left of them", self.bytes())
        t = Transaction(self.member)
        self.check(code(t.begin({"create": "d"})) == 0, "one for indexes")
        index = {"key": {"x": 1}, "name": "x", "partialFilterExpression": {"a": "y" * size}}
        before = self.bytes()
        self.check(code(t.run({"createIndexes": "d", "indexes": [index]})) == 0, "an index")
        self.check(self.bytes() - before >= 2 * size, "a partial filter counts", self.bytes() - before)
        self.check(code(t.run({"abortTransaction": 1}, db="admin")) == 0 and self.bytes() == 0, "and its abort")

    def entries(self):
        t, number = Transaction(self.member), 300
        for n in range(number):
            made = t.run({"create": f"e{n}", **described(100 * KB)}, begins=n == 0)
            self.check(code(made) == 0, "a collection", made)
        self.check(code(t.run({"insert": "e0", "documents": [{"_id": 1}]})) == 0, "a document in one")
        self.check(code(t.commit()) == 0, "their commit")
        pipeline = [{"$match": {"lsid.id": t.session}}, {"$sort": {"txnNumber": 1, "ts": 1}}]
        read = {"aggregate": "oplog.rs", "pipeline": pipeline, "cursor": {"batchSize": 1}}
        reply, entries = self.ask(read, "local"), []
        self.check(code(reply) == 0, "the oplog can be read", reply)
        while code(reply) == 0:
            entries += reply["cursor"].get("firstBatch", []) + reply["cursor"].get("nextBatch", [])
            if reply["cursor"]["id"] == 0:
                break
            reply = self.ask({"getMore": bson.Int64(reply["cursor"]["id"]), "collection": "oplog.rs"}, "local")
        sizes = [len(bson.encode(e, codec_options=run.CODEC)) for e in entries]
        self.check(len(entries) == 2 and max(sizes) <= 16 * MB, "in entries that are documents", sizes)
        operations = [o["o"] for e in entries for o in e["o"]["applyOps"]]
        created = [o["create"] for o in operations if "create" in o]
        self.check(created == [f"e{n}" for n in range(number)], "which say all of it, in order", len(created))
        self.check(len(operations) == number + 1 and entries[-1]["o"].get("count") == number + 1, "and count it")
        # One alone is at most as large as an entry may be.
        refused = Transaction(self.member).begin({"create": "e", **described(16 * MB)})
        self.check(code(refused) == DOCUMENT_TOO_LARGE, "a definition of more than 16 MB", refused)
        t = Transaction(self.member)
        self.check(code(t.begin({"create": "e", **described(16 * MB - 4 * KB)})) == 0, "one of nearly 16 MB")
        self.check(code(t.commit()) == 0, "and its commit")
        read["pipeline"][0]["$match"]["lsid.id"] = t.session
        reply = self.ask(read, "local")
        self.check(code(reply) == 0 and len(reply["cursor"]["firstBatch"]) == 1, "whose entry can be read", reply)
        self.check(code(self.ask({"dropDatabase": 1})) == 0, "a dropDatabase")

    def many(self):
        t = Transaction(self.member)
        for n in range(COLLECTIONS):
            made = t.run({"create": f"m{n}"}, db="many", begins=n == 0)
            if code(made):
                break
        self.check(code(made) == 0 and n + 1 == COLLECTIONS, "as many as a transaction may make", (n, made))
        other, slowest, over, done = Client("127.0.0.1", self.member.port), [0.0], threading.Event(), [0]

        def make():
            for i in range(100_000):
                began = time.monotonic()
                self.check(code(other.command("other", {"create": f"o{i}"})) == 0, "another's")
                slowest[0], done[0] = max(slowest[0], time.monotonic() - began), i + 1
                if over.is_set():
                    return

        beside = threading.Thread(target=make)
        beside.start()
        until("another to make some", lambda: done[0] > 3)
        before, began = done[0], time.monotonic()
        self.check(code(t.commit()) == 0, "their commit")
        took, meanwhile = time.monotonic() - began, done[0] - before
        over.set()
        beside.join()
        figure(f"the commit of {COLLECTIONS} collections", took * 1000)
        figure("another's create beside it, the slowest", slowest[0] * 1000)
        self.check(meanwhile >= 2, "another makes some during the commit", meanwhile)
        self.check(code(self.ask({"dropDatabase": 1}, "many")) == 0, "their end")
        self.check(code(self.ask({"dropDatabase": 1}, "other")) == 0, "and that of the others")
        t = Transaction(self.member)
        for n in range(COLLECTIONS + 1):
            made = t.run({"create": f"m{n}"}, db="many", begins=n == 0)
            if code(made):
                break
        self.check(code(made) == TOO_LARGE and n == COLLECTIONS, "one more", (n, made))

    def messages(self):
        self.ask({"insert": "c", "documents": [{"_id": 1, "x": 0}]})
        t = Transaction(self.member)
        self.check(code(t.begin(increment(1))) == 0, "a transaction")
        update = bson.encode({"q": {"_id": 1}, "u": {"$set": {"text": TEXT}}}) * 3
        body = struct.pack("<I", 0) + b"\0" + bson.encode({"update": "c", "$db": "t"})
        body += b"\1" + struct.pack("<I", 4 + 8 + len(update)) + b"updates\0" + update
        message = struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body
        answers, lock = [], threading.Lock()

        def write():
            client = Client("127.0.0.1", self.member.port)
            client.sock.sendall(message)
            size = struct.unpack("<i", client._read(16)[:4])[0]
            reply = bson.decode(client._read(size - 16)[5:])
            with lock:
                answers.append(reply)

        writers = [threading.Thread(target=write, daemon=True) for _ in range(WRITERS)]
        for w in writers:
            w.start()
        # Some may wait; the others are answered, so that their messages leave the room for messages.
        until("all but a few to be answered", lambda: len(answers) >= WRITERS - 8)
        conflicts = [code(a) for a in answers]
        self.check(set(conflicts) == {CONFLICT}, "with a conflict", conflicts)
        other = Client("127.0.0.1", self.member.port)
        other.sock.close()
        other.sock = socket.create_connection(
            ("127.0.0.1", self.member.port), Deadline().seconds, source_address=("127.0.0.2", 0)
        )
        began = time.monotonic()
        inserted = other.command("t", {"insert": "v", "documents": [{"text": "y" * (2 * MB)}]})
        figure("a large insert beside large ones that wait", (time.monotonic() - began) * 1000)
        # They still wait for the transaction: it did not wait for them.
        self.check(code(inserted) == 0, "a large insert beside them", inserted.get("errmsg"))
        before = len(answers)
        self.check(code(t.run({"abortTransaction": 1}, db="admin")) == 0, "the transaction's end")
        for w in writers:
            w.join(Deadline().seconds)
        good = sum(a.get("n") == 3 for a in answers)
        self.check(len(answers) == WRITERS and good == WRITERS - before, "then those that waited write", (good, before))
        print(f"messages: {WRITERS - before} of {WRITERS} waited")


def main():
    parts = sys.argv[1:] or ["ended", "definitions", "entries", "many", "messages"]
    servers = ReplicaSet(1)
    bounds = Run(servers.members[0], [1])
    return bounds.end("transaction bounds", servers, [getattr(bounds, part) for part in parts])


if __name__ == "__main__":
    sys.exit(main())
