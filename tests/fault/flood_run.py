#!/usr/bin/env python3
"""Clients that take all they can: half messages, replies that are not read, compressed bombs, too many connections,
values without end, all at once.

The server has 3 GB of address space (ulimit -v). It goes on, its memory stays bounded, and another client is served
meanwhile.
"""

import os, shutil, socket, struct, tempfile, threading, time, urllib.error, urllib.request, zlib

import bson

import fault_test
from fault_test import BINARY, Checks, Client, free_port, start, stop, until

check = Checks(quiet=True)
work = tempfile.mkdtemp(prefix="mayfly-flood-")
limited = work + "/limited"
with open(limited, "w") as f:
    f.write(f'#!/bin/sh\nulimit -v 3000000\nexec "{BINARY}" "$@"\n')
os.chmod(limited, 0o755)
http = free_port()
proc, client = start(work + "/db", "--httpPort", str(http), "--maxConns", "2000", binary=limited)
client.command("t", {"insert": "c", "documents": [{"_id": 1}]})
client.command("t", {"insert": "large", "documents": [{"_id": i, "s": "x" * 7_000_000} for i in range(2)]})


def message(doc, flags=0):
    body = bson.encode(doc)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, flags, 0) + body


def connect(data=b""):
    s = socket.create_connection(("127.0.0.1", proc.port), 10)
    s.settimeout(None)
    if data:
        s.sendall(data)
    return s


def memory():
    """The most that the process has had, in MB."""
    with open(f"/proc/{proc.pid}/status") as f:
        return next(int(line.split()[1]) // 1024 for line in f if line.startswith("VmHWM"))


class Other(threading.Thread):
    """A client that wants little: a find and an update at a time, and now and then a message of 200 KB."""

    def __init__(self):
        super().__init__()
        self.ended, self.slowest, self.n, self.failed = threading.Event(), 0, 0, None

    def run(self):
        try:
            c = Client("127.0.0.1", proc.port)
            while self.n == 0 or not self.ended.wait(0.02):  # a short flood may be over before it begins
                began = time.monotonic()
                assert c.command("t", {"find": "c", "filter": {"_id": 1}})["ok"] == 1
                assert (
                    c.command("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]})["n"] == 1
                )
                if self.n % 10 == 0:
                    assert (
                        c.command(
                            "t",
                            {
                                "update": "c",
                                "updates": [{"q": {"_id": 2}, "u": {"$set": {"s": "y" * 200_000}}, "upsert": True}],
                            },
                        )["ok"]
                        == 1
                    )
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.n += 1
        except Exception as e:
            self.failed = repr(e)


def flood(name, f, slowest=10):
    global other
    other = Other()
    other.start()
    try:
        f()
    except Exception as e:
        check(False, f"{name}: {e!r}")
    other.ended.set()
    other.join()
    check(proc.poll() is None, f"{name}: the server ended with {proc.returncode}")
    check(other.failed is None and other.n > 0, f"{name}: another client failed: {other.failed}")
    check(other.slowest < slowest, f"{name}: another client waited for {other.slowest:.1f} s")
    check(memory() < 1500, f"{name}: {memory()} MB")
    print(
        f"{name}: another client's slowest round {other.slowest * 1000:.0f} ms of {other.n}, "
        f"{memory()} MB at most so far",
        flush=True,
    )


def served(connections):
    """All of them are connected, and then somebody else has been answered some times."""
    end, before = time.monotonic() + 20, other.n
    while (
        client.command("admin", {"serverStatus": 1})["connections"]["current"] < connections and time.monotonic() < end
    ):
        pass
    while other.n < before + 20 and other.is_alive() and time.monotonic() < end:
        client.command("admin", {"ping": 1})


def half_messages():
    sockets = [connect(struct.pack("<iiiiI", 47_000_000, 1, 0, 2013, 0)) for _ in range(200)]
    served(200)
    for s in sockets:
        s.close()


def unread_replies():
    sockets = [connect(message({"find": "large", "$db": "t"}) * 5) for _ in range(150)]
    served(150)
    for s in sockets:
        s.close()


def bombs():
    plain = b"\0\0\0\0\0" + bson.encode({"find": "none", "comment": "a" * 15_000_000, "$db": "t"})
    packed = zlib.compress(plain, 9)
    bomb = struct.pack("<iiiiiiB", 25 + len(packed), 1, 0, 2012, 2013, len(plain), 2) + packed
    sockets = [connect(bomb) for _ in range(60)]
    for s in sockets:
        s.settimeout(120)
        check(len(s.recv(16)) > 0, "a compressed message is answered")
        s.close()


def connections():
    sockets = [connect() for _ in range(2500)]
    seen = lambda: client.command("admin", {"serverStatus": 1})["connections"]
    until(lambda: seen()["rejected"] >= 490)
    check(seen()["current"] <= 2000, "connections beyond maxConns")
    for s in sockets:
        s.close()


def values_without_end():
    def ask(pipeline):
        reply = Client("127.0.0.1", proc.port).command(
            "t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}, "maxTimeMS": 60_000}
        )
        check(reply.get("code") in (13548, 146, 10334, 50, 15, 292), f"an endless value: {str(reply)[:300]}")

    values = {"$range": [0, 3_000_000]}
    pipelines = [
        [{"$project": {"x": {"$let": {"vars": {f"v{i}": values for i in range(500)}, "in": 1}}}}],
        [{"$set": {"a": values}}] + [{"$set": {f"b{i}": 1}} for i in range(900)],
        [{"$project": {f"f{i}": values for i in range(100)}}],
        [
            {
                "$project": {
                    "x": {
                        "$reduce": {
                            "input": values,
                            "initialValue": [1, 2],
                            "in": {"$concatArrays": ["$$value", "$$value"]},
                        }
                    }
                }
            }
        ],
        [{"$project": {"x": {"$reduce": {"input": values, "initialValue": 1, "in": {"a": "$$value"}}}}}],
        [
            {"$set": {"a": {"$range": [0, 200]}}},
            {"$unwind": "$a"},
            {"$set": {"s": values}},
            {"$group": {"_id": None, "x": {"$firstN": {"input": "$s", "n": 1_000_000}}}},
        ],
    ]
    threads = [threading.Thread(target=ask, args=(p,)) for p in pipelines]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def event_streams():
    sockets = []
    for request in [b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"] * 200 + [b"GET / HT"] * 200:
        s = socket.create_connection(("127.0.0.1", http))
        try:
            s.sendall(request)
        except OSError:
            pass  # it has been closed already
        sockets.append(s)
    try:
        status = urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=20).status
    except (OSError, urllib.error.URLError) as e:
        status = repr(e)
    check(status == 200, f"metrics among silent connections: {status}")
    for s in sockets:
        s.close()


for f in (half_messages, unread_replies, bombs, connections, values_without_end, event_streams):
    flood(f.__name__.replace("_", " "), f)
# Somebody who does not read does not keep it from stopping.
deaf = connect(message({"find": "large", "$db": "t"}) * 5)
check(stop(proc) == 0, "clean stop")
shutil.rmtree(work, ignore_errors=True)
check.end("floods")
