#!/usr/bin/env python3
"""What hostile requests cost: for each one how long its answer took, how long another client waited meanwhile, and how
much the server's memory grew. Prints the rows of the table in RESULTS.md.

    bench/hostile.py [--against BINARY] [NAME …]

The other client is a process of its own that finds and updates a document all the time on four connections, one after
the other. MAYFLYD names another binary. --against: each request is sent to both servers, one after the other, and the
table has the figures of that one beside ours; `scripts/bench --hostile --against COMMIT` builds it.
"""

import datetime, shutil, socket, struct, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fault"))
from fault_test import BINARY, start, stop
from hostile_shapes import body_of, document, element, field, frame, items, text
from hostile_watch import Watcher

import bson

LIMIT_MS = 1000
work = tempfile.mkdtemp(prefix="mayfly-bench-hostile-")
proc = client = None  # of the server that is measured just now


def memory(what):
    with open(f"/proc/{proc.pid}/status") as f:
        return next(int(line.split()[1]) // 1024 for line in f if line.startswith(what))


def ask(data):
    """Sends it; the reply's code, or ok."""
    with socket.create_connection(("127.0.0.1", proc.port), 300) as s:
        s.sendall(data)
        head = s.recv(16, socket.MSG_WAITALL)
        body = s.recv(struct.unpack_from("<i", head)[0] - 16, socket.MSG_WAITALL)
        reply = bson.decode(body[5:])
        failed = reply.get("writeErrors") or [reply]
        return failed[0].get("code", "ok")


def message(doc, db="hostile"):
    doc = {**doc, "maxTimeMS": doc.get("maxTimeMS", LIMIT_MS), "$db": db}
    body = bson.encode(doc)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


def packed(elements, db=b"admin"):
    return frame(body_of(elements, db), True)


def exhaust():
    """Reads what an exhaust hello without a wait writes for 3 s."""
    version = client.command("admin", {"hello": 1})["topologyVersion"]
    body = bson.encode({"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 0, "$db": "admin"})
    with socket.create_connection(("127.0.0.1", proc.port), 30) as s:
        s.sendall(struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 1 << 16, 0) + body)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            s.recv(1 << 20)
    return "ok"


def string(s):
    return (2, text(s))


def numbers(n):
    return {"$range": [0, n]}


def doubled(n, letter="a"):
    both = {"$concat": ["$$value", "$$value"]}
    return {"$reduce": {"input": numbers(n), "initialValue": letter, "in": both}}


def nested(depth):
    if depth == 0:
        return numbers(5_000_000)
    one = {"$slice": [numbers(4_900_000), 2_400_000]}
    return {"$concatArrays": [one, {"$slice": [nested(depth - 1), 2_300_000]}]}


def project(expression):
    return {"aggregate": "c", "pipeline": [{"$project": {"n": expression}}], "cursor": {}}


def loop(n):
    return {"$reduce": {"input": numbers(n), "initialValue": 0, "in": {"$add": ["$$value", 1]}}}


DEAR = {"$expr": {"$gt": [{"$reduce": {"input": numbers(40), "initialValue": 0, "in": loop(1_000_000)}}, -1]}}


def archived():
    """An update of a document that is past its deadline, whose archive has a costly validator."""
    client.command("hostile", {"create": "archive", "validator": DEAR})
    into = {"action": "archive", "into": {"db": "hostile", "coll": "archive"}}
    client.command("hostile", {"create": "source", "expiry": {"field": "at"}, "onExpire": into})
    client.command("hostile", {"ttlPause": "source"})
    at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=0.2)
    client.command("hostile", {"insert": "source", "documents": [{"_id": i, "at": at} for i in range(8)]})
    time.sleep(0.3)
    # On several connections, of which one is served by the thread of the other client.
    codes = {
        ask(message({"update": "source", "updates": [{"q": {"_id": i}, "u": {"$inc": {"n": 1}}}]})) for i in (1, 2)
    }
    return "/".join(str(c) for c in codes)


def profiled():
    client.command("profiled", {"profile": 0, "filter": DEAR})
    codes = {ask(message({"find": "c", "filter": {"_id": 1}}, "profiled")) for _ in range(2)}
    client.command("profiled", {"profile": 0, "filter": "unset"})
    return "/".join(str(c) for c in codes)


def ten_filters():
    filter = {"$nor": [{"a": i} for i in range(400_000)]}
    codes = {ask(message({"profile": 0, "filter": filter}, f"p{i}")) for i in range(10)}
    return "/".join(str(c) for c in codes)


ids = items(1_000_000, 3, document(element(5, b"id", struct.pack("<i", 16) + b"\4" + b"x" * 16)))
patterns = items(300_000, 11, b"a+b*c\0\0")
half = {"$concat": [doubled(22), "b"]}
CASES = {
    "exhaust hello without a wait, 3 s": exhaust,
    "setParameter, an unknown name of 1 MB": packed(
        field("setParameter", (16, b"\1\0\0\0")) + field("x" * 1_000_000, (16, b"\1\0\0\0"))
    ),
    "ping with 15 million null fields": packed(field("ping", (16, b"\1\0\0\0")) + b"\x0a\0" * 15_000_000),
    "getParameter, one name a million times": packed(
        field("getParameter", (16, b"\1\0\0\0")) + element(16, b"quiet", b"\1\0\0\0") * 1_000_000
    ),
    "currentOp with 300,000 patterns": packed(
        field("currentOp", (16, b"\1\0\0\0")) + field("a", (3, document(element(4, b"$in", document(patterns)))))
    ),
    "refreshSessions, a million ids": packed(field("refreshSessions", (4, document(ids)))),
    "killAllSessions after it": message({"killAllSessions": []}, "admin"),
    "a find filter with 15 million fields": packed(
        field("find", string(b"c")) + field("filter", (3, document(b"\x0a\0" * 15_000_000))), b"hostile"
    ),
    "find with 300,000 patterns": packed(
        field("find", string(b"c"))
        + field("filter", (3, document(element(3, b"a", document(element(4, b"$in", document(patterns))))))),
        b"hostile",
    ),
    "find, a pattern of 28,000 letters": message({"find": "c", "filter": {"s": {"$regex": "(a|b)*" * 4_600}}}),
    "$indexOfBytes": message({**project({"$indexOfBytes": [doubled(23), half]}), "maxTimeMS": 100}),
    "nested $concatArrays": message(project({"$size": nested(12)})),
    "$let with 40 arrays": message(
        project({"$let": {"vars": {f"v{i}": numbers(4_800_000) for i in range(40)}, "in": 1}})
    ),
    "let of an aggregate that takes 6 s": message(
        {"aggregate": "c", "pipeline": [], "cursor": {}, "let": {"v": DEAR["$expr"]}}
    ),
    "an update of what a costly validator archives": archived,
    "an operation that the profiler filters": profiled,
    "ten filters for the profiler, 8 MB each": ten_filters,
}


# What it was like when it was found: for how long the server, or others, were kept; the memory it took.
BEFORE = {
    "exhaust hello without a wait, 3 s": "others waited 6 s",
    "setParameter, an unknown name of 1 MB": "11.5 s",
    "ping with 15 million null fields": "5 s, 1 GB",
    "getParameter, one name a million times": "2.5 s",
    "currentOp with 300,000 patterns": "38 s",
    "refreshSessions, a million ids": "3.7 s",
    "killAllSessions after it": "2.3 s",
    "a find filter with 15 million fields": "3 s, 3 GB",
    "find with 300,000 patterns": "28 s behind its limit",
    "find, a pattern of 28,000 letters": "28 s behind its limit",
    "$indexOfBytes": "65 s",
    "nested $concatArrays": "1.1 GB",
    "$let with 40 arrays": "2.2 GB",
    "let of an aggregate that takes 6 s": "5.9 s",
    "an update of what a costly validator archives": "others waited 22 s",
    "an operation that the profiler filters": "others waited 6 s",
    "ten filters for the profiler, 8 MB each": "865 MB",
}


def measure(case):
    """Of the server that is measured: seconds, code, another client's slowest round in ms, MB."""
    with open(f"/proc/{proc.pid}/clear_refs", "w") as f:
        f.write("5")  # the peak is counted from now
    with Watcher(proc.port) as w:
        w.take()
        before, began = memory("VmRSS"), time.monotonic()
        code = case() if callable(case) else ask(case)
        took = time.monotonic() - began
        waited = w.take().slowest
    return f"{took:.2f}", str(code), f"{waited * 1000:.0f}", str(max(memory("VmHWM") - before, 0))


def main():
    global proc, client
    names, binaries = sys.argv[1:], [BINARY]
    if "--against" in names:
        at = names.index("--against")
        binaries.append(names[at + 1])
        del names[at : at + 2]
    servers = []
    for n, binary in enumerate(binaries):
        servers.append(start(f"{work}/db{n}", binary=binary))
        servers[-1][1].command("other", {"insert": "c", "documents": [{"_id": 1}]})
        few = [{"_id": i, "s": "ab" * 20} for i in range(10)]
        servers[-1][1].command("hostile", {"insert": "c", "documents": few})
    print(
        "Requests that kept the server or other clients busy, or took much memory, when they were found, "
        "and now,\nwith a "
        f"limit of {LIMIT_MS} ms (`$indexOfBytes`: 100), beside another client that finds and updates a document all "
        "the\ntime. Measured by `bench/hostile.py`.\n"
    )
    columns = ["s", "code", "another client's slowest round ms", "memory MB"]
    if len(servers) > 1:
        columns = [f"{c}{of}" for c in columns for of in ("", ", the other server")]
    print(f"| request | bytes on the wire | before | {' | '.join(columns)} |")
    print("| --- | ---: | --- |" + " ---: |" * len(columns))
    for name, case in CASES.items():
        if not names or any(a in name for a in names):
            got = []
            for proc, client in servers:
                got.append(measure(case))
            cells = [value for figures in zip(*got) for value in figures]
            size = "" if callable(case) else f"{len(case):,}"
            print(f"| {name} | {size} | {BEFORE[name]} | {' | '.join(cells)} |", flush=True)
    for server, _ in servers:
        stop(server)
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
