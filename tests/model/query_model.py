#!/usr/bin/env python3
"""Random filters and sorts over documents full of arrays, nulls and missing fields: every plan against a matcher of a
few dozen lines.

  tests/model/query_model.py [--rounds 60] [--seed N] [--binary build/release/mayflyd | --uri HOST:PORT] [--replica-set]

A round makes a collection with indexes of its own and asks many questions. Each is answered by the planner's choice, by
every index as a hint, by $natural, by count and by an aggregation; all must agree with the matcher here, which knows
MongoDB's rules for arrays on the path, null and missing (manual: "Query for Null or Missing Fields", "Query an Array",
"Multikey Indexes") and no plans. Sorted answers must also be in order, as the manual's "Comparison/Sort Order" says.
Then come the questions that the planner answers without the documents, or in another order than they are asked: counts,
distinct values, groups, what is skipped, filters behind a new name (docs/query-plans.md). Some documents are past their
deadline but still stored; no answer may know of them.
On a replica set (of one member) the questions are asked in a transaction, which has itself made a part of the documents
what they are, and again after its commit. The seed is printed; the same seed asks the same.
"""

import argparse, datetime, math, os, re, sys, uuid
from pathlib import Path

import bson
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
from run import ROOT
from said import begin

ARGS = argparse.ArgumentParser()
ARGS.add_argument("--rounds", type=int, default=60)
ARGS.add_argument("--questions", type=int, default=60)
ARGS.add_argument("--seed", type=int, default=os.environ.get("MAYFLY_SEED"))
ARGS.add_argument("--uri", default=None)
ARGS.add_argument("--replica-set", action="store_true")
ARGS.add_argument("--binary", default=os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd")))

MISSING = object()


# --- the model: what a filter means -----------------------------------------------------------------------------------


def rank(v):
    """Place of a value's type in the comparison order."""
    if isinstance(v, MinKey):
        return 0
    if isinstance(v, MaxKey):
        return 9
    if v is MISSING or v is None:
        return 1
    if isinstance(v, bool):
        return 6
    if isinstance(v, (int, float)):
        return 2
    if isinstance(v, str):
        return 3
    if isinstance(v, dict):
        return 4
    return 5  # array


def compare(a, b):
    if rank(a) != rank(b):
        return -1 if rank(a) < rank(b) else 1
    if rank(a) in (0, 1, 9):
        return 0
    if isinstance(a, dict):
        for (ka, va), (kb, vb) in zip(a.items(), b.items()):
            if rank(va) != rank(vb):
                return -1 if rank(va) < rank(vb) else 1
            if ka != kb:
                return -1 if ka < kb else 1
            c = compare(va, vb)
            if c:
                return c
        return (len(a) > len(b)) - (len(a) < len(b))
    if isinstance(a, list):
        for x, y in zip(a, b):
            c = compare(x, y)
            if c:
                return c
        return (len(a) > len(b)) - (len(a) < len(b))
    return (a > b) - (a < b)


def walk(doc, path):
    """The values at the end of a path. Arrays on the way are entered; a number is an index as well as a field's
    name."""
    head, _, rest = path.partition(".")
    v = doc.get(head, MISSING)
    if not rest:
        yield v
    elif isinstance(v, dict):
        yield from walk(v, rest)
    elif isinstance(v, list):
        yield from walk_array(v, rest)
    else:
        yield MISSING


def walk_array(array, path):
    head, _, rest = path.partition(".")
    for v in array:
        if isinstance(v, dict) and not (head.isdigit() and head not in v):
            yield from walk(v, path)
    if head.isdigit() and int(head) < len(array):
        v = array[int(head)]
        if not rest:
            yield v
        elif isinstance(v, dict):
            yield from walk(v, rest)
        elif isinstance(v, list):
            yield from walk_array(v, rest)


def leaves(doc, path):
    """As walk, and the elements of arrays at the end."""
    for v in walk(doc, path):
        if isinstance(v, list):
            yield from v
        yield v


def test(op, want, v):
    """One comparison on one value."""
    if op == "$eq":
        return compare(v, want) == 0 if want is not None else (v is MISSING or v is None)
    if op == "$in":
        return any(test("$eq", w, v) for w in want)
    if op == "$type":
        names = {"null": None, "number": (int, float), "string": str, "object": dict, "array": list}
        if want == "null":
            return v is None
        return v is not MISSING and not isinstance(v, bool) and isinstance(v, names[want])
    if op == "$mod":
        return rank(v) == 2 and math.fmod(int(v), want[0]) == want[1]
    if op == "$regex":
        return isinstance(v, str) and re.search(want, v) is not None
    if v is MISSING:
        v = None
    if rank(v) != rank(want) and rank(want) not in (0, 9):
        return False
    c = compare(v, want)
    return {"$gt": c > 0, "$gte": c >= 0, "$lt": c < 0, "$lte": c <= 0}[op]


def predicate(doc, path, op, want):
    if op == "$ne":
        return not predicate(doc, path, "$eq", want)
    if op == "$nin":
        return not predicate(doc, path, "$in", want)
    if op == "$not":
        return not all(predicate(doc, path, o, w) for o, w in want.items())
    if op == "$exists":
        return any(v is not MISSING for v in walk(doc, path)) == want
    if op == "$size":
        return any(isinstance(v, list) and len(v) == want for v in walk(doc, path))
    if op == "$all":
        return bool(want) and all(
            predicate(doc, path, "$elemMatch", w["$elemMatch"])
            if isinstance(w, dict) and "$elemMatch" in w
            else predicate(doc, path, "$eq", w)
            for w in want
        )
    if op == "$elemMatch":
        return any(isinstance(v, list) and any(element(e, want) for e in v) for v in walk(doc, path))
    return any(test(op, want, v) for v in leaves(doc, path))


def element(e, want):
    """Whether an array's element matches what is inside $elemMatch."""
    if next(iter(want)).startswith("$") and next(iter(want)) not in ("$and", "$or", "$nor"):
        return all(value_predicate(e, o, w) for o, w in want.items())
    if isinstance(e, dict):
        return matches(e, want)
    if isinstance(e, list):
        return matches({str(i): x for i, x in enumerate(e)}, want)
    return False


def value_predicate(v, op, want):
    """An operator inside $elemMatch: on the element itself, which is not taken apart."""
    if op == "$ne":
        return not test("$eq", want, v)
    if op == "$nin":
        return not test("$in", want, v)
    if op == "$not":
        return not all(value_predicate(v, o, w) for o, w in want.items())
    if op == "$exists":
        return want
    if op == "$size":
        return isinstance(v, list) and len(v) == want
    if op == "$all":
        return bool(want) and all(test("$eq", w, v) for w in want)
    if op == "$elemMatch":
        return isinstance(v, list) and any(element(e, want) for e in v)
    return test(op, want, v)


def matches(doc, filter):
    for name, want in filter.items():
        if name == "$and":
            ok = all(matches(doc, f) for f in want)
        elif name == "$or":
            ok = any(matches(doc, f) for f in want)
        elif name == "$nor":
            ok = not any(matches(doc, f) for f in want)
        elif name == "$expr":
            ok = expression(doc, want)
        elif isinstance(want, dict) and want and next(iter(want)).startswith("$"):
            ok = all(predicate(doc, name, o, w) for o, w in want.items())
        else:
            ok = predicate(doc, name, "$eq", want)
        if not ok:
            return False
    return True


def expression(doc, e):
    """{$op: ["$field", value]}: what is missing is less than everything, and types are not bracketed."""
    (op, (path, want)), = e.items()
    v = doc.get(path[1:], MISSING)
    c = -1 if v is MISSING else compare(v, want)
    return {"$eq": c == 0, "$ne": c != 0, "$gt": c > 0, "$gte": c >= 0, "$lt": c < 0, "$lte": c <= 0}[op]


EMPTY = object()


def sort_key(doc, sort):
    """The least element of an array for an ascending sort, the greatest for a descending one; an empty array is below
    null."""
    out = []
    for path, sign in sort.items():
        values = list(sort_values(doc, path))
        best = None
        for v in values:
            k = v if v is not EMPTY else MINIMUM
            if best is None or order(k, best[0]) * sign < 0:
                best = (k,)
        out.append((best[0], sign))
    return out


class Minimum:
    pass


MINIMUM = Minimum()


def order(a, b):
    if isinstance(a, Minimum) or isinstance(b, Minimum):  # behind MinKey alone
        place = [1 if isinstance(v, Minimum) else 0 if rank(v) == 0 else 2 for v in (a, b)]
        return (place[0] > place[1]) - (place[0] < place[1])
    return compare(a, b)


def sort_values(doc, path):
    """The keys an index on the path alone would have."""
    head, _, rest = path.partition(".")
    v = doc.get(head, MISSING)
    yield from key_values(v, rest)


def key_values(v, rest):
    if not rest:
        if isinstance(v, list):
            if not v:
                yield EMPTY
            yield from v
        else:
            yield v
    elif isinstance(v, dict):
        yield from sort_values(v, rest)
    elif isinstance(v, list):
        head, _, more = rest.partition(".")
        if head.isdigit() and int(head) < len(v) and not any(isinstance(e, dict) and head in e for e in v):
            yield from key_values(v[int(head)], more)
            return
        found = False
        for e in v:
            if isinstance(e, dict):
                found = True
                yield from sort_values(e, rest)
            else:
                found = True
                yield MISSING
        if not found:
            yield MISSING
    else:
        yield MISSING


# --- the questions ----------------------------------------------------------------------------------------------------

FIELDS = ["a", "b", "a.b", "b.c", "a.0", "a.1.b", "a.b.c", "a.b.0"]
SCALARS = [None, 0, 1, 2, 3, 2.5, "x", "y", True, False]
PAST = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)
# Of some rounds: few arrays, so that more is answered by keys alone.
FLAT = False


def value(r, depth=0):
    kind = r.random()
    if r.random() < 0.02:
        return r.choice([MinKey(), MaxKey()])
    if kind < 0.5 or depth > 2 or (FLAT and r.random() < 0.97):
        return r.choice(SCALARS)
    if kind < 0.75:
        return [value(r, depth + 1) for _ in range(r.randint(0, 3))]
    return {k: value(r, depth + 1) for k in r.sample(["a", "b", "c", "0"], r.randint(0, 2))}


def document(r, i):
    d = {"_id": i}
    for f in ("a", "b", "c"):
        if r.random() < 0.75:
            d[f] = value(r)
    return d


def comparison(r, depth=0):
    op = r.choice(
        [
            "$eq",
            "$ne",
            "$gt",
            "$gte",
            "$lt",
            "$lte",
            "$in",
            "$nin",
            "$exists",
            "$type",
            "$size",
            "$all",
            "$not",
            "$elemMatch",
            "$mod",
            "$regex",
            "ends",
        ]
    )
    if op == "$mod":
        return {op: [r.choice([2, 3, -2]), r.randint(0, 2)]}
    if op == "$regex":
        return {op: r.choice(["^x", "x|y", "y$", ".", "^", "z"])}
    if op == "ends":
        return {r.choice(["$gt", "$gte", "$lt", "$lte"]): r.choice([MinKey(), MaxKey()])}
    if op in ("$in", "$nin", "$all"):
        return {op: [value(r, 1) for _ in range(r.randint(0, 3))]}
    if op == "$exists":
        return {op: r.random() < 0.5}
    if op == "$type":
        return {op: r.choice(["null", "number", "string", "object", "array"])}
    if op == "$size":
        return {op: r.randint(0, 3)}
    if op == "$not":
        return {op: comparison(r, depth + 1)}
    if op == "$elemMatch":
        if r.random() < 0.5 and depth < 2:
            return {op: filter_of(r, depth + 1, ["a", "b", "c", "0"])}
        inner = {}
        for _ in range(r.randint(1, 2)):
            inner.update(comparison(r, depth + 1))
        return {op: inner}
    return {op: value(r, 1)}


def filter_of(r, depth=0, fields=FIELDS):
    f = {}
    for _ in range(r.randint(1, 2)):
        if depth < 2 and r.random() < 0.2:
            f[r.choice(["$and", "$or", "$nor"])] = [filter_of(r, depth + 1, fields) for _ in range(r.randint(1, 3))]
        elif depth == 0 and r.random() < 0.05:
            op = r.choice(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"])
            f["$expr"] = {op: [r.choice(["$a", "$b", "$c"]), r.choice([x for x in SCALARS if x != "x"])]}
        elif r.random() < 0.25:
            f[r.choice(fields)] = value(r, 1)
        else:
            c = comparison(r, depth)
            if r.random() < 0.3:
                c.update(comparison(r, depth))
            f[r.choice(fields)] = c
    return f


INDEXES = [
    {"a": 1},
    {"b": -1},
    {"a": 1, "b": 1},
    {"a.b": 1},
    {"b.c": 1, "a": -1},
    {"a.0": 1},
    {"a.b.c": 1},
    {"c": 1, "a.b": -1},
    {"a.b": 1, "a.c": 1},
    {"a.b.0": 1},
    {"c": 1, "a.0": 1},
]


# Indexes that leave documents out: the planner may take them only where that changes nothing.
PARTS = [{"sparse": True}] + [
    {"partialFilterExpression": f}
    for f in (
        {"a": {"$exists": True}},
        {"b": {"$gt": 1}},
        {"a": {"$gte": 0}, "b": {"$lt": 3}},
        {"c": {"$type": "string"}},
        {"b": {"$in": [1, "x", None]}},
    )
]


def documents(client, db, command):
    reply = client.command(db, command)
    if not reply.get("ok"):
        return reply
    out = reply["cursor"]["firstBatch"]
    while reply["cursor"]["id"]:
        reply = client.command(db, {"getMore": reply["cursor"]["id"], "collection": "q"})
        out += reply["cursor"]["nextBatch"]
    return out


class Difference(Exception):
    pass


def check_answer(what, got, want, docs):
    if isinstance(got, dict):
        raise Difference(f"{what}: error {got.get('code')}: {got.get('errmsg')}")
    ids = sorted(d["_id"] for d in got)
    if ids != want:
        extra, lost = [i for i in ids if i not in want], [i for i in want if i not in ids]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        raise Difference(
            f"{what}:"
            + (f" too many {[docs[i] for i in extra[:3]]}" if extra else "")
            + (f" missing {[docs[i] for i in lost[:3]]}" if lost else "")
            + (f" twice {twice}" if twice else "")
        )


def check_order(what, got, sort):
    for x, y in zip(got, got[1:]):
        for (kx, sign), (ky, _) in zip(sort_key(x, sort), sort_key(y, sort)):
            c = order(kx, ky) * sign
            if c < 0:
                break
            if c > 0:
                raise Difference(f"{what}: {x} before {y}")


def canon(v):
    """Equal for equal values, as a key."""
    if v is MISSING or v is None:
        return "null"
    if isinstance(v, dict):
        return "{" + ",".join(f"{k}:{canon(x)}" for k, x in v.items()) + "}"
    if isinstance(v, list):
        return "[" + ",".join(canon(x) for x in v) + "]"
    if isinstance(v, (MinKey, MaxKey, bool, str)):
        return repr(v)
    return repr(float(v))


def aggregate(client, db, pipeline, **more):
    got = documents(client, db, {"aggregate": "q", "pipeline": pipeline, "cursor": {}, **more})
    if isinstance(got, dict):
        raise Difference(f"aggregate {pipeline}: error {got.get('code')}: {got.get('errmsg')}")
    return got


def ask_counts(client, db, r, docs, indexes, f, want):
    """What is counted, and what is skipped."""
    hint = r.choice([None, None] + indexes)
    skip, limit = r.choice([0, 0, r.randint(1, 30)]), r.choice([0, 0, r.randint(1, 30)])
    part = ([{"$skip": skip}] if skip else []) + ([{"$limit": limit}] if limit else [])
    one = r.choice([1, None, "x"])
    for filter, all in ((f, len(want)), ({}, len(docs))):
        left = max(all - skip, 0)
        left = min(left, limit) if limit else left
        counts = r.choice(
            [
                [{"$count": "n"}],
                [{"$group": {"_id": one, "n": {"$sum": 1}}}],
                [{"$group": {"_id": one, "n": {"$count": {}}}}],
            ]
        )
        pipeline = [{"$match": filter}] + part + counts
        got = aggregate(client, db, pipeline, **({"hint": hint} if hint else {}))
        if [d["n"] for d in got] != ([left] if left else []):
            raise Difference(f"aggregate {pipeline} hint {hint}: {got}, want {left}")
    if not indexes:
        return
    hint = r.choice(indexes)
    find = {"find": "q", "filter": f, "hint": hint, "batchSize": 1000}
    all = [d["_id"] for d in documents(client, db, find)]
    part = {**find, "skip": skip, "limit": limit, "batchSize": r.randint(2, 9)}
    got = [d["_id"] for d in documents(client, db, part)]
    if got != (all[skip : skip + limit] if limit else all[skip:]):
        raise Difference(f"{find} skip {skip} limit {limit}: {got}, of {all}")


def ask_values(client, db, r, found, f):
    """Different values, by `distinct` and by $group."""
    path = r.choice(FIELDS + ["a", "b", "c"])
    want = set()
    for d in found:
        for v in walk(d, path):
            want.update(canon(e) for e in (v if isinstance(v, list) else [] if v is MISSING else [v]))
    reply = client.command(db, {"distinct": "q", "key": path, "query": f})
    if not reply["ok"] or sorted(map(canon, reply["values"])) != sorted(want):
        raise Difference(f"distinct {path} of {f}: {reply}, want {sorted(want)}")
    field = r.choice(["a", "b", "c"])
    got = [canon(d["_id"]) for d in aggregate(client, db, [{"$match": f}, {"$group": {"_id": "$" + field}}])]
    if sorted(got) != sorted({canon(d.get(field)) for d in found}):
        raise Difference(f"group {field} of {f}: {got}")
    condition = comparison(r)
    pipeline = [{"$match": f}, {"$group": {"_id": "$" + field}}, {"$match": {"_id": condition}}]
    got = [canon(d["_id"]) for d in aggregate(client, db, pipeline)]
    keys = {canon(d.get(field)): d.get(field) for d in found}
    if sorted(got) != sorted(k for k, v in keys.items() if matches({"_id": v}, {"_id": condition})):
        raise Difference(f"{pipeline}: {got}, of {list(keys)}")


def ask_paths(client, db, r, f):
    """Projections and groups on paths through arrays: as without an index, since projections and expressions have rules
    of their own there."""
    path = r.choice(FIELDS)
    find = {"find": "q", "filter": f, "projection": {path: 1, "_id": 0}}
    group = {"aggregate": "q", "pipeline": [{"$match": f}, {"$group": {"_id": "$" + path}}], "cursor": {}}
    for command in (find, group):
        got, want = documents(client, db, command), documents(client, db, {**command, "hint": {"$natural": 1}})
        if isinstance(got, dict) or sorted(map(canon, got)) != sorted(map(canon, want)):
            raise Difference(f"{command}: {got}, without an index {want}")


def ask_first(client, db, r, docs, found, f):
    """The first or last document of each value, in an order."""
    field, other = r.sample(["a", "b", "c"], 2)
    sort = {field: r.choice([1, -1])} if r.random() < 0.6 else {}
    sort[other] = r.choice([1, -1])
    op = r.choice(["$first", "$last"])
    pipeline = [{"$match": f}, {"$sort": sort}, {"$group": {"_id": "$" + field, "x": {op: "$$ROOT"}}}]
    got = documents(client, db, {"aggregate": "q", "pipeline": pipeline, "cursor": {}})
    if isinstance(got, dict) and got.get("code") == 2 and "parallel" in got.get("errmsg", "").lower():
        return
    if isinstance(got, dict) or sorted(canon(d["_id"]) for d in got) != sorted({canon(d.get(field)) for d in found}):
        raise Difference(f"{pipeline}: {got}")
    for d in got:
        for y in (y for y in found if canon(y.get(field)) == canon(d["_id"])):
            for (kx, sign), (ky, _) in zip(sort_key(d["x"], sort), sort_key(y, sort)):
                c = order(kx, ky) * sign * (1 if op == "$first" else -1)
                if c > 0:
                    raise Difference(f"{pipeline}: {d['x']}, not {y}")
                if c < 0:
                    break


def ask_first_of_all(client, db, r, found, f):
    sort = {r.choice(["a", "b", "c"]): r.choice([1, -1])}
    pipeline = [{"$match": f}, {"$sort": sort}, {"$group": {"_id": None, "x": {"$first": "$_id"}}}]
    got = aggregate(client, db, pipeline)
    if len(got) != (1 if found else 0):
        raise Difference(f"{pipeline}: {got}")
    for d in got:
        first = next((y for y in found if y["_id"] == d["x"]), None)
        if first is None:
            raise Difference(f"{pipeline}: {got} does not match")
        ((mine, sign),) = sort_key(first, sort)
        if any(order(sort_key(y, sort)[0][0], mine) * sign < 0 for y in found):
            raise Difference(f"{pipeline}: {first} is not the first")


def renamed(f, names):
    out = {}
    for name, want in f.items():
        head, dot, rest = name.partition(".")
        if name in ("$and", "$or", "$nor"):
            out[name] = [renamed(x, names) for x in want]
        else:
            out[names.get(head, head) + dot + rest] = want
    return out


def ask_renamed(client, db, r, docs):
    """A filter behind a stage that gives its fields other names."""
    f = filter_of(r, 1)
    stage, names = r.choice(
        [
            ({"$project": {"z": "$a", "b": 1}}, {"a": "z"}),
            ({"$project": {"b": "$a", "a": "$b"}}, {"a": "b", "b": "a"}),
            ({"$addFields": {"z": "$a", "a": 1}}, {"a": "z"}),
            ({"$set": {"y": "$b", "z": "$a"}}, {"a": "z", "b": "y"}),
            ({"$unset": "c"}, {}),
        ]
    )
    pipeline = [stage, {"$match": renamed(f, names)}, {"$project": {"_id": 1}}]
    want = sorted(i for i, d in docs.items() if matches(d, f))
    check_answer(f"{pipeline}", aggregate(client, db, pipeline), want, docs)
    sort = {r.choice(["a", "b", "c"]): r.choice([1, -1])}
    stage = {"$addFields": {"d": {"$ifNull": ["$a", 0]}}}
    by = sort
    if r.random() < 0.5:
        stage, by = {"$addFields": {"z": "$" + next(iter(sort))}}, {"z": next(iter(sort.values()))}
    pipeline = [stage, {"$sort": by}, {"$limit": r.randint(1, 9)}]
    got = aggregate(client, db, pipeline)
    limit = pipeline[2]["$limit"]
    keys = [sort_key(d, sort)[0][0] for d in docs.values()]
    for d in got:
        mine = sort_key(d, sort)[0][0]
        before = sum(order(k, mine) * list(sort.values())[0] < 0 for k in keys)
        if before >= limit:
            raise Difference(f"{pipeline}: {d} is not among the first")
    if len(got) != min(limit, len(docs)):
        raise Difference(f"{pipeline}: {len(got)} documents")


def ask(client, db, r, docs, indexes):
    f = filter_of(r)
    want = sorted(i for i, d in docs.items() if matches(d, f))
    sort = None
    if r.random() < 0.5:
        # Two paths into one array have their keys together, element by element: not in this model.
        sort = {
            r.choice(paths): r.choice([1, -1])
            for paths in r.sample([["a", "a.b"], ["b", "b.c"], ["c"]], r.randint(1, 2))
        }
    find = {"find": "q", "filter": f}
    if sort:
        find["sort"] = sort
    try:
        for hint in [None, {"$natural": 1}] + indexes:
            command = dict(find, hint=hint) if hint else find
            got = documents(client, db, command)
            what = f"{command}"
            if isinstance(got, dict) and got.get("code") == 2 and "parallel" in got.get("errmsg", "").lower():
                continue  # a sort on two arrays
            check_answer(what, got, want, docs)
            if sort:
                check_order(what, got, sort)
        # From an index alone, where one has it all.
        field = r.choice(["a", "b", "c"])
        got = documents(client, db, {"find": "q", "filter": f, "projection": {field: 1, "_id": 0}})
        if isinstance(got, dict) or sorted(map(repr, got)) != sorted(
            repr({k: v for k, v in docs[i].items() if k == field}) for i in want
        ):
            raise Difference(f"find {f} with only {field}: {got}")
        n = client.command(db, {"count": "q", "query": f})
        if n.get("n") != len(want):
            raise Difference(f"count {f}: {n}, want {len(want)}")
        got = documents(
            client, db, {"aggregate": "q", "pipeline": [{"$match": f}, {"$project": {"_id": 1}}], "cursor": {}}
        )
        check_answer(f"aggregate {f}", got, want, docs)
        ask_counts(client, db, r, docs, indexes, f, want)
        ask_values(client, db, r, [docs[i] for i in want], f)
        ask_paths(client, db, r, f)
        ask_first(client, db, r, docs, [docs[i] for i in want], f)
        ask_first_of_all(client, db, r, [docs[i] for i in want], f)
        ask_renamed(client, db, r, docs)
    except Difference as e:
        return str(e)
    return None


# --- transactions -----------------------------------------------------------------------------------------------------


class InTransaction:
    """A client whose commands are those of a transaction that has made `writes` first. One that an error has ended
    begins anew."""

    session = {"id": bson.Binary.from_uuid(uuid.UUID("33333333-2222-4333-8444-00000000000e"))}
    number = 0

    def __init__(self, client, db, writes):
        self.client, self.db, self.writes, self.open = client, db, writes, False

    def fields(self):
        return {"lsid": self.session, "txnNumber": Int64(InTransaction.number), "autocommit": False}

    def begin(self):
        InTransaction.number += 1
        self.open, start = True, {"startTransaction": True}
        for write in self.writes or [{"find": "q"}]:
            reply = self.client.command(self.db, {**write, **self.fields(), **start})
            if not reply["ok"] or "writeErrors" in reply:
                sys.exit(f"{write} in a transaction: {reply}")
            start = {}

    def command(self, db, command):
        if not self.open:
            self.begin()
        if "count" in command:  # not in a transaction
            pipeline = [{"$match": command["query"]}, {"$count": "n"}]
            reply = self.command(db, {"aggregate": command["count"], "pipeline": pipeline, "cursor": {}})
            return {"n": sum(d["n"] for d in reply["cursor"]["firstBatch"])} if reply["ok"] else reply
        reply = self.client.command(db, {**command, **self.fields()})
        self.open = bool(reply["ok"])
        return reply

    def end(self, name):
        if not self.open:
            self.begin()
        self.open = False
        reply = self.client.command("admin", {name: 1, **self.fields()})
        if not reply["ok"]:
            sys.exit(f"{name}: {reply}")


def make_other(client, db, r, docs):
    """Makes some documents other than they are; the writes that undo it."""
    writes = []
    for i, d in docs.items():
        how = r.random()
        if how < 0.3:
            client.command(db, {"delete": "q", "deletes": [{"q": {"_id": i}, "limit": 1}]})
            writes.append({"insert": "q", "documents": [d]})
        elif how < 0.6:
            other = {**docs[r.choice(list(docs))], "_id": i}
            client.command(db, {"update": "q", "updates": [{"q": {"_id": i}, "u": other}]})
            if r.random() < 0.5:
                writes.append({"update": "q", "updates": [{"q": {"_id": i}, "u": d}]})
            else:
                writes.append({"delete": "q", "deletes": [{"q": {"_id": i}, "limit": 1}]})
                writes.append({"insert": "q", "documents": [d]})
        elif how < 0.8:
            client.command(db, {"insert": "q", "documents": [{**d, "_id": 1000 + i}]})
            writes.append({"delete": "q", "deletes": [{"q": {"_id": 1000 + i}, "limit": 1}]})
    return writes


def main():
    args = ARGS.parse_args()
    r, server, client = begin(args)
    client.command("admin", {"setParameter": 1, "ttlMonitorEnabled": False})
    failed = asked = 0
    for n in range(args.rounds):
        db = f"model{n % 8}"
        client.command(db, {"dropDatabase": 1})
        global FLAT
        FLAT = r.random() < 0.5
        docs = {i: document(r, i) for i in range(r.randint(1, 40))}
        specs = r.sample(INDEXES, r.randint(1, 4))
        late = r.random() < 0.5
        made = []

        def index():
            for spec in specs:
                name = "_".join(f"{k}_{v}" for k, v in spec.items())
                part = r.choice(PARTS) if r.random() < 0.3 else {}
                reply = client.command(db, {"createIndexes": "q", "indexes": [{"key": spec, "name": name, **part}]})
                if reply["ok"] and not part:  # a hint at one that leaves documents out leaves them out
                    made.append(spec)

        if not late:
            client.command(db, {"create": "q"})
            index()
        for i, d in list(docs.items()):
            reply = client.command(db, {"insert": "q", "documents": [d]})
            if "writeErrors" in reply:  # two arrays in one compound index, or a number that is an index and a name
                if reply["writeErrors"][0]["code"] not in (171, 16746):
                    sys.exit(f"insert {d}: {reply}")
                del docs[i]
        if r.random() < 0.5:
            # Past their deadline and still stored: nobody sees them.
            ghosts = [document(r, 2000 + i) for i in range(r.randint(1, 20))]
            for d in ghosts:
                client.command(db, {"insert": "q", "documents": [d], "expireAt": PAST})
        if late:
            index()
        asker = InTransaction(client, db, make_other(client, db, r, docs)) if args.replica_set else client
        for q in range(args.questions):
            asked += 1
            if args.replica_set and q == args.questions * 3 // 4:
                asker.end("commitTransaction")
                asker = client
            why = ask(asker, db, r, docs, made)
            if why:
                failed += 1
                print(f"round {n}: {why}", flush=True)
                if failed >= 20:
                    sys.exit(f"{failed} differences, seed {args.seed}")
    ok = server.stop() if server else True
    print(f"{asked} questions, {failed} differences (seed {args.seed})")
    sys.exit(1 if failed or not ok else 0)


if __name__ == "__main__":
    main()
