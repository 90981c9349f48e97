#!/usr/bin/env python3
"""A hostile client, and a second client that must not be affected.

Every command is sent with every argument that its source reads, and each of them is huge, many, deep or long; plain and
compressed. Every command is also sent slowly, half, and again and again, with an argument of each of these shapes.
Meanwhile another client (a process of its own) finds and updates a
document all the time. Checked for each attack:

  - the server lives, and answers: with an error or not, and with one whole, valid reply, whose error's message has no
    NUL; maxTimeMS is 1 s, and it works for no more than ten times that on it, by the time of its processors;
  - the other client is answered meanwhile, as often as hostile_watch.py has it: by counts, not by the clock. How long
    it waited is printed, and kept as a figure;
  - no command holds a thread that serves connections for more than 100 ms of the processor's time;
  - memory grows by at most 700 MB during an attack, and what the attacks leave behind stays below 600 MB;
  - descriptors come back when the attacker has gone.

  tests/fault/hostile_run.py [PART …]

MAYFLY_SEED repeats a run; MAYFLY_HOSTILE_SECONDS (30) is how long generated attacks go on, in a random order; 0: until
every one has been tried once (about two hours). MAYFLY_HOSTILE_ONLY: a part of the names of attacks, to try only those.
"""

import datetime, itertools, multiprocessing, os, select, socket, struct, tempfile, threading, time, zlib

import bson
import bson.raw_bson

from fault_test import (
    WATCHED,
    Checks,
    Client,
    Deadline,
    check_held,
    discard,
    figure,
    forget_peak,
    initiate,
    memory_mb,
    processor_seconds,
    rnd,
    run_parts,
    start,
    stop,
    until,
    wait_for,
)
from hostile_shapes import NAME, SHAPES, body_of, colliding, document, field, frame, items, places, shape, text
from hostile_watch import Watcher

SECONDS = float(os.environ.get("MAYFLY_HOSTILE_SECONDS", "30"))
ONLY = os.environ.get("MAYFLY_HOSTILE_ONLY", "")
WORK = 10  # seconds of processors that the server may spend on a command whose maxTimeMS is 1 s
GROWTH, LEFT = 700, 600  # MB
check = Checks(quiet=True)
work = tempfile.mkdtemp(prefix="mayfly-hostile-")
proc, client = start(work + "/db", "--maxConns", "3000", "--setParameter", "enableTestCommands=1", *WATCHED)


# --- Who watches -----------------------------------------------------------------------------------------------------
def descriptors():
    return len(os.listdir(f"/proc/{proc.pid}/fd"))


UNITS = {"another client's slowest round": "ms", "growth": "MB", "answer": "s", "work on one command": "s of processor"}
worst = {what: (0, "") for what in UNITS}


def note(what, value, name):
    if value > worst[what][0]:
        worst[what] = (value, name)


def attacked(w, name, attack, growth_limit=GROWTH):
    """Runs an attack, which returns what was wrong with the answers (None: nothing), and looks at what it did to
    others."""
    w.take()
    forget_peak(proc.pid)
    before, began = memory_mb(proc.pid), time.monotonic()
    wrong = attack()
    note("answer", time.monotonic() - began, name)
    seen = w.take()
    growth = memory_mb(proc.pid, "VmHWM") - before if proc.poll() is None else 0
    check(proc.poll() is None, f"{name}: the server ended with {proc.poll()}")
    check(wrong is None, f"{name}: {wrong}")
    check(seen.served(), f"{name}: {seen}")
    check(growth <= growth_limit, f"{name}: {growth} MB more")
    note("another client's slowest round", seen.slowest * 1000, name)
    note("growth", growth, name)
    if proc.poll() is not None:
        raise AssertionError("the server has ended")


def messages_of(reply):
    """Those of all errors in it."""
    for e in [reply, reply.get("writeConcernError", {}), *reply.get("writeErrors", [])]:
        yield e.get("errmsg", "")
    cursor = reply.get("cursor", {})
    for e in cursor.get("firstBatch", []) if isinstance(cursor, dict) else []:  # of bulkWrite
        if isinstance(e, dict) and e.get("ok") == 0:
            yield e.get("errmsg", "")


class Replies:
    """The replies in a stream of bytes: each is looked at when it is whole."""

    def __init__(self):
        self.buffer, self.whole, self.wrong = bytearray(), 0, None

    def feed(self, data):
        self.buffer += data
        while len(self.buffer) >= 16 and not self.wrong:
            size, _, answers, op = struct.unpack_from("<iiii", self.buffer)
            if not 16 < size <= 48_000_000 or op not in (1, 2013):
                self.wrong = f"a reply of {size} bytes with the opcode {op}"
            elif len(self.buffer) < size:
                return
            else:
                self.look(bytes(self.buffer[36 if op == 1 else 21 : size]), op)
                del self.buffer[:size]
                self.whole += 1

    def look(self, body, op):
        try:
            # Every byte of it, without making objects of 16 MB: a driver would say no to what is not UTF-8 or ends too
            # early.
            doc = bson.decode(body) if len(body) < 1_000_000 else bson.raw_bson.RawBSONDocument(body)
            if doc["ok"] not in (0, 1) or doc["ok"] == 0 and not (doc["errmsg"] and doc["code"]):
                self.wrong = f"a reply that says {str(doc)[:300]}"
            elif any("\0" in str(m) for m in messages_of(doc)):
                self.wrong = f"a NUL in a message: {str(doc)[:300]}"
        except Exception as e:
            self.wrong = f"an invalid reply: {e!r}"[:500]


def ask(data, may_end=False):
    """Sends it on a connection of its own: None when one whole and valid reply came and nothing behind it (or, if it
    may, the end of the connection), else what was wrong."""
    worked = processor_seconds(proc.pid)
    wrong = answered(data, may_end)
    worked = processor_seconds(proc.pid) - worked
    note("work on one command", worked, f"{len(data)} bytes")
    return wrong or (f"the server worked {worked:.1f} s on it, with a limit of 1 s" if worked > WORK else None)


def answered(data, may_end):
    replies, in_time = Replies(), Deadline()
    with socket.create_connection(("127.0.0.1", proc.port), in_time.seconds) as s:
        try:
            s.sendall(data)
            while not replies.whole and not replies.wrong:
                part = in_time.receive(s)
                if not part:
                    return (
                        None
                        if may_end and not replies.buffer
                        else f"the connection ended after {len(replies.buffer)} bytes of a reply"
                    )
                replies.feed(part)
        except (BrokenPipeError, ConnectionResetError) as e:
            return None if may_end and not replies.buffer else repr(e)
        except TimeoutError:
            return f"no answer, {len(replies.buffer)} bytes"
    return replies.wrong or (f"{len(replies.buffer)} bytes behind the reply" if replies.buffer else None)


# --- The parts --------------------------------------------------------------------------------------------------------
def in_turn(tries, attack_of):
    """Attacks with each of (name, how to make a command, shape, way) until the time is over."""
    end, n = time.monotonic() + SECONDS, 0
    with Watcher(proc.port) as w:
        for name, make, s, way in tries:
            if ONLY not in name:
                continue
            if SECONDS and time.monotonic() > end:  # clock: how many attacks are tried
                break
            body = body_of(make(shape(s)), b"admin" if n % 4 == 0 else b"hostile")
            if len(body) > 47_000_000:
                continue
            attacked(w, name, attack_of(w, frame(body, n % 2 == 0), way))
            n += 1
            if n % 50 == 0:
                client.command("hostile", {"dropDatabase": 1})
    print(f"     {n} of {len(tries)} attacks", flush=True)


def arguments():
    """Every command x every argument x every shape, plain or compressed; in a random order until the time is over."""
    tries = [(f"{c} with {s} as {a}", make, s, None) for c, a, make in places(client) for s in SHAPES]
    rnd.shuffle(tries)
    in_turn(tries, lambda w, data, way: lambda: ask(data))


def slowly(w, data):
    """In some pieces, others being served in between: None when it is answered as if it had come at once, else what was
    wrong."""
    cuts = sorted(rnd.randrange(1, len(data)) for _ in range(8))
    with socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds) as s:
        for begin, end in zip([0, *cuts], [*cuts, len(data)]):
            s.sendall(data[begin:end])
            w.wait_rounds(1)
        replies, in_time = Replies(), Deadline()
        try:
            while not replies.whole and not replies.wrong:
                part = in_time.receive(s)
                if not part:
                    return "the connection ended"
                replies.feed(part)
        except TimeoutError:
            return f"no answer, {len(replies.buffer)} bytes"
    return replies.wrong


def half_sent(w, data, n):
    """The beginning of it, from `n` connections, which then go: nothing is answered before it has come whole."""
    sockets = []
    for _ in range(n):
        s = socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds)
        s.sendall(data[: rnd.randrange(1, min(len(data), 300_000))])
        sockets.append(s)
    w.wait_rounds(3)
    early = sum(len(s.recv(16)) for s in select.select(sockets, [], [], 0)[0])
    for s in sockets:
        s.close()
    return f"{early} bytes of answers to halves" if early else None


def again_and_again(data, n, seconds):
    """`n` of them at once on one connection, and again as they are taken, for so long."""
    with socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds) as s:
        end, replies, in_time = time.monotonic() + seconds, Replies(), Deadline()
        data = data * n
        s.settimeout(0.05)  # clock: who is silent is asked again
        rest = b""
        # The first answer may need its maxTimeMS.
        while time.monotonic() < end or (not replies.whole and in_time.holds()):  # clock: how long the attack lasts
            rest = rest or data
            try:
                rest = rest[s.send(rest) :]
            except TimeoutError:
                pass
            try:
                replies.feed(s.recv(1 << 20))
            except TimeoutError:
                pass
            if replies.wrong:
                break
        return replies.wrong or (None if replies.whole else "no answer")


def ways():
    """Every command slowly, half and repeated, with each shape as one of its arguments."""
    by_command = {}
    for c, a, make in places(client):
        by_command.setdefault(c, []).append((a, make))
    tries = []
    for c, arguments_of in by_command.items():
        for s, way in itertools.product(SHAPES, ("slow", "half", "repeated")):
            a, make = rnd.choice(arguments_of)
            tries.append((f"{way}: {c} with {s} as {a}", make, s, way))
    rnd.shuffle(tries)
    before = descriptors()

    def attack(w, data, way):
        return {
            "slow": lambda: slowly(w, data),
            "half": lambda: half_sent(w, data, 20),
            "repeated": lambda: again_and_again(data, max(1, min(50, 2_000_000 // len(data))), 0.5),
        }[way]

    in_turn(tries, attack)
    back(before)


def back(before):
    """The descriptors of connections that have gone."""
    check(until(lambda: descriptors() <= before + 20), f"{descriptors()} descriptors, {before} before")


def set_up():
    client.command("other", {"insert": "c", "documents": [{"_id": 1}]})
    client.command("hostile", {"insert": "c", "documents": [{"_id": i, "a": i, "s": "x" * 100} for i in range(1000)]})


def message(doc, flags=0):
    body = bson.encode(doc)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, flags, 0) + body


def repeated():
    """One connection that never stops asking: pipelined requests, and an exhaust hello whose replies it reads as they
    come."""
    set_up()
    with Watcher(proc.port) as w:
        for doc in (
            {"ping": 1, "$db": "admin"},
            {"find": "c", "filter": {"_id": 1}, "$db": "hostile"},
            {"find": "c", "batchSize": 1000, "singleBatch": True, "$db": "hostile"},
            {"hello": 1, "$db": "admin"},
            {"serverStatus": 1, "$db": "admin"},
            {"listCommands": 1, "$db": "admin"},
            {"getParameter": "*", "$db": "admin"},
            {"isMaster": 1, "helloOk": True, "$db": "admin"},
            {"buildInfo": 1, "$db": "admin"},
            {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], "$db": "hostile"},
            {"insert": "c", "documents": [{"a": 1}] * 100, "$db": "hostile"},
            {"unknownCommand": 1, "$db": "admin"},
            {"ttlStatus": 1, "$db": "admin"},
        ):
            attacked(w, f"pipelined {next(iter(doc))}", lambda: again_and_again(message(doc), 200, 2))

        def exhaust():
            version = client.command("admin", {"hello": 1})["topologyVersion"]
            with socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds) as s:
                s.sendall(
                    message({"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 0, "$db": "admin"}, 1 << 16)
                )
                end, replies = time.monotonic() + 3, Replies()
                s.settimeout(0.2)  # clock: who is silent is asked again
                while time.monotonic() < end or not replies.whole:  # clock: how long the attack lasts
                    try:
                        data = s.recv(1 << 20)
                    except TimeoutError:
                        continue
                    if not data:
                        return "the connection ended"
                    replies.feed(data)
                return replies.wrong or (None if replies.whole else "no answer")

        attacked(w, "exhaust hello without a wait", exhaust)


def slow_and_half():
    """Messages that come byte by byte or end in the middle, on many connections; all is given back when they have
    gone."""
    set_up()
    before = descriptors()
    with Watcher(proc.port) as w:

        def half(data, n):
            return lambda: half_sent(w, data, n)

        ordinary = message({"find": "c", "filter": {"_id": 1}, "$db": "hostile"})
        attacked(w, "half of a small message, 1000 times", half(ordinary, 1000))
        attacked(
            w,
            "half of a large message, 200 times",
            half(message({"insert": "c", "documents": [{"s": "x" * 1_000_000}], "$db": "hostile"}), 200),
        )
        attacked(
            w,
            "half of a compressed message, 200 times",
            half(
                frame(
                    body_of(
                        field("insert", NAME) + field("documents", (4, document(items(300_000, 3, document(b"")))))
                    ),
                    True,
                ),
                200,
            ),
        )

        def byte_by_byte():
            sockets = [socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds) for _ in range(200)]
            for i in range(len(ordinary)):
                for s in sockets:
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    s.sendall(ordinary[i : i + 1])
            wrong = None
            for s in sockets:
                replies = Replies()
                while not replies.whole and not replies.wrong:
                    replies.feed(s.recv(1 << 16) or b"\xff" * 16)
                wrong = wrong or replies.wrong
                s.close()
            return wrong

        attacked(w, "byte by byte, 200 times", byte_by_byte)

        def lengths_that_lie():
            for n in (-1, 0, 15, 16, 17, 2**31 - 1, 48_000_001):
                for op in (1, 2004, 2012, 2013):
                    wrong = ask(struct.pack("<iiii", n, 1, 0, op) + b"\xff" * 64, may_end=True)
                    if wrong:
                        return f"{n} bytes, opcode {op}: {wrong}"

        attacked(w, "lengths that lie", lengths_that_lie)
    back(before)


def bombs():
    """60 connections send one message each, small on the wire and 32 MB unpacked."""
    two = bson.encode({"a": "x" * 15_900_000})
    body = bson.encode({"ping": 1, "$db": "admin"})
    sequence = b"documents\0" + two + two
    plain = struct.pack("<I", 0) + b"\0" + body + b"\1" + struct.pack("<i", 4 + len(sequence)) + sequence
    packed = zlib.compress(plain, 9)
    data = struct.pack("<iiiiiiB", 25 + len(packed), 1, 0, 2012, 2013, len(plain), 2) + packed
    sockets = [socket.create_connection(("127.0.0.1", proc.port), timeout=Deadline().seconds) for _ in range(60)]
    for s in sockets:
        s.sendall(data)
    wrong = None
    for s in sockets:
        if len(s.recv(16)) != 16:
            wrong = "no answer"
        s.close()
    return wrong


def costly_writes():
    """Small writes that cost much: expressions, validators, conditions, index keys; each by itself on the way on which
    plain ones are not put off."""
    set_up()
    long = {"$reduce": {"input": {"$range": [0, 1_000_000]}, "initialValue": 0, "in": {"$add": ["$$value", 1]}}}
    run = lambda doc: client.command("hostile", doc)
    ok = lambda doc: lambda: None if run(doc)["ok"] == 1 else "it failed"
    update = lambda u, **more: {"update": "w", "updates": [{"q": {"_id": 1}, "u": u, **more}]}
    run({"drop": "w"}), run({"drop": "v"}), run({"drop": "k"})
    run({"insert": "w", "documents": [{"_id": 1, "a": [{"s": "a" * 28} for _ in range(1500)], "n": list(range(6000))}]})
    run({"create": "v", "validator": {"$expr": {"$gt": [long, -1]}}})
    run({"insert": "v", "documents": [{"_id": 0}], "bypassDocumentValidation": True})
    run({"createIndexes": "k", "indexes": [{"key": {"a.b": 1, f"k{i}": 1}, "name": f"k{i}"} for i in range(63)]})
    # As many keys as one document may have in all indexes, and some more.
    dear, other, too_dear = (
        {"_id": 1, "a": [{"b": i + part} for i in range(n)]} for n, part in ((1010, 0), (1010, 0.5), (3000, 0))
    )
    run({"drop": "groups"})
    run({"insert": "groups", "documents": [{"s": bson.Binary(b"\0\0\0" + s)} for s in colliding(15)]})
    with Watcher(proc.port) as w:
        attacked(w, "an update by a pipeline", ok(update([{"$set": {"x": long}}])))
        attacked(w, "let of an update", ok({**update({"$inc": {"i": 1}}), "let": {"v": long}}))
        attacked(
            w, "let of a delete", ok({"delete": "w", "deletes": [{"q": {"_id": 7}, "limit": 1}], "let": {"v": long}})
        )
        attacked(
            w,
            "let of a findAndModify",
            ok({"findAndModify": "w", "query": {"_id": 1}, "update": {"$inc": {"i": 1}}, "let": {"v": long}}),
        )
        attacked(w, "a projection by _id", ok({"find": "w", "filter": {"_id": 1}, "projection": {"x": long}}))
        attacked(
            w, "array filters", ok(update({"$set": {"a.$[e].t": 1}}, arrayFilters=[{"e.s": {"$regex": "(a|aa)+b"}}]))
        )
        attacked(w, "$pull of a pattern", ok(update({"$pull": {"a": {"s": {"$regex": "(a|aa)+b"}}}})))
        attacked(w, "$push and $sort", ok(update({"$push": {"a": {"$each": [], "$sort": {"s": 1}}}})))
        attacked(w, "$addToSet of many", ok(update({"$addToSet": {"n": {"$each": list(range(6000, 7500))}}})))
        attacked(w, "a place far behind the end", ok(update({"$set": {"f.1400000": 1}})))
        attacked(w, "insert with a validator", ok({"insert": "v", "documents": [{"_id": 1}]}))
        attacked(
            w, "update with a validator", ok({"update": "v", "updates": [{"q": {"_id": 0}, "u": {"$inc": {"x": 1}}}]})
        )
        attacked(
            w,
            "upsert with a validator",
            ok({"update": "v", "updates": [{"q": {"_id": 5}, "u": {"$inc": {"x": 1}}, "upsert": True}]}),
        )
        for _ in range(2):
            attacked(w, "insert of many keys", ok({"insert": "k", "documents": [dear]}))
            attacked(w, "update of many keys", ok({"update": "k", "updates": [{"q": {"_id": 1}, "u": other}]}))
            attacked(w, "delete of many keys", ok({"delete": "k", "deletes": [{"q": {"_id": 1}, "limit": 1}]}))
        refused = run({"insert": "k", "documents": [too_dear]})
        check(refused["writeErrors"][0]["code"] == 201, f"190,000 keys: {refused}")
        group = {
            "aggregate": "groups",
            "pipeline": [{"$group": {"_id": "$s"}}, {"$count": "n"}],
            "cursor": {},
            "maxTimeMS": 15_000,
        }
        attacked(w, "groups that std::hash takes for one", ok(group))
        run({"drop": "capped"}), run({"create": "capped", "capped": True, "size": 1 << 30, "max": 1_000_000})
        for _ in range(6):
            run({"insert": "capped", "documents": [{"a": 1}] * 50_000})
        run({"collMod": "capped", "cappedMax": 1})
        attacked(w, "an insert into what collMod made smaller", ok({"insert": "capped", "documents": [{"a": 1}]}))
        check(run({"count": "capped"})["n"] == 1, "a capped collection is as small as it may be")
        attacked(w, "compressed messages that unpack to much, at once", bombs)

    # Large inserts that a slow validator holds up do not hold up those of others.
    def slow():
        c = Client("127.0.0.1", proc.port)
        c.command(
            "hostile", {"insert": "v", "documents": [{"s": "x" * 50_000} for _ in range(100)], "maxTimeMS": 600_000}
        )

    attackers = [multiprocessing.Process(target=slow, daemon=True) for _ in range(2)]
    for a in attackers:
        a.start()
    # What is as large as that is not shown whole.
    shown = '{ "insert" : "v" }'
    under_way = lambda: [
        op["opid"]
        for op in client.command("admin", {"currentOp": 1})["inprog"]
        if shown in op.get("command", {}).get("$truncated", "")
    ]
    check(until(lambda: len(under_way()) == 2), "two inserts are validated slowly")
    began = time.monotonic()
    run({"insert": "l", "documents": [{"s": "x" * 500_000} for _ in range(10)]})
    figure("a large insert behind two that are validated slowly", (time.monotonic() - began) * 1000)
    check(len(under_way()) == 2, "another client's large insert is done while two are validated slowly")
    for op in under_way():
        client.command("admin", {"killOp": 1, "op": op})
    for a in attackers:
        a.kill()
        a.join()


def stored_filters():
    """Filters and validators that are stored and asked when others' documents expire, are archived or are logged."""
    set_up()
    run = lambda doc, db="hostile": client.command(db, doc)
    loop = {"$reduce": {"input": {"$range": [0, 1_000_000]}, "initialValue": 0, "in": {"$add": ["$$value", 1]}}}
    dear = {"$expr": {"$gt": [{"$reduce": {**loop["$reduce"], "input": {"$range": [0, 1000]}, "in": loop}}, -1]}}
    past, soon = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=s) for s in (-60, 0.5))
    wide = {"_id": 1, **{f"f{i}": 1 for i in range(1_000_000)}}
    # 3 s of one processor for this document: the limit of 1 s ends it, and the index is built on a busy machine too.
    at_the_end = {"$and": [{f"f{999_999 - i}": {"$exists": True}} for i in range(500)]}
    for name in ("partial", "held", "source", "archive"):
        run({"drop": name})
    run({"insert": "partial", "documents": [{**wide, "at": past}]})
    index = {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 0, "expireReads": "exact"}
    run({"createIndexes": "partial", "indexes": [{**index, "partialFilterExpression": at_the_end}], "maxTimeMS": 0})
    run({"create": "held", "expiry": {"field": "at"}})
    absent = lambda i, n=1000: {"$or": [{f"x{i}_{k}": {"$exists": True}} for k in range(n)]}
    for i in range(40):
        run({"ttlHold": "held", "filter": absent(i)})
    run({"insert": "held", "documents": [{**wide, "at": soon}]})
    run({"create": "archive", "validator": dear})
    archived = {"action": "archive", "into": {"db": "hostile", "coll": "archive"}}
    run({"create": "source", "expiry": {"field": "at"}, "onExpire": archived})
    run({"ttlPause": "source"})
    run({"insert": "source", "documents": [{"_id": i, "at": soon} for i in range(20)]})
    wait_for(lambda: datetime.datetime.now(datetime.timezone.utc) >= soon)  # clock: the date has to be past

    def ends(doc, db="hostile", codes=(50,)):
        def attack():
            reply = Client("127.0.0.1", proc.port).command(db, {**doc, "maxTimeMS": 1000})
            code = reply.get("code") or (reply.get("writeErrors") or [{}])[0].get("code")
            return None if code in codes else f"{str(reply)[:300]}"

        return attack

    update = lambda name: {"update": name, "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]}
    remove = lambda name: {"delete": name, "deletes": [{"q": {"_id": 2}, "limit": 1}]}
    with Watcher(proc.port) as w:
        attacked(w, "a find beside a partial TTL index", ends({"find": "partial", "filter": {"_id": 1}}))
        attacked(w, "a count beside a partial TTL index", ends({"count": "partial"}))
        attacked(w, "an update beside a partial TTL index", ends(update("partial")))
        for what in ({"find": "held", "filter": {"_id": 1}}, {"count": "held"}, update("held"), remove("held")):
            # Of a document that is not there nothing is asked.
            attacked(
                w, f"a {next(iter(what))} beside holds", ends(what, codes=(50, None) if "deletes" in what else (50,))
            )
        attacked(w, "ttlExplain beside holds", ends({"ttlExplain": "held", "q": {"_id": 1}}))
        attacked(w, "ttlForecast beside holds", ends({"ttlForecast": "held"}, codes=(50, None)))
        attacked(w, "ttlCheck of a partial index", ends({"ttlCheck": "partial", "index": "at"}))
        for what in (update("source"), remove("source"), {"insert": "source", "documents": [{"_id": 3}]}):
            # On a worker the document is absent, and only who wants its place archives it.
            codes = (50,) if "documents" in what else (50, None)
            attacked(w, f"a {next(iter(what))} of what is archived", ends(what, codes=codes))
        attacked(w, "a validator asked by validate", ends({"validate": "archive"}, codes=(None,)))
        run({"insert": "archive", "documents": [{"_id": 9}], "bypassDocumentValidation": True})
        attacked(w, "a validator asked by validate about a document", ends({"validate": "archive"}))
        attacked(
            w,
            "let of an aggregate",
            ends({"aggregate": "c", "pipeline": [], "cursor": {}, "let": {"v": dear["$expr"]}}),
        )
        attacked(w, "usersInfo", ends({"usersInfo": 1, "filter": dear}, "admin", (50, None)))
        attacked(w, "the profiler's filter is set", ends({"profile": 0, "filter": dear}, codes=(None,)))
        attacked(w, "which is asked about an operation", ends({"find": "c", "filter": {"_id": 1}}, codes=(None,)))
        attacked(w, "and is too long", ends({"profile": 0, "filter": absent(0, 8000)}, codes=(10334,)))
        run({"profile": 0, "filter": "unset"})
        run({"ttlResume": "source"})
    # The reaper has its turns: another rule is not kept waiting.
    run({"createIndexes": "reaped", "indexes": [{"key": {"at": 1}, "name": "at", "expireAfterSeconds": 0}]})
    run({"insert": "reaped", "documents": [{"at": past}]})
    check(until(lambda: run({"count": "reaped"})["n"] == 0), "another rule's document is removed")
    for name in ("partial", "held", "source", "archive"):
        run({"drop": name})


def slow_readers():
    """Many who ask for much and take it in sips, never none; another client's large message and its read are served all
    the same."""
    client.command("hostile", {"drop": "large"})
    for i in range(16):
        client.command("hostile", {"insert": "large", "documents": [{"_id": i, "s": "x" * 1_000_000}]})
    set_up()
    ended, threads = threading.Event(), []
    ask_for = message({"find": "large", "batchSize": 1000, "$db": "hostile"}) * 2

    def sip():
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
            s.settimeout(Deadline().seconds)
            try:
                s.connect(("127.0.0.1", proc.port))
                s.sendall(ask_for)
                while not ended.wait(1.5) and s.recv(200_000):  # sleeps: a client's pace, until the end
                    pass
            except OSError:
                pass

    def served():
        for _ in range(80):
            threads.append(threading.Thread(target=sip))
            threads[-1].start()
        out, other = None, Client("127.0.0.1", proc.port)
        other.sock.settimeout(Deadline().seconds)
        for i in range(5):
            for doc in (
                {"insert": "c", "documents": [{"s": "x" * 200_000}]},
                {"find": "c", "filter": {"s": "y"}, "comment": "x" * 5000},
            ):
                began = time.monotonic()
                try:
                    if other.command("hostile", doc)["ok"] != 1:
                        out = f"{next(iter(doc))} failed"
                except TimeoutError:
                    return f"{next(iter(doc))}: no answer for {Deadline().seconds:.0f} s"
                note("answer", time.monotonic() - began, f"{next(iter(doc))} among slow readers")
        return out

    with Watcher(proc.port) as w:
        attacked(w, "slow readers", served, growth_limit=1500)
        ended.set()
        for t in threads:
            t.join()


def large_inserts(synced=None):
    """Documents of 9 MB, and of 1 MB, by several clients one after another. `synced`: as Watcher has it."""
    for clients, size, rounds in ((4, 9_000_000, 8), (1, 9_000_000, 20), (4, 1_000_000, 60)):
        data = message({"insert": "large", "documents": [{"s": "x" * size}], "$db": "hostile"})
        wrong = []

        def insert(data=data, rounds=rounds, wrong=wrong):
            with socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds) as s:
                for _ in range(rounds):
                    s.sendall(data)
                    replies = Replies()
                    while not replies.whole and not replies.wrong:
                        replies.feed(s.recv(1 << 16) or b"\xff" * 16)
                    if replies.wrong:
                        wrong.append(replies.wrong)
                        return

        def run(clients=clients, insert=insert, wrong=wrong):
            threads = [threading.Thread(target=insert) for _ in range(clients)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            return wrong[0] if wrong else None

        name = f"{clients} clients insert {size // 1_000_000} MB again and again"
        with Watcher(proc.port, synced=synced) as w:
            attacked(w, name, run, growth_limit=1500)
        client.command("hostile", {"drop": "large"})


def large_values():
    """Searches and patterns over texts of megabytes and deep arrays."""
    text = "ab" * 1_000_000
    deep = []
    for _ in range(90):
        deep = [deep, 1]
    for i in range(4):
        client.command("hostile", {"insert": "texts", "documents": [{"_id": i, "s": text, "deep": deep}]})
    searches = {
        "a pattern over large texts": {"s": {"$regex": "[ab]{1,900}[ab]{1,20000}[cd][xy]"}},
        "a pattern of alternatives": {"s": {"$regex": "(a|b|ab)*c"}},
        "a pattern without an end": {"s": {"$regex": "a.*b.*a.*c"}},
        "a path through deep arrays": {".".join(["deep"] + ["0"] * 60): 5},
        "a comparison with a large text": {"$expr": {"$eq": [{"$toUpper": "$s"}, "c"]}},
        "a split of large texts": {"$expr": {"$eq": [{"$size": {"$split": ["$s", "a"]}}, 1]}},
    }
    with Watcher(proc.port) as w:
        for name, search in searches.items():
            body = {"find": "texts", "filter": search, "maxTimeMS": 1000, "projection": {"_id": 1}, "$db": "hostile"}
            attacked(w, name, lambda: ask(message(body)))


def on_a_member():
    """Some of it again on a member of a set, where writes go through the log."""
    global proc, client
    standalone = proc, client
    proc, client = start(work + "/member", "--replSet", "rs0", "--maxConns", "3000", *WATCHED)
    initiate(client, f"127.0.0.1:{proc.port}")
    set_up()
    large_inserts(synced=work)
    tries = [(c, a, make, s) for c, a, make in places(client) for s in SHAPES]
    rnd.shuffle(tries)
    end = time.monotonic() + SECONDS / 4
    with Watcher(proc.port, synced=work) as w:
        for c, a, make, s in tries:
            if time.monotonic() > end:  # clock: how many attacks are tried
                break
            body = body_of(make(shape(s)))
            if len(body) <= 47_000_000:
                attacked(w, f"a member: {c} with {s} as {a}", lambda: ask(frame(body, False)))
    check(stop(proc) == 0, "the member ends cleanly")
    proc, client = standalone


def kept_names():
    """Names as long as a message, each another one: what is refused, or is not there, leaves nothing behind."""
    before = memory_mb(proc.pid)
    with Watcher(proc.port) as w:
        for what in ("find", "insert", "aggregate", "distinct", "$db"):

            def names(what=what):
                for i in range(20):
                    name = b"%d" % i + b"x" * 15_000_000
                    own = field("find" if what == "$db" else what, NAME if what == "$db" else (2, text(name)))
                    body = body_of(own + field("$db", (2, text(name)))) if what == "$db" else body_of(own)
                    wrong = ask(frame(body, True))
                    if wrong:
                        return wrong
                return None

            attacked(w, f"20 names of 15 MB for {what}", names)
    grown = lambda: memory_mb(proc.pid) - before
    check(until(lambda: grown() <= 150), f"{grown()} MB for names that are refused")
    check(client.command("admin", {"top": 1})["ok"] == 1, "top has room for all names")


def long_comments():
    """Operations with long commands that wait, and currentOp again and again; others come and go."""
    client.command("hostile", {"create": "capped", "capped": True, "size": 100_000})
    client.command("hostile", {"insert": "capped", "documents": [{"a": 1}]})
    waiting = []
    for _ in range(300):
        c = Client("127.0.0.1", proc.port)
        cursor = c.command("hostile", {"find": "capped", "tailable": True, "awaitData": True})["cursor"]["id"]
        c.sock.sendall(
            message(
                {
                    "getMore": cursor,
                    "collection": "capped",
                    "maxTimeMS": 60_000,
                    "comment": ["x"] * 4000,
                    "$db": "hostile",
                }
            )
        )
        waiting.append(c)

    def shown():
        for _ in range(20):
            reply = client.command("admin", {"currentOp": 1, "command.$truncated": {"$regex": "bytes of getMore"}})
            if not reply["ok"] or not reply["inprog"]:
                return f"currentOp: {str(reply)[:300]}"
            for _ in range(5):
                Client("127.0.0.1", proc.port).sock.close()
        return None

    with Watcher(proc.port) as w:
        attacked(w, "currentOp of long commands", shown)
    for c in waiting:
        c.sock.close()
    client.command("admin", {"killAllSessions": []})


def at_the_end():
    """What all of it leaves behind."""
    client.command("hostile", {"dropDatabase": 1})
    check(until(lambda: memory_mb(proc.pid) <= LEFT), f"{memory_mb(proc.pid)} MB at the end")
    check(client.command("admin", {"ping": 1})["ok"] == 1, "answers at the end")
    check_held(check, work + "/db")
    began = time.monotonic()
    check(stop(proc) == 0, "ends")
    figure("its end", (time.monotonic() - began) * 1000)
    for what, (value, name) in worst.items():
        if name:
            figure(f"{what}, the worst", value, UNITS[what])
            print(f"         ({name})")
    discard(work)


if __name__ == "__main__":
    set_up()
    parts = [costly_writes, stored_filters, arguments, ways, repeated, slow_and_half, slow_readers, large_inserts]
    run_parts("hostile", [*parts, large_values, kept_names, on_a_member, long_comments, at_the_end], check)
