#!/usr/bin/env python3
"""A time series against an ordinary collection of the same points: random values of all types, random filters, sorts
and pipelines, deletes in between.

  tests/model/series_model.py [--rounds 40] [--questions 60] [--seed N] [--replica-set]
                              [--binary build/release/mayflyd | --uri HOST:PORT]

A round makes both collections with random spans, indexes and batches. Each question is asked of the ordinary
collection, and of the time series with its rewrites (what is asked of buckets instead of points) and without them
(internalQueryRewriteTimeSeries). All three must agree: the same documents, the same types and bits, and the order where
one was asked for. Only the order of the fields of a point may differ. The seed is printed; the same seed asks the same.
Between questions and batches the test clock moves, so that buckets are merged and sealed (not with --uri or
--replica-set).
"""

import argparse, datetime, itertools, os, sys
from pathlib import Path

import bson
from bson.int64 import Int64

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
from run import ROOT
from said import begin

ARGS = argparse.ArgumentParser()
ARGS.add_argument("--rounds", type=int, default=40)
ARGS.add_argument("--questions", type=int, default=60)
ARGS.add_argument("--seed", type=int, default=os.environ.get("MAYFLY_SEED"))
ARGS.add_argument("--uri", default=None)
ARGS.add_argument("--replica-set", action="store_true")
ARGS.add_argument("--binary", default=os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd")))

BEGIN = 1_900_000_000_000  # 2030, in milliseconds
EARLIEST, LATEST = -(1 << 60), 1 << 60
FIELDS = ["v", "w", "x.y", "x", "x.y.z", "v.0", "_id"]


def date(millis):
    return bson.datetime_ms.DatetimeMS(millis)


SCALARS = [
    None,
    0,
    1,
    -1,
    5,
    2.5,
    -0.0,
    float("nan"),
    float("inf"),
    Int64(5),
    Int64(1 << 60),
    float(1 << 60),
    bson.Decimal128("5"),
    bson.Decimal128("NaN"),
    bson.Decimal128("0.1"),
    "",
    "a",
    "b",
    "\u00e4",
    True,
    False,
    bson.Binary(b"a"),
    bson.Binary(b"ab", 5),
    bson.ObjectId("000000000000000000000001"),
    bson.ObjectId("ffffffffffffffffffffffff"),
    date(BEGIN),
    date(BEGIN + 60_000),
    bson.Timestamp(5, 5),
    bson.Regex("a"),
    bson.Code("a"),
    bson.MinKey(),
    bson.MaxKey(),
]
NUMBERS = [v for v in SCALARS if isinstance(v, (int, float)) and not isinstance(v, bool)]
METAS = ["a", "b", 1, 1.0, None, {"h": 1, "r": "x"}, {"h": 2, "r": "x"}, {"h": 1, "r": ["x", "y"]}, ["a", "b"], 2.5]


class Maker:
    """The random parts of one round."""

    def __init__(self, r):
        self.r = r
        self.span = r.choice([60, 600, 3600, 86400])
        self.width = r.choice([self.span * 2000, 3 * self.span * 1000, 20 * self.span * 1000])
        self.wild = r.random() < 0.3  # dates of all times
        self.times = set()
        self.unique = not self.wild and r.random() < 0.6  # no two points have one time
        self.meta = r.random() < 0.85
        self.metas = METAS if r.random() < 0.4 else r.sample(["a", "b", "c", {"h": 1}, {"h": 2}], r.randint(1, 4))
        self.mixed = r.random()  # how often a field has any value instead of its usual kind
        self.kinds = {f: r.choice([NUMBERS, ["a", "b", "c"], [True, False], SCALARS]) for f in ("v", "w", "y")}

    def time(self):
        if self.wild and self.r.random() < 0.1:
            # Those that Python's dates have not are the numbers of milliseconds that they are.
            return date(self.r.choice([EARLIEST, -1, 0, LATEST, 1 << 31, (1 << 31) * 1000, -86_400_000]))
        return date(BEGIN + self.r.randrange(self.width))

    def value(self, field, depth=0):
        r = self.r
        if r.random() > self.mixed * 0.3:
            return r.choice(self.kinds.get(field, NUMBERS))
        kind = r.random()
        if kind < 0.6 or depth > 2:
            return r.choice(SCALARS)
        if kind < 0.8:
            return [self.value(field, depth + 1) for _ in range(r.randint(0, 3))]
        return {k: self.value("y", depth + 1) for k in r.sample(["y", "z", "0"], r.randint(0, 2))}

    def point(self, i):
        r = self.r
        d = {"_id": i, "t": self.time()}
        while self.unique and int(d["t"]) in self.times:
            d["t"] = self.time()
        self.times.add(int(d["t"]))
        if self.meta and r.random() < 0.95:
            d["m"] = r.choice(self.metas)
        for f in ("v", "w"):
            if r.random() < 0.9:
                d[f] = self.value(f)
        if r.random() < 0.7:
            d["x"] = {"y": self.value("y")} if r.random() < 0.9 else self.value("x")
        return d

    # --- questions ----------------------------------------------------------------------------------------------------

    def operand(self, path):
        if path == "t":
            return self.time() if self.r.random() < 0.9 else self.r.choice(SCALARS)
        if path.startswith("m"):
            return self.r.choice(self.metas + [1, "a", "x"])
        return self.value(path.split(".")[-1], 1)

    def condition(self, path):
        r = self.r
        op = r.choice("$eq $ne $gt $gte $lt $lte $gte $lt $in $nin $exists $type $not $size $mod $elemMatch".split())
        if op in ("$in", "$nin"):
            return {op: [self.operand(path) for _ in range(r.randint(0, 3))]}
        if op == "$exists":
            return {op: r.random() < 0.5}
        if op == "$type":
            return {op: r.choice(["null", "number", "string", "object", "array", "date"])}
        if op == "$not":
            return {op: self.condition(path)}
        if op == "$size":
            return {op: r.randint(0, 3)}
        if op == "$mod":
            return {op: [r.randint(1, 3), 0]}
        if op == "$elemMatch":
            return {op: {"$gte": self.operand(path)}}
        value = self.operand(path)
        return {"$in": [value]} if op in ("$ne",) and isinstance(value, bson.Regex) else {op: value}

    def filter(self, depth=0):
        r = self.r
        f = {}
        for _ in range(r.randint(0 if depth == 0 else 1, 3)):
            if depth < 2 and r.random() < 0.2:
                f[r.choice(["$and", "$or", "$nor", "$or"])] = [self.filter(depth + 1) for _ in range(r.randint(1, 3))]
                continue
            if depth == 0 and r.random() < 0.05:
                f["$expr"] = {r.choice(["$eq", "$gte", "$lt"]): [r.choice(["$m", "$m.h", "$t"]), r.choice(["a", 1])]}
                continue
            if depth == 0 and r.random() < 0.05:
                other = self.operand("t")
                if not self.wild and isinstance(other, bson.datetime_ms.DatetimeMS) and r.random() < 0.6:
                    other = {"$dateAdd": {"startDate": other, "unit": "second", "amount": r.randint(-90, 90)}}
                elif isinstance(other, bson.datetime_ms.DatetimeMS) and r.random() < 0.3:
                    other = "$$NOW"
                sides = ["$t", {"$literal": other} if not isinstance(other, (dict, str)) else other]
                r.shuffle(sides)
                f["$expr"] = {r.choice(["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"]): sides}
                continue
            path = r.choice(["t", "t", "t", "m", "m", "m.h"] + FIELDS)
            if path == "t" and r.random() < 0.5:
                lo = self.time()
                f["t"] = {"$gte": lo, "$lt": date(min(int(lo) + r.randrange(1, self.span * 2000), LATEST))}
            elif r.random() < 0.3:
                f[path] = self.operand(path)
            else:
                f[path] = self.condition(path)
        return f

    def sort(self):
        r = self.r
        return r.choice(
            [
                {"t": 1, "_id": 1},
                {"t": -1, "_id": 1},
                {"t": 1},
                {"t": -1},
                {"m": 1, "t": 1, "_id": 1},
                {"m": 1, "t": -1},
                {"m": -1, "t": -1, "_id": 1},
                {"v": 1, "_id": 1},
                {"x.y": -1, "t": 1, "_id": 1},
                {"_id": 1},
            ]
        )

    def group(self):
        r = self.r
        interval = {"date": "$t", "unit": r.choice(["second", "minute", "hour", "day"]), "binSize": r.choice([1, 1, 7])}
        interval = {"$dateTrunc": interval}
        key = r.choice([None, "$m", "$m", "$m.h", interval, {"m": "$m", "t": interval}, "$v", {"k": "$m"}, 1])
        if "$dateTrunc" in str(key) and self.wild:
            key = "$m"
        g = {"_id": key}
        choices = {
            "n": {"$sum": 1},
            "count": {"$count": {}},
            "first": {"$min": "$t"},
            "last": {"$max": "$t"},
            "vmin": {"$min": "$v"},
            "vmax": {"$max": "$v"},
            "wmax": {"$max": "$w"},
            "ymin": {"$min": "$x.y"},
            "mmin": {"$min": "$m"},
            "tsum": {"$sum": {"$toLong": "$t"}},
            "vsum": {"$sum": "$v"},
            "vavg": {"$avg": "$v"},
            "wavg": {"$avg": "$w"},
        }
        for name in r.sample(list(choices), r.randint(0, 4)):
            g[name] = choices[name]
        return g

    def pipeline(self):
        """Stages, and whether the order of what comes out is asked for."""
        r = self.r
        stages = []
        if r.random() < 0.8:
            stages.append({"$match": self.filter()})
        kind = r.choice("plain sort limit group group count edge project set unwind union window dense sample".split())
        if kind == "sort":
            stages.append({"$sort": self.sort()})
            if "_id" in stages[-1]["$sort"]:
                if r.random() < 0.3:
                    stages.append({"$skip": r.randint(1, 5)})
                if r.random() < 0.5:
                    stages.append({"$limit": r.randint(1, 10)})
            return stages, stages[[("$sort" in s) for s in stages].index(True)]["$sort"]
        if kind == "limit":
            stages += [{"$sort": {"t": r.choice([1, -1]), "_id": 1}}, {"$limit": r.randint(1, 10)}]
            return stages, stages[-2]["$sort"]
        if kind == "group":
            stages.append({"$group": self.group()})
        if kind == "count":
            stages.append({"$count": "n"})
        if kind == "edge":
            sign = r.choice([1, -1])
            sort = r.choice([{"m": 1, "t": sign}, {"t": sign}])
            if not self.unique:
                sort["_id"] = 1
            field = r.choice(["$v", "$x", "$t", "$_id", "$m"])
            stages += [{"$sort": sort}, {"$group": {"_id": "$m", "e": {r.choice(["$first", "$last"]): field}}}]
        if kind == "project":
            stages.append({"$project": r.choice([{"v": 1}, {"_id": 0, "t": 1, "m": 1}, {"x.y": 1}, {"t": 0, "x": 0}])})
        if kind == "set":
            stages += [{"$set": {"v": "$w"}}, {"$match": self.filter()}]
        if kind == "unwind":
            stages += [{"$unwind": "$v"}, {"$match": self.filter()}]
        if kind == "window" and not self.wild:
            window = {"range": [-r.randrange(90), r.randrange(2)], "unit": r.choice(["second", "minute"])}
            output = {"n": {"$sum": 1, "window": window}, "most": {"$max": "$v", "window": window}}
            fields = {"partitionBy": r.choice(["$m", None]), "sortBy": {"t": 1}, "output": output}
            stages += [{"$setWindowFields": fields}]
            stages += [{"$project": {"n": 1, "most": 1}}]
        if kind == "dense" and not self.wild and self.unique:
            # Also what is filled in: each is there once, so that the order is certain.
            to = BEGIN + r.randrange(1, 30) * 60_000
            bounds = [date(BEGIN), date(to)]
            stages += [{"$densify": {"field": "t", "range": {"step": 1, "unit": "minute", "bounds": bounds}}}]
            stages += [{"$fill": {"sortBy": {"t": 1}, "output": {"w": {"method": "locf"}, "v": {"value": 7}}}}]
        if kind == "sample":
            stages += [{"$sample": {"size": 100_000}}, {"$count": "n"}]
        if kind == "union":
            stages += [{"$group": {"_id": "$m"}}]
        return stages, None


# --- answers ----------------------------------------------------------------------------------------------------------


def plain(v, numbers):
    """A value as one that can be compared: bits and types as they are, fields of a point in the order of their names.
    `numbers`: equal numbers of all types are one, as where a group has taken the first of equal ones."""
    if isinstance(v, dict):
        return ("d", tuple((k, plain(x, numbers)) for k, x in v.items()))
    if isinstance(v, list):
        return ("l", tuple(plain(x, numbers) for x in v))
    if numbers:
        if isinstance(v, bson.Decimal128):
            d = v.to_decimal()
            return ("n", "nan" if d.is_nan() else str(float(d)))
        if isinstance(v, (int, float)) and not isinstance(v, bool):
            return ("n", "nan" if v != v else str(float(v) + 0.0))
    return (type(v).__name__, repr(v))


def rank(v):
    """In the order of values, as far as the elements of arrays here need it."""
    kinds = [type(None), (int, float, bson.Decimal128), str, dict, list, bytes, bson.ObjectId]
    kind = 7 if isinstance(v, bool) else next((i for i, k in enumerate(kinds) if isinstance(v, k)), 8)
    n = v.to_decimal() if isinstance(v, bson.Decimal128) else v
    return (kind, (n == n, float(n) if n == n else 0.0) if kind == 1 else repr(plain(v, True)))


def sort_key(v, direction):
    """What a sort compares: of an array its least element, or its greatest; the same for ties."""
    if isinstance(v, list) and v:
        v = (min if direction > 0 else max)(v, key=rank)
    return plain(v, True)


def document(d, numbers):
    return tuple(sorted((k, plain(v, numbers)) for k, v in d.items()))


OPTIONS = bson.CodecOptions(datetime_conversion=bson.datetime_ms.DatetimeConversion.DATETIME_MS)


def whole(v):
    """A reply with all dates as numbers of milliseconds, whatever the client decoded them to."""
    if isinstance(v, datetime.datetime):
        return bson.datetime_ms.DatetimeMS(v)
    if isinstance(v, dict):
        return {k: whole(x) for k, x in v.items()}
    if isinstance(v, list):
        return [whole(x) for x in v]
    return v


def seal(client):
    """All that waits to be sealed is, when this returns."""
    reply = client.command("admin", {"clock": {"advanceSeconds": 60}})
    if not reply["ok"]:
        sys.exit(f"clock: {reply}")


def answers(client, db, command, between=lambda: None):
    """`between`: called before each getMore."""
    reply = client.command(db, command)
    if not reply.get("ok"):
        return ("error", reply.get("code"))
    if "cursor" not in reply:
        # distinct of anything that reads like a view has an empty array on a dotted path as a value, others have not.
        return [{"n": reply.get("n"), "values": [v for v in reply.get("values", []) if v != []]}]
    out = reply["cursor"]["firstBatch"]
    while reply["cursor"]["id"]:
        between()
        reply = client.command(
            db, {"getMore": reply["cursor"]["id"], "collection": command.get("find", command.get("aggregate"))}
        )
        if not reply.get("ok"):
            return ("error", reply.get("code"))
        out += reply["cursor"]["nextBatch"]
    return [whole(d) for d in out]


def difference(want, got, sort, numbers):
    if isinstance(want, tuple) or isinstance(got, tuple):
        return None if want == got else f"want {want}, got {got}"
    a, b = [document(d, numbers) for d in want], [document(d, numbers) for d in got]
    if sort is not None and "_id" in sort:
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            return f"{len(a)} and {len(b)} documents, the first difference at {at}: want {a[at:at+1]}, got {b[at:at+1]}"
        return None
    if sorted(a) != sorted(b):
        lost, extra = [x for x in a if x not in b], [x for x in b if x not in a]
        return f"{len(a)} and {len(b)} documents: missing {lost[:2]}, too many {extra[:2]}"
    if sort is not None:  # ties in any order
        # Up to the first field within another, whose values this does not look for.
        names = list(itertools.takewhile(lambda name: "." not in name, sort))
        keys = lambda docs: [[sort_key(d.get(name), sort[name]) for name in names] for d in docs]
        if keys(want) != keys(got):
            return "in another order"
    return None


def has_array(doc, path):
    for name in path.split("."):
        doc = doc.get(name) if isinstance(doc, dict) else None
        if isinstance(doc, list):
            return True
    return False


class Round:
    def __init__(self, client, db, r, seals):
        self.client, self.db, self.r, self.make, self.seals = client, db, r, Maker(r), seals
        client.command(db, {"dropDatabase": 1})
        series = {"timeField": "t"}
        if self.make.meta:
            series["metaField"] = "m"
        series["bucketMaxSpanSeconds"] = series["bucketRoundingSeconds"] = self.make.span
        self.ok({"create": "o"})
        self.ok({"create": "s", "timeseries": series})
        for key in r.sample([{"v": 1}, {"x.y": -1}, {"t": 1}, {"t": -1}, {"w": 1, "t": 1}], r.randint(0, 2)):
            if self.make.meta or key != {"t": 1}:  # which is there
                self.index(key)
        if self.make.meta:
            for key in r.sample([{"m.h": 1, "t": 1}, {"m": 1, "t": -1}, {"m": -1}], r.randint(0, 2)):
                self.index(key)
            if r.random() < 0.15:
                self.ok({"dropIndexes": "s", "index": {"m": 1, "t": 1}})
        self.points, self.next = {}, 0
        self.insert(r.randint(1, 250))
        if r.random() < 0.3:
            self.late_index(r.choice(["v", "w", "x.y"]), r.choice([1, -1]))

    def ok(self, command):
        reply = self.client.command(self.db, command)
        if not reply["ok"] or "writeErrors" in reply:
            sys.exit(f"{command}: {reply}")
        return reply

    def index(self, key):
        self.ok({"createIndexes": "s", "indexes": [{"key": key, "name": "_".join(f"{k}{v}" for k, v in key.items())}]})

    def late_index(self, path, direction):
        """An index on points that are there: refused if one has an array at the path, and only then."""
        points = self.ok({"find": "o", "batchSize": 1000})["cursor"]["firstBatch"]
        arrays = any(has_array(d, path) for d in points)
        index = {"key": {path: direction}, "name": f"late_{path}{direction}"}
        reply = self.client.command(self.db, {"createIndexes": "s", "indexes": [index]})
        if reply.get("code", 0) not in (5930501 if arrays else 0, 85):  # 85: it is there by another name
            sys.exit(f"{index} over {'arrays' if arrays else 'no arrays'}: {reply}")

    def insert(self, n):
        points = [self.make.point(self.next + i) for i in range(n)]
        self.next += n
        while points:
            batch = points[: self.r.choice([1, 3, 20, 100])]
            points = points[len(batch) :]
            # An index on a measurement refuses arrays there.
            reply = self.client.command(self.db, {"insert": "s", "documents": batch, "ordered": False})
            refused = {e["index"]: e["code"] for e in reply.get("writeErrors", [])}
            if not reply["ok"] or set(refused.values()) - {5930501}:
                sys.exit(f"insert: {reply}")
            batch = [p for i, p in enumerate(batch) if i not in refused]
            if batch:
                self.ok({"insert": "o", "documents": batch})

    def seal(self, chance):
        if self.seals and self.r.random() < chance:
            seal(self.client)

    def sealed(self):
        """How many buckets were sealed in this round."""
        return self.ok({"collStats": "s"})["timeseries"].get("numBucketsSealed", 0)

    def delete(self):
        filter = self.make.filter()
        if not filter and self.r.random() < 0.9:
            return None
        got = [
            self.client.command(self.db, {"delete": name, "deletes": [{"q": filter, "limit": 0}]})
            for name in ("o", "s")
        ]
        n = [("error",) if not g.get("ok") or "writeErrors" in g else g["n"] for g in got]
        return None if n[0] == n[1] else f"delete {filter}: {got}"

    def rewrites(self, on):
        reply = self.client.command("admin", {"setParameter": 1, "internalQueryRewriteTimeSeries": on})
        if not reply["ok"]:
            sys.exit(f"setParameter: {reply}")

    def question(self):
        r, make = self.r, self.make
        kind = r.choice(["find", "find", "aggregate", "aggregate", "aggregate", "count", "distinct", "lookup"])
        sort = None
        if kind == "find":
            command = {"find": "?", "filter": make.filter()}
            if r.random() < 0.6:
                sort = command["sort"] = make.sort()
                if "_id" in sort and r.random() < 0.5:
                    command["limit"] = r.randint(1, 20)
            if r.random() < 0.3:
                command["projection"] = r.choice([{"v": 1}, {"t": 1, "m": 1}, {"x": 0}])
                sort = None
            if r.random() < 0.3:
                command["batchSize"] = r.randint(2, 30)
        elif kind == "aggregate":
            stages, sort = make.pipeline()
            command = {"aggregate": "?", "pipeline": stages, "cursor": {"batchSize": r.choice([2, 30, 101])}}
        elif kind == "count":
            command = {"count": "?", "query": make.filter()}
            if r.random() < 0.2:
                command["limit"] = r.randint(1, 20)
        elif kind == "distinct":
            command = {"distinct": "?", "key": r.choice(["m", "m.h", "v", "t", "x.y"]), "query": make.filter()}
        else:
            inner = [{"$match": make.filter()}, {"$project": {"_id": 1}}, {"$sort": {"_id": 1}}]
            lookup = {"from": "?", "as": "p", "pipeline": inner}
            if r.random() < 0.6:
                lookup.update(localField=r.choice(["m", "v"]), foreignField=r.choice(["m", "v", "m.h"]))
            elif r.random() < 0.5:
                lookup["let"] = {"h": "$m"}
                inner.insert(0, {"$match": {"$expr": {"$eq": ["$m", "$$h"]}}})
            stages = [{"$match": {"_id": {"$lt": 5}}}, {"$lookup": lookup}, {"$project": {"p": 1}}]
            command = {"aggregate": "o", "pipeline": stages, "cursor": {}}
        return command, sort

    def ask(self):
        command, sort = self.question()
        numbers = "$group" in str(command) or "distinct" in command
        want = answers(self.client, self.db, named(command, "o"))
        for on in (True, False):
            self.rewrites(on)
            got = answers(self.client, self.db, named(command, "s"), lambda: self.seal(0.1))
            self.rewrites(True)
            wrong = difference(want, got, sort, numbers)
            if wrong:
                return f"{command} with rewrites {'on' if on else 'off'}: {wrong}"
        return None


def named(v, name):
    """The question, asked of this collection."""
    if isinstance(v, dict):
        return {k: named(x, name) for k, x in v.items()}
    if isinstance(v, list):
        return [named(x, name) for x in v]
    return name if isinstance(v, str) and v == "?" else v


def main():
    args = ARGS.parse_args()
    r, server, client = begin(args)
    failed = asked = sealed = 0
    try:
        for n in range(args.rounds):
            round = Round(client, f"series{n % 4}", r, server is not None and not args.replica_set)
            for _ in range(args.questions):
                round.seal(0.05)
                wrong = round.ask()
                asked += 1
                if wrong:
                    failed += 1
                    print(f"round {n}, span {round.make.span}: {wrong}", flush=True)
                if r.random() < 0.05:
                    wrong = round.delete()
                    if wrong:
                        failed += 1
                        print(f"round {n}: {wrong}", flush=True)
                    round.insert(r.randint(1, 30))
            sealed += round.sealed()
            if failed > 10:
                break
    finally:
        if server:
            server.stop()
    print(f"{asked} questions, {failed} answered otherwise; {sealed} buckets were sealed")
    sys.exit(1 if failed or not asked or (server and not args.replica_set and not sealed) else 0)


if __name__ == "__main__":
    main()
