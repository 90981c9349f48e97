#!/usr/bin/env python3
"""Random commands that are nearly right, against a real server: no answer may be an InternalError, take long or be
missing.

tests/model/command_fuzz.py [--seconds 20] [--seed N] [--replica-set]

Names of commands come from listCommands; operators, arguments and stages from the sources. MAYFLYD names another
binary. What fails is printed with the command and the seed that gives it again.
"""

import argparse, datetime, os, random, re, shutil, subprocess, sys, tempfile, time
from pathlib import Path

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, encode
from bson.datetime_ms import DatetimeMS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
import own
from run import ROOT, Client, initiate, launch
from waits import Deadline, processor_seconds, until

args = argparse.ArgumentParser(description=__doc__)
args.add_argument("--seconds", type=float, default=20)
args.add_argument("--seed", type=int, default=os.environ.get("MAYFLY_SEED", random.randrange(1 << 30)))
args.add_argument("--replica-set", action="store_true")
args = args.parse_args()
r = random.Random(args.seed)

text = "".join(p.read_text() for f in ("query", "server") for p in sorted((ROOT / f).rglob("*.cc")))
OPERATORS = sorted(set(re.findall(r'"(\$[a-zA-Z]+)"', text)))
NAMES = sorted(set(re.findall(r'(?:in\.\w+\(\s*|name == )"([a-zA-Z]+)"', text)))
STAGES = sorted(set(re.findall(r'{"(\$[a-zA-Z]+)", [k0]', (ROOT / "query/pipeline/pipeline.cc").read_text())))
COLLECTIONS = ["a", "b", "view", "cap", "ttl", "system.profile", "$cmd", "", "x.y"]
FIELDS = ["a", "b", "_id", "a.b", "a.0", "x", "d", "expireAt", "", "$a", "a.$", "a.$[]", "a.$[e]"]
COMMON = [
    "find",
    "aggregate",
    "aggregate",
    "update",
    "insert",
    "delete",
    "findAndModify",
    "count",
    "distinct",
    "createIndexes",
    "collMod",
    "create",
    "explain",
    "bulkWrite",
    "getMore",
    "listIndexes",
    "dropIndexes",
    "validate",
    "renameCollection",
]
# They end the process, or what the others need.
LEFT_OUT = {
    "shutdown",
    "fsync",
    "replSetStepDown",
    "replSetReconfig",
    "replSetFreeze",
    "replSetInitiate",
    "configureFailPoint",
}
WORK = 20  # seconds of processors that no command takes, with sanitizers either
cursors = []


def some(low, high):
    return range(r.randrange(low, high))


def scalar():
    return r.choice(
        [
            lambda: r.randrange(-5, 50),
            lambda: Int64(r.choice([0, 1, -1, 2**63 - 1, -(2**63), 2**31, 1000])),
            lambda: r.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e308, -1e300, 2.0**63]),
            lambda: r.choice(
                [
                    "",
                    "a",
                    "$a",
                    "$$ROOT",
                    "$$NOW",
                    "$$REMOVE",
                    "a.b",
                    "day",
                    "UTC",
                    "Europe/Berlin",
                    "%Y-%m-%d",
                    "\u00e9\u4e2d",
                    "x" * 200,
                    "1",
                    "int",
                    "all",
                ]
            ),
            lambda: r.choice([True, False, None, MinKey(), MaxKey(), ObjectId(), Code("x")]),
            lambda: datetime.datetime.fromtimestamp(r.randrange(2**33), datetime.timezone.utc),
            lambda: DatetimeMS(r.choice([-(2**63), 2**63 - 1, 0, -1, 253402300800000])),
            lambda: Decimal128(r.choice(["NaN", "Infinity", "1.5", "-0", "1E6144", "1E-6176"])),
            lambda: Timestamp(r.choice([0, 1, 2**32 - 1]), r.choice([0, 1])),
            lambda: Regex(r.choice(["a", "^a", "(a+)+$", "[", "(?i)x", "\\d+"]), r.choice([0, 2])),
            lambda: r.choice(
                [Binary(b"0123456789abcdef", 4), Binary(b"12345678" * r.randrange(4), r.choice([0, 2, 5, 128]))]
            ),
            lambda: r.choice(COLLECTIONS),
            lambda: r.choice(FIELDS),
        ]
    )()


def value(depth=0):
    kind = r.random()
    if depth > 5 or kind < 0.45:
        return scalar()
    if kind < 0.6:
        return [value(depth + 1) for _ in some(0, 4)]
    if kind < 0.85:
        return {
            r.choice(OPERATORS): value(depth + 1)
            if r.random() < 0.6
            else {r.choice(NAMES): value(depth + 1) for _ in some(0, 4)}
        }
    return {r.choice(FIELDS + NAMES): value(depth + 1) for _ in some(0, 4)}


def condition():
    out = {}
    for _ in some(0, 3):
        kind = r.random()
        if kind < 0.4:
            out[r.choice(FIELDS)] = scalar()
        elif kind < 0.8:
            out[r.choice(FIELDS)] = {r.choice(OPERATORS): value(2) for _ in some(1, 3)}
        else:
            out[r.choice(["$and", "$or", "$nor", "$expr", "$jsonSchema"])] = (
                [condition(), condition()] if r.random() < 0.5 else value(1)
            )
    return out


def expression(depth=0):
    if depth > 4 or r.random() < 0.35:
        return scalar()
    return {
        r.choice(OPERATORS): r.choice(
            [
                lambda: expression(depth + 1),
                lambda: [expression(depth + 1) for _ in some(0, 4)],
                lambda: {r.choice(NAMES): expression(depth + 1) for _ in some(1, 4)},
            ]
        )()
    }


def stage():
    return {
        r.choice(STAGES): r.choice(
            [
                lambda: value(1),
                condition,
                lambda: r.randrange(10),
                lambda: {r.choice(FIELDS): expression(1) for _ in some(0, 3)},
                lambda: {r.choice(NAMES): r.choice([value, expression])(2) for _ in some(1, 4)},
                lambda: {"_id": expression(1), r.choice(FIELDS): {r.choice(OPERATORS): expression(1)}},
                lambda: {
                    "from": r.choice(COLLECTIONS),
                    "as": r.choice(FIELDS),
                    "localField": "a",
                    "foreignField": "b",
                    "pipeline": [stage() for _ in some(0, 2)],
                },
                lambda: {
                    "sortBy": {r.choice(FIELDS): r.choice([1, -1])},
                    "partitionBy": expression(2),
                    "output": {r.choice(FIELDS): {r.choice(OPERATORS): expression(2), "window": value(3)}},
                },
                lambda: {
                    "into": r.choice(COLLECTIONS),
                    "on": "_id",
                    "whenMatched": r.choice(["merge", "replace", [{"$set": {"z": expression(2)}}]]),
                },
            ]
        )()
    }


def change():
    return r.choice(
        [
            lambda: {r.choice(OPERATORS): {r.choice(FIELDS): value(2) for _ in some(1, 3)} for _ in some(1, 3)},
            lambda: [stage() for _ in some(1, 3)],
            lambda: {"a": value(2)},
        ]
    )()


def document():
    return {r.choice(["_id", "a", "b", "d", "x", "expireAt"]): value(3) for _ in some(0, 5)}


def command(names):
    name = r.choice(names) if r.random() < 0.3 else r.choice(COMMON)
    coll = r.choice(COLLECTIONS[:5]) if r.random() < 0.85 else r.choice([scalar(), r.choice(COLLECTIONS)])
    c = {name: coll if r.random() < 0.95 else 1}
    if name == "find":
        c["filter"] = condition()
        if r.random() < 0.5:
            c[r.choice(["sort", "projection", "hint", "min", "max", "let"])] = {
                r.choice(FIELDS): r.choice([1, -1, expression(1)]) for _ in some(1, 3)
            }
        if r.random() < 0.3:
            c[r.choice(["tailable", "awaitData", "singleBatch", "returnKey", "showRecordId", "batchSize", "limit"])] = (
                r.choice([True, scalar()])
            )
    elif name == "aggregate":
        c.update(pipeline=[stage() for _ in some(0, 5)], cursor={})
    elif name == "update":
        c["updates"] = [
            {
                "q": condition(),
                "u": change(),
                r.choice(["upsert", "multi", "arrayFilters", "hint", "c"]): r.choice([True, [{"e": value(2)}]]),
            }
        ]
    elif name == "insert":
        c["documents"] = [document() for _ in some(1, 4)]
    elif name == "delete":
        c["deletes"] = [{"q": condition(), "limit": r.choice([0, 1, scalar()])}]
    elif name == "findAndModify":
        c.update(
            {"query": condition(), "update": change()} if r.random() < 0.7 else {"query": condition(), "remove": True}
        )
    elif name in ("count", "distinct"):
        c["query"] = condition()
        if name == "distinct":
            c["key"] = r.choice(FIELDS)
    elif name == "createIndexes":
        c["indexes"] = [
            {
                "key": {r.choice(FIELDS): r.choice([1, -1, "hashed", "text", 0]) for _ in some(1, 3)},
                "name": r.choice(["n1", "n2", ""]),
                r.choice(["expireAfterSeconds", "unique", "sparse", "partialFilterExpression", "hidden"]): r.choice(
                    [value(2), 10, True]
                ),
            }
        ]
    elif name == "collMod":
        c[
            r.choice(
                ["index", "validator", "validationLevel", "expireAfterSeconds", "viewOn", "pipeline", "cappedSize"]
            )
        ] = r.choice([value(1), condition()])
    elif name == "create" and r.random() < 0.7:
        c[r.choice(["capped", "size", "validator", "viewOn", "pipeline", "timeseries", "clusteredIndex"])] = r.choice(
            [value(1), True, 4096, "a"]
        )
    elif name == "explain":
        c = {
            "explain": command(names),
            "verbosity": r.choice(["queryPlanner", "executionStats", "allPlansExecution", "x"]),
        }
    elif name == "bulkWrite":
        c = {
            "bulkWrite": 1,
            "nsInfo": [{"ns": "fuzz." + r.choice(COLLECTIONS)}],
            "ops": [
                r.choice(
                    [
                        {"insert": 0, "document": document()},
                        {"update": 0, "filter": condition(), "updateMods": change()},
                        {"delete": 0, "filter": condition()},
                    ]
                )
            ],
        }
    elif name == "getMore":
        c = {
            "getMore": Int64(r.choice(cursors or [5])),
            "collection": r.choice(COLLECTIONS[:4]),
            "batchSize": r.choice([1, 2, scalar()]),
        }
    elif name == "renameCollection":
        c = {
            "renameCollection": "fuzz." + r.choice(COLLECTIONS),
            "to": r.choice(["fuzz.", "other."]) + r.choice(COLLECTIONS),
            "dropTarget": r.choice([True, False]),
        }
    if r.random() < 0.06:
        c[r.choice(NAMES)] = value(1)
    if r.random() < 0.1:
        c[
            r.choice(
                [
                    "lsid",
                    "readConcern",
                    "writeConcern",
                    "$clusterTime",
                    "txnNumber",
                    "apiVersion",
                    "comment",
                    "collation",
                ]
            )
        ] = value(2)
    if name != "getMore":
        c.setdefault("maxTimeMS", 3000)
    return c


def set_up(c):
    for wanted in (
        {
            "insert": "a",
            "documents": [{"_id": i, "a": [1, 2, {"b": i}], "b": i, "d": datetime.datetime.now()} for i in range(30)],
        },
        {"create": "cap", "capped": True, "size": 8192},
        {"create": "view", "viewOn": "a", "pipeline": []},
        {"createIndexes": "ttl", "indexes": [{"key": {"d": 1}, "name": "d", "expireAfterSeconds": 1}]},
        {"createIndexes": "a", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}]},
    ):
        c.command("fuzz", wanted)


def main():
    data = tempfile.mkdtemp(prefix="mayfly-command-fuzz-")
    binary = os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd"))
    proc, port = launch(
        binary, ["--dbpath", data + "/db"] + (["--replSet", "rs0"] if args.replica_set else []), data + "/log"
    )
    c = Client("127.0.0.1", port)
    if args.replica_set:
        initiate(c, f"127.0.0.1:{port}")
    names = sorted(
        n for n in c.command("admin", {"listCommands": 1})["commands"] if n not in LEFT_OUT and not n.startswith("_")
    )
    end, sent, answered, failures = time.monotonic() + args.seconds, 0, 0, []
    while time.monotonic() < end and len(failures) < 20:  # clock: how many commands are tried
        if sent % 500 == 0:
            set_up(c)
        doc, db = command(names), r.choice(["fuzz"] * 12 + ["admin"])
        try:
            encode(doc)
        except Exception:
            continue  # not even BSON
        sent += 1
        worked = processor_seconds(proc.pid)
        try:
            reply = c.command(db, doc)
        except (ConnectionError, OSError) as e:
            failures.append(f"{e!r}: {db}: {doc}")
            try:
                c = Client("127.0.0.1", port)
                continue
            except OSError:  # nobody listens: its end comes
                until(lambda: proc.poll() is not None)
            failures.append(
                f"the server ended with {proc.returncode}: " + open(data + "/log", errors="replace").read()[-3000:]
            )
            break
        answered += reply["ok"] == 1
        if reply.get("code") == 1:
            failures.append(f"{reply['errmsg']}: {db}: {doc}")
        worked = processor_seconds(proc.pid) - worked
        if worked > WORK:
            failures.append(f"{worked:.0f} s of processors: {db}: {doc}")
        if isinstance(reply.get("cursor"), dict) and reply["cursor"].get("id"):
            cursors[:] = cursors[-50:] + [reply["cursor"]["id"]]
    if proc.poll() is None:
        proc.terminate()
        if proc.wait(Deadline().seconds) != 0:
            failures.append(
                f"the server ended with {proc.returncode}: " + open(data + "/log", errors="replace").read()[-3000:]
            )
    for f in failures:
        print("FAIL", f[:3000])
    own.failed = own.failed or bool(failures)
    own.discard(data)
    print(f"command fuzz: seed {args.seed}, {sent} commands, {answered} of them done")
    bad = bool(failures) or answered == 0
    print(f"command fuzz, {sent} commands: {int(not bad)} passed, {max(len(failures), int(bad))} failed")
    sys.exit(bad)


main()
