#!/usr/bin/env python3
"""A process with 1,024 file descriptors, and clients that want them all: the store keeps its own, a set's members keep
their links, readiness says what is true, and what failed for want of a descriptor goes on once there are some.

  idle        1,400 silent connections to a standalone: writes go on
  returned    the limit falls below what is in use (prlimit), then rises again: writes are refused, and go on by
              themselves
  greetings   3,000 sockets that send the greeting of a member and nothing else, to a set of one and among 1,400 idle
              ones
  member      a member of a set that is full of clients takes back one that was killed
  secondary   the limits of two members fall below what they have, so that the set has no majority: nobody ends, what
              cannot be acknowledged is not, and all go on by themselves and have everything
  copies      an empty member is added while it, or the member that it copies from, has a few descriptors left: neither
              ends, and the copy is made once there are more
  again       the limit of a set of one falls below what is in use, again and again while it writes: a log that
              cannot be opened just then is not damage
  few         a limit that is too low to begin with
  hello       exhaust hello with maxAwaitTimeMS 0, 8 of them: another client's latency; nothing holds an io thread,
              batches
           of writes and large documents neither
"""

import os, resource, socket, struct, subprocess, tempfile, threading, time, urllib.error, urllib.request

import bson
from pymongo.errors import PyMongoError

import fault_test
from fault_test import (
    BINARY,
    HELD_MICROS,
    Checks,
    Client,
    Deadline,
    discard,
    figure,
    free_port,
    random_moment,
    run_parts,
    start,
    stop,
    until,
    wait_for,
)
from replica_set import Member, ReplicaSet

check = Checks()
LIMIT = 1024
work = tempfile.mkdtemp(prefix="mayfly-descriptors-")
limited = work + "/limited"
with open(limited, "w") as f:
    f.write(f'#!/bin/sh\nulimit -n {LIMIT}\nexec "{BINARY}" "$@"\n')
os.chmod(limited, 0o755)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def message(doc, flags=0):
    body = bson.encode(doc)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, flags, 0) + body


GREETING = message({"_mayflyMember": 1, "$db": "admin"})


def connect(port, data=b""):
    """Without waiting for the server; None when there is no more room in the backlog."""
    s = socket.socket()
    s.settimeout(5)  # clock: who is not answered goes on
    try:
        s.connect(("127.0.0.1", port))
        if data:
            s.sendall(data)
    except OSError:
        pass
    return s


def ready(http):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{http}/readyz", timeout=Deadline().seconds).status
    except urllib.error.HTTPError as e:
        return e.code
    except OSError as e:
        return repr(e)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Writer:
    """Inserts of 2 MB each, so that logs and tables come and go."""

    def __init__(self, client):
        self.client, self.n = client, 0

    def one(self):
        self.n += 1
        docs = [{"_id": self.n * 100 + i, "s": os.urandom(20_000)} for i in range(100)]
        try:
            return self.client.command("t", {"insert": "c", "documents": docs})
        except OSError as e:
            return {"ok": 0, "errmsg": repr(e)}

    def many(self, times=40):
        """None, or the first reply that is not a success."""
        for _ in range(times):
            reply = self.one()
            if reply.get("ok") != 1 or "writeErrors" in reply:
                return reply


def idle():
    http = free_port()
    proc, client = start(work + "/idle", "--httpPort", str(http), binary=limited)
    writer = Writer(client)
    sockets = [connect(proc.port) for _ in range(1400)]
    check(
        until(lambda: client.command("admin", {"serverStatus": 1})["connections"]["rejected"] > 700),
        "connections beyond the room there is are refused",
    )
    check(
        descriptors(proc.pid) < LIMIT - 200,
        f"descriptors are left for the store: {descriptors(proc.pid)} of {LIMIT} are taken",
    )
    failed = writer.many()
    check(failed is None, f"80 MB are written meanwhile: {str(failed)[:200]}")
    check(ready(http) == 200, "ready, and it is")
    silent = [connect(http) for _ in range(200)]
    check(ready(http) == 200, "ready among 200 silent HTTP connections")
    check(writer.many(20) is None, "writes go on")
    for s in sockets + silent:
        s.close()
    check(stop(proc) == 0, "clean stop")


def returned():
    http = free_port()
    proc, client = start(work + "/returned", "--httpPort", str(http), binary=limited)
    writer = Writer(client)
    check(writer.many(5) is None, "writes before")
    ask = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    held = connect(http, ask)  # asks again below, without a new descriptor
    check(b" 200 " in held.recv(4096), "ready before")
    resource.prlimit(proc.pid, resource.RLIMIT_NOFILE, (8, LIMIT))
    failed = writer.many(60)
    check(
        failed is not None and failed.get("code") == 14031 and "file descriptors" in failed["errmsg"],
        f"writes are refused, and the error says why: {str(failed)[:300]}",
    )
    held.sendall(ask)
    answer = held.recv(4096)
    check(b" 503 " in answer and b"writes are refused" in answer, f"not ready meanwhile: {answer[:300]}")
    check(client.command("admin", {"ping": 1})["ok"] == 1, "who is connected is answered")
    resource.prlimit(proc.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    began = time.monotonic()
    check(until(lambda: writer.one().get("ok") == 1), "writes go on by themselves")
    print(f"     after {time.monotonic() - began:.1f} s")
    check(writer.many() is None and ready(http) == 200, "and stay possible; ready again")
    count = client.command("t", {"count": "c"})["n"]
    held.close()
    check(stop(proc) == 0, "clean stop")
    proc, client = start(work + "/returned", binary=limited)
    check(client.command("t", {"count": "c"})["n"] == count, "all of it is there after a restart")
    check(stop(proc) == 0, "clean stop")


def greetings():
    proc, client = start(work + "/greetings", "--replSet", "rs0", "--httpPort", "0", binary=limited)
    client.command(
        "admin", {"replSetInitiate": {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{proc.port}"}]}}
    )
    check(until(lambda: client.command("admin", {"hello": 1}).get("isWritablePrimary")), "a set of one")
    writer = Writer(client)
    check(writer.many(3) is None, "writes before")
    sockets, most = [], 0
    for i in range(3000):
        sockets.append(connect(proc.port, GREETING))
        if i % 100 == 0:
            most = max(most, descriptors(proc.pid))
    check(most < LIMIT // 2, f"3,000 greetings take no more than their share: {most} descriptors at most")
    failed = writer.many(20)
    check(failed is None, f"writes go on: {str(failed)[:200]}")
    for _ in range(1400):
        sockets.append(connect(proc.port))
    for _ in range(300):
        sockets.append(connect(proc.port, GREETING))
    check(descriptors(proc.pid) < LIMIT - 150, f"idle ones and greetings together: {descriptors(proc.pid)} descriptors")
    failed = writer.many()
    check(failed is None, f"80 MB more are written: {str(failed)[:200]}")
    check(proc.poll() is None, "the member is there")
    for s in sockets:
        s.close()
    check(stop(proc) == 0, "clean stop")


def member():
    replica_set = ReplicaSet(3, ("--httpPort", "0"), binary=BINARY)
    try:
        # Another binary than BINARY gets a pipe to be told through, which the limited one needs not.
        first = replica_set.members[0]
        first.stop()
        first.binary = limited
        first.start()
        first.wait_up()
        replica_set.initiate()
        full = [connect(first.port) for _ in range(1400)]
        rejected = lambda: first.client.admin.command("serverStatus")["connections"]["rejected"]
        check(
            until(lambda: rejected() > 700), f"those who made room for others are counted too: {rejected()} are refused"
        )
        lost = replica_set.members[2]
        lost.kill()
        # The links of both sides are new: one of them goes to the member that is full.
        lost.start()
        lost.wait_up()
        replica_set.wait(
            lambda: lost.hello().get("secondary") or lost.hello().get("isWritablePrimary"), "the member that was killed"
        )

        def all_healthy():
            status = first.client.admin.command("replSetGetStatus")["members"]
            return all(m["health"] == 1 for m in status)

        replica_set.wait(all_healthy, "all links")
        check(True, "a member full of clients and one that was killed have found each other")
        for s in full:
            s.close()
        check(all(m.stop() == 0 for m in replica_set.members), "clean stop")
    finally:
        replica_set.close()


def secondary():
    replica_set = ReplicaSet(3, ("--httpPort", "0", "--setParameter", "enableTestCommands=1"), binary=BINARY)
    try:
        replica_set.initiate()
        replica_set.all_vote()
        primary = replica_set.primary()
        acknowledged = []

        def write(n, client, wtimeout=2000):
            docs = [{"_id": n * 100 + i, "s": os.urandom(20_000)} for i in range(100)]
            try:
                concern = {"w": "majority", "wtimeout": wtimeout}
                reply = client.t.command("insert", "c", documents=docs, writeConcern=concern)
            except PyMongoError:
                return False
            if "writeConcernError" in reply or "writeErrors" in reply:
                return False
            acknowledged.append(n)
            return True

        check(all(write(n, primary.client, 20_000) for n in range(3)), "writes before")

        seen_before = {}

        def narrow(*members):
            for m in members:
                with open(f"{m.folder}/log", errors="replace") as log:
                    seen_before[m] = log.read().count("The replication log cannot be written now")
                resource.prlimit(m.proc.pid, resource.RLIMIT_NOFILE, (8, hard))

        def widen(*members):
            for m in members:
                resource.prlimit(m.proc.pid, resource.RLIMIT_NOFILE, (hard, hard))

        def waits(m):
            with open(f"{m.folder}/log", errors="replace") as log:
                return log.read().count("The replication log cannot be written now") > seen_before.get(m, 0)

        def alive(what):
            check(all(m.running() for m in replica_set.members), f"{what}: no member has ended")

        def whole(what):
            replica_set.wait(lambda: write(acknowledged[-1] + 1000, replica_set.primary().client), f"{what}: to write")
            alive(what)
            seen = replica_set.primary().client.t.c.count_documents({"_id": {"$mod": [100, 0]}})
            check(seen >= len(acknowledged), f"{what}: {len(acknowledged)} were acknowledged, {seen} are there")

        others = replica_set.others(primary)
        narrow(*others)
        n = 10
        while not all(waits(m) for m in others) and n < 60:
            write(n, primary.client)
            n += 1
        alive("secondaries without descriptors")
        check(all(waits(m) for m in others), f"both secondaries wait, after {n - 10} writes of 2 MB")
        check(not write(n + 1, primary.client), "nothing is acknowledged without a majority")
        widen(*others)
        whole("secondaries")

        primary = replica_set.primary()
        narrow(primary)
        n = acknowledged[-1] + 1
        while not waits(primary) and n < acknowledged[-1] + 60:
            write(n, primary.client)
            n += 1
        check(waits(primary), "the primary waits")
        replica_set.wait(
            lambda: not primary.hello().get("isWritablePrimary"), "the primary that cannot write to say that it is none"
        )
        replica_set.wait(lambda: write(n + 1000, replica_set.primary().client), "another member to lead")
        alive("a primary without descriptors")
        widen(primary)
        whole("primary")
        replica_set.in_place()
        check(all(m.stop() == 0 for m in replica_set.members), "clean stop")
    finally:
        replica_set.close()


def copies():
    def limit(m, more):
        count = descriptors(m.proc.pid) + more if more else hard
        resource.prlimit(m.proc.pid, resource.RLIMIT_NOFILE, (count, hard))

    for what, room in (("the joiner", 4), ("the donor", 3)):
        replica_set = ReplicaSet(1, ("--httpPort", "0"), binary=BINARY)
        try:
            replica_set.initiate()
            donor = replica_set.members[0]
            for i in range(20):
                donor.client.t.c.insert_many([{"_id": i * 100 + n, "s": os.urandom(20_000)} for n in range(100)])
            donor.client.admin.command("fsync")
            joiner = Member(f"{replica_set.folder}/1", ("--httpPort", "0"))
            joiner.start()
            joiner.wait_up()
            replica_set.members.append(joiner)
            narrow = joiner if what == "the joiner" else donor
            limit(narrow, room)
            replica_set.add(joiner)

            def troubled():
                with open(f"{joiner.folder}/log", errors="replace") as log:
                    text = log.read()
                return any(t in text for t in ("was interrupted", "starts over", "the copy is complete"))

            until(troubled, 10)
            check(all(m.running() for m in replica_set.members), f"{what} has {room} descriptors left: nobody ends")
            limit(narrow, None)
            replica_set.wait(lambda: joiner.hello().get("secondary"), f"{what}: to follow")
            check(replica_set.same(), f"{what}: both hold the same afterwards")
        finally:
            replica_set.close()


def again():
    replica_set = ReplicaSet(1, ("--httpPort", "0"), binary=BINARY)
    try:
        replica_set.initiate()
        member = replica_set.members[0]
        writers = member.new_client()

        def refusals():
            with open(f"{member.folder}/log", errors="replace") as log:
                return log.read().count("no file descriptors left: writes are refused")

        def write(wrote, ended):
            while not ended.is_set():
                try:
                    writers.t.c.insert_many([{"s": os.urandom(20_000)} for _ in range(100)])
                    wrote.set()
                except PyMongoError:
                    ended.wait(0.02)  # sleeps: a client's pace, until the end

        for i in range(12):
            wrote, ended, before = threading.Event(), threading.Event(), refusals()
            thread = threading.Thread(target=write, args=(wrote, ended))
            thread.start()
            wrote.wait(Deadline().seconds)  # a new connection would need a descriptor
            resource.prlimit(member.proc.pid, resource.RLIMIT_NOFILE, (8, hard))
            until(lambda: refusals() > before, 20)
            random_moment(0, 0.4)
            resource.prlimit(member.proc.pid, resource.RLIMIT_NOFILE, (hard, hard))
            ended.set()
            thread.join()
            empty = lambda: member.client.t.c.delete_many({}).acknowledged
            replica_set.wait(empty, f"time {i + 1}: to write again", 30)
        check(refusals() >= 12, f"writes were refused {refusals()} times, and went on each time")
        check(member.stop() == 0, "clean stop")
        check(not os.path.exists(f"{member.folder}/data/spare.tmp"), "the spare log is gone")
    finally:
        replica_set.close()


def few():
    """A server that could not keep its files open does not start, and says what it needs."""
    for option in ([], ["--replSet", "rs0"]):
        script = work + "/few"
        with open(script, "w") as f:
            f.write(f'#!/bin/sh\nulimit -n 64\nexec "{BINARY}" "$@"\n')
        os.chmod(script, 0o755)
        done = subprocess.run(
            [script, "--dbpath", f"{work}/few-data{len(option)}", "--port", "0", *option],
            capture_output=True,
            text=True,
            timeout=Deadline().seconds,
        )
        text = done.stdout + done.stderr
        check(done.returncode not in (0, 14) and "ulimit -n" in text, f"64 descriptors: {text[-300:]}")


def hello():
    proc, client = start(work + "/hello", "--httpPort", "0", "--setParameter", "ioThreadWatchdogMicros=5000")
    version = client.command("admin", {"hello": 1})["topologyVersion"]
    ask = message({"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 0, "$db": "admin"}, 1 << 16)
    ended, read = threading.Event(), [0] * 8

    def drain(i):
        s = connect(proc.port, ask)
        while not ended.is_set():
            read[i] += len(s.recv(1 << 16))
        s.close()

    threads = [threading.Thread(target=drain, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    wait_for(lambda: all(read))
    other, slowest, before = Client("127.0.0.1", proc.port), 0, list(read)
    for n in range(1000):
        began = time.monotonic()
        found = other.command("t", {"find": "c", "filter": {"_id": 1}})
        slowest = max(slowest, time.monotonic() - began)
        if not found["ok"]:
            break
    check(found["ok"] == 1, f"another client is answered a thousand times, {n}: {found}")
    check(all(now > then for now, then in zip(read, before)), f"beside streams that went on: {before}, {read}")
    figure("another client's slowest find among 8 streams", slowest * 1000)
    check(until(lambda: min(read) > 10_000), f"each stream goes on: {read}")
    ended.set()
    for t in threads:
        t.join()
    # Batches that are many, of documents that are large.
    assert client.command("t", {"createIndexes": "k", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})["ok"] == 1
    assert client.command("t", {"insert": "k", "documents": [{"_id": "large", "a": list(range(50_000))}]})["n"] == 1
    for batch in (400, 20_000):
        assert (
            client.command("t", {"insert": "k", "documents": [{"_id": i} for i in range(batch)], "ordered": False})[
                "ok"
            ]
            == 1
        )
        assert (
            client.command(
                "t", {"update": "k", "updates": [{"q": {"_id": i}, "u": {"$inc": {"n": 1}}} for i in range(batch)]}
            )["n"]
            == batch
        )
    assert (
        client.command("t", {"update": "k", "updates": [{"q": {"_id": "large"}, "u": {"$push": {"a": -1}}}]})["n"] == 1
    )
    assert client.command("t", {"delete": "k", "deletes": [{"q": {"_id": "large"}, "limit": 1}]})["n"] == 1
    assert (
        client.command("t", {"delete": "k", "deletes": [{"q": {"_id": i}, "limit": 1} for i in range(20_000)]})["n"]
        == 20_000
    )
    seen = client.command("admin", {"serverStatus": 1})["network"]["ioThreadWatchdog"]
    figure("the longest that an io thread was held", seen["longestMicros"] / 1000, "ms of its processor")
    # Slices are of some milliseconds.
    check(seen["longestMicros"] < HELD_MICROS, f"nothing held an io thread for ten times its design: {seen}")
    check(stop(proc) == 0, "clean stop")


try:
    run_parts("descriptors", (idle, returned, greetings, member, secondary, copies, again, few, hello), check)
finally:
    discard(work)
