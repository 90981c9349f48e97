#!/usr/bin/env python3
"""Clients that insert documents of 9 MB into a set of three again and again, and other clients of its primary beside
them.

Nothing that others do waits for more than 250 ms: reads, pings, and writes, which are acknowledged by a majority in the
order of one log. Large documents go into it in chunks, so that a write waits behind one of these, or behind the
moment in which a document is applied, and never behind 9 MB that are on their way. It is on two members' disks before
it is acknowledged, each time behind a chunk: what this machine's disk needs for that is measured in the same run and
added for writes.

MAYFLY_HOSTILE_TIMES (25): how often each of the 4 clients inserts.
"""

import os, socket, struct, threading, time

import bson

from fault_test import Checks, run_parts
from hostile_watch import SLOWEST, DiskProbe, Watcher
from machine import processor_time, taken_by_others
from replica_set import ReplicaSet

TIMES = int(os.environ.get("MAYFLY_HOSTILE_TIMES", "25"))
CLIENTS, SIZE = 4, 9_000_000
# Synced writes behind which one is acknowledged: a chunk and itself, on the primary and on another member.
SYNCED = 4
check = Checks(quiet=True)


def message(doc):
    body = bson.encode(doc)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


def insert(port, wrong):
    """Inserts a large document so often; what was wrong with the answers is added to `wrong`."""
    data = message({"insert": "large", "documents": [{"s": "x" * SIZE}], "$db": "hostile"})
    with socket.create_connection(("127.0.0.1", port), 60) as s:
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
    pids = [m.proc.pid for m in s.members]
    doings = {
        "find": [{"find": "c", "filter": {"_id": 1}}],
        "ping": [{"ping": 1}],
        "update": [{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]}],
    }
    watchers = {name: Watcher(primary.port, commands) for name, commands in doings.items()}
    for w in watchers.values():
        w.__enter__()
    disk = DiskProbe(s.folder)
    disk.__enter__()
    wrong, before = [], processor_time(pids)
    threads = [threading.Thread(target=insert, args=(primary.port, wrong)) for _ in range(CLIENTS)]
    began = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - began
    share = taken_by_others(before, processor_time(pids))
    measured = {name: w.take() for name, w in watchers.items()}
    for w in watchers.values():
        w.__exit__()
    disk.__exit__()
    check(not wrong, f"large inserts: {wrong}")
    rate = CLIENTS * TIMES * SIZE / took / 1e6
    print(
        f"     {CLIENTS * TIMES} of {SIZE / 1e6:.0f} MB in {took:.1f} s ({rate:.0f} MB/s); slowest plain, synced "
        f"write of a chunk {disk.slowest() * 1000:.0f} ms; {share * 100:.0f} % of the machine taken by others"
    )
    for name, (waited, late, served) in measured.items():
        bound = SLOWEST + (disk.slowest() * SYNCED if name == "update" else 0)
        print(
            f"     {name}: slowest {waited * 1000:.0f} ms, the machine {late * 1000:.0f} ms late, "
            f"at most {bound * 1000:.0f} ms"
        )
        check(
            served and waited <= bound / (1 - share) + 2 * late,
            f"{name} beside large inserts: {waited * 1000:.0f} ms (at most {bound * 1000:.0f}, the machine was "
            f"{late * 1000:.0f} ms late, {share * 100:.0f} % of it taken by others)",
        )
    check(s.primary() is primary, "the primary goes on leading")
    check(s.same("hostile"), "all members hold the same")
    s.close()


if __name__ == "__main__":
    run_parts("hostile set", [others_beside_large_inserts], check)
