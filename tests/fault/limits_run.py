#!/usr/bin/env python3
"""Small compressed packets that unpack to a lot: millions of fields, patterns, conditions, sessions, names. Each is
answered, with an error that says what to change or with what it asked for, and without much work; meanwhile another
client is served (hostile_watch.py), and the memory of the server stays bounded. Then sessions and cursors: one client
cannot use up the room of all, and killing or ending sessions ends what they have, without much work. Explain of the
largest filters, and a server without compressors. The last line says "N passed, N failed".
MAYFLY_LIMITS_ONLY=TEXT,TEXT runs the packets whose name has one of them.
"""

import hashlib, os, re, socket, struct, tempfile, threading, time, uuid, zlib

import bson

from fault_test import (
    WATCHED,
    Checks,
    Client,
    Deadline,
    check_held,
    discard,
    figure,
    forget_peak,
    memory_mb,
    processor_seconds,
    run_parts,
    start,
    stop,
    until,
)
from hostile_watch import Watcher

check = Checks(quiet=True)
ONLY = os.environ.get("MAYFLY_LIMITS_ONLY", "")
LIMIT_MS = 1000  # maxTimeMS of each
WORK = 10  # seconds of processors that the server may spend on one
MOST_MB = 700


# BSON by hand: empty and repeated names, and lists in a moment.
def doc(raw):
    return struct.pack("<i", len(raw) + 5) + raw + b"\0"


def field(kind, name, value=b""):
    return bytes([kind]) + name + b"\0" + value


def text(v):
    return struct.pack("<i", len(v) + 1) + v + b"\0"


def number(v):
    return struct.pack("<i", v)


def sub(raw, name=b""):
    return field(3, name, doc(raw))


def array(raw, name=b""):
    return field(4, name, doc(raw))


ONE = number(1)
NULLS = field(10, b"") * 5_000_000
PATTERNS = b"".join(field(11, b"", b"^r%d.*x\0\0" % i) for i in range(300_000))
IN_PATTERNS = sub(array(PATTERNS, b"$in"), b"x")
NAMES = b"".join(field(16, b"f%d" % i, ONE) for i in range(1_000_000))
NUMBERS = b"".join(field(16, b"", number(i)) for i in range(100_000))


def find(raw, more=b""):
    return field(2, b"find", text(b"c")), sub(raw, b"filter") + more


def branches(name, each, n=300_000):
    return array(b"".join(sub(each(i)) for i in range(n)), name)


def stages(raw):
    return field(2, b"aggregate", text(b"c")), sub(b"", b"cursor") + array(raw, b"pipeline")


def index(raw):
    return field(2, b"createIndexes", text(b"c")), array(raw, b"indexes")


def ids(n):
    return b"".join(sub(field(5, b"id", number(16) + b"\4" + uuid.uuid4().bytes)) for _ in range(n))


def packets():
    """(name, command, its other fields, database, codes of the answer; 0: ok)"""
    ask = field(16, b"ping", ONE)
    yield (
        "setParameter of a long name",
        field(16, b"setParameter", ONE),
        field(16, b"a" * 1_000_000, ONE),
        b"admin",
        {72},
    )
    yield "ping with 5 million fields", ask, NULLS, b"admin", {2}
    yield "a body of 30 MB", ask, NULLS * 3, b"admin", {10334}
    yield (
        "getParameter, one name a million times",
        field(16, b"getParameter", ONE),
        field(16, b"port", ONE) * 1_000_000,
        b"admin",
        {2},
    )
    yield "a command with a name of 15 MB", field(16, b"z" * 15_000_000, ONE), b"", b"admin", {59}
    yield "lsid with 3 million fields", ask, sub(field(10, b"uid") * 3_000_000, b"lsid"), b"admin", {2}
    yield (
        "readConcern with 2 million levels",
        *find(b"", sub(field(10, b"level") * 2_000_000, b"readConcern")),
        b"t",
        {2},
    )
    yield (
        "hello, a million compressors",
        field(16, b"hello", ONE),
        array(field(2, b"", text(b"zlib")) * 1_000_000, b"compression"),
        b"admin",
        {0},
    )
    yield "currentOp, 300,000 patterns", field(16, b"currentOp", ONE), IN_PATTERNS, b"admin", {0, 50}
    yield (
        "listCollections, 300,000 patterns",
        field(16, b"listCollections", ONE),
        sub(IN_PATTERNS, b"filter"),
        b"t",
        {0, 50},
    )
    yield "find, 300,000 patterns", *find(IN_PATTERNS), b"t", {0, 50}
    yield (
        "find, 300,000 patterns in an $or",
        *find(branches(b"$or", lambda i: field(11, b"x", b"^r%d.*x\0\0" % i))),
        b"t",
        {0, 50},
    )
    for pattern in (b"a" * 28_000, b"a?" * 14_000, b"(a" * 199 + b")" * 199):
        yield (
            f"find, a pattern of {len(pattern)} letters",
            *find(field(11, b"s", pattern + b"\0i\0")),
            b"t",
            {0, 50, 51156},
        )
    yield "find, 5 million conditions", *find(NULLS), b"t", {50, 146}
    yield "find, an $or of 300,000", *find(branches(b"$or", lambda i: field(16, b"x", number(i)))), b"t", {0, 50}
    yield (
        "find, an $or of 300,000 pairs",
        *find(branches(b"$or", lambda i: field(16, b"x", number(i)) + field(16, b"y", number(i)))),
        b"t",
        {0, 50, 146},
    )
    yield (
        "find, an $or of 300,000 names",
        *find(branches(b"$or", lambda i: field(16, b"x%d" % i, number(i)))),
        b"t",
        {0, 50, 146},
    )
    either = branches(b"$or", lambda i: field(16, b"xy"[i : i + 1], ONE), 2)
    yield "find, 100,000 times an $or", *find(branches(b"$and", lambda _: either, 100_000)), b"t", {0, 50, 146}
    yield (
        "find, $in and $in",
        *find(
            sub(array(NUMBERS, b"$in"), b"x") + sub(array(NUMBERS, b"$in"), b"y"), sub(field(16, b"z", ONE), b"sort")
        ),
        b"t",
        {0, 50},
    )
    yield "find, a projection of a million", *find(b"", sub(NAMES, b"projection")), b"t", {0, 50, 146}
    yield "find, a sort by a million", *find(b"", sub(NAMES, b"sort")), b"t", {13103}
    yield "aggregate, a million new fields", *stages(sub(sub(NAMES, b"$addFields"))), b"t", {0, 50, 146}
    yield (
        "aggregate, 600,000 stages",
        *stages(sub(field(18, b"$skip", struct.pack("<q", 1))) * 600_000),
        b"t",
        {7749501},
    )
    yield (
        "aggregate, an array of a million",
        *stages(sub(sub(array(field(2, b"", text(b"$x")) * 1_200_000, b"x"), b"$addFields"))),
        b"t",
        {0, 50, 146},
    )
    statement = sub(sub(b"", b"q") + sub(sub(NAMES, b"$set"), b"u"))
    yield (
        "update, $set of a million",
        field(2, b"update", text(b"c")),
        array(statement, b"updates"),
        b"t",
        {0, 50, 146, 17419},
    )
    statement = sub(sub(NULLS, b"q") + sub(sub(field(16, b"f", ONE), b"$set"), b"u"))
    yield "update, 5 million conditions", field(2, b"update", text(b"c")), array(statement, b"updates"), b"t", {50, 146}
    yield (
        "explain, 5 million conditions",
        sub(field(2, b"find", text(b"c")) + sub(NULLS, b"filter"), b"explain"),
        b"",
        b"t",
        {50, 146},
    )
    yield "count, 5 million conditions", field(2, b"count", text(b"c")), sub(NULLS, b"query"), b"t", {50, 146}
    name = field(2, b"name", text(b"n"))
    yield "an index of a million fields", *index(sub(sub(NAMES, b"key") + name)), b"t", {67}
    yield (
        "an index of 5 million options",
        *index(sub(sub(field(16, b"f", ONE), b"key") + name + NULLS)),
        b"t",
        {2, 67, 197},
    )
    yield (
        "an index of 2 million conditions",
        *index(
            sub(
                sub(field(16, b"f", ONE), b"key")
                + name
                + sub(field(16, b"", ONE) * 2_000_000, b"partialFilterExpression")
            )
        ),
        b"t",
        {50, 146, 67},
    )
    yield "300,000 indexes", *index(sub(sub(field(16, b"f", ONE), b"key") + name) * 300_000), b"t", {67}
    yield (
        "killCursors, a million",
        field(2, b"killCursors", text(b"c")),
        array(field(18, b"", struct.pack("<q", 5)) * 1_000_000, b"cursors"),
        b"t",
        {2},
    )
    let = sub(b"".join(field(16, b"v%d" % i, ONE) for i in range(80_000)), b"let")
    yield (
        "delete, 80,000 variables",
        field(2, b"delete", text(b"c")),
        let + array(sub(sub(field(16, b"_id", number(-1)), b"q") + field(16, b"limit", ONE)), b"deletes"),
        b"t",
        {0, 50},
    )
    statement = sub(sub(field(16, b"_id", number(-1)), b"q") + array(sub(sub(field(16, b"f", ONE), b"$set")), b"u"))
    yield "update, 80,000 variables", field(2, b"update", text(b"c")), let + array(statement, b"updates"), b"t", {0, 50}
    yield "find, 80,000 variables", *find(b"", let), b"t", {0, 50}
    uses = array(b"".join(field(2, b"", text(b"$$v%d" % i)) for i in range(80_000)), b"in")
    yield (
        "aggregate, $let of 80,000",
        *stages(sub(sub(sub(sub(let.replace(b"let", b"vars", 1) + uses, b"$let"), b"x"), b"$project"))),
        b"t",
        {0, 50, 146},
    )
    filters = array(b"".join(sub(field(16, b"x%d" % i, ONE)) for i in range(300_000)), b"arrayFilters")
    statement = sub(sub(b"", b"q") + sub(sub(field(16, b"a.$[x0]", ONE), b"$set"), b"u") + filters)
    yield "update, 300,000 array filters", field(2, b"update", text(b"c")), array(statement, b"updates"), b"t", {9}
    deeper = {"$replaceRoot": {"newRoot": "$$ROOT"}}
    for _ in range(50):
        deeper["$replaceRoot"]["newRoot"] = {"a": deeper["$replaceRoot"]["newRoot"]}
    for name, last in (
        ("$eq", {"$project": {"y": {"$eq": ["$a", "$a"]}}}),
        ("$facet", {"$facet": {"f": []}}),
        ("$redact", {"$redact": "$$DESCEND"}),
    ):
        yield (
            f"aggregate, 45,000 levels and {name}",
            field(2, b"aggregate", text(b"c")),
            sub(b"", b"cursor")
            + array(bson.encode({str(i): deeper for i in range(900)} | {"900": last})[4:-1], b"pipeline"),
            b"t",
            {15},
        )
    loop = 1
    for _ in range(40):
        inner = "$$value"
        for _ in range(80):
            inner = {"": inner}
        loop = {"$reduce": {"input": [0] * 15, "initialValue": loop, "in": inner}}
    yield (
        "aggregate, 48,000 levels in an expression",
        *stages(bson.encode({"0": {"$project": {"y": {"$eq": [loop, loop]}}}})[4:-1]),
        b"t",
        {15},
    )
    many = ids(10_001)
    for command in (b"refreshSessions", b"endSessions", b"killSessions", b"killAllSessions"):
        yield f"{command.decode()}, 10,001", array(many, command), b"", b"admin", {2}


work = tempfile.mkdtemp(prefix="mayfly-limits-")
proc, client = start(work + "/db", *WATCHED)
client.command(
    "t",
    {"insert": "c", "documents": [{"_id": i, "x": i % 100, "y": i % 77, "z": i, "s": "a" * 50} for i in range(2000)]},
)
client.command(
    "t",
    {
        "createIndexes": "c",
        "indexes": [{"key": {"x": 1, "y": 1, "z": 1}, "name": "xyz"}, {"key": {"s": 1}, "name": "s"}],
    },
)


def connect():
    s = socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds)
    s.settimeout(Deadline(120).seconds)
    return s


def frame(body):
    plain = b"\0\0\0\0\0" + body
    packed = zlib.compress(plain, 1)
    return struct.pack("<iiiiiiB", 25 + len(packed), 1, 0, 2012, 2013, len(plain), 2) + packed


def receive(s):
    with s.makefile("rb") as replies:
        return answer(replies)


def answer(replies):
    head = replies.read(4)
    if len(head) < 4:
        raise ConnectionError("closed")
    data = head + replies.read(struct.unpack("<i", head)[0] - 4)
    return bson.decode(zlib.decompress(data[25:])[5:] if struct.unpack_from("<i", data, 12)[0] == 2012 else data[21:])


def send_packets():
    worst = 0
    with Watcher(proc.port, [{"ping": 1}]) as others:
        for name, command, rest, db, codes in packets():
            if not any(part in name for part in ONLY.split(",")):
                continue
            limit = b"" if command[1:6] == b"hello" else field(16, b"maxTimeMS", number(LIMIT_MS))
            data = frame(doc(command + field(2, b"$db", text(db)) + limit + rest))
            forget_peak(proc.pid)
            others.take()
            before, s, began, worked = memory_mb(proc.pid), connect(), time.monotonic(), processor_seconds(proc.pid)
            try:
                s.sendall(data)
                reply = receive(s)
            except OSError as e:
                reply = {"ok": 0, "code": -1, "errmsg": repr(e)}
            took, worked = time.monotonic() - began, processor_seconds(proc.pid) - worked
            seen, grown = others.take(), memory_mb(proc.pid, "VmHWM") - before
            s.close()
            end_cursors([i for i in [reply.get("cursor", {}).get("id")] if i], db.decode())
            error = reply if not reply["ok"] else (reply.get("writeErrors") or [{}])[0]
            code = error.get("code", 0)
            print(
                f"{name}: {len(data):,} bytes, answer {code} after {took * 1000:.0f} ms and {worked:.1f} s of "
                f"processors; another client waited {seen.slowest * 1000:.0f} ms; {grown} MB more",
                flush=True,
            )
            check(code in codes, f"{name}: {code} {str(error.get('errmsg'))[:200]}")
            check(
                len(str(error.get("errmsg", ""))) <= 20_000,
                f"{name}: the error has {len(str(error.get('errmsg')))} letters",
            )
            check(worked <= WORK, f"{name}: the server worked {worked:.1f} s on it, with a limit of 1 s")
            check(seen.served(), f"{name}: {seen}")
            check(grown < MOST_MB, f"{name}: {grown} MB more")
            check(proc.poll() is None, f"{name}: the server ended with {proc.returncode}")
            worst = max(worst, seen.slowest)
    figure("another client's slowest ping, the worst", worst * 1000)


def sessions_of_one_client():
    """One address has no more than its share, of which what it has not used for long ends; nobody is refused, and
    others still get theirs (127.0.0.2 is somebody else)."""
    share, batch = 200_000, 10_000
    begun = client.command("admin", {"serverStatus": 1})["logicalSessionRecordCache"]["activeSessionsCount"]
    for _ in range(share // batch + 2):
        reply = client.command(
            "admin", {"refreshSessions": [{"id": bson.Binary(uuid.uuid4().bytes, 4)} for _ in range(batch)]}
        )
        check(reply["ok"] == 1, f"refreshSessions: {reply}")
    active = client.command("admin", {"serverStatus": 1})["logicalSessionRecordCache"]["activeSessionsCount"]
    check(begun < active <= share + 10, f"{active} sessions of one client")
    check(client.command("admin", {"startSession": 1})["ok"] == 1, "startSession of the same client")
    lsid = {"id": bson.Binary(uuid.uuid4().bytes, 4)}
    check(client.command("admin", {"ping": 1, "lsid": lsid})["ok"] == 1, "and any command in a new session")
    other = socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds, source_address=("127.0.0.2", 0))
    other.sendall(frame(bson.encode({"startSession": 1, "$db": "admin"})))
    check(receive(other)["ok"] == 1, "startSession of another client")
    other.close()
    worked = processor_seconds(proc.pid)
    check(client.command("admin", {"killAllSessions": []})["ok"] == 1, "killAllSessions of many")
    worked = processor_seconds(proc.pid) - worked
    figure("killAllSessions of many", worked * 1000, "ms of processors")
    check(worked <= WORK, f"killAllSessions of many: {worked:.1f} s of processors")


def opened(find, n, ask, address="127.0.0.1"):
    """Cursors by `n` finds that are sent before the first answer is read; and the first error. `ask`: one command as
    bytes, of what find says."""
    s = socket.create_connection(("127.0.0.1", proc.port), Deadline().seconds, source_address=(address, 0))
    s.settimeout(Deadline(120).seconds)
    ids, error, replied = [], None, s.makefile("rb")
    for begin in range(0, n, 500):
        s.sendall(b"".join(ask(find(i)) for i in range(begin, min(begin + 500, n))))
        replies = [answer(replied) for _ in range(begin, min(begin + 500, n))]
        ids += [r["cursor"]["id"] for r in replies if r["ok"]]
        error = next((r for r in replies if not r["ok"]), None)
        if error:
            break
    replied.close()
    s.close()
    return ids, error


def open_cursors():
    return client.command("admin", {"serverStatus": 1})["metrics"]["cursor"]["open"]["total"]


def end_cursors(ids, db="t"):
    for begin in range(0, len(ids), 10_000):
        reply = client.command(
            db, {"killCursors": "c", "cursors": [bson.Int64(i) for i in ids[begin : begin + 10_000]]}
        )
        check(reply["ok"] == 1, f"killCursors: {str(reply)[:200]}")


def plain(doc):
    body = b"\0\0\0\0\0" + bson.encode(doc)
    return struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body


def open_find(**more):
    return {"find": "c", "batchSize": 0, "noCursorTimeout": True, "$db": "t", **more}


def cursors_of_sessions():
    """Ending sessions takes as long as what they have, however many cursors there are, and can be stopped."""
    check(open_cursors() == 0, f"{open_cursors()} cursors are left of what came before")
    ends = [{"id": bson.Binary(uuid.uuid4().bytes, 4)} for _ in range(10_000)]
    of_others = {"id": bson.Binary(uuid.uuid4().bytes, 4)}
    ids, error = opened(lambda i: open_find(lsid=of_others if i % 2 else ends[i % 1000]), 8_000, plain)
    check(len(ids) >= 4_000 or (error and error["code"] == 146), f"{len(ids)} cursors, then {error}")
    check(client.command("admin", {"refreshSessions": ends})["ok"] == 1, "refreshSessions")
    worked = processor_seconds(proc.pid)
    reply = client.command("admin", {"endSessions": ends, "maxTimeMS": 600_000})
    worked = processor_seconds(proc.pid) - worked
    check(reply["ok"] == 1, f"endSessions of 10,000 with {len(ids)} cursors: {reply}")
    check(worked <= WORK, f"endSessions of 10,000 with {len(ids)} cursors: {worked:.1f} s of processors")
    check(open_cursors() == len(ids) // 2, f"{open_cursors()} cursors are left of {len(ids)}")
    figure("endSessions of 10,000 sessions with their cursors", worked * 1000, "ms of processors")
    check(client.command("admin", {"refreshSessions": ends})["ok"] == 1, "refreshSessions again")
    check(client.command("admin", {"endSessions": ends, "maxTimeMS": 1}).get("code") == 50, "endSessions with no time")
    check(
        client.command("admin", {"killSessions": [of_others]})["ok"] == 1 and open_cursors() == 0,
        f"killSessions leaves {open_cursors()} cursors",
    )


def cursors_of_one_client():
    """An address has its share of open cursors, by number and by memory; others still get theirs."""
    before = memory_mb(proc.pid)
    ids, error = opened(lambda i: open_find(), 25_001, plain)
    print(f"{len(ids):,} cursors of one client: {memory_mb(proc.pid) - before} MB more", flush=True)
    check(
        error is not None and error["code"] == 146 and "of this client's address" in error["errmsg"],
        f"{len(ids)} cursors, then {error}",
    )
    check(1_000 <= len(ids) <= 25_000, f"{len(ids)} cursors of one client")
    theirs, refused = opened(lambda i: open_find(), 5, plain, "127.0.0.2")
    check(refused is None and len(theirs) == 5, f"cursors of another client: {refused}")
    end_cursors(ids + theirs)
    check(open_cursors() == 0, f"{open_cursors()} cursors are left")

    def large(find):
        return frame(find)

    # What a filter was parsed into lives as long as its cursor.
    conditions = branches(b"$and", lambda i: sub(field(16, b"$ne", ONE), b"q"), 300_000)
    ask = doc(
        field(2, b"find", text(b"c"))
        + field(2, b"$db", text(b"t"))
        + field(16, b"batchSize", number(0))
        + field(8, b"noCursorTimeout", b"\1")
        + sub(conditions, b"filter")
    )
    ids, before = [], memory_mb(proc.pid)
    for _ in range(60):
        found, error = opened(lambda i: ask, 1, large)
        ids += found
        if error:
            break
    print(f"{len(ids)} cursors with 300,000 conditions: {memory_mb(proc.pid) - before} MB more", flush=True)
    check(error is not None and error["code"] == 146 and 1 <= len(ids) < 20, f"{len(ids)} large cursors, then {error}")
    theirs, refused = opened(lambda i: open_find(), 5, plain, "127.0.0.2")
    check(refused is None, f"cursors of another client beside large ones: {refused}")
    end_cursors(ids + theirs)
    check(open_cursors() == 0, f"{open_cursors()} cursors are left")


def index_filters():
    """What planCacheSetFilter is sent stays: no more than a little."""
    reply = client.command("t", {"planCacheSetFilter": "c", "query": {"x": "x" * 7_000_000}, "indexes": ["xyz"]})
    check(reply.get("code") == 10334, f"a large index filter: {str(reply)[:200]}")
    replies = [
        client.command("t", {"planCacheSetFilter": "c", "query": {f"f{i}": 1}, "indexes": ["xyz"]}) for i in range(501)
    ]
    check(all(r["ok"] for r in replies[:500]) and replies[500].get("code") == 146, f"index filters: {replies[500]}")
    check(len(client.command("t", {"planCacheListFilters": "c"})["filters"]) == 500, "planCacheListFilters")
    check(client.command("t", {"planCacheClearFilters": "c"})["ok"] == 1, "planCacheClearFilters")


def killed_sessions():
    """Killing a session stops what runs in it, and nothing else; currentOp says whose it is."""

    def session():
        return {"id": uuid.uuid4()}

    # A tailable find on a capped collection waits for documents as long as it may.
    client.command("t", {"create": "capped", "capped": True, "size": 4096})
    client.command("t", {"insert": "capped", "documents": [{"_id": 1}]})

    def waits(lsid, results):
        c = Client("127.0.0.1", proc.port)
        cursor = c.command("t", {"find": "capped", "tailable": True, "awaitData": True, "lsid": lsid})["cursor"]["id"]
        results.append(c.command("t", {"getMore": cursor, "collection": "capped", "maxTimeMS": 60_000, "lsid": lsid}))

    def running(lsid):
        ops = client.command("admin", {"currentOp": 1, "command.getMore": {"$exists": True}})["inprog"]
        return [op for op in ops if op.get("lsid", {}).get("id") == lsid["id"]]

    ways = {
        "killSessions": lambda lsid: {"killSessions": [lsid]},
        "killSessions of all": lambda _: {"killSessions": []},
        "killAllSessions": lambda _: {"killAllSessions": []},
        "killAllSessionsByPattern": lambda lsid: {
            "killAllSessionsByPattern": [{"lsid": {**lsid, "uid": bson.Binary(hashlib.sha256(b"").digest())}}]
        },
        "killAllSessionsByPattern of all": lambda _: {"killAllSessionsByPattern": [{}]},
    }
    for name, command in ways.items():
        mine, theirs, a, b = session(), session(), [], []
        threads = [threading.Thread(target=waits, args=x) for x in ((mine, a), (theirs, b))]
        for t in threads:
            t.start()
        check(until(lambda: running(mine) and running(theirs)), f"{name}: both run, and currentOp has their lsid")
        # The session that asks may be among those that are killed.
        check(client.command("admin", {**command(mine), "lsid": mine})["ok"] == 1, f"{name}: answers")
        threads[0].join(Deadline().seconds)
        check(a and a[0].get("code") in (11601, 43, 237), f"{name}: the operation is stopped: {a}")
        if name in ("killSessions", "killAllSessionsByPattern"):
            check(not b and running(theirs), f"{name}: the other one goes on")
            client.command("admin", {"killSessions": [theirs]})
        threads[1].join(Deadline().seconds)
        check(b and not b[0]["ok"], f"{name}: the other one at last: {b}")
    lsid = session()
    check(client.command("admin", {"endSessions": [lsid], "lsid": lsid})["ok"] == 1, "endSessions does not stop itself")


def holds():
    """No filter of a hold is long, and no collection's holds use up the room of all."""

    def hold(collection, size):
        more = {"ttlHold": collection, "filter": {"a": {"$in": ["x" * 1000] * (size // 1010)}}}
        return client.command("holds", more).get("code", 0)

    for name in ("a", "b"):
        client.command("holds", {"create": name})
    check(hold("a", 70_000) == 2, "a filter of 70 kB is refused")
    codes = [hold("a", 60_000) for _ in range(40)]
    check(codes == [0] * codes.count(0) + [146] * codes.count(146), f"then there is no room: {codes}")
    check(30 <= codes.count(0) <= 36, f"for about 2 MiB of filters: {codes}")
    check(hold("b", 60_000) == 0, "another collection has room of its own")
    reply = client.command("admin", {"ttlStatus": 1, "limit": 2})
    check(len(reply["holds"]) == 2 and reply["totalHolds"] == codes.count(0) + 1, "ttlStatus shows two of them")
    client.command("holds", {"dropDatabase": 1})


def plans_of(explained):
    """Every list of bounds in it, however deep."""
    if isinstance(explained, dict):
        for name, value in explained.items():
            if name == "indexBounds":
                yield from value.values()
            else:
                yield from plans_of(value)
    elif isinstance(explained, list):
        for value in explained:
            yield from plans_of(value)


def large_explains():
    """Explain of a filter with 500,000 values: the bounds are cut, say how many more there are, and fit into the reply
    with all the plans that were tried."""
    n = 500_000
    client.command("t", {"insert": "explained", "documents": [{"_id": i, "x": i, "y": i} for i in range(1000)]})
    indexes = [{"key": {"x": 1}, "name": "x"}, {"key": {"x": -1, "y": 1}, "name": "xy"}]
    check(client.command("t", {"createIndexes": "explained", "indexes": indexes})["ok"] == 1, "indexes")
    for name in ("_id", "x"):
        q = {name: {"$in": list(range(n))}}
        asked = [
            ({"find": "explained", "filter": q}, ["queryPlanner", "executionStats", "allPlansExecution"]),
            ({"count": "explained", "query": q}, ["executionStats"]),
            ({"aggregate": "explained", "pipeline": [{"$match": q}], "cursor": {}}, ["executionStats"]),
            ({"delete": "explained", "deletes": [{"q": q, "limit": 0}]}, ["executionStats"]),
            ({"update": "explained", "updates": [{"q": q, "u": {"$set": {"z": 1}}, "multi": True}]}, ["queryPlanner"]),
        ]
        for command, verbosities in asked:
            for verbosity in verbosities:
                what = f"explain of {next(iter(command))} by {name}, {verbosity}"
                reply = client.command("t", {"explain": command, "verbosity": verbosity})
                check(reply.get("ok") == 1, f"{what}: {str(reply)[:200]}")
                size = len(bson.encode(reply))
                check(size < 16 << 20, f"{what}: {size} bytes")
                bounds = list(plans_of(reply))
                check(bounds, f"{what} shows bounds")
                for shown in bounds:
                    more = re.fullmatch(r"\.\.\. and (\d+) more", shown[-1])
                    whole = shown == ["[MinKey, MaxKey]"]  # of y
                    check(whole or (more and len(shown) - 1 + int(more[1]) == n), f"{what}: {shown[-1]}, {len(shown)}")
                    check(len(shown) < 20_000, f"{what}: {len(shown)} bounds")
    check(client.command("t", {"drop": "explained"})["ok"] == 1, "drop")


def without_compressors():
    """A server without compressors says that it has none, and unpacks nothing."""
    alone, c = start(work + "/plain", "--networkMessageCompressors", "disabled")
    try:
        hello = c.command("admin", {"hello": 1, "compression": ["zlib", "snappy", "zstd"]})
        check(not hello.get("compression"), f"none is agreed: {hello.get('compression')}")
        with socket.create_connection(("127.0.0.1", alone.port), Deadline().seconds) as s:
            s.settimeout(Deadline().seconds)
            s.sendall(frame(doc(field(16, b"ping", ONE) + field(2, b"$db", text(b"admin")))))
            check(s.recv(100) == b"", "a compressed message ends its connection")
        status = c.command("admin", {"serverStatus": 1})["network"].get("compression", {})
        unpacked = [v["decompressor"]["bytesIn"] for v in status.values() if "decompressor" in v]
        check(not any(unpacked), f"nothing is unpacked: {status}")
    finally:
        stop(alone)


def still_there():
    check(client.command("t", {"count": "c"})["n"] == 2000, "the collection is as it was")
    check_held(check, work + "/db")


try:
    run_parts(
        "limits",
        [
            send_packets,
            killed_sessions,
            cursors_of_sessions,
            cursors_of_one_client,
            index_filters,
            large_explains,
            without_compressors,
            sessions_of_one_client,
            holds,
            still_there,
        ],
        check,
    )
finally:
    stop(proc)
    discard(work)
