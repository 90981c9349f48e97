#!/usr/bin/env python3
"""What a set's oplog says is enough to make its data again: every entry of it, sent to another server with applyOps as
restoring tools do.

A set of one member gets random writes of every kind, changes of collections and indexes, and what expires; a standalone
then gets the entries, in lists of random length, and must have the same collections, indexes and documents. So must it
after the last half of the list once more, because a dump holds data that is newer than the begin of its oplog. The last
line says "N passed, N failed".
"""

import argparse, datetime, os, random, sys, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pymongo
from pymongo.errors import BulkWriteError, OperationFailure
from topologies import ReplicaSet, Single, until

passed = failed = 0
DB = "replayed"
OLD = datetime.datetime(2020, 1, 1)
BEGIN = datetime.datetime(2030, 1, 1)


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print(("ok   " if ok else "FAIL ") + what, flush=True)


def value(r, depth=0):
    kind = r.randrange(7 if depth < 3 else 4)
    if kind < 3:
        return r.choice([None, True, 1.5, r.randrange(100), "text " * r.randrange(3), OLD])
    if kind < 4:
        return r.randrange(10**12)
    if kind < 6:
        return {r.choice("abcdef"): value(r, depth + 1) for _ in range(r.randrange(4))}
    return [value(r, depth + 1) for _ in range(r.randrange(5))]


def write(r, c):
    doc = {"_id": r.randrange(60), **{k: value(r) for k in r.sample("abcdef", r.randrange(1, 6))}}
    one = {"_id": doc["_id"]}
    kind = r.randrange(9)
    if kind < 2:
        c.replace_one(one, doc, upsert=True)
    elif kind < 5:
        c.update_one(
            one,
            {
                "$set": {r.choice(["a", "b", "n.x", "n.y.z", "l"]): value(r)},
                "$unset": {r.choice("cdef"): 1},
                "$inc": {"count": 1},
            },
            upsert=True,
        )
    elif kind == 5:
        c.update_one(
            one,
            [
                {
                    "$set": {
                        "l": {
                            "$concatArrays": [
                                {"$cond": [{"$isArray": "$l"}, "$l", []]},
                                [r.randrange(9), {"k": r.randrange(9)}],
                            ]
                        },
                        "n.x": "$count",
                    }
                }
            ],
        )
    elif kind == 6:
        c.update_many(
            {"l.k": {"$exists": True}},
            {"$set": {"l.$[e].k": r.randrange(9)}, "$push": {"p": {"$each": [1, 2], "$slice": -3}}},
            array_filters=[{"e.k": {"$exists": True}}],
        )
    elif kind == 7:
        c.delete_one(one)
    else:
        c.bulk_write(
            [
                pymongo.UpdateOne(one, {"$rename": {"a": "b"}}),
                pymongo.DeleteOne({"_id": r.randrange(60)}),
                pymongo.UpdateOne({"_id": r.randrange(60)}, {"$pop": {"l": -1}}),
            ]
        )


def write_points(r, series):
    kind = r.randrange(10)
    if kind < 7:
        # Of two days, so that a larger span makes other buckets.
        at = [BEGIN + datetime.timedelta(seconds=r.randrange(172_800)) for _ in range(r.randrange(1, 9))]
        meta = r.choice([1, "a", {"k": 1}])
        series.insert_many([{"at": t, "m": meta, **{k: value(r) for k in r.sample("abc", 2)}} for t in at])
    elif kind < 9:
        series.delete_many({"at": {"$gte": BEGIN + datetime.timedelta(seconds=r.randrange(172_800))}, "a": None})
    else:
        series.update_many({"m": {"$in": ["a", "b"]}}, {"$set": {"m": r.choice("ab")}})


def make_series(db):
    options = {"timeField": "at", "metaField": "m"}
    series = db.create_collection("series", timeseries=options, expireAfterSeconds=10**9, expireReads="exact")
    series.create_index("m.k", name="k")
    series.create_index("at", name="short", expireAfterSeconds=10**6, partialFilterExpression={"m.short": True})
    # A minute after their span they have gone, before most of what follows.
    old = db.create_collection("old", timeseries=options, expireAfterSeconds=60)
    old.insert_many([{"at": OLD, "m": i % 7, "v": i} for i in range(50)])


def change_series(db):
    db.command("collMod", "series", timeseries={"granularity": "minutes"}, expireAfterSeconds=10**8, expireReads="lazy")
    db.command("collMod", "series", index={"name": "k", "hidden": True})
    db.series.insert_one({"at": datetime.datetime(1960, 1, 1), "m": {"k": 1}})  # suspends expiry
    rolled = {"db": DB, "coll": "rolled", "timeseries": {"timeField": "at", "granularity": "hours"}}
    for _ in range(2):
        db.series.aggregate([{"$match": {"m": 1}}, {"$out": rolled}])


def contents(client):
    """Names with options and indexes, and documents in the order of their ids."""
    db, out = client[DB], {}
    for info in db.list_collections():
        name = info["name"]
        indexes = (
            sorted((i.to_dict() for i in db[name].list_indexes()), key=lambda i: i["name"])
            if info["type"] == "collection"
            else []
        )
        # A field's place in a document may change where an entry is applied a second time.
        out[name] = (info["type"], info["options"], indexes, [sorted_fields(d) for d in db[name].find().sort("_id")])
    return out


def sorted_fields(v):
    if isinstance(v, dict):
        return {k: sorted_fields(v[k]) for k in sorted(v)}
    return [sorted_fields(x) for x in v] if isinstance(v, list) else v


def make_history(client, r, writes):
    db = client[DB]
    for i in range(writes):
        try:
            write(r, db[r.choice(["c", "d"])])
        except (OperationFailure, BulkWriteError):
            pass  # a path through a number, for one: it changed nothing
        if i > writes // 4 and i % 5 == 0:
            write_points(r, db.series)
        if i == writes // 4:
            make_series(db)
            db.create_collection(
                "clustered",
                clusteredIndex={"key": {"_id": 1}, "unique": True, "name": "by id"},
                expireAfterSeconds=3600,
            )
            db.create_collection("capped", capped=True, size=4096, max=5)
            db.create_collection("checked", validator={"a": {"$type": "int"}}, validationLevel="moderate")
            db.create_collection("view", viewOn="c", pipeline=[{"$match": {"count": {"$gt": 1}}}])
            db.c.create_index("a")
            db.d.create_index([("b", 1), ("count", -1)], name="two", sparse=True)
            db.d.create_index("count", partialFilterExpression={"count": {"$gt": 3}}, unique=False, hidden=True)
            db.create_collection("sessions").create_index("at", expireAfterSeconds=60, name="at", expireReads="exact")
            db.checked.insert_many([{"_id": i, "a": i} for i in range(3)])
            db.capped.insert_many([{"_id": i} for i in range(9)])
            db.sessions.insert_many(
                [{"_id": i, "at": OLD if i % 2 else datetime.datetime(2100, 1, 1)} for i in range(400)]
            )
        if i == writes // 2:
            until(
                "what is due to go",
                lambda: (
                    client.local["oplog.rs"].count_documents(
                        {"$or": [{"op": "d", "ns": f"{DB}.sessions"}, {"o.applyOps.ns": f"{DB}.sessions"}]}
                    )
                    > 0
                    and db.sessions.count_documents({}) == 200
                ),
            )
            until("old points to go", lambda: db["system.buckets.old"].count_documents({}) == 0)
            change_series(db)
            db.command("collMod", "sessions", index={"name": "at", "expireAfterSeconds": 7200})
            db.command("collMod", "checked", validator={"a": {"$type": "number"}})
            db.command("collMod", "clustered", expireAfterSeconds=7200)
            db.c.drop_index("a_1")
            db.checked.rename("renamed")
            db.create_collection("gone").insert_one({"_id": 1})
            db.gone.drop()


def replay(client, entries, r):
    at = 0
    while at < len(entries):
        n = r.randrange(1, 40)
        reply = client.admin.command("applyOps", entries[at : at + n])
        assert all(reply["results"]) and reply["applied"] == len(entries[at : at + n]), reply
        at += n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=os.environ.get("MAYFLY_SEED", int(time.time())))
    parser.add_argument("--writes", type=int, default=3000)
    a = parser.parse_args()
    print(f"seed {a.seed}")
    r = random.Random(a.seed)
    source, target = ReplicaSet(1), Single()
    try:
        with pymongo.MongoClient(source.uri) as s, pymongo.MongoClient(target.uri) as t:
            # Buckets are merged all the time here, and not there: what is merged there is not found any more by
            # entries that follow.
            s.admin.command("setParameter", 1, timeSeriesSealIdleSecs=0)
            t.admin.command("setParameter", 1, timeSeriesSealing=False)
            make_history(s, r, a.writes)
            merged = lambda: s[DB].command("collStats", "series")["timeseries"]["numBucketsSealed"]
            until("buckets to be merged", lambda: merged() > 0)
            s.admin.command("setParameter", 1, timeSeriesSealing=False)
            s[DB].series.delete_many({"m": "nobody"})  # waits for the merge that is running
            entries = list(
                s.local["oplog.rs"]
                .find({"$or": [{"ns": {"$regex": f"^{DB}\\."}}, {"o.applyOps.ns": {"$regex": f"^{DB}\\."}}]})
                .sort("$natural", 1)
            )
            # The UUIDs are the source's: restoring tools leave them out.
            for e in entries:
                for op in [e, *e["o"].get("applyOps", [])]:
                    op.pop("ui", None)
            wanted = contents(s)
            check(len(entries) > a.writes / 2, f"{len(entries)} entries")
            replay(t, entries, r)
            got = contents(t)
            check(sorted(got) == sorted(wanted), f"collections {sorted(got)}")
            for name in wanted:
                check(
                    got.get(name) == wanted[name],
                    f"{name}: {len(wanted[name][3])} documents, {len(wanted[name][2])} indexes",
                )
            again = ("c", "d", "system.buckets.series")
            of = lambda e: e["ns"].removeprefix(f"{DB}.") in again
            merges = lambda e: all(of(op) for op in e["o"].get("applyOps", [{"ns": ""}]))
            replay(t, [e for e in entries[len(entries) // 2 :] if (of(e) if e["op"] != "c" else merges(e))], r)
            got = contents(t)
            for name in again:
                check(got[name] == wanted[name], f"{name} after the last half once more")
    finally:
        clean = source.stop() & target.stop()
    check(clean, "both stopped cleanly")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
