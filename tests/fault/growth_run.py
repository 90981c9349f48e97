#!/usr/bin/env python3
"""Requests of a few hundred bytes that ask for much memory or for much time on one document: each ends soon after its
maxTimeMS, the server does not grow by more than a stated number of MB, SIGTERM ends it, and what is not too much is
answered. Then documents with a million fields or elements, and requests that walk them again and again: conditions,
projections, paths, the keys of many indexes.

MAYFLY_GROWTH_ONLY: names of cases, to run these only.
"""

import os, tempfile, time

import bson

from fault_test import Checks, discard, forget_peak, memory_mb, processor_seconds, run_parts, start, stop

# Of one operation: what its values may have together, the process's base and one copy of the largest value.
MOST_MB = 600
LIMIT_MS = 2000
SOON_MS = 300  # where the time without a limit is a matter of seconds
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
    "trim": ({"$strLenBytes": {"$trim": {"input": text(22, "b"), "chars": {"$concat": [text(11), "b"]}}}}, 0),
    "rtrim": ({"$strLenBytes": {"$rtrim": {"input": text(22, "b"), "chars": {"$concat": [text(11), "b"]}}}}, 0),
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
    "JSON text of many": project({"$strLenBytes": {"$toString": numbers(4_000_000)}}),
    "an array from JSON text": project({"$size": {"$toArray": {"$concat": ["[0", text(22, ",0"), "]"]}}}),
    "names from JSON text": project({"$bsonSize": {"$toObject": {"$concat": ['{"a":0', text(20, ',"a":0'), "}"]}}}),
    "a deep JSON text": project({"$size": {"$toArray": text(23, "[")}}),
    "$serializeEJSON": project({"$size": {"$serializeEJSON": {"input": numbers(4_000_000)}}}),
    "a vector of many": project(
        {
            "$size": {
                "$toArray": {
                    "$convert": {
                        "input": {"$map": {"input": numbers(4_000_000), "in": {"$mod": ["$$IDX", 100]}}},
                        "to": "binData",
                    }
                }
            }
        }
    ),
    "hashing one text often": project(
        {
            "$let": {
                "vars": {"a": text(23)},
                "in": {"$and": [{"$hexHash": {"input": "$$a", "algorithm": "md5"}}] * 3000},
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


def measured(proc, c, name, command):
    """The reply; checks what it took."""
    forget_peak(proc.pid)
    before, began, worked = memory_mb(proc.pid), time.monotonic(), processor_seconds(proc.pid)
    reply = c.command("growth", command)
    took, worked = time.monotonic() - began, processor_seconds(proc.pid) - worked
    grown = memory_mb(proc.pid, "VmHWM") - before
    size, answer = len(bson.encode(command)), reply.get("code", "ok")
    print(f"{name}: {size} bytes, {took:.2f} s, {worked:.2f} s of processors, {grown} MB, {answer}", flush=True)
    most = 10 * command["maxTimeMS"] / 1000
    check(worked <= most, f"{name}: the server worked {worked:.1f} s on it, {most:.0f} s are ten times its maxTimeMS")
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


def absent(n):
    return [{f"x{i}": {"$exists": True}} for i in range(n)]


def at_the_end(n):
    return [{f"f{999_999 - i}": {"$exists": True}} for i in range(n)]


# Of fields that the document does not have: each is looked for in all of it.
NONE_OF_900 = {"$nor": absent(900)}
# Nodes of few children each.
TREE = {"$and": [{"$nor": absent(30)} for _ in range(60)]}


def over_array(condition, n=1000):
    return {"find": "c", "filter": {"$nor": [condition(i) for i in range(n)]}}


def schema(document, rules):
    return {"find": "c", "filter": {"_id": document, "$jsonSchema": rules}}


def aggregate(*stages):
    return {"aggregate": "c", "pipeline": list(stages), "cursor": {}}


def update(collection, q, u):
    return {"update": collection, "updates": [{"q": q, "u": u}]}


# On {_id: 4, f0: 1, ... f999999: 1} and {_id: 5, a: [0, ... 999999]}.
WIDE = {
    "a find": {"find": "c", "filter": NONE_OF_900},
    "a find by _id": {"find": "c", "filter": {"_id": 4, **NONE_OF_900}},
    "few conditions a node": {"find": "c", "filter": {"_id": 4, **TREE}},
    "a count": {"count": "c", "query": NONE_OF_900},
    "a distinct": {"distinct": "c", "key": "_id", "query": NONE_OF_900},
    "an update": update("c", {"_id": 4, **NONE_OF_900}, {"$set": {"y": 1}}),
    "a findAndModify": {"findAndModify": "c", "query": {"_id": 4, **NONE_OF_900}, "update": {"$set": {"y": 1}}},
    "a delete": {"delete": "c", "deletes": [{"q": {"_id": 4, **NONE_OF_900}, "limit": 1}]},
    "$or of $type": {"find": "c", "filter": {"$or": [{f"x{i}": {"$type": "int"}} for i in range(20_000)]}},
    "a projection's $elemMatch": {"find": "c", "projection": {f"x{i}": {"$elemMatch": {"a": 1}} for i in range(900)}},
    "$rename": update("c", {"_id": 4}, {"$rename": {f"x{i}": f"y{i}" for i in range(900)}}),
    "$facet": aggregate({"$facet": {f"p{i}": [{"$match": {"$nor": absent(30)}}] for i in range(60)}}),
    "many stages": aggregate({"$match": {"_id": 4}}, *[{"$set": {f"f{i}": None}} for i in range(500)]),
    "restrictSearchWithMatch": aggregate(
        {"$match": {"_id": 6}},
        {
            "$graphLookup": {
                "from": "c",
                "startWith": 4,
                "connectFromField": "f0",
                "connectToField": "_id",
                "as": "z",
                "restrictSearchWithMatch": NONE_OF_900,
            }
        },
    ),
    "$elemMatch": over_array(lambda i: {"a": {"$elemMatch": {"$gt": 1_000_000 + i}}}),
    "$in": over_array(lambda i: {"a": {"$in": [-1 - i, -2 - i]}}),
    "$mod": over_array(lambda i: {"a": {"$mod": [2_000_000, 1_000_000 + i]}}),
    "$bitsAllSet": over_array(lambda i: {"a": {"$bitsAllSet": [40]}}),
    "$all": over_array(lambda i: {"a": {"$all": [{"$elemMatch": {"$gt": 1_000_000 + i}}]}}),
    "minItems": schema(5, {"properties": {"a": {"allOf": [{"minItems": 1}] * 10_000}}}),
    "additionalItems": schema(5, {"properties": {"a": {"allOf": [{"items": [{}], "additionalItems": True}] * 10_000}}}),
    "minProperties": schema(4, {"allOf": [{"minProperties": 1}] * 10_000}),
    "minLength": schema(7, {"properties": {"s": {"allOf": [{"minLength": 1}] * 10_000}}}),
}
# Of collections with many or long indexes or validators: {name: (collection, command)}.
KEYS = {
    "an insert under a partial filter": ("partial", "insert"),
    "an insert under a validator": ("validated", "insert"),
    "an insert into many indexes": ("indexed", "insert"),
    "an update under many indexes": ("indexed", "update"),
    "a delete under many indexes": ("indexed", "delete"),
}


def make_wide(c):
    def must(command):
        reply = c.command("growth", command)
        check(reply["ok"] == 1 and not reply.get("writeErrors"), f"{str(command)[:80]}: {str(reply)[:300]}")

    wide = {"_id": 4, **{f"f{i}": 1 for i in range(1_000_000)}}
    for d in (wide, {"_id": 5, "a": list(range(1_000_000)), "s": "x"}, {"_id": 6}, {"_id": 7, "s": "x" * 15_000_000}):
        must({"insert": "c", "documents": [d]})
    must({"insert": "pos", "documents": [{"_id": 1, **{f"k{i}": [1] for i in range(40_000)}}]})
    must(
        {
            "createIndexes": "partial",
            "indexes": [
                {"key": {"a": 1}, "name": "a", "partialFilterExpression": {"$and": at_the_end(8000)}},
                {"key": {"f0": 1}, "name": "f0", "partialFilterExpression": {"$or": absent(8000)}},
            ],
        }
    )
    must({"create": "validated", "validator": TREE})
    must({"insert": "indexed", "documents": [wide]})
    must(
        {
            "createIndexes": "indexed",
            "indexes": [{"key": {f"x{i}_{k}": 1 for k in range(31)}, "name": f"i{i}"} for i in range(60)],
        }
    )
    return wide


def wide():
    proc, c = start(f"{work}/wide")
    document = make_wide(c)
    only = os.environ.get("MAYFLY_GROWTH_ONLY", "")
    cases = dict(WIDE)
    conditions = {**{f"z{i}": None for i in range(100)}, "k0": 1}
    cases["positional $"] = update("pos", conditions, {"$set": {f"k{i}.$": 2 for i in range(4000)}})
    for name, command in cases.items():
        if name in only or not only:
            r = measured(proc, c, name, {**command, "maxTimeMS": SOON_MS})
            code = r["writeErrors"][0]["code"] if r.get("writeErrors") else r.get("code")
            check(code in (None, 50, 17419), f"{name}: {str(r)[:300]}")
    for name, (collection, what) in KEYS.items():
        if name not in only and only:
            continue
        command = {
            "insert": {"insert": collection, "documents": [{**document, "_id": 8}]},
            "update": update(collection, {"_id": 4}, {"$set": {"f1": 2}}),
            "delete": {"delete": collection, "deletes": [{"q": {"_id": 4}, "limit": 1}]},
        }[what]
        r = measured(proc, c, name, {**command, "maxTimeMS": SOON_MS})
        code = r["writeErrors"][0]["code"] if r.get("writeErrors") else r.get("code")
        check(code == 50, f"{name} is not interrupted: {str(r)[:300]}")
        # Nothing of it is there: neither the document nor some of its keys.
        r = c.command("growth", {"count": collection})
        check(r["n"] == (collection == "indexed"), f"{name}: {r}")
        r = c.command("growth", {"validate": collection})
        check(r.get("valid") is True, f"{name}: {str(r)[:500]}")
    check(stop(proc) == 0, "a clean stop")


try:
    run_parts("growth", [cases, wide], check)
finally:
    discard(work)
