#!/usr/bin/env python3
"""Requests of a few hundred bytes that ask for much memory or for much time on one document: each ends soon after its
maxTimeMS, the server does not grow by more than a stated number of MB, SIGTERM ends it, and what is not too much is
answered.

MAYFLY_GROWTH_ONLY: names of cases, to run these only.
"""

import os, shutil, tempfile, time

import bson

from fault_test import Checks, run_parts, start, stop

# Of one operation: what its values may have together, the process's base and one copy of the largest value.
MOST_MB = 600
LIMIT_MS = 2000
# After its limit: what one step between two looks takes on a loaded machine.
LATE_S = 5
check = Checks(quiet=True)
work = tempfile.mkdtemp(prefix="mayfly-growth-")


def text(doublings, letter="a"):
    return {
        "$reduce": {
            "input": {"$range": [0, doublings]},
            "initialValue": letter,
            "in": {"$concat": ["$$value", "$$value"]},
        }
    }


def numbers(n):
    return {"$range": [0, n]}


def project(expression):
    return {"aggregate": "c", "pipeline": [{"$project": {"n": expression}}], "cursor": {}}


def nested(depth):
    return (
        numbers(5_000_000)
        if depth == 0
        else {
            "$concatArrays": [{"$slice": [numbers(4_900_000), 2_400_000]}, {"$slice": [nested(depth - 1), 2_300_000]}]
        }
    )


def many(count, expression):
    return {"$let": {"vars": {f"v{i}": expression for i in range(count)}, "in": {"$size": "$$v0"}}}


HALF = {"$concat": [text(22), "b"]}
# Searches that took the square of their input, and must be answered: {name: (expression, answer)}.
ANSWERED = {
    "indexOfBytes": ({"$indexOfBytes": [text(23), HALF]}, -1),
    "indexOfCP": ({"$indexOfCP": [text(23), HALF]}, -1),
    "split": ({"$size": {"$split": [text(23), HALF]}}, 1),
    "replaceAll": ({"$strLenBytes": {"$replaceAll": {"input": text(23), "find": HALF, "replacement": "x"}}}, 1 << 23),
    "replaceOne": ({"$strLenBytes": {"$replaceOne": {"input": text(23), "find": HALF, "replacement": "x"}}}, 1 << 23),
    "trim": ({"$strLenBytes": {"$trim": {"input": text(22, "b"), "chars": {"$concat": [text(22), "b"]}}}}, 0),
    "rtrim": ({"$strLenBytes": {"$rtrim": {"input": text(22, "b"), "chars": {"$concat": [text(22), "b"]}}}}, 0),
}
# What must be refused, or take no more than its time: {name: command}.
REFUSED = {
    "variables of $let": project(many(40, numbers(4_800_000))),
    "many small variables": project(many(2000, numbers(70_000))),
    "nested $concatArrays": project({"$size": nested(12)}),
    "$objectToArray": project(
        {
            "$size": {
                "$objectToArray": {
                    "$arrayToObject": {
                        "$map": {"input": numbers(2_400_000), "in": {"k": {"$toString": "$$this"}, "v": None}}
                    }
                }
            }
        }
    ),
    "$mergeObjects": project(
        {
            "$bsonSize": {
                "$mergeObjects": {
                    "$map": {"input": numbers(2_000_000), "in": {"$arrayToObject": [[[{"$toString": "$$this"}, 1]]]}}
                }
            }
        }
    ),
    "groups of $regexFind": project(
        {
            "$let": {
                "vars": {"m": {"$regexFind": {"input": text(23), "regex": "(" * 60 + "a*" + ")" * 60}}},
                "in": {"$size": "$$m.captures"},
            }
        }
    ),
    "$zip": project({"$size": {"$zip": {"inputs": [numbers(1_000_000)] * 4}}}),
    "one comma after another": project({"$size": {"$split": [text(23, ","), ","]}}),
    "comparing one array often": project(
        {"$let": {"vars": {"a": numbers(4_000_000)}, "in": {"$and": [{"$eq": ["$$a", "$$a"]}] * 3000}}}
    ),
    "reading one path often": project(
        {
            "$let": {
                "vars": {"a": {"$map": {"input": numbers(1_000_000), "in": {"x": 1}}}},
                "in": {"$size": [["$$a.x"] * 50]},
            }
        }
    ),
    "$sortArray": project({"$size": {"$sortArray": {"input": numbers(5_000_000), "sortBy": -1}}}),
    "$setUnion": project(
        {
            "$size": {
                "$setUnion": [
                    {
                        "$map": {
                            "input": numbers(3_000_000),
                            "in": {"$mod": [{"$multiply": ["$$this", 7919]}, 1_000_003]},
                        }
                    }
                ]
            }
        }
    ),
    "folded constants": project({"$size": [[numbers(4000) for _ in range(8000)]]}),
    "$project of many": {
        "aggregate": "c",
        "cursor": {},
        "pipeline": [{"$project": {f"f{i}": numbers(4_800_000) for i in range(40)}}, {"$count": "n"}],
    },
    "$push of many": {
        "aggregate": "c",
        "cursor": {},
        "pipeline": [
            {"$group": {"_id": None, **{f"f{i}": {"$push": numbers(1_000_000)} for i in range(40)}}},
            {"$count": "n"},
        ],
    },
    "window functions": {
        "aggregate": "c",
        "cursor": {},
        "pipeline": [
            {
                "$setWindowFields": {
                    "sortBy": {"_id": 1},
                    "output": {f"f{i}": {"$push": numbers(4_000_000)} for i in range(40)},
                }
            },
            {"$count": "n"},
        ],
    },
    "a projection of find": {"find": "c", "projection": {"z": many(40, numbers(4_800_000))}},
    "an update pipeline": {"update": "c", "updates": [{"q": {}, "u": [{"$set": {"z": many(40, numbers(4_800_000))}}]}]},
    # 100,000 times a megabyte.
    "$[] with a large value": {
        "update": "elements",
        "updates": [{"q": {}, "u": {"$set": {"a.$[].b": "x" * (1 << 20)}}}],
    },
    "$[] with $push": {"update": "elements", "updates": [{"q": {}, "u": {"$push": {"a.$[].b": "x" * (1 << 20)}}}]},
}


def memory(proc, what):
    with open(f"/proc/{proc.pid}/status") as f:
        return next(int(line.split()[1]) // 1024 for line in f if line.startswith(what))


def measured(proc, c, name, command):
    """The reply; checks what it took."""
    with open(f"/proc/{proc.pid}/clear_refs", "w") as f:
        f.write("5")  # the peak is counted from now
    before, began = memory(proc, "VmRSS"), time.monotonic()
    reply = c.command("growth", command)
    took, grown = time.monotonic() - began, memory(proc, "VmHWM") - before
    print(f"{name}: {len(bson.encode(command))} bytes, {took:.2f} s, {grown} MB, {reply.get('code', 'ok')}", flush=True)
    check(took < command["maxTimeMS"] / 1000 + LATE_S, f"{name} took {took:.1f} s")
    check(grown < MOST_MB, f"{name} took {grown} MB")
    return reply


def cases():
    proc, c = start(f"{work}/db")
    c.command("growth", {"insert": "c", "documents": [{"_id": 1}]})
    c.command("growth", {"insert": "elements", "documents": [{"_id": 1, "a": [{}] * 100_000}]})
    only = os.environ.get("MAYFLY_GROWTH_ONLY", "")
    for name, (expression, answer) in ANSWERED.items():
        if name in only or not only:
            r = measured(proc, c, name, {**project(expression), "maxTimeMS": 60_000})
            check(r.get("cursor", {}).get("firstBatch") == [{"_id": 1, "n": answer}], f"{name}: {str(r)[:300]}")
    for name, command in REFUSED.items():
        if name in only or not only:
            r = measured(proc, c, name, {**command, "maxTimeMS": LIMIT_MS})
            check(
                r["ok"] != 1 or not r.get("writeErrors") or r["writeErrors"][0]["code"] in (17419, 146, 50),
                f"{name}: {str(r)[:300]}",
            )
    check(c.command("growth", {"find": "c"})["cursor"]["firstBatch"] == [{"_id": 1}], "the server goes on")
    check(stop(proc) == 0, "a clean stop")


try:
    run_parts("growth", [cases], check)
finally:
    shutil.rmtree(work, ignore_errors=True)
