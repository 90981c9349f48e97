#!/usr/bin/env python3
"""Random points of all BSON types in a time series and in an ordinary collection: both have the same bytes at any time,
while buckets are merged at random moments, points are deleted and meta values changed.

    tests/model/time_series_model.py [--rounds N] [--seed N]

The clock is the test's: moving it lets all merge that waits. MAYFLYD names another binary.
"""

import argparse, datetime, random, socket, struct, sys, tempfile
from pathlib import Path

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fault"))
from fault_test import Checks, discard, start, stop

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--seed", type=int, default=None)
args = parser.parse_args()
seed = args.seed if args.seed is not None else random.randrange(1 << 30)
rnd = random.Random(seed)
check = Checks(quiet=True)
BEGIN = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
RAW = CodecOptions(document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO)
# Documents may name a field twice, and NaN may have a payload: so values are bytes.
PLAIN = [
    (1, lambda: rnd.choice([struct.pack("<Q", 0x7FF8000000000001 + rnd.randrange(3)), struct.pack("<d", -0.0)])),
    (1, lambda: struct.pack("<d", rnd.choice([rnd.random(), rnd.randrange(100) / 10, 1e300, float("-inf")]))),
    (2, lambda: text(rnd.choice(["", "a", "b" * 40, "\0", "é"]))),
    (5, lambda: binary(rnd.randbytes(rnd.randrange(9)), rnd.choice([0, 5, 128]))),
    (6, lambda: b""),
    (7, lambda: rnd.randbytes(12)),
    (8, lambda: rnd.choice([b"\0", b"\1"])),
    (9, lambda: struct.pack("<q", rnd.choice([0, -1, 1 << 62, rnd.randrange(1 << 41)]))),
    (10, lambda: b""),
    (11, lambda: rnd.choice([b"a\0i\0", b"\0\0"])),
    (12, lambda: text("a.b") + rnd.randbytes(12)),
    (13, lambda: text("f()")),
    (14, lambda: text("sym")),
    (15, lambda: code_with_scope()),
    (16, lambda: struct.pack("<i", rnd.choice([0, -(1 << 31), rnd.randrange(1000)]))),
    (17, lambda: rnd.randbytes(8)),
    (18, lambda: struct.pack("<q", rnd.choice([1, -(1 << 63), rnd.randrange(1 << 40)]))),
    (19, lambda: struct.pack("<qq", rnd.randrange(1 << 30), rnd.choice([0x3040000000000000, 0x303C000000000000]))),
    (255, lambda: b""),
    (127, lambda: b""),
]


def text(s):
    s = s.encode()
    return struct.pack("<i", len(s) + 1) + s + b"\0"


def binary(b, subtype):
    return struct.pack("<i", len(b)) + bytes([subtype]) + b


def code_with_scope():
    inside = text("f") + document([])
    return struct.pack("<i", len(inside) + 4) + inside


def document(fields):
    body = b"".join(bytes([t]) + name.encode() + b"\0" + value for name, t, value in fields)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def value(depth=2):
    kind = rnd.randrange(len(PLAIN) + 2)
    if kind < len(PLAIN) or depth == 0:
        t, make = PLAIN[kind % len(PLAIN)]
        return t, make()
    names = [str(i) for i in range(rnd.randrange(4))] if kind == len(PLAIN) else rnd.choices("xyz", k=rnd.randrange(4))
    fields = [(n, *value(depth - 1)) for n in names]
    return (4 if kind == len(PLAIN) else 3), document(fields)


METAS = [None] + [value(1) for _ in range(6)] + [(16, struct.pack("<i", 1)), (1, struct.pack("<d", 1.0))]
METAS = [m for m in METAS if m is None or m[0] not in (4, 6, 11)]  # filters would see more in these than one value


def point(number):
    t = BEGIN + datetime.timedelta(milliseconds=rnd.randrange(7_200_000))
    millis = int((t - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)).total_seconds() * 1000)
    fields = [("_id", 16, struct.pack("<i", number)), ("t", 9, struct.pack("<q", millis))]
    meta = rnd.choice(METAS)
    if meta:
        fields.insert(rnd.randrange(1, 3), ("m", *meta))
    for name in rnd.sample("abcd", rnd.randrange(5)):
        fields.append((name, *(value() if rnd.random() < 0.5 else (1, struct.pack("<d", rnd.randrange(50) / 2)))))
    if rnd.random() < 0.05:
        fields.append(rnd.choice([("a", 10, b""), ("b", *value())]))  # perhaps for the second time
    return document(fields)


class Wire:
    """Documents go and come as the bytes that they are."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))

    def send(self, command, documents=()):
        body = b"\0\0\0\0\0" + bson.encode({**command, "$db": "model"})
        if documents:
            part = b"documents\0" + b"".join(documents)
            body += b"\1" + struct.pack("<I", len(part) + 4) + part
        self.socket.sendall(struct.pack("<iiii", len(body) + 16, 1, 0, 2013) + body)
        size = struct.unpack("<i", self.receive(4))[0]
        return bson.decode(self.receive(size - 4)[17:], RAW)

    def receive(self, n):
        out = b""
        while len(out) < n:
            part = self.socket.recv(n - len(out))
            assert part, "the server has gone"
            out += part
        return out

    def all_of(self, command, batch):
        """The bytes of each document, by its _id; and how many there were."""
        reply = self.send({**command, "batchSize": batch})
        out, n = {}, 0
        while True:
            assert reply["ok"] == 1, str(dict(reply))[:500]
            cur = reply["cursor"]
            docs = cur["firstBatch"] if "firstBatch" in cur else cur["nextBatch"]
            for d in docs:
                out[d["_id"]] = d.raw
                n += 1
            if not cur["id"]:
                return out, n
            if rnd.random() < 0.2:
                seal()
            reply = self.send({"getMore": cur["id"], "collection": command["find"], "batchSize": batch})


work = tempfile.mkdtemp(prefix="mayfly-series-model-")
proc, client = start(work + "/data", "--testClock", "--setParameter", "timeSeriesCursorLifeSecs=86400")
wire = Wire(proc.port)


def command(doc, db="model"):
    reply = client.command(db, doc)
    assert reply["ok"] == 1 and not reply.get("writeErrors"), str(reply)[:500]
    return reply


def seal():
    command({"clock": {"advanceSeconds": 60}}, "admin")


def both(make):
    replies = [command(make(name)) for name in ("series", "plain")]
    numbers = [(r.get("n"), r.get("nModified")) for r in replies]
    check(numbers[0] == numbers[1], f"{make('series')}: {numbers} (seed {seed})")


def compare(what):
    plain = wire.all_of({"find": "plain"}, 1000)
    for batch in (1000, rnd.choice([3, 50])):
        series = wire.all_of({"find": "series"}, batch)
        same = series == plain
        check(same, f"{what}, batches of {batch}: {series[1]} of {plain[1]} points (seed {seed})")
        if not same:
            for i in plain[0].keys() | series[0].keys():
                if plain[0].get(i) != series[0].get(i):
                    print(i, plain[0].get(i), series[0].get(i), sep="\n")
                    break


FILTERS = [
    lambda: {"a": {"$gt": rnd.randrange(25)}, "b": {"$exists": rnd.random() < 0.5}},
    lambda: {
        "t": {"$lt": BEGIN + datetime.timedelta(seconds=rnd.randrange(7200))},
        "_id": {"$mod": [7, rnd.randrange(7)]},
    },
    lambda: {"m": 1, "_id": {"$mod": [3, 0]}},
    lambda: {"c": {"$type": rnd.choice([1, 2, 4, 10, 16])}},
]
try:
    command({"create": "series", "timeseries": {"timeField": "t", "metaField": "m"}})
    command({"create": "plain"})
    number = 0
    for round_no in range(args.rounds):
        for _ in range(rnd.randrange(1, 30)):
            docs = [point(number + i) for i in range(rnd.choice([1, 1, 2, 20, 150]))]
            number += len(docs)
            for name in ("series", "plain"):
                reply = wire.send({"insert": name}, docs)
                assert reply["ok"] == 1 and reply["n"] == len(docs), str(dict(reply))[:500]
            if rnd.random() < 0.1:
                seal()
        for _ in range(rnd.randrange(3)):
            filter = rnd.choice(FILTERS)()
            both(lambda name: {"delete": name, "deletes": [{"q": filter, "limit": 0}]})
            found = [command({"count": name, "query": filter})["n"] for name in ("series", "plain")]
            check(found == [0, 0], f"{filter}: {found} left after the delete (seed {seed})")
        compare(f"round {round_no}")
        if rnd.random() < 0.5:
            seal()
            compare(f"round {round_no}, sealed")
    stats = command({"collStats": "series"})["timeseries"]
    check(stats["numBucketsSealed"] > 0, f"nothing was sealed: {stats}")
    v = command({"validate": "series", "full": True})
    check(v["valid"], f"validate: {str(v)[:1000]}")
    # What is dumped restores as it is.
    reply = wire.send({"find": "system.buckets.series", "batchSize": 100_000, "singleBatch": True})
    buckets = reply["cursor"]["firstBatch"]
    command({"create": "again", "timeseries": {"timeField": "t", "metaField": "m"}})
    reply = wire.send({"insert": "system.buckets.again"}, [b.raw for b in buckets])
    check(reply["ok"] == 1 and reply["n"] == len(buckets), f"restore: {str(dict(reply))[:500]}")
    check(wire.all_of({"find": "again"}, 1000) == wire.all_of({"find": "plain"}, 1000), "what was restored")
    # A damaged one does not, or is harmless.
    for _ in range(300):
        bad = bytearray(rnd.choice(buckets).raw)
        at = rnd.randrange(20, len(bad) - 1)
        bad[at] ^= 1 << rnd.randrange(8)
        try:
            reply = wire.send({"insert": "system.buckets.again"}, [bytes(bad)])
        except AssertionError:
            wire = Wire(proc.port)  # no BSON any more
    check(command({"find": "again", "batchSize": 1})["ok"] == 1, "reads after damaged buckets")
    command({"aggregate": "again", "pipeline": [{"$group": {"_id": None, "n": {"$sum": 1}}}], "cursor": {}})
    print(f"{number} points in {stats['bucketCount']} buckets, {stats['numBucketsSealed']} sealed, seed {seed}")
    check(stop(proc) == 0, "clean stop")
finally:
    if proc.poll() is None:
        proc.kill()
    discard(work)
check.end("time series model")
