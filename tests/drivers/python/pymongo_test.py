"""pymongo against a real server: CRUD, bulk, cursors, indexes, TTL, errors, compression, threads."""

import datetime, os, resource, shutil, socket, struct, tempfile, threading, time

import bson, pymongo
from bson import Decimal128, Int64, ObjectId, Regex, Timestamp
from pymongo import (
    ASCENDING,
    DESCENDING,
    DeleteOne,
    IndexModel,
    InsertOne,
    MongoClient,
    ReplaceOne,
    UpdateMany,
    UpdateOne,
)
from pymongo.errors import BulkWriteError, CursorNotFound, DuplicateKeyError, ExecutionTimeout, OperationFailure

from parts import run_all

client = MongoClient(os.environ["MONGODB_URI"])
db = client["pymongo_driver"]
client.drop_database(db.name)
tests = []


def test(f):
    tests.append(f)
    return f


def raises(code, f, *a, **k):
    try:
        f(*a, **k)
    except OperationFailure as e:
        assert e.code == code, f"want {code}, got {e.code}: {e}"
        return e
    raise AssertionError(f"should have failed with {code}")


def until(what, f, seconds=60):
    end = time.monotonic() + seconds
    while not f():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"  # clock: a deadline that only a hang misses


@test
def types_round_trip():
    doc = {
        "_id": ObjectId(),
        "i": 1,
        "l": Int64(2**53 + 1),
        "d": 1.5,
        "s": "é",
        "b": b"\0\1",
        "n": None,
        "t": datetime.datetime(2030, 1, 1),
        "dec": Decimal128("1.10"),
        "ts": Timestamp(5, 6),
        "re": Regex("^a", "i"),
        "arr": [1, [2], {"x": 3}],
        "min": bson.MinKey(),
        "max": bson.MaxKey(),
    }
    db.types.insert_one(doc)
    assert db.types.find_one({"_id": doc["_id"]}) == doc


@test
def crud():
    c = db.crud
    assert len(c.insert_many([{"_id": i, "a": i % 3} for i in range(30)]).inserted_ids) == 30
    assert [d["_id"] for d in c.find({"a": 1}).sort("_id", DESCENDING).limit(3)] == [28, 25, 22]
    assert c.update_many({"a": 0}, {"$set": {"z": 1}, "$inc": {"n": 2}}).modified_count == 10
    assert c.update_one({"_id": 100}, {"$setOnInsert": {"x": 1}}, upsert=True).upserted_id == 100
    assert c.find_one_and_update({"_id": 100}, {"$unset": {"x": ""}}, return_document=True) == {"_id": 100}
    assert c.delete_many({"a": {"$in": [1, 2]}}).deleted_count == 20
    assert c.count_documents({}) == 11 and c.estimated_document_count() == 11
    assert sorted(c.distinct("n")) == [2]
    raises(11000, c.insert_one, {"_id": 0})


@test
def another_expire_after_seconds_points_to_coll_mod():
    c = db.life
    c.create_index("at", expireAfterSeconds=5)
    for options in ({"expireAfterSeconds": 6}, {"expireAfterSeconds": 6, "name": "other"}):
        message = str(raises(85, c.create_index, "at", **options))
        assert '{ "collMod" : "life", "index" : { "name" : "at_1", "expireAfterSeconds" : 6 } }' in message, message
    assert "drop it first" in str(raises(85, c.create_index, "at"))
    c.create_index("plain")
    assert '"collMod"' in str(raises(85, c.create_index, "plain", expireAfterSeconds=6))
    assert "collMod" not in str(raises(85, c.create_index, "plain", name="other"))


@test
def ttl_deletes_are_in_current_op():
    """Manual "TTL Indexes": the deletes of the background thread show in db.currentOp() and in the profiler."""
    c, admin = db.seen, client.admin
    admin.command("setParameter", 1, ttlMonitorEnabled=False)
    c.create_index("at", expireAfterSeconds=0)
    old = datetime.datetime(2001, 1, 1)
    for i in range(5):
        c.insert_many([{"_id": 10_000 * i + j, "at": old} for j in range(10_000)])
    db.command("profile", 1, slowms=0)
    was = admin.command("setParameter", 1, ttlMonitorBatchDeletes=False)["was"]  # one by one: slow enough to be seen
    admin.command("setParameter", 1, ttlMonitorEnabled=True)
    seen = []

    def look():
        seen.extend(o for o in admin.command("currentOp", 1, desc="TTLMonitor")["inprog"] if o["ns"] == c.full_name)
        return seen or c.estimated_document_count() == 0

    until("the monitor's delete in currentOp", look, 60)
    admin.command("setParameter", 1, ttlMonitorBatchDeletes=was)
    assert seen, "all of them went unseen"
    op = seen[0]
    assert (
        op["op"] == "remove"
        and op["active"]
        and op["command"]["delete"] == "seen"
        and op["command"]["deletes"][0]["hint"] == "at_1"
    )
    until("the documents to go", lambda: c.estimated_document_count() == 0, 60)
    db.command("profile", 0)
    assert db["system.profile"].find_one({"op": "remove", "ns": c.full_name})["ndeleted"] > 0
    db.drop_collection("system.profile")


@test
def replies_about_very_many_rules():
    """ttlStatus and ttlForecast of more rules than fit in a reply: pages, fewer names, or an error that says what to
    do."""
    many = client["many_rules"]
    client.drop_database(many.name)
    for c in range(34):
        many.command(
            "createIndexes",
            f"c{c:02}",
            indexes=[
                {"key": {f"f{i}": 1}, "name": f"{i:02}" + "n" * 8_000, "expireAfterSeconds": 60} for i in range(63)
            ],
        )
    e = raises(10334, many.command, "ttlStatus", 1)
    assert "2142 rules" in str(e) and "'limit' and 'skip'" in str(e)
    seen, page = [], {"total": 1}
    while len(seen) < page["total"]:
        page = many.command("ttlStatus", 1, skip=len(seen), limit=1000)
        seen += [(r["ns"], r["index"]) for r in page["rules"]]
    assert page["total"] == 2142 and len(set(seen)) == 2142 and seen == sorted(seen)
    assert len(many.command("ttlStatus", "c07")["rules"]) == 63
    now = datetime.datetime.now(datetime.timezone.utc)
    many.c00.insert_many([{f"f{i}": now for i in range(63)} for _ in range(10)])
    f = many.command("ttlForecast", 1, horizonSeconds=1000, buckets=1000)
    assert sum(x["count"] for x in f["intervals"]) + f["overdue"] == 10
    assert all(sum(x["byRule"].values()) == x["count"] for x in f["intervals"])
    client.drop_database(many.name)


@test
def array_updates():
    c = db.arrays
    c.insert_one({"_id": 1, "g": [1, 5, 9], "o": [{"k": 1, "v": 1}, {"k": 2, "v": 2}]})
    c.update_one({"_id": 1, "g": {"$gte": 5}}, {"$set": {"g.$": 50}})
    c.update_one({"_id": 1}, {"$inc": {"o.$[e].v": 10}}, array_filters=[{"e.k": 2}])
    c.update_one(
        {"_id": 1},
        {"$push": {"g": {"$each": [7, 3], "$sort": 1, "$slice": -4}}, "$addToSet": {"t": {"$each": ["a", "b", "a"]}}},
    )
    assert c.find_one() == {"_id": 1, "g": [3, 7, 9, 50], "o": [{"k": 1, "v": 1}, {"k": 2, "v": 12}], "t": ["a", "b"]}
    c.update_one({"_id": 1}, {"$pull": {"o": {"k": 1}}, "$pop": {"g": 1}})
    assert c.find_one() == {"_id": 1, "g": [3, 7, 9], "o": [{"k": 2, "v": 12}], "t": ["a", "b"]}


@test
def bulk():
    r = db.bulk.bulk_write(
        [
            InsertOne({"_id": 1}),
            UpdateOne({"_id": 1}, {"$set": {"a": 1}}),
            UpdateMany({}, {"$inc": {"n": 1}}),
            ReplaceOne({"_id": 2}, {"b": 2}, upsert=True),
            DeleteOne({"_id": 1}),
        ]
    )
    assert (r.inserted_count, r.modified_count, r.upserted_count, r.deleted_count) == (1, 2, 1, 1)
    try:
        db.bulk.bulk_write([InsertOne({"_id": 2}), InsertOne({"_id": 3})], ordered=False)
        raise AssertionError("no error")
    except BulkWriteError as e:
        assert e.details["writeErrors"][0]["code"] == 11000 and e.details["nInserted"] == 1


@test
def cursors():
    c = db.cursors
    c.insert_many([{"_id": i, "pad": "x" * 100} for i in range(5000)])
    assert [d["_id"] for d in c.find(batch_size=13)] == list(range(5000))
    assert sum(1 for _ in c.find({"_id": {"$gte": 4000}}).skip(10).limit(500)) == 500
    cur = c.find(batch_size=2)
    next(cur)
    db.command({"killCursors": "cursors", "cursors": [cur.cursor_id]})
    next(cur)
    try:
        next(cur)
        raise AssertionError("the cursor should be gone")
    except CursorNotFound:
        pass


@test
def raw_batches():
    db.raw.insert_many([{"_id": i} for i in range(10)])
    assert sum(len(bson.decode_all(b)) for b in db.raw.find_raw_batches(batch_size=3)) == 10


@test
def indexes_and_explain():
    c = db.idx
    c.insert_many([{"_id": i, "a": i, "b": {"c": [i, i + 1]}} for i in range(100)])
    c.create_indexes(
        [
            IndexModel([("a", ASCENDING)]),
            IndexModel([("b.c", DESCENDING)], name="bc"),
            IndexModel([("a", 1), ("b.c", 1)]),
        ]
    )
    assert set(c.index_information()) == {"_id_", "a_1", "bc", "a_1_b.c_1"}
    assert c.count_documents({"b.c": 50}) == 2
    plan = c.find({"a": {"$gt": 90}}).hint("a_1").explain()
    assert plan["queryPlanner"]["winningPlan"]["inputStage"]["stage"] == "IXSCAN", plan
    raises(85, c.create_index, "a", expireAfterSeconds=5)
    raises(171, c.insert_one, {"a": [1, 2], "b": {"c": [1, 2]}})


@test
def aggregation():
    c = db.agg
    c.insert_many([{"_id": i, "k": i % 4, "v": i} for i in range(100)])
    out = list(c.aggregate([{"$group": {"_id": "$k", "n": {"$sum": 1}, "max": {"$max": "$v"}}}, {"$sort": {"_id": 1}}]))
    assert out == [{"_id": k, "n": 25, "max": 96 + k} for k in range(4)]
    facet = list(
        c.aggregate(
            [
                {
                    "$facet": {
                        "few": [{"$sort": {"v": -1}}, {"$limit": 2}, {"$project": {"v": 1, "_id": 0}}],
                        "n": [{"$count": "n"}],
                    }
                }
            ]
        )
    )
    assert facet == [{"few": [{"v": 99}, {"v": 98}], "n": [{"n": 100}]}]


@test
def ttl():
    c = db.ttl
    c.create_index("at", expireAfterSeconds=10)
    now = datetime.datetime.now(datetime.timezone.utc)
    c.insert_many(
        [
            {"_id": 1, "at": now - datetime.timedelta(seconds=11)},
            {"_id": 2, "at": now},
            {"_id": 3},
            {"_id": 4, "at": [now, now - datetime.timedelta(seconds=60)]},
        ]
    )
    until("two documents to expire", lambda: c.count_documents({}) == 2)
    assert sorted(d["_id"] for d in c.find()) == [2, 3]
    db.command("collMod", "ttl", index={"keyPattern": {"at": 1}, "expireAfterSeconds": 0})
    until("the third to expire", lambda: c.count_documents({}) == 1)
    raises(67, c.create_index, [("a", 1), ("b", 1)], expireAfterSeconds=5)


@test
def errors():
    raises(59, db.command, "nonsense")
    raises(40415, db.command, {"find": "x", "nonsense": 1})
    raises(14, db.command, {"find": "x", "limit": "many"})
    raises(26, db.command, {"collMod": "no_such_collection"})
    raises(73, db.command, {"insert": "", "documents": [{}]})
    raises(2, lambda: list(db.crud.find({"a": {"$foo": 1}})))
    raises(40, db.crud.update_one, {}, {"$set": {"a": 1}, "$inc": {"a": 1}})


@test
def max_time():
    c = db.slow
    c.insert_many([{"a": i} for i in range(20000)])
    raises(
        50,
        lambda: list(
            c.aggregate(
                [
                    {"$unwind": {"path": "$x", "preserveNullAndEmptyArrays": True}},
                    {"$group": {"_id": "$a", "s": {"$push": "$$ROOT"}}},
                    {"$lookup": {"from": "slow", "localField": "a", "foreignField": "a", "as": "m"}},
                    {"$count": "n"},
                ],
                maxTimeMS=5,
            )
        ),
    )


@test
def compression():
    for name in ("snappy", "zlib", "zstd"):
        with MongoClient(os.environ["MONGODB_URI"], compressors=name) as k:
            c = k[db.name].compressed
            c.drop()
            c.insert_many([{"_id": i, "t": "mayfly " * 100} for i in range(300)])
            assert len(list(c.find())) == 300, name


@test
def threads():
    def work(n):
        for i in range(50):
            db.threads.update_one({"_id": i % 5}, {"$inc": {"n": 1}}, upsert=True)

    ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    assert sum(d["n"] for d in db.threads.find()) == 400


@test
def expire_operator():
    c = db.expire
    left = lambda i: (c.find_one({"_id": i}, {"left": {"$meta": "ttlMillis"}}) or {}).get("left")
    c.insert_many([{"_id": i} for i in range(4)])
    c.update_one({"_id": 1}, {"$set": {"a": 1}, "$expire": {"afterSeconds": 3600}})
    assert 3_590_000 < left(1) <= 3_600_000, left(1)
    c.update_one({"_id": 1}, {"$set": {"a": 2}, "$expire": {"preserve": True}})
    assert left(1) > 3_590_000
    c.update_one({"_id": 1}, {"$set": {"a": 3}})
    assert left(1) is None
    at = datetime.datetime(2100, 1, 1)
    assert (
        c.find_one_and_update(
            {"_id": 2}, {"$expire": {"at": at}}, projection={"at": {"$meta": "expireAt"}}, return_document=True
        )["at"]
        == at
    )
    c.bulk_write(
        [
            UpdateOne({"_id": 3}, {"$expire": {"at": datetime.datetime(2020, 1, 1)}}),
            UpdateMany({"_id": {"$lt": 1}}, {"$expire": {"afterSeconds": 60}}),
        ]
    )
    assert c.find_one({"_id": 3}) is None and c.count_documents({}) == c.estimated_document_count() == 3
    c.insert_one({"_id": 3})
    raises(14, c.update_one, {"_id": 1}, {"$expire": {"afterSeconds": "1"}})
    assert (
        db.command({"touch": "expire", "q": {}, "expireAfterSeconds": 30, "when": "nx", "multi": True})["nModified"]
        == 2
    )
    assert db.command({"persist": "expire", "q": {}, "multi": True})["nModified"] == 4
    assert [(t["id"], t["reason"]) for t in c.aggregate([{"$tombstones": {}}])] == [(3, "expired")]


@test
def expiry_field():
    c = db.create_collection("field", expiry={"field": "ttl", "maxTTL": 3600})
    c.insert_many([{"_id": 1, "ttl": 60}, {"_id": 2, "ttl": datetime.datetime(2020, 1, 1)}, {"_id": 3}])
    c.replace_one({"_id": 4}, {"ttl": 10**7}, upsert=True)
    rows = list(c.find({}, {"left": {"$meta": "ttlMillis"}}))
    assert [d["_id"] for d in rows] == [1, 3, 4]
    assert rows[0]["left"] <= 60_000 < 3_590_000 < rows[1]["left"] <= 3_600_000 and rows[2]["left"] <= 3_600_000
    raises(121, c.insert_one, {"ttl": "soon"})


@test
def index_build_is_seen():
    """A build that takes a while shows how far it is in currentOp; reads and writes go on meanwhile."""
    c = db.build
    pad = "x" * 100
    for k in range(0, 200_000, 20_000):
        c.insert_many([{"_id": i, "a": i % 97, "b": pad, "c": [i, i + 1]} for i in range(k, k + 20_000)])
    built = []
    builder = threading.Thread(target=lambda: built.append(c.create_indexes([IndexModel([(f, 1)]) for f in "abc"])))
    builder.start()
    seen = wrote = 0
    while not built:
        for op in client.admin.aggregate([{"$currentOp": {}}, {"$match": {"progress": {"$exists": True}}}]):
            assert op["msg"].startswith("Index Build: ") and op["progress"]["total"] >= 200_000, op
            seen += 1
        c.insert_one({"a": -1, "b": pad, "c": []})
        wrote += 1
    builder.join()
    assert seen > 0 and wrote > 0
    assert c.count_documents({"a": -1}, hint="a_1") == wrote and db.command("validate", "build")["valid"]
    c.drop()


@test
def backup_is_seen_and_ended():
    """A backup of the running server: currentOp and serverStatus show how far it is, another one is refused meanwhile,
    killOp ends it and leaves the folder as it was."""
    work = os.path.realpath(tempfile.mkdtemp(prefix="mayfly-driver-backup-"))
    admin, path = client.admin, f"{work}/b"
    backup = lambda **more: admin.command("backup", 1, path=path, **more)
    status = lambda: admin.command("serverStatus")["backup"]
    db.copied.insert_many([{"_id": i, "pad": os.urandom(1000)} for i in range(2000)])
    try:
        made = backup()
        assert made["bytes"] == made["bytesCopied"] > 2_000_000, made
        assert isinstance(made["time"], datetime.datetime) and made["durationMillis"] >= 0, made
        assert ("position" in made) == ("setName" in admin.command("hello")), made
        last = status()["last"]
        assert last["path"] == path and last["id"] == made["id"], last
        ended, shown = [], []

        def slowly():
            try:
                ended.append(backup(incremental=False, rateBytesPerSecond=1024))
            except OperationFailure as e:
                ended.append(e)

        def is_shown():
            assert not ended, ended
            ops = admin.aggregate([{"$currentOp": {}}, {"$match": {"command.backup": 1, "progress.done": {"$gt": 0}}}])
            shown[:] = list(ops)
            return shown

        slow = threading.Thread(target=slowly, daemon=True)
        slow.start()
        until("the backup in currentOp", is_shown)
        op = shown[0]
        assert op["active"] and op["op"] == "command" and op["ns"].startswith("admin."), op
        assert op["command"]["path"] == path and op["command"]["rateBytesPerSecond"] == 1024, op
        assert 0 < op["progress"]["done"] < op["progress"]["total"] and op["progress"]["total"] > 2_000_000, op
        assert op["msg"].startswith("Backup: ") and op["msg"].endswith("%"), op
        same = [o for o in admin.command("currentOp")["inprog"] if o.get("opid") == op["opid"]]
        assert len(same) == 1 and same[0]["progress"]["done"] >= op["progress"]["done"], same
        until("its bytes in serverStatus", lambda: status().get("bytesDone", 0) > 0)
        running = status()
        assert running["running"] and running["bytesDone"] < running["bytesTotal"], running
        busy = raises(46, admin.command, "backup", 1, path=f"{work}/other")
        assert busy.details["codeName"] == "LockBusy" and "killOp" in str(busy), busy
        assert admin.command("killOp", op=op["opid"])["ok"] == 1
        slow.join(60)
        assert ended and isinstance(ended[0], OperationFailure), ended
        assert ended[0].code == 11601 and ended[0].details["codeName"] == "Interrupted", ended
        assert not status()["running"] and status()["last"]["id"] == made["id"], status()
        assert os.listdir(f"{path}/backups") == [made["id"]], "what was ended is no backup"
        late = raises(50, backup, incremental=False, rateBytesPerSecond=1024, maxTimeMS=200)
        assert isinstance(late, ExecutionTimeout) and late.details["codeName"] == "MaxTimeMSExpired", late
        failure = status()["lastFailure"]
        assert failure["path"] == path and failure["error"], failure
        assert raises(13, db.command, "backup", 1, path=path).details["codeName"] == "Unauthorized"
        assert raises(2, admin.command, "backup", 1, path="b").details["codeName"] == "BadValue"
        again = backup()
        assert again["filesCopied"] < again["files"] and "lastFailure" not in status(), again
        assert sorted(os.listdir(f"{path}/backups")) == sorted([made["id"], again["id"]])
    finally:
        shutil.rmtree(work, ignore_errors=True)
        db.copied.drop()


@test
def idle_connections():
    """Connections that wait cost no thread and little memory each."""
    status = lambda: client.admin.command("serverStatus")
    host, port = client.address
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 2000
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 500), hard), hard))
    before = status()
    body = struct.pack("<I", 0) + b"\0" + bson.encode({"hello": 1, "$db": "admin"})
    message = struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body
    sockets = []
    try:
        for _ in range(count):
            s = socket.create_connection((host, port))
            sockets.append(s)
            s.sendall(message)
            assert s.recv(1 << 16)
        during = status()
    finally:
        for s in sockets:
            s.close()
    assert during["connections"]["current"] >= count
    assert during["extra_info"]["threads"] - before["extra_info"]["threads"] < 20
    assert during["mem"]["resident"] - before["mem"]["resident"] < 100, (before["mem"], during["mem"])
    until("the connections to end", lambda: status()["connections"]["current"] < count)


@test
def time_series():
    begin = datetime.datetime(2030, 1, 1)
    options = {"timeField": "at", "metaField": "sensor", "granularity": "seconds"}
    series = db.create_collection("weather", timeseries=options, expireAfterSeconds=86400)
    minute = datetime.timedelta(minutes=1)
    result = series.insert_many(
        [{"at": begin + i * minute, "sensor": {"id": i % 3}, "celsius": i / 10} for i in range(300)]
    )
    assert len(result.inserted_ids) == 300
    shown = next(db.list_collections(filter={"name": "weather"}))
    assert shown["type"] == "timeseries" and shown["options"]["expireAfterSeconds"] == 86400
    assert series.count_documents({"sensor.id": 1}) == 100
    late = series.find({"sensor.id": 2, "at": {"$gte": begin + 290 * minute}}, {"_id": 0, "celsius": 1}).sort("at", -1)
    assert [d["celsius"] for d in late] == [29.9, 29.6, 29.3, 29.0]
    hour = {"$dateTrunc": {"date": "$at", "unit": "hour"}}
    means = list(series.aggregate([{"$group": {"_id": hour, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]))
    assert [m["n"] for m in means] == [60] * 5
    series.create_index([("sensor.id", ASCENDING), ("at", DESCENDING)], name="by_id")
    assert series.index_information()["by_id"]["key"] == [("sensor.id", 1), ("at", -1)]
    series.update_many({"sensor.id": 2}, {"$set": {"sensor.room": "roof"}}, hint="by_id")
    assert series.distinct("sensor.room") == ["roof"]
    assert series.delete_many({"celsius": {"$lt": 1}}, hint=[("sensor.id", 1), ("at", -1)]).deleted_count == 10
    raises(72, series.update_one, {"sensor.id": 1}, {"$set": {"celsius": 0}})
    raises(72, series.find_one_and_delete, {"sensor.id": 1})
    db.command("collMod", "weather", timeseries={"granularity": "minutes"}, expireAfterSeconds="off")
    series.drop()
    assert not [c for c in db.list_collection_names() if "weather" in c]


run_all("pymongo", tests)
