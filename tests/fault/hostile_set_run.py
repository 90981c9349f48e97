#!/usr/bin/env python3
"""Clients that insert documents of 9 MB into a set of three again and again, and other clients of its primary beside
them.

Others are served meanwhile, as often as hostile_watch.py has it: reads, pings, and writes, which are acknowledged by a
majority in the order of one log. Large documents go into it in chunks, so that a write waits behind one of these, or
behind the moment in which a document is applied, and never behind 9 MB that are on their way. A write is on two
members' disks before it is acknowledged: its control writes to the disk as well. How long each waited is a figure.

MAYFLY_HOSTILE_TIMES (25): how often each of the 4 clients inserts.
"""

import contextlib, os, socket, struct, threading, time

import bson

from fault_test import Checks, Deadline, figure, run_parts
from hostile_watch import Watcher
from replica_set import ReplicaSet

TIMES = int(os.environ.get("MAYFLY_HOSTILE_TIMES", "25"))
CLIENTS, SIZE = 4, 9_000_000
check = Checks(quiet=True)


def message(doc):
    body = bson.encode(doc)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


def insert(port, wrong):
    """Inserts a large document so often; what was wrong with the answers is added to `wrong`."""
    data = message({"insert": "large", "documents": [{"s": "x" * SIZE}], "$db": "hostile"})
    with socket.create_connection(("127.0.0.1", port), Deadline().seconds) as s:
        for _ in range(TIMES):
            s.sendall(data)
            head = s.recv(16, socket.MSG_WAITALL)
            body = s.recv(struct.unpack_from("<i", head)[0] - 16, socket.MSG_WAITALL)
            reply = bson.decode(body[5:])
            if reply["ok"] != 1 or reply["n"] != 1:
                wrong.append(str(reply)[:300])
                return


def others_beside_large_inserts():
    s = ReplicaSet(3)
    s.initiate()
    s.all_vote()
    primary = s.primary()
    primary.client.other.c.insert_one({"_id": 1, "n": 0})
    doings = {
        "find": [{"find": "c", "filter": {"_id": 1}}],
        "ping": [{"ping": 1}],
        "update": [{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]}],
    }
    synced = {"update": s.folder}
    with contextlib.ExitStack() as all_of:
        watchers = {
            name: all_of.enter_context(Watcher(primary.port, commands, synced.get(name)))
            for name, commands in doings.items()
        }
        for w in watchers.values():
            w.take()
        wrong, began = [], time.monotonic()
        threads = [threading.Thread(target=insert, args=(primary.port, wrong)) for _ in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        took = time.monotonic() - began
        seen = {name: w.take() for name, w in watchers.items()}
    check(not wrong, f"large inserts: {wrong}")
    figure(f"{CLIENTS * TIMES} inserts of {SIZE / 1e6:.0f} MB", CLIENTS * TIMES * SIZE / took / 1e6, "MB/s")
    for name, what in seen.items():
        figure(f"{name} beside large inserts, the slowest", what.slowest * 1000)
        check(what.served(), f"{name} beside large inserts: {what}")
    check(s.primary() is primary, "the primary goes on leading")
    check(s.same("hostile"), "all members hold the same")
    s.close()


if __name__ == "__main__":
    run_parts("hostile set", [others_beside_large_inserts], check)
