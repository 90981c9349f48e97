#!/usr/bin/env python3
"""Names and strings that nobody sends by accident, on a real server that checks whatever it makes (MAYFLY_CHECK_BSON=1)
and whose every reply is checked here, byte by byte, by a validator that shares no code with it:
  names      operators, stages, updates and commands x names with NUL, empty, with '$' and dots, not UTF-8, very long
  bytes      strings that are not UTF-8 are stored, found, sorted, indexed and returned as they are; errors, the log and
             JSON stay readable
  restore    what mongorestore sends: --preserveUUID, --oplogReplay, a dump whose archive comes after what it archives
The last line says "N passed, N failed". MAYFLY_SEED, MAYFLYD.
"""

import json, os, shutil, struct, sys, tempfile, urllib.request
from pathlib import Path

import bson
from bson import Binary, Code, Int64, ObjectId, Regex
from bson.codec_options import CodecOptions

os.environ["MAYFLY_CHECK_BSON"] = "1"
from fault_test import SEED, Checks, rnd, run_parts, start, stop

check = Checks(quiet=True)
# Three bytes in a message that are put where the three bytes of this character are.
HOLE, BAD = "\ue000", b"\xff\xfe\xc3"
CODEC = CodecOptions(
    unicode_decode_error_handler="surrogateescape",
    uuid_representation=bson.binary.UuidRepresentation.STANDARD,
    datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_AUTO,
)


class Malformed(Exception):
    pass


FIXED = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}


def validate(b, at=0, end=None, array=False):
    """One document at `at`; where it ends. Every length must fit, every array must count from "0"."""
    end = len(b) if end is None else end
    if end - at < 5:
        raise Malformed("short document")
    size = struct.unpack_from("<i", b, at)[0]
    if size < 5 or at + size > end or b[at + size - 1] != 0:
        raise Malformed(f"document of {size} bytes in {end - at}")
    end, at, count = at + size - 1, at + 4, 0

    def string(at):
        if at + 4 > end:
            raise Malformed("string behind the end")
        n = struct.unpack_from("<i", b, at)[0]
        if n < 1 or at + 4 + n > end or b[at + 4 + n - 1] != 0:
            raise Malformed(f"string of {n} bytes")
        return at + 4 + n

    while at < end:
        kind, nul = b[at], b.find(b"\0", at + 1, end)
        if nul < 0:
            raise Malformed("name without an end")
        name = b[at + 1 : nul]
        if array and name != str(count).encode():
            raise Malformed(f"element {count} of an array is called {name!r}")
        at, count = nul + 1, count + 1
        if kind in FIXED:
            at += FIXED[kind]
        elif kind in (0x02, 0x0D, 0x0E):
            at = string(at)
        elif kind in (0x03, 0x04):
            at = validate(b, at, end, kind == 0x04)
        elif kind == 0x05:
            at += 5 + struct.unpack_from("<i", b, at)[0]
        elif kind == 0x0B:
            for _ in range(2):
                at = b.find(b"\0", at, end) + 1
                if at == 0:
                    raise Malformed("regular expression without an end")
        elif kind == 0x0C:
            at = string(at) + 12
        elif kind == 0x0F:
            at += struct.unpack_from("<i", b, at)[0]
        else:
            raise Malformed(f"type {kind}")
        if at > end:
            raise Malformed("value behind the end")
    return end + 1


class Wire:
    """Sends bytes as they are and checks what comes back."""

    def __init__(self, client):
        self.c, self.request = client, 0

    def __call__(self, db, doc, raw=None):
        body = raw or bson.encode({**doc, "$db": db}, codec_options=CODEC)
        body = b"\0\0\0\0\0" + body.replace(HOLE.encode(), BAD)
        self.request += 1
        self.c.sock.sendall(struct.pack("<iiii", 16 + len(body), self.request, 0, 2013) + body)
        size, _, _, op = struct.unpack("<iiii", self.c._read(16))
        data = self.c._read(size - 16)[5:]
        if validate(data) != len(data):
            raise Malformed("bytes behind the reply")
        reply = bson.decode(data, codec_options=CODEC)
        if "errmsg" in reply:
            reply["errmsg"].encode()  # surrogates would say that it is not UTF-8
        return reply


def quoted(text):
    """BSON of {<text>: 1} however the name looks, which no library writes."""
    name = text if isinstance(text, bytes) else text.encode()
    doc = b"\x10" + name + b"\0" + struct.pack("<i", 1) + b"\0"
    return struct.pack("<i", 4 + len(doc)) + doc


HOSTILE = [
    "a\0",
    "\0",
    "a\0\x10\0\0\0",
    "\0" * 9,
    "",
    "$",
    "$a",
    "$$a",
    "$$ROOT",
    ".",
    "..",
    "a.",
    ".a",
    "a..b",
    "a.b",
    "a.$",
    "$[]",
    "a" + HOLE,
    HOLE,
    HOLE + "\0",
    "x" * 300,
    "y" * 70000,
    "_id",
    "0",
    "\u00e9",
    "\U0001f600",
    " ",
    "\n",
    "system.x",
    "oplog.$main",
    "$cmd",
    "%s%n",
    "../../x",
    "a/b",
    "C:\\x",
]


def expressions(t):
    literal, computed = {"$literal": t}, {"$concat": [{"$literal": t}, {"$toString": "$a"}]}
    for field in (t, literal, computed):
        yield {"$setField": {"field": field, "input": "$$ROOT", "value": 1}}
        yield {"$unsetField": {"field": field, "input": "$$ROOT"}}
        yield {"$getField": {"field": field, "input": "$$ROOT"}}
        yield {"$getField": field}
        yield {"$arrayToObject": [[[field, 1]]]}
        yield {"$arrayToObject": [[{"k": field, "v": 1}]]}
        yield {"$arrayToObject": {"$map": {"input": ["$s"], "in": [field, "$a"]}}}
        yield {"$mergeObjects": [{"$arrayToObject": [[[field, 1]]]}, "$$ROOT"]}
        yield {"$regexMatch": {"input": field, "regex": field}}
        yield {"$regexFindAll": {"input": field, "regex": "."}}
        yield {"$regexMatch": {"input": "$s", "regex": "a", "options": field}}
        yield {"$dateToString": {"date": {"$toDate": 0}, "format": field}}
        yield {"$dateToString": {"date": {"$toDate": 0}, "timezone": field}}
        yield {"$dateFromString": {"dateString": field, "format": field}}
        for op in (
            "$toUpper",
            "$toLower",
            "$strLenCP",
            "$strLenBytes",
            "$toObjectId",
            "$toInt",
            "$toDecimal",
            "$toDate",
            "$toBool",
            "$reverseArray",
            "$type",
            "$bsonSize",
        ):
            yield {op: field}
        yield {"$substrCP": [field, 1, 3]}
        yield {"$substrBytes": [field, 0, 1]}
        yield {"$substrBytes": [field, 1, 2]}
        yield {"$indexOfCP": [field, "b", 0]}
        yield {"$indexOfBytes": [field, "b", 1]}
        yield {"$split": [field, "a"]}
        yield {"$split": ["$s", field]}
        yield {"$replaceAll": {"input": field, "find": "a", "replacement": field}}
        yield {"$trim": {"input": field, "chars": field}}
        yield {"$strcasecmp": [field, "$s"]}
        yield {"$convert": {"input": field, "to": field, "onError": field}}
        yield {"$let": {"vars": {"x": field}, "in": "$$x"}}
        yield {"$map": {"input": [1], "as": t, "in": 1}}
        yield {"$filter": {"input": [1], "as": t, "cond": 1}}
        yield {"$map": {"input": [1], "arrayIndexAs": t, "in": 1}}
        yield {"$reduce": {"input": [1], "initialValue": 1, "as": t, "valueAs": "v", "in": 1}}
        yield {"$toString": {"$arrayToObject": [[[field, 1]]]}}
        yield {"$toObject": {"$concat": ['{"', field, '": 1}']}}
        yield {"$toArray": {"$concat": ['["', field, '"]']}}
        yield {"$deserializeEJSON": {"input": {"$serializeEJSON": {"input": {"$arrayToObject": [[[field, field]]]}}}}}
        yield {"$hexHash": {"input": field, "algorithm": field}}
        yield {"$meta": t}
    yield "$" + t
    yield "$$" + t
    yield "$$ROOT." + t


def stages(t):
    for e in expressions(t):
        yield {"$project": {"x": e}}
    for s in (
        {"$addFields": {"x": {"$literal": t}}},
        {"$unset": t},
        {"$unset": ["a", t]},
        {"$group": {"_id": "$" + t, "n": {"$sum": 1}}},
        {"$sortByCount": "$" + t},
        {"$count": t},
        {"$group": {"_id": {"$literal": t}, "n": {"$push": {"$literal": t}}}},
        {"$unwind": "$" + t},
        {"$unwind": {"path": "$a", "includeArrayIndex": t}},
        {"$lookup": {"from": t, "localField": "a", "foreignField": "a", "as": "x"}},
        {"$lookup": {"from": "c", "localField": t, "foreignField": "a", "as": "x"}},
        {"$lookup": {"from": "c", "localField": "a", "foreignField": t, "as": "x"}},
        {"$lookup": {"from": "c", "localField": "a", "foreignField": "a", "as": t}},
        {"$lookup": {"from": t, "pipeline": [], "as": "x"}},
        {"$unionWith": t},
        {"$unionWith": {"coll": t, "pipeline": []}},
        {"$facet": {"f": [{"$unionWith": t}]}},
        *(
            {
                "$graphLookup": {
                    "from": "c",
                    "startWith": "$a",
                    "connectFromField": "a",
                    "connectToField": "a",
                    "as": "x",
                    k: t,
                }
            }
            for k in ("from", "connectFromField", "connectToField", "as", "depthField")
        ),
        {"$densify": {"field": t, "range": {"step": 1, "bounds": "full"}}},
        {"$densify": {"field": "a", "partitionByFields": [t], "range": {"step": 1, "bounds": "full"}}},
        {"$fill": {"sortBy": {"a": 1}, "partitionByFields": [t], "output": {"b": {"method": "linear"}}}},
        {"$fill": {"output": {"b": {"value": "$" + t}}}},
        {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"x": {"$push": "$" + t}}}},
        {"$bucket": {"groupBy": "$" + t, "boundaries": [0, 1], "default": t}},
        {"$bucket": {"groupBy": "$s", "boundaries": ["", t], "default": 1}},
        {"$bucketAuto": {"groupBy": "$" + t, "buckets": 2, "granularity": t}},
        {"$out": t},
        {"$out": {"db": t, "coll": "o"}},
        {"$out": {"db": "names", "coll": t}},
        {"$merge": t},
        {"$merge": {"into": {"db": t, "coll": "o"}}},
        {"$merge": {"into": "o", "on": t}},
        {"$merge": {"into": "o", "whenMatched": t}},
        {"$match": {"s": t}},
        {"$match": {"s": {"$regex": t}}},
        {"$match": {"s": {"$type": t}}},
        {"$match": {"$jsonSchema": {"required": [t]}}},
        {"$match": {"$jsonSchema": {"title": t, "bsonType": t}}},
        {"$replaceWith": "$" + t},
        {"$redact": {"$literal": t}},
        {"$collStats": {t if "\0" not in t else "x": {}}},
        {"$documents": [{"x": t}]},
        {"$currentOp": {"x": t}},
        {"$sample": {"size": t}},
        {"$planCacheStats": {}},
    ):
        yield s


def updates(t):
    for op in (
        "$set",
        "$unset",
        "$inc",
        "$push",
        "$pull",
        "$addToSet",
        "$rename",
        "$min",
        "$currentDate",
        "$bit",
        "$expire",
        "$setOnInsert",
    ):
        yield {op: {"a": t}}
        yield {op: {"new.field": t}}
    yield {"$push": {"list": {"$each": [t], "$sort": t}}}
    yield {"a": t}
    for e in expressions(t):
        yield [{"$set": {"x": e}}]
    yield [{"$unset": t}]
    yield [{"$replaceWith": {"$setField": {"field": {"$literal": t}, "input": "$$ROOT", "value": "$$ROOT"}}}]
    yield [{"$replaceWith": {"$arrayToObject": [[[t, "$$ROOT"]]]}}]


def commands(t):
    for c in (
        "find",
        "insert",
        "count",
        "distinct",
        "aggregate",
        "create",
        "drop",
        "collStats",
        "validate",
        "listIndexes",
        "planCacheClear",
        "compact",
        "ttlCheck",
        "ttlPause",
    ):
        yield (
            "names",
            {
                c: t,
                **{
                    "insert": {"documents": [{}]},
                    "distinct": {"key": "a"},
                    "aggregate": {"pipeline": [], "cursor": {}},
                }.get(c, {}),
            },
        )
    yield "names", {"distinct": "c", "key": t}
    for k in ("name", "v"):
        yield "names", {"createIndexes": "c", "indexes": [{"key": {"q": 1}, "name": "n", k: t}]}
    yield "names", {"createIndexes": "c", "indexes": [{"key": {"q": t}, "name": "n"}]}
    yield "names", {"dropIndexes": "c", "index": t}
    yield "names", {"collMod": "c", "index": {"name": t, "hidden": True}}
    yield "names", {"create": "k", "clusteredIndex": {"key": {"_id": 1}, "unique": True, "name": t}}
    yield "names", {"validate": "k", "full": True}
    yield "names", {"listIndexes": "k"}
    yield "names", {"explain": {"find": "k", "hint": t}}
    yield "names", {"drop": "k"}
    for on in (
        {"viewOn": t},
        {"viewOn": "c", "pipeline": [{"$unionWith": t}]},
        {"viewOn": "c", "pipeline": [{"$lookup": {"from": t, "localField": "a", "foreignField": "a", "as": "x"}}]},
    ):
        yield "names", {"create": "v", **on}
        yield "names", {"find": "v"}
        yield "names", {"collMod": "v", "viewOn": t, "pipeline": []}
        yield "names", {"listCollections": 1}
        yield "names", {"drop": "v"}
    yield "names", {"create": "e", "expiry": {"field": t}}
    yield "names", {"create": "e", "onExpire": {"action": "archive", "into": {"db": t, "coll": t}}}
    yield "names", {"drop": "e"}
    yield "names", {"find": "c", "hint": t, "comment": t, "let": {"x": t}}
    yield "names", {"find": "c", "readConcern": {"level": t}}
    yield "names", {"insert": "c", "documents": [{"z": t}], "writeConcern": {"w": t}, "comment": t}
    yield "names", {"find": "c", "filter": {"$comment": t, "$expr": {"$eq": ["$" + t, 1]}}}
    yield "names", {"getMore": Int64(5), "collection": t}
    yield "names", {"killCursors": t, "cursors": [Int64(1)]}
    yield "names", {"setDatabaseExpiry": 1, "maxTTL": t}
    yield "names", {"filemd5": ObjectId(), "root": t}
    yield "names", {"profile": 0, "filter": t}
    yield "admin", {"renameCollection": "names." + t, "to": "names.q"}
    yield "admin", {"renameCollection": "names.c", "to": "names." + t}
    yield "admin", {"renameCollection": "names.c", "to": t + ".q"}
    yield "admin", {"dataSize": t + "." + t}
    yield "admin", {"bulkWrite": 1, "ops": [{"insert": 0, "document": {"x": t}}], "nsInfo": [{"ns": "names." + t}]}
    for o in (
        {"create": t},
        {"drop": t},
        {"createIndexes": t, "indexes": []},
        {"create": "k2", "clusteredIndex": {"key": {"_id": 1}, "unique": True, "name": t}},
    ):
        yield "admin", {"applyOps": [{"op": "c", "ns": "names.$cmd", "o": o}]}
        yield "admin", {"applyOps": [{"op": "c", "ns": t + ".$cmd", "o": o}]}
    yield "admin", {"applyOps": [{"op": "i", "ns": "names." + t, "o": {"_id": 1}}]}
    yield "admin", {"applyOps": [{"op": t, "ns": "names.c", "o": {"_id": 1}}]}
    yield "admin", {"configureFailPoint": t, "mode": "off"}
    yield "admin", {"getParameter": t}
    yield "admin", {"getLog": t}
    yield "admin", {"setFeatureCompatibilityVersion": t}
    yield "admin", {"getClusterParameter": t}
    yield "admin", {"currentOp": 1, "x": t}
    yield "admin", {"killOp": 1, "op": t}
    yield "admin", {"hello": 1, "saslSupportedMechs": t}
    yield "admin", {"top": 1}
    yield "admin", {"connectionStatus": 1, "x": t}
    yield (
        "names",
        {"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": t}}, "hint": t, "arrayFilters": [{"e": t}]}]},
    )


def server(folder, *options):
    proc, client = start(f"{folder}/data", *options)
    return proc, Wire(client)


def names():
    with tempfile.TemporaryDirectory() as folder:
        proc, send = server(folder)
        sent = 0

        def ask(db, doc, raw=None):
            nonlocal sent
            sent += 1
            try:
                reply = send(db, doc, raw)
            except Malformed as e:
                check(False, f"{e}: {db} {doc if raw is None else raw}")
                return {}
            except UnicodeError:
                check(False, f"an error that is not UTF-8: {db} {doc}")
                return {}
            check(reply.get("code") != 1, f"{reply.get('errmsg')}: {db} {doc}"[:1000])
            return reply

        try:

            def fresh():
                send("names", {"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
                send(
                    "names",
                    {"insert": "c", "documents": [{"_id": i, "a": i, "s": "text", "d": {"x": 1}} for i in range(3)]},
                )

            for t in HOSTILE:
                fresh()
                for s in stages(t):
                    ask("names", {"aggregate": "c", "pipeline": [s], "cursor": {}})
                    ask(
                        "names",
                        {
                            "explain": {"aggregate": "c", "pipeline": [s], "cursor": {}},
                            "verbosity": rnd.choice(["queryPlanner", "executionStats"]),
                        },
                    )
                for e in expressions(t):
                    ask("names", {"find": "c", "projection": {"x": e}})
                    ask("names", {"find": "c", "filter": {"$expr": e}})
                for u in updates(t):
                    ask("names", {"update": "c", "updates": [{"q": {"_id": 0}, "u": u, "upsert": True}]})
                    ask("names", {"findAndModify": "c", "query": {"_id": 1}, "update": u, "new": True})
                for db, c in commands(t):
                    ask(db, c)
                # The name of a database, and names that no library writes.
                ask("n" + t, {"find": "c"})
                if "\0" not in t:
                    name = t.encode().replace(HOLE.encode(), BAD)
                    one = quoted(name)
                    for head, key in (
                        (b"find", b"filter"),
                        (b"find", b"sort"),
                        (b"find", b"projection"),
                        (b"count", b"query"),
                        (b"find", b"let"),
                    ):
                        inner = (
                            b"\x02"
                            + head
                            + b"\0"
                            + struct.pack("<i", 2)
                            + b"c\0"
                            + b"\x03"
                            + key
                            + b"\0"
                            + one
                            + b"\x02$db\0"
                            + struct.pack("<i", 6)
                            + b"names\0\0"
                        )
                        ask("", {}, struct.pack("<i", 4 + len(inner)) + inner)
                # What is stored reads as BSON.
                ask("names", {"find": "c"})
                # It may have been renamed.
                valid = ask("names", {"validate": "c", "full": True})
                check(valid.get("valid") is True or valid.get("code") == 26, f"c after {t!r}: {valid}")
                for c in ask("names", {"listCollections": 1}).get("cursor", {}).get("firstBatch", []):
                    check(c["name"] != "" and "\0" not in c["name"] and c["name"].encode(), f"collection {c['name']!r}")
                    if c["name"] != "c":
                        ask("names", {"drop": c["name"]})
            names = [d["name"] for d in ask("admin", {"listDatabases": 1})["databases"]]
            check(all(n != "" and "\0" not in n and n.encode() for n in names), f"databases {names}")
            print(f"     {sent} commands", flush=True)
        finally:
            code = stop(proc)
        check(
            code == 0, f"the server ended with {code}: " + open(f"{folder}/data.log", errors="replace").read()[-2000:]
        )


def undecodable():
    with tempfile.TemporaryDirectory() as folder:
        proc, send = server(folder)
        try:
            odd = [HOLE, "a" + HOLE, HOLE + "z", "a", "b"]
            raw = lambda s: s.encode().replace(HOLE.encode(), BAD)
            back = lambda s: s.encode(errors="surrogateescape")
            r = send("bytes", {"insert": "c", "documents": [{"_id": s, "s": s, "list": [s]} for s in odd]})
            check(r["ok"] == 1 and r["n"] == 5, f"strings of any bytes are stored {r}")
            in_order = sorted(raw(s) for s in odd)
            for index in (False, True):
                if index:
                    check(
                        send(
                            "bytes",
                            {
                                "createIndexes": "c",
                                "indexes": [{"key": {"s": 1}, "name": "s"}, {"key": {"list": 1}, "name": "l"}],
                            },
                        )["ok"]
                        == 1,
                        "an index over them",
                    )
                rows = send("bytes", {"find": "c", "sort": {"s": 1}})["cursor"]["firstBatch"]
                check([back(d["s"]) for d in rows] == in_order, f"sorted by their bytes, index: {index}")
                for s in odd:
                    rows = send("bytes", {"find": "c", "filter": {"s": s}})["cursor"]["firstBatch"]
                    check([back(d["s"]) for d in rows] == [raw(s)], f"{s!r} is found, index: {index}")
                    check(send("bytes", {"count": "c", "query": {"list": s}})["n"] == 1, f"{s!r} is found in an array")
                    check(
                        back(send("bytes", {"find": "c", "filter": {"_id": s}})["cursor"]["firstBatch"][0]["_id"])
                        == raw(s),
                        f"{s!r} as an _id",
                    )
            check(
                [back(v) for v in send("bytes", {"distinct": "c", "key": "s"})["values"]] == in_order
                or sorted(back(v) for v in send("bytes", {"distinct": "c", "key": "s"})["values"]) == in_order,
                "distinct",
            )
            rows = send(
                "bytes", {"aggregate": "c", "pipeline": [{"$group": {"_id": "$s", "n": {"$sum": 1}}}], "cursor": {}}
            )["cursor"]["firstBatch"]
            check(sorted(back(d["_id"]) for d in rows) == in_order, "grouped by")
            check(
                send("bytes", {"count": "c", "query": {"s": {"$regex": "^a"}}})["n"] == 2,
                "a regular expression beside them",
            )
            one = lambda e: send(
                "bytes",
                {"aggregate": "c", "pipeline": [{"$match": {"_id": "a" + HOLE}}, {"$project": {"v": e}}], "cursor": {}},
            )
            check(one({"$strLenBytes": "$s"})["cursor"]["firstBatch"][0]["v"] == 4, "$strLenBytes")
            check(
                one({"$strLenCP": "$s"})["cursor"]["firstBatch"][0]["v"] == 4,
                "$strLenCP: a byte that is no part of a character counts as one",
            )
            check(
                back(one({"$concat": ["$s", "!"]})["cursor"]["firstBatch"][0]["v"]) == raw("a" + HOLE + "!"), "$concat"
            )
            check(one({"$toUpper": "$s"})["ok"] == 1 and one({"$split": ["$s", "a"]})["ok"] == 1, "other operators")
            # A name, too.
            doc = b"\x10_id\0" + struct.pack("<i", 77) + b"\x10n" + BAD + b"\0" + struct.pack("<i", 1) + b"\0"
            doc = struct.pack("<i", 4 + len(doc)) + doc
            body = (
                b"\x02insert\0\x02\0\0\0c\0\x04documents\0"
                + struct.pack("<i", len(doc) + 8)
                + b"\x030\0"
                + doc
                + b"\0\x02$db\0\x06\0\0\0bytes\0\0"
            )
            check(send("", {}, struct.pack("<i", 4 + len(body)) + body).get("n") == 1, "a name of any bytes is stored")
            check(send("bytes", {"count": "c", "query": {"_id": 77}})["n"] == 1, "and its document found")
            # Errors quote them in a way that every driver can read.
            r = send("bytes", {"insert": "c", "documents": [{"_id": "a" + HOLE}]})
            text = r["writeErrors"][0]["errmsg"]
            check(
                r["writeErrors"][0]["code"] == 11000 and text.encode() and "\ufffd" in text,
                f"a duplicate key: {text!r}",
            )
            r = send("bytes", {HOLE: 1})
            check(r["code"] == 59 and r["errmsg"].encode(), f"an unknown command {r}")
            for c, want in (
                ({"find": "x" + HOLE}, 73),
                ({"insert": "x" + HOLE, "documents": [{}]}, 73),
                ({"createIndexes": "c", "indexes": [{"key": {"q": 1}, "name": HOLE}]}, 67),
            ):
                r = send("bytes", c)
                check(r.get("code") == want, f"{c}: {r}")
            check(send("d" + HOLE, {"find": "c"}).get("code") == 73, "the name of a database")
            check(send("admin", {"setParameter": 1, "logLevel": 1})["ok"] == 1, "")
            send("bytes", {"find": "c", "filter": {"s": HOLE}, "comment": HOLE})
            check(send("bytes", {"validate": "c", "full": True})["valid"] is True, "validate")
        finally:
            check(stop(proc) == 0, "the server ends well")
        log = open(f"{folder}/data.log", "rb").read()
        log.decode()
        for line in log.decode().split("\n"):
            if line.startswith("{"):
                json.loads(line)


def restore():
    uuid = Binary(bytes(range(16)), 4)
    with tempfile.TemporaryDirectory() as folder:
        proc, send = server(folder)
        try:
            # mongorestore --preserveUUID makes collections so.
            r = send(
                "admin",
                {
                    "applyOps": [
                        {
                            "op": "c",
                            "ns": "r.$cmd",
                            "ui": uuid,
                            "o": {"create": "c", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}},
                        }
                    ]
                },
            )
            check(r.get("ok") == 1, f"create with a UUID: {r}")
            info = send("r", {"listCollections": 1})["cursor"]["firstBatch"][0]["info"]
            check(
                bytes(info["uuid"].bytes if hasattr(info["uuid"], "bytes") else info["uuid"]) == bytes(uuid),
                f"the collection has it: {info}",
            )
            # --oplogReplay: entries as a member wrote them.
            stamp = {"ts": bson.Timestamp(5, 1), "t": Int64(1), "v": 2, "wall": bson.datetime_ms.DatetimeMS(0)}
            ops = [
                {"op": "i", "ns": "r.c", "ui": uuid, "o": {"_id": 1, "a": 1}, "o2": {"_id": 1}, **stamp},
                {
                    "op": "u",
                    "ns": "r.c",
                    "ui": uuid,
                    "o": {"$v": 2, "diff": {"u": {"a": 2}}},
                    "o2": {"_id": 1},
                    **stamp,
                },
                {"op": "u", "ns": "r.c", "ui": uuid, "o": {"$v": 1, "$set": {"b": HOLE}}, "o2": {"_id": 1}, **stamp},
                {"op": "i", "ns": "r.c", "ui": uuid, "o": {"_id": 2}, **stamp},
                {"op": "d", "ns": "r.c", "ui": uuid, "o": {"_id": 2}, **stamp},
                {"op": "n", "ns": "", "o": {"msg": "periodic noop"}, **stamp},
                {
                    "op": "c",
                    "ns": "r.$cmd",
                    "ui": uuid,
                    "o": {"createIndexes": "c", "v": 2, "key": {"a": 1}, "name": "a_1"},
                    **stamp,
                },
            ]
            for entry in ops:
                r = send("admin", {"applyOps": [entry], "bypassDocumentValidation": True})
                check(r.get("ok") == 1, f"{entry}: {r}")
            d = send("r", {"find": "c"})["cursor"]["firstBatch"]
            check(
                len(d) == 1 and d[0]["a"] == 2 and d[0]["b"].encode(errors="surrogateescape") == BAD,
                f"what is there then: {d}",
            )
            # A validator does not stop what was valid where it was written.
            send("r", {"collMod": "c", "validator": {"a": {"$type": "string"}}})
            r = send(
                "admin",
                {"applyOps": [{"op": "i", "ns": "r.c", "o": {"_id": 3, "a": 3}}], "bypassDocumentValidation": True},
            )
            check(r.get("ok") == 1, f"an entry against a validator: {r}")
            check(
                send("admin", {"applyOps": [], "bypassDocumentValidation": "x"}).get("code") == 14,
                "bypassDocumentValidation is a boolean",
            )
            # Dumps restore collections in any order: an archive after what it archives.
            late = {"create": "late", "onExpire": {"action": "archive", "into": {"db": "r", "coll": "old"}}}
            check(send("r", late).get("ok") == 1, "an archive that is not there yet")
            send("r", {"createIndexes": "late", "indexes": [{"key": {"d": 1}, "name": "d", "expireAfterSeconds": 10}]})
            r = send("r", {"ttlCheck": "late"})
            check(r.get("archive") == {"into": "r.old", "problem": "it does not exist"}, f"ttlCheck says so: {r}")
            check(
                send(
                    "r", {"create": "old", "onExpire": {"action": "archive", "into": {"db": "r", "coll": "late"}}}
                ).get("code")
                == 5,
                "a cycle by an archive that comes later",
            )
            check(
                send("r", {"create": "old"}).get("ok") == 1
                and send("r", {"ttlCheck": "late"}).get("archive") == {"into": "r.old"},
                "and no problem when it is there",
            )
        finally:
            check(stop(proc) == 0, "the server ends well")


run_parts("names", (names, undecodable, restore), check)
