#!/usr/bin/env python3
"""What very many of something cost: collections, databases, indexes, TTL rules that are all due, connections, shapes of
queries, and the largest documents. Prints the rows of the table in RESULTS.md.

    bench/many.py [--short] [NAME …]

Another client, in a process of its own, finds and updates a document on four connections all the time; its slowest
round is shown beside each row. --short takes a tenth of everything. MAYFLYD names another binary.
"""

import datetime, resource, select, shutil, socket, struct, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fault"))
from fault_test import start, stop
from hostile_watch import Watcher

import bson

SHARE = 10 if "--short" in sys.argv else 1
NAMES = [a for a in sys.argv[1:] if a != "--short"]
COLLECTIONS, RULES, CONNECTIONS, SHAPES = (n // SHARE for n in (100_000, 10_000, 20_000, 1_000_000))
PER_DATABASE = 100
work = tempfile.mkdtemp(prefix="mayfly-bench-many-")


class Server:
    """One server, started again on the same data by restart()."""

    def __init__(self, *options):
        self.options = options
        self.start()
        self.client.command("other", {"insert": "c", "documents": [{"_id": 1}]})

    def start(self):
        self.proc, self.client = start(work + "/db", *self.options)

    def restart(self):
        """Seconds from the process to its first answer."""
        stop(self.proc)
        began = time.monotonic()
        self.start()
        self.client.command("admin", {"ping": 1})
        return time.monotonic() - began

    def command(self, db, doc):
        reply = self.client.command(db, doc)
        if reply["ok"] != 1 or reply.get("writeErrors"):
            raise AssertionError(str(reply)[:300])
        return reply

    def memory(self):
        """Resident, in bytes."""
        with open(f"/proc/{self.proc.pid}/status") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))


def seconds(f):
    began = time.monotonic()
    f()
    return time.monotonic() - began


def millis(f):
    return f"{seconds(f) * 1000:.1f} ms"


def collections(server):
    def create(first, last):
        for i in range(first, last):
            keys = [{"key": {k: 1}, "name": k} for k in "abc"]
            server.command(f"many{i // PER_DATABASE}", {"createIndexes": f"c{i}", "indexes": keys})

    create(0, PER_DATABASE)
    before = server.memory()
    took = seconds(lambda: create(PER_DATABASE, COLLECTIONS))
    each = (server.memory() - before) / (COLLECTIONS - PER_DATABASE)
    yield "made, a collection", f"{took / (COLLECTIONS - PER_DATABASE) * 1000:.2f} ms"
    yield "memory, a collection", f"{each / 1000:.1f} kB"
    yield "listDatabases", millis(lambda: server.command("admin", {"listDatabases": 1}))
    yield f"listCollections of {PER_DATABASE}", millis(lambda: server.command("many0", {"listCollections": 1}))
    yield f"dbStats of {PER_DATABASE}", millis(lambda: server.command("many0", {"dbStats": 1}))
    yield "serverStatus", millis(lambda: server.command("admin", {"serverStatus": 1}))


def started(server):
    yield "from the process to its first answer", f"{server.restart():.2f} s"


def indexes(server):
    keys = [{"key": {f"f{i}": 1}, "name": f"f{i}"} for i in range(63)]
    yield "63 made, beside that of _id", millis(lambda: server.command("x", {"createIndexes": "c", "indexes": keys}))
    rows = [[{f"f{j}": i * j for j in range(63)} for i in range(b, b + 1000)] for b in range(0, 10_000, 1000)]
    took = seconds(lambda: [server.command("x", {"insert": "c", "documents": r}) for r in rows])
    yield "insert, a document", f"{took / 10_000 * 1e6:.0f} us"


def rules(server):
    due = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    server.command("admin", {"setParameter": 1, "ttlMonitorEnabled": False})

    def create():
        for i in range(RULES):
            index = {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 10}
            server.command(f"ttl{i // PER_DATABASE}", {"createIndexes": f"c{i}", "indexes": [index]})
            server.command(f"ttl{i // PER_DATABASE}", {"insert": f"c{i}", "documents": [{"at": due}] * 10})

    yield f"{RULES:,} made, with ten documents that are due each", f"{seconds(create):.1f} s"

    def left():
        ttl = server.command("admin", {"serverStatus": 1})["metrics"]["ttl"]
        return RULES * 10 - ttl["deletedDocuments"]

    began = time.monotonic()
    server.command("admin", {"setParameter": 1, "ttlMonitorEnabled": True})
    while left() > 0:
        if time.monotonic() - began > 120:
            raise AssertionError(f"{left()} documents are left")
        time.sleep(0.01)  # sleeps: a poll
    yield f"all {RULES * 10:,} removed", f"{time.monotonic() - began:.2f} s"


def message(doc):
    body = bson.encode(doc)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


def connections(server):
    """As many as the machine's limit of open files leaves room for."""
    room = server.command("admin", {"serverStatus": 1})["connections"]["available"]
    count = min(CONNECTIONS, room, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
    before, ping = server.memory(), message({"ping": 1, "$db": "admin"})
    links = []

    def connect():
        for _ in range(count):
            links.append(socket.create_connection(("127.0.0.1", server.proc.port), 30))
            links[-1].sendall(ping)
            if not links[-1].recv(4096):
                raise AssertionError(f"connection {len(links)} was closed")

    yield f"{count:,} opened, each with a ping", f"{seconds(connect):.1f} s"
    yield "memory, a connection", f"{(server.memory() - before) / count / 1000:.1f} kB"
    busy, find = links[: count // 10], message({"find": "c", "filter": {"_id": 1}, "$db": "other"})
    sent, took, end = {}, [], time.monotonic() + 10
    poll = select.epoll()
    by_fd = {s.fileno(): s for s in busy}
    for fd, s in by_fd.items():
        poll.register(fd, select.EPOLLIN)
        sent[fd] = time.monotonic()
        s.sendall(find)
    while time.monotonic() < end:
        for fd, _ in poll.poll(1):
            by_fd[fd].recv(4096)
            took.append(time.monotonic() - sent[fd])
            sent[fd] = time.monotonic()
            by_fd[fd].sendall(find)
    yield f"finds by {len(busy):,} of them, by this one process", f"{len(took) / 10:,.0f}/s"
    for s in links:
        s.close()


def documents(server):
    big = {"insert": "big", "documents": [{"_id": 1, "a": "x" * (16 * 1024 * 1024 - 100)}]}
    yield "insert of 16 MB", millis(lambda: server.command("x", big))
    yield "find of 16 MB", millis(lambda: server.command("x", {"find": "big"}))
    inc = {"q": {"_id": 1}, "u": {"$inc": {"b": 1}}}
    yield "update of 16 MB", millis(lambda: server.command("x", {"update": "big", "updates": [inc]}))
    server.command("x", {"createIndexes": "arrays", "indexes": [{"key": {"a": 1}, "name": "a"}]})
    array = {"_id": 1, "a": list(range(100_000))}
    insert = {"insert": "arrays", "documents": [array]}
    yield "insert, an array of 100,000 elements under an index", millis(lambda: server.command("x", insert))
    one = {"q": {"_id": 1}, "u": {"$set": {"a.5": -1}}}
    yield "update of one of its elements", millis(lambda: server.command("x", {"update": "arrays", "updates": [one]}))
    refused = server.client.command("x", {"insert": "arrays", "documents": [{"a": list(range(1_000_000))}]})
    yield "insert, a million elements under an index", f"refused ({refused['writeErrors'][0]['code']})"


def shapes(server):
    server.command("x", {"insert": "s", "documents": [{"a": i} for i in range(10)]})
    keys = [{"key": {"a": 1}, "name": "a"}, {"key": {"a": 1, "b": 1}, "name": "ab"}]
    server.command("x", {"createIndexes": "s", "indexes": keys})
    before = server.memory()

    def find():
        for i in range(SHAPES):
            server.command("x", {"find": "s", "filter": {"a": 1, f"f{i}": 1}})

    yield f"{SHAPES:,} finds, each of a shape of its own: a find", f"{seconds(find) / SHAPES * 1e6:.0f} us"
    yield "memory, all of them", f"{max(server.memory() - before, 0) / 1e6:.1f} MB"


CASES = {
    f"{COLLECTIONS:,} collections with 3 indexes, in {COLLECTIONS // PER_DATABASE:,} databases": collections,
    "start with them": started,
    "64 indexes on a collection": indexes,
    "TTL rules, all due at once": rules,
    "connections": connections,
    "large documents": documents,
    "shapes of queries": shapes,
}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print("| what | | | another client's slowest round ms |")
    print("| --- | --- | ---: | ---: |")
    server = Server()
    for name, case in CASES.items():
        if NAMES and not any(a in name for a in NAMES):
            continue
        if case is started:
            for what, figure in case(server):
                print(f"| {name} | {what} | {figure} | |", flush=True)
            continue
        with Watcher(server.proc.port) as w:
            w.take()
            for what, figure in case(server):
                print(f"| {name} | {what} | {figure} | {w.take().slowest * 1000:.0f} |", flush=True)
    stop(server.proc)
    shutil.rmtree(work, ignore_errors=True)
