#!/usr/bin/env python3
"""Clients that take all they can: half messages, replies that are not read, compressed bombs, too many connections,
values without end, all at once.

The server has 3 GB of address space (ulimit -v). It goes on, its memory stays bounded, and another client is served
meanwhile, as often as hostile_watch.py has it.
"""

import os, socket, struct, tempfile, threading, urllib.error, urllib.request, zlib

import bson

import fault_test
from fault_test import (
    BINARY,
    Checks,
    Client,
    Deadline,
    discard,
    figure,
    free_port,
    memory_mb,
    start,
    stop,
    until,
    wait_for,
)
from hostile_watch import FIND_AND_UPDATE, Watcher

check = Checks(quiet=True)
work = tempfile.mkdtemp(prefix="mayfly-flood-")
limited = work + "/limited"
with open(limited, "w") as f:
    f.write(f'#!/bin/sh\nulimit -v 3000000\nexec "{BINARY}" "$@"\n')
os.chmod(limited, 0o755)
http = free_port()
proc, client = start(work + "/db", "--httpPort", str(http), "--maxConns", "2000", binary=limited)
client.command("t", {"insert": "c", "documents": [{"_id": 1}]})
client.command("other", {"insert": "c", "documents": [{"_id": 1}]})
client.command("t", {"insert": "large", "documents": [{"_id": i, "s": "x" * 7_000_000} for i in range(2)]})


def message(doc, flags=0):
    body = bson.encode(doc)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, flags, 0) + body


def connect(data=b""):
    s = socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds)
    s.settimeout(None)
    if data:
        s.sendall(data)
    return s


# A client that wants little: a find and an update at a time, and now and then a message of 200 KB.
LARGE = {"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"s": "y" * 200_000}}, "upsert": True}]}
LITTLE = [*FIND_AND_UPDATE * 10, LARGE]


def flood(name, f):
    global other
    with Watcher(proc.port, LITTLE) as other:
        try:
            f()
        except Exception as e:
            check(False, f"{name}: {e!r}")
        seen = other.take()
    check(proc.poll() is None, f"{name}: the server ended with {proc.returncode}")
    check(seen.served(), f"{name}: {seen}")
    most = memory_mb(proc.pid, "VmHWM")
    check(most < 1500, f"{name}: {most} MB")
    figure(f"{name}: another client's slowest round", seen.slowest * 1000)
    print(f"{name}: {seen.rounds} rounds of another client, {most} MB at most so far", flush=True)


def served(connections):
    """All of them are connected, and while they are somebody else is answered some times."""
    current = lambda: client.command("admin", {"serverStatus": 1})["connections"]["current"]
    check(until(lambda: current() >= connections), f"{connections} connections, {current()} are there")
    check(other.wait_rounds(20), "20 rounds of another client among them")


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
        s.settimeout(Deadline().seconds)
        check(len(s.recv(16)) > 0, "a compressed message is answered")
        s.close()


def connections():
    sockets = [connect() for _ in range(2500)]
    seen = lambda: client.command("admin", {"serverStatus": 1})["connections"]
    wait_for(lambda: seen()["rejected"] >= 490)
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
        status = urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=Deadline().seconds).status
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
discard(work)
check.end("floods")
