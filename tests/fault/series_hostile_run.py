#!/usr/bin/env python3
"""Buckets that a hostile client restores, and sealing among what else happens to a time series.

    damaged     bytes of sealed buckets turned, cut, put in, and control, meta and _id that lie: each is refused, or
                reads as it says
    bombs       a few bytes that say they are many points, or large ones, from several clients at once
    rewritten   buckets are not changed in their place by updates, replacements, findAndModify, $merge and pipelines
    many_points_of_one_large_value
                an update whose value each point would have
    older       buckets from before sealing
    replaced    a name that is an ordinary collection, nothing and a series in turn while others write to it
    races       inserts and sealing beside collMod, updates, deletes, index builds, validate, a clock that moves

MAYFLY_HOSTILE_BUCKETS (400) is how many damaged ones are tried; MAYFLY_SEED repeats the random choices. Parts can be
named. The last line says "N passed, N failed".
"""

import datetime, os, struct, tempfile, threading

import bson
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from fault_test import Checks, Client, discard, memory_mb, rnd, run_parts, start, stop, wait_for

TRIES = int(os.environ.get("MAYFLY_HOSTILE_BUCKETS", "400"))
BEGIN = 1_893_456_000_000  # 2030-01-01
SERIES = {"timeField": "t", "metaField": "m"}
check = Checks(quiet=True)


class Server:
    def __init__(self, *options):
        self.folder = tempfile.mkdtemp(prefix="mayfly-hostile-series-")
        self.proc, self.client = start(self.folder + "/db", *options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        check(self.proc.poll() is None, "the server is there at the end")
        check(stop(self.proc) == 0, "it stops by itself")
        discard(self.folder)

    def connect(self):
        return Client("127.0.0.1", self.proc.port)

    def ask(self, command, client=None):
        return (client or self.client).command("test", command)

    def ok(self, command):
        reply = self.ask(command)
        assert reply["ok"] == 1 and not reply.get("writeErrors"), str(reply)[:500]
        return reply

    def rows(self, command):
        return self.ok(command)["cursor"]["firstBatch"]

    def advance(self, seconds):
        reply = self.client.command("admin", {"clock": {"advanceSeconds": seconds}})
        assert reply["ok"] == 1, reply


def refusal(reply):
    """Its code, of a command or of its first write; 0: it did what it was told."""
    if reply["ok"] != 1:
        return reply["code"]
    return reply["writeErrors"][0]["code"] if reply.get("writeErrors") else 0


def sealed_buckets(s):
    """Of several shapes: numbers of all types, texts, documents, arrays, fields that are missing."""
    s.ok({"create": "from", "timeseries": SERIES})
    for meta in ("a", {"k": [1, None]}, None):
        docs = []
        for i in range(120):
            d = {"_id": i, "t": DatetimeMS(BEGIN + i * 1000 + rnd.randrange(900)), "v": rnd.random(), "n": i * i}
            d["w"] = rnd.choice([None, "text", 5, {"x": i}, [i, {"y": 1}], bson.Int64(i), Binary(b"b" * 5)])
            if i % 3 == 0:
                d["late"] = {"p": {"q": rnd.random()}}
            if meta is not None:
                d["m"] = meta
            docs.append(d)
        for at in range(0, len(docs), 10):
            s.ok({"insert": "from", "documents": docs[at : at + 10]})
    s.advance(60)
    out = s.rows({"find": "system.buckets.from", "batchSize": 1000})
    assert len(out) < 12, len(out)
    return out


def turned(data):
    data = bytearray(data)
    for _ in range(rnd.randint(1, 3)):
        at = rnd.randrange(len(data))
        kind = rnd.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rnd.randrange(8)
        elif kind == 1:
            data[at] = rnd.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            del data[at : at + rnd.randint(1, 20)]
        elif kind == 3:
            data[at:at] = bytes(rnd.randrange(256) for _ in range(rnd.randint(1, 10)))
        else:
            data[at:at] = b"\xff" * rnd.randint(1, 9) + b"\x01"
        data = data or bytearray(b"\1")
    return bytes(data)


def lie(b):
    """The bucket with something in it that is not so."""
    b = bson.decode(bson.encode(b))
    kind = rnd.randrange(12)
    c = b["control"]
    if kind < 5:
        b["data"] = Binary(turned(b["data"]), 128)
    elif kind == 5:
        c["count"] = rnd.choice([0, -1, 1, 65536, 65537, 1 << 31, 1 << 62, 120.5, "x", None])
    elif kind == 6:
        c["version"] = rnd.choice([0, 1, 2, 3, 127, 129, 128.0, "128", None, -128])
    elif kind == 7:
        side = c[rnd.choice(["min", "max"])]
        side[rnd.choice(["v", "n", "t", "_id", "new"])] = rnd.choice([0, 1e300, "z", None, DatetimeMS(BEGIN + 5)])
    elif kind == 8:
        b["meta"] = rnd.choice([None, "b", {"k": [1]}, [], bson.Regex("x")])
    elif kind == 9:
        b["_id"] = rnd.choice([1, bson.ObjectId(b"\0" * 12), bson.ObjectId(b"\xff" * 12), "x"])
    elif kind == 10:
        b["data"] = rnd.choice([Binary(b"", 128), Binary(b["data"], 0), {}, "x", None, {"t": {"0": 1}}])
    else:
        b.pop(rnd.choice(["control", "data", "_id"]))
    return b


def damaged():
    with Server("--testClock") as s:
        s.client.command("admin", {"clock": {"set": datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)}})
        s.ok({"create": "to", "timeseries": SERIES})
        buckets = sealed_buckets(s)
        for b in buckets:
            s.ok({"insert": "system.buckets.to", "documents": [b]})
        points = s.rows({"find": "to", "batchSize": 10000})
        check(points == s.rows({"find": "from", "batchSize": 10000}), "what is restored is what was there")
        taken = 0
        for n in range(TRIES):
            s.ok({"delete": "system.buckets.to", "deletes": [{"q": {}, "limit": 0}]})
            b = lie(rnd.choice(buckets))
            code = refusal(s.ask({"insert": "system.buckets.to", "documents": [b]}))
            if code != 0:
                check(code in (2, 10334), f"refused by {code}: {str(b)[:300]}")
                continue
            taken += 1
            reply = s.ask({"find": "to", "batchSize": 70000})
            check(reply["ok"] == 1, f"what was taken can be read: {str(reply)[:300]}")
            if reply["ok"] != 1:
                continue
            rows = reply["cursor"]["firstBatch"]
            there = s.rows({"find": "system.buckets.to"})[0]
            check(len(rows) == s.ok({"count": "to"})["n"] > 0, f"as many as are counted: {len(rows)}")
            check(there["control"].get("count", len(rows)) == len(rows), "as many as control says")
            for field in ("v", "n"):
                values = [r[field] for r in rows if type(r.get(field)) in (int, float)]
                kinds = {type(r.get(field)) for r in rows}
                if len(values) < len(rows) or len(kinds) > 1:
                    continue
                most = s.rows({"aggregate": "to", "cursor": {}, "pipeline": [
                    {"$group": {"_id": "$m", "x": {"$max": f"${field}"}}}]})
                check(max(m["x"] for m in most) == max(values), f"the greatest {field} is that of the points")
            s.advance(1)
        print(f"     {TRIES} lies, {taken} of them were none")


def varint(n):
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def text(b):
    return varint(len(b)) + b


def packed(raw_size, fill=b"\0", claim=None):
    """bytes:compressed, of `raw_size` bytes that are all the same: a frame of zstd of which each block is one byte and
    how often it comes."""
    frame, left = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", raw_size), raw_size
    while left:
        n = min(left, 1 << 17)
        left -= n
        frame += struct.pack("<I", (left == 0) | 1 << 1 | n << 3)[:3] + fill
    return varint(raw_size if claim is None else claim) + text(frame)


def plain(data):
    """bytes:compressed, as they are."""
    return varint(len(data)) + text(data)


def columns(n, paths, steps, column_bytes):
    """One shape; `paths`: names of top-level fields."""
    out = b"\1\1" + varint(n) + varint(len(paths)) + b"".join(varint(0) + text(p) for p in paths)
    out += varint(1) + varint(len(steps)) + b"".join(varint(x) for x in steps)
    return out + b"".join(varint(len(c)) for c in column_bytes) + b"".join(column_bytes)


def same_time(n):
    """The column of dates that are all BEGIN + 1000."""
    v = (BEGIN + 1000) << 1
    return b"\1\x09" + bytes([0 | 3 << 4]) + varint(v)


def bucket(data, count, **more):
    t = DatetimeMS(BEGIN)
    control = {"version": 128, "min": {"t": t}, "max": {"t": DatetimeMS(BEGIN + 1000)}, "count": count}
    return {"_id": bson.ObjectId(struct.pack(">I", BEGIN // 1000) + os.urandom(8)), "control": control, **more,
            "data": Binary(data, 128)}


def bombs():
    large = "x" * (14 << 20)
    most = 65536
    wide = [f"f{i}".encode() for i in range(4000)]
    list_of = {
        "billions of points": bucket(b"\1\1" + varint(1 << 40), 1),
        "as many as may be, of no field": bucket(columns(most, [b"t"], [], []), most),
        "as many as may be, of 4,000 fields": bucket(
            columns(most, [b"t", *wide], [2, *range(4, 2 * 4001, 2)], [same_time(most)] + [b"\1\x0a"] * 4000), most
        ),
        "as many as may be, each with a large meta value": bucket(
            columns(most, [b"t", b"m"], [2, 4], [same_time(most), b"\0"]), most, meta=large
        ),
        "rows, each with a large meta value": bucket(
            b"\1\2" + varint(most) + text(b"m")
            + plain((b"\x13\0\0\0\x09t\0" + b"\0" * 8 + b"\x0am\0\0") * most),
            most, meta=large,
        ),
        "rows of 2 GiB": bucket(b"\1\0" + varint(most) + packed(1 << 20, claim=1 << 31), most),
        "rows of 100 MiB": bucket(b"\1\0" + varint(most) + packed(100 << 20), most),
        "one text that is said to be 4 GiB": bucket(
            columns(most, [b"t", b"v"], [2, 4], [same_time(most), b"\1\2\1\1" + b"\x30" + varint(1 << 33)
                                               + packed(1 << 20, claim=1 << 32) + b"\0"]), most
        ),
        "a text of 1 MiB, many times": bucket(
            columns(most, [b"t", b"v"], [2, 4], [same_time(most), b"\1\2\1\1" + b"\x30" + varint(2 << 20)
                                               + packed(1 << 20, b"x") + b"\0"]), most
        ),
        "paths that go down for ever": bucket(
            b"\1\1" + varint(1) + varint(300) + b"".join(varint(i) + text(b"a") for i in range(300)), 1
        ),
        "a shape that ends more than it began": bucket(columns(1, [b"t"], [2, 1, 1, 1], [same_time(1)]), 1),
        "shapes without end": bucket(b"\1\1" + varint(most) + b"\1\0" + text(b"t") + varint(most) + b"\0" * most, most),
    }
    with Server() as s:
        s.ok({"create": "to", "timeseries": SERIES})
        right = bucket(columns(3, [b"t"], [2], [same_time(3)]), 3)
        taken = refusal(s.ask({"insert": "system.buckets.to", "documents": [right]})) == 0
        check(taken, "the bytes of this test are right")
        check(len(s.rows({"find": "to"})) == 3, "and are three points")
        for what, b in list_of.items():
            code = refusal(s.ask({"insert": "system.buckets.to", "documents": [b]}))
            check(code in (2, 146, 10334), f"{what}: {code}")
        before = most_mb(s)
        clients = [s.connect() for _ in range(8)]
        codes = set()

        def throw(client):
            for _ in range(3):
                for b in list_of.values():
                    codes.add(refusal(s.ask({"insert": "system.buckets.to", "documents": [b]}, client)))

        threads = [threading.Thread(target=throw, args=(c,)) for c in clients]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(codes <= {2, 146, 10334}, f"codes of many at once: {codes}")
        check(len(s.rows({"find": "to"})) == 3, "nothing came of it")
        print(f"     {len(list_of)} bombs; resident at most {most_mb(s)} MiB, {before} before")


def most_mb(s):
    return memory_mb(s.proc.pid, "VmHWM")


def rewritten():
    with Server("--testClock") as s:
        s.ok({"create": "to", "timeseries": SERIES})
        for i in range(20):
            s.ok({"insert": "to", "documents": [{"_id": i, "t": DatetimeMS(BEGIN + i), "m": "a", "v": i}]})
        s.advance(60)
        before = s.rows({"find": "to"})
        b = s.rows({"find": "system.buckets.to"})[0]
        of = "system.buckets.to"
        false = {"$set": {"control.max.v": -1}}
        ways = {
            "an update": {"update": of, "updates": [{"q": {}, "u": false}]},
            "a replacement": {"update": of, "updates": [{"q": {}, "u": {"control": 1}}]},
            "an upsert": {"update": of, "updates": [{"q": {"_id": bson.ObjectId()}, "u": false, "upsert": True}]},
            "a pipeline": {"update": of, "updates": [{"q": {}, "u": [{"$set": {"control.count": 1}}]}]},
            "findAndModify": {"findAndModify": of, "query": {}, "update": false},
            "$merge": {"aggregate": of, "cursor": {}, "pipeline": [{"$set": {"control.max.v": -1}}, {"$merge": of}]},
            "$out": {"aggregate": of, "cursor": {}, "pipeline": [{"$out": of}]},
            "a larger count": {"insert": of, "documents": [{**b, "control": {**b["control"], "count": 21}}]},
        }
        for what, command in ways.items():
            check(refusal(s.ask(command)) != 0, f"{what} is refused")
            check(s.rows({"find": "to"}) == before, f"{what} changed nothing")
            check(s.rows({"find": "to", "filter": {"v": 19}}) == before[19:], f"{what}: queries find the same")


def many_points_of_one_large_value():
    """An update would have written a large meta value into each of a thousand points."""
    with Server("--testClock") as s:
        s.ok({"create": "to", "timeseries": SERIES})
        s.ok({"insert": "to", "documents": [{"_id": i, "t": DatetimeMS(BEGIN + i), "m": "a"} for i in range(1000)]})
        for sealed in (False, True):
            large = {"q": {}, "u": {"$set": {"m": {"text": "x" * (8 << 20)}}}, "multi": True}
            check(refusal(s.ask({"update": "to", "updates": [large]})) == 10334, f"refused ({sealed})")
            check(most_mb(s) < 1024, f"{most_mb(s)} MiB were resident")
            check(s.ok({"count": "to", "query": {"m": "a"}})["n"] == 1000, "nothing was changed")
            s.advance(60)


def by_field(meta, second, values):
    """A bucket as servers before sealing stored it, and as tools dump it from elsewhere."""
    t = DatetimeMS(BEGIN + second // 60 * 60_000)
    last = DatetimeMS(BEGIN + (second + len(values) - 1) * 1000)
    return {
        "_id": bson.ObjectId(struct.pack(">I", int(t) // 1000) + os.urandom(8)),
        "control": {"version": 1, "min": {"_id": second, "t": t, "v": min(values)},
                    "max": {"_id": second + len(values) - 1, "t": last, "v": max(values)}},
        "meta": meta,
        "data": {
            "_id": {str(i): second + i for i in range(len(values))},
            "t": {str(i): DatetimeMS(BEGIN + (second + i) * 1000) for i in range(len(values))},
            "v": {str(i): v for i, v in enumerate(values)},
        },
    }


def older():
    """Buckets from before sealing are read as they are, and found and sealed after a start."""
    with Server("--testClock") as s:
        s.ok({"create": "to", "timeseries": SERIES})
        s.ok({"createIndexes": "to", "indexes": [{"key": {"v": 1}, "name": "v"}]})
        for n in range(60):
            values = [rnd.random() for _ in range(5)]
            s.ok({"insert": "system.buckets.to", "documents": [by_field({"h": n % 3}, n * 20, values)]})
        all_of = {"find": "to", "sort": {"_id": 1}, "batchSize": 10000}
        high = {**all_of, "filter": {"v": {"$gt": 0.9}}}
        sorted_fields = lambda rows: [sorted(r.items(), key=str) for r in rows]
        before = [sorted_fields(s.rows(q)) for q in (all_of, high)]
        check(len(before[0]) == 300, f"{len(before[0])} points")
        check(stop(s.proc) == 0, "it stops by itself")
        s.proc, s.client = start(s.folder + "/db", "--testClock")
        check([sorted_fields(s.rows(q)) for q in (all_of, high)] == before, "the same after a start")
        s.advance(60)
        versions = s.ok({"distinct": "system.buckets.to", "key": "control.version"})["values"]
        check(versions == [128], f"all are sealed: {versions}")
        n = s.ok({"count": "system.buckets.to"})["n"]
        check(n == 3, f"{n} buckets of three meta values within an hour")
        check([sorted_fields(s.rows(q)) for q in (all_of, high)] == before, "and the same when they are sealed")
        check(s.ok({"validate": "to", "full": True})["valid"], "validate")


def replaced():
    """A name is an ordinary collection, nothing and a time series in turn while others write to it: no document is
    stored among buckets as it is, which would end every later read of the series."""
    with Server() as s:
        end, codes, made, stored = threading.Event(), set(), [0], [0]
        begin = DatetimeMS(BEGIN)

        def work(*commands):
            client = s.connect()
            while not end.is_set():
                for c in commands:
                    reply = client.command("test", c)
                    if "create" in c:
                        made[0] += reply["ok"] == 1
                    if "find" in c:
                        codes.add(refusal(reply))
                    stored[0] += reply.get("n", 0)

        points = [{"t": begin, "m": 1, "v": i} for i in range(20)]
        upsert = {"q": {"v": -1}, "u": {"$set": {"t": begin}, "$inc": {"n": 1}}, "upsert": True}
        drops = [{"drop": "s"}, {"create": "s", "timeseries": SERIES}, {"find": "s", "batchSize": 1000}]
        threads = [
            threading.Thread(target=work, args=commands)
            for commands in (
                drops,
                drops,
                drops,
                [{"insert": "s", "documents": points}],
                [{"insert": "s", "documents": points[:1]}, {"find": "s", "batchSize": 1000}],
                [{"update": "s", "updates": [upsert]}],
            )
        ]
        for t in threads:
            t.start()
        wait_for(lambda: made[0] > 200 and stored[0] > 200, 60)
        end.set()
        for t in threads:
            t.join()
        check(made[0] > 200 and stored[0] > 200, f"{made[0]} time series, {stored[0]} documents stored meanwhile")
        check(codes <= {0, 26, 175, 276}, f"reads were answered with {sorted(codes)}")


def races():
    with Server("--testClock", "--setParameter", "timeSeriesSealIdleSecs=0") as s:
        end, odd = threading.Event(), []
        expected = {0, 26, 27, 11000, 48, 72, 73, 85, 112, 175, 228, 276, 11601, 86, 239, 237}

        def work(f):
            client = s.connect()
            while not end.is_set():
                reply = f(client)
                code = refusal(reply)
                if code not in expected:
                    odd.append((code, str(reply)[:300]))

        sent = [0]

        def insert(client):
            sent[0] += 1
            docs = [{"_id": sent[0], "t": DatetimeMS(BEGIN + rnd.randrange(7_200_000)), "m": rnd.randrange(5), "v": i}
                    for i in range(rnd.choice([1, 1, 20]))]
            return client.command("test", {"insert": "s", "documents": docs})

        create = {"create": "s", "timeseries": {**SERIES, "granularity": "seconds"}, "expireAfterSeconds": 1 << 30}

        def some(*commands):
            return lambda c: c.command("test", rnd.choice(commands))

        def read(client):
            reply = client.command("test", {"find": "s", "batchSize": 50})
            while reply["ok"] == 1 and reply["cursor"]["id"]:
                reply = client.command("test", {"getMore": reply["cursor"]["id"], "collection": "s", "batchSize": 50})
            return reply

        s.ok(create)
        tasks = [
            insert, insert, insert, read,
            some({"collMod": "s", "timeseries": {"granularity": "minutes"}},
                 {"collMod": "s", "expireAfterSeconds": "off"}, {"collMod": "s", "expireAfterSeconds": 1 << 30}),
            some({"update": "s", "updates": [{"q": {"m": 1}, "u": {"$set": {"m": 2}}, "multi": True}]},
                 {"delete": "s", "deletes": [{"q": {"v": {"$lt": 3}}, "limit": 0}]},
                 {"delete": "s", "deletes": [{"q": {"m": 3}, "limit": 1}]}),
            some({"createIndexes": "s", "indexes": [{"key": {"v": 1}, "name": "v"}]},
                 {"dropIndexes": "s", "index": "v"}, {"validate": "s"}, {"collStats": "s"}),
            lambda c: c.command("admin", {"clock": {"advanceSeconds": 1}}),
        ]
        threads = [threading.Thread(target=work, args=(t,)) for t in tasks]
        for t in threads:
            t.start()
        wait_for(lambda: sent[0] > 3000, 60)
        end.set()
        for t in threads:
            t.join()
        check(not odd, f"answers that none should get: {odd[:3]}")
        s.ok({"insert": "s", "documents": [{"t": DatetimeMS(BEGIN), "m": 1}]})
        s.advance(5)
        v = s.ok({"validate": "s", "full": True})
        check(v["valid"], f"validate: {str(v)[:500]}")
        rows = s.rows({"find": "s", "batchSize": 100000})
        check(len(rows) == s.ok({"count": "s"})["n"], "as many as are counted")
        twice = len(rows) - len({(r.get("_id"), r["v"]) for r in rows if "v" in r}) - sum("v" not in r for r in rows)
        check(twice == 0, f"{twice} points are there twice")
        print(f"     {sent[0]} inserts")


run_parts("hostile series", [damaged, bombs, rewritten, many_points_of_one_large_value, older, races, replaced], check)
