#!/usr/bin/env python3
"""Deadlines of documents go through dumps and back, and the commands of docs/dumps.md do what the page says.

The tools themselves are run where they are installed. Elsewhere the functions below send what they send, in their
order and under their names: mongodump (options and indexes, find of each collection, the oplog), mongorestore (create
with the options, documents unordered and unvalidated, indexes, the oplog entry by entry), mongoexport and mongoimport.
The last line says "N passed, N failed".
"""

import datetime, json, re, shlex, shutil, subprocess, tempfile
from pathlib import Path

import bson
import pymongo
from bson import json_util
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

from fault_test import ROOT, Checks, Deadline, discard, run_parts, until, wait_for
from own_server import OwnServer, code
from replica_set import ReplicaSet

check = Checks(quiet=True)
folder = Path(tempfile.mkdtemp(prefix="mayfly-dumps-"))
PAGE = (ROOT / "docs/dumps.md").read_text()
FIELD = "__expireAt"
RAW = CodecOptions(document_class=RawBSONDocument)
EXACT = json_util.CANONICAL_JSON_OPTIONS


def now():
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


def later(seconds):
    return now() + datetime.timedelta(seconds=seconds)


class Server(OwnServer):
    check, root_password = check, "of this run 4711"
    client_options = {"tz_aware": True}

    def __init__(self, *extra, auth=False):
        super().__init__(*extra, auth=auth)
        self.uri = f"mongodb://127.0.0.1:{self.port}/"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.kill()
        self.proc.wait()
        discard(self.folder)


def joined(*documents):
    """A document with the fields of all of them, of which some may be there twice."""
    body = b"".join(bson.encode(d)[4:-1] for d in documents)
    return RawBSONDocument((len(body) + 5).to_bytes(4, "little") + body + b"\0")


def switch_on(client, **more):
    client.admin.command("setClusterParameter", {"dumpDeadlines": {"field": FIELD, **more}})


def deadlines(client, db, name):
    """{_id: deadline} of what is shown."""
    rows = client[db][name].aggregate([{"$project": {"e": {"$meta": "expireAt"}}}])
    return {r["_id"]: r.get("e") for r in rows}


def tool_client(uri, name):
    return pymongo.MongoClient(uri, appname=name, directConnection="replicaSet" not in uri, tz_aware=True)


# --- what the tools do


def mongodump(uri, out, db=None, oplog=False):
    with tool_client(uri, "mongodump") as client:
        out = Path(out)
        begin = client.local["oplog.rs"].find().sort("$natural", -1).limit(1).next()["ts"] if oplog else None
        for name in [db] if db else client.list_database_names():
            if name in ("local", "config", "admin"):
                continue
            for c in client[name].command("listCollections", cursor={})["cursor"]["firstBatch"]:
                if c["name"].startswith("system."):
                    continue
                (out / name).mkdir(parents=True, exist_ok=True)
                indexes = [] if c["type"] == "view" else list(client[name][c["name"]].list_indexes())
                meta = {"options": c["options"], "indexes": indexes, "collectionName": c["name"], "type": c["type"]}
                (out / name / f"{c['name']}.metadata.json").write_text(json_util.dumps(meta, json_options=EXACT))
                if c["type"] == "view":
                    continue
                stored = f"system.buckets.{c['name']}" if c["type"] == "timeseries" else c["name"]
                with open(out / name / f"{stored}.bson", "wb") as f:
                    for d in client[name].get_collection(stored, RAW).find({}, no_cursor_timeout=True, batch_size=9):
                        f.write(d.raw)
        if oplog:
            with open(out / "oplog.bson", "wb") as f:
                for d in client.local.get_collection("oplog.rs", RAW).find({"ts": {"$gte": begin}}):
                    f.write(d.raw)


def mongorestore(uri, dump, drop=False, oplog=False):
    """How many documents were refused."""
    failed = 0
    with tool_client(uri, "mongorestore") as client:
        for meta in sorted(Path(dump).glob("*/*.metadata.json")):
            db, name = meta.parent.name, meta.name.removesuffix(".metadata.json")
            said = json_util.loads(meta.read_text(), json_options=EXACT)
            if drop:
                client[db].drop_collection(name)
            options = dict(said["options"])
            if "clusteredIndex" not in options and said["type"] == "collection":
                options["idIndex"] = next(dict(i) for i in said["indexes"] if i["name"] == "_id_")
            if name not in client[db].list_collection_names():
                client[db].command("create", name, **options)
            stored = f"system.buckets.{name}" if said["type"] == "timeseries" else name
            data = meta.parent / f"{stored}.bson"
            if not data.exists():
                continue
            documents = bson.decode_all(data.read_bytes(), RAW)
            for at in range(0, len(documents), 1000):
                try:
                    client[db].get_collection(stored, RAW).insert_many(
                        documents[at : at + 1000], ordered=False, bypass_document_validation=True
                    )
                except BulkWriteError as e:
                    failed += len(e.details["writeErrors"])
            rest = [i for i in said["indexes"] if i["name"] != "_id_" and not i.get("clustered")]
            if rest:
                client[db].command("createIndexes", name, indexes=rest, ignoreUnknownIndexOptions=True)
        if oplog:
            for entry in bson.decode_all((Path(dump) / "oplog.bson").read_bytes()):
                if entry["op"] == "n" or entry["ns"].startswith(("config.", "admin.system")):
                    continue
                # The tool knows these fields of an entry, and sends no other.
                known = {k: v for k, v in entry.items() if k in ("ts", "t", "v", "op", "ns", "o", "o2")}
                for inner in entry["o"].get("applyOps", []):  # UUIDs are those of the source
                    inner.pop("ui", None)
                client.admin.command("applyOps", [known])
    return failed


def mongoexport(uri, db, collection, out, fields=None):
    with tool_client(uri, "mongoexport") as client:
        shown = dict.fromkeys(fields.split(","), 1) if fields else None
        with open(out, "w") as f:
            for d in client[db][collection].find({}, shown):
                f.write(json_util.dumps(d, json_options=json_util.RELAXED_JSON_OPTIONS) + "\n")


def mongoimport(uri, db, collection, file, mode="insert"):
    with tool_client(uri, "mongoimport") as client:
        c = client[db][collection]
        lines = [json_util.loads(l) for l in Path(file).read_text().splitlines()]
        if mode == "insert":
            c.insert_many(lines, ordered=False)
        for d in lines if mode != "insert" else []:
            if mode == "upsert":
                c.replace_one({"_id": d["_id"]}, d, upsert=True)
            else:
                c.update_one({"_id": d["_id"]}, {"$set": d}, upsert=True)


TOOLS = {"mongodump": mongodump, "mongorestore": mongorestore, "mongoexport": mongoexport, "mongoimport": mongoimport}


def run_tool(command, hosts, cwd):
    """A line of the page, with other hosts: by the tool itself if there is one."""
    words = shlex.split(command)
    tool, given, rest = words[0], {}, []
    words = [re.sub(r"mongodb://(\w+)\.example/", lambda m: hosts[m[1]], w) for w in words]
    if shutil.which(tool):
        r = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=Deadline(120).seconds)
        check(r.returncode == 0, f"{command}: {r.stderr}")
        return
    for w in words[1:]:
        if w.startswith("--"):
            name, value = w[2:].split("=", 1)
            given[name] = value
        else:
            rest.append(w)
    for path in ("out",):
        if path in given:
            given[path] = str(Path(cwd) / given[path])
    if rest:
        given["dump" if tool == "mongorestore" else "file"] = str(Path(cwd) / rest[0])
    TOOLS[tool](given.pop("uri"), **given)


def shell(text, client):
    """db.adminCommand({…}), db.getSiblingDB("app").runCommand({…}), as mongosh sends them."""
    m = re.fullmatch(r'db(?:\.getSiblingDB\("([^"]+)"\))?\.(adminCommand|runCommand)\((\{.*\})\)', text)
    check(m, f"a command of the shell: {text}")
    return client[m[1] or "admin"].command(json.loads(re.sub(r"([{,]\s*)([$\w]+):", r'\1"\2":', m[3])))


# --- the parts


def page():
    """The commands of the page, in its order: a is dumped, b is restored to."""
    steps = []
    for kind, block in re.findall(r"```(sh|js)\n(.*?)```", PAGE, re.S):
        steps += [(kind, line) for line in block.splitlines() if line.strip()]
    check(len(steps) == 12, f"{len(steps)} commands")
    with Server() as a, Server() as b:
        hosts, source, target = {"a": a.uri, "b": b.uri}, a.connect(), b.connect()
        source.app.command("create", "sessions", expiry={"maxTTL": 90000})
        far, soon = later(80000), later(4)
        source.app.command("insert", "sessions", documents=[{"_id": "far"}], expireAt=far)
        source.app.command("insert", "sessions", documents=[{"_id": "soon"}], expireAt=soon)
        source.app.command("setDatabaseExpiry", 1, maxTTL=100000)
        cwd = tempfile.mkdtemp(dir=folder)
        recovered = None
        for n, (kind, line) in enumerate(steps):
            if kind == "sh" and line.startswith("mongorestore"):
                target.drop_database("app")
                if n > 3:  # the one that keeps the reaper off: meanwhile a deadline passes
                    wait_for(lambda: now() > soon, 30)
            if kind == "sh" and line.startswith("mongoimport"):
                target.app.sessions.delete_many({})
            if kind == "sh":
                run_tool(line, hosts, cwd)
                continue
            reply = shell(line, target)
            if "setClusterParameter" in line:
                shell(line, source)
            if "ttlForecast" in line:
                check(reply["overdue"] == 1, f"what would go at once: {reply}")
                check(deadlines(target, "app", "sessions") == {"far": far}, "and is hidden")
            if "ttlRecover" in line:
                recovered = reply
        check(recovered and recovered["nRecovered"] == 1, f"it is brought back: {recovered}")
        got = deadlines(target, "app", "sessions")
        check(got == {"far": far}, f"the import has the deadline: {got}")
        check(target.app.command("getDatabaseExpiry", 1)["maxTTL"] == 100000, "the database's limit is back")


def whole():
    """Everything that can have a deadline or a limit, dumped and restored; other clients see no field."""
    with Server() as a, Server() as b:
        x, y = a.connect(), b.connect()
        for client in (x, y):
            switch_on(client)
        db = x.app
        db.command("create", "plain")
        db.command("create", "limited", expiry={"maxTTL": 3600, "onUpdate": "preserve", "recoverSeconds": 60})
        db.command("create", "by_field", expiry={"field": "ttl"})
        db.command("create", "clustered", clusteredIndex={"key": {"_id": 1}, "unique": True}, expireAfterSeconds=99999)
        db.command("create", "capped", capped=True, size=100000)
        db.command("create", "old")
        db.command("create", "archived", onExpire={"action": "archive", "into": {"db": "app", "coll": "old"}})
        db.command("create", "seen", viewOn="plain", pipeline=[])
        db.command("create", "weather", timeseries={"timeField": "t", "metaField": "m"}, expireAfterSeconds=86400)
        db.weather.insert_many([{"t": now(), "m": i, "v": i} for i in range(5)])
        db.command("setDatabaseExpiry", 1, maxTTL=7200)
        far = later(3000)
        for name in ("plain", "limited", "by_field", "archived"):
            docs = [{"_id": i, "u": i, "ttl": 1000} for i in range(50)]
            db.command("insert", name, documents=docs, expireAt=far)
        db.command("insert", "clustered", documents=[{"_id": now(), "u": 1}], expireAt=far)
        db.plain.create_index("u", unique=True)
        db.plain.create_index("ttl", expireAfterSeconds=5)
        db.command("setDatabaseExpiry", 1, maxTTL=0)
        db.command("insert", "plain", documents=[{"_id": "never", "u": "never"}])
        db.command("setDatabaseExpiry", 1, maxTTL=7200)
        x.free.c.insert_many([{"_id": i} for i in range(300)])  # of a database without limit
        x.free.command("touch", "c", q={"_id": {"$lt": 100}}, expireAt=far, multi=True)
        db.capped.insert_one({"_id": 1})
        check(FIELD not in db.plain.find_one({"_id": 1}), "a client of another name sees no field")
        check(all(FIELD not in d for d in db.plain.aggregate([])), "nor in a pipeline")
        dump = tempfile.mkdtemp(dir=folder)
        mongodump(a.uri, dump)
        stored = bson.decode_all(Path(dump, "app/plain.bson").read_bytes())
        check(sum(FIELD in d for d in stored) == 50, "the dump has the deadlines")
        began = now()
        check(mongorestore(b.uri, dump) == 0, "all documents are restored")
        for name in ("plain", "limited", "by_field", "archived", "clustered"):
            there, here = deadlines(y, "app", name), deadlines(x, "app", name)
            never = there.pop("never", None) if name == "plain" else None
            here.pop("never", None)
            check(there == here and len(there) in (50, 1), f"{name} has the same deadlines")
            if name == "plain":
                left = never and (never - began).total_seconds()
                given = never and left < 100_000  # clock: a deadline of two hours; a day of room
                check(given, f"one without gets the limit of the database: {left}")
        check(deadlines(y, "free", "c") == deadlines(x, "free", "c"), "without a limit none gets a deadline")
        check(y.app.command("getDatabaseExpiry", 1)["maxTTL"] == 7200, "the limit of the database is back")
        check(y.free.command("getDatabaseExpiry", 1)["maxTTL"] == 0, "the other has none")
        check(y.app.weather.count_documents({}) == 5, "points of a time series are back")
        shown = lambda c: {
            i["name"]: i["options"] for i in c.app.command("listCollections")["cursor"]["firstBatch"]
            if not i["name"].startswith("system.")
        }
        check(shown(x) == shown(y), f"the same options: {shown(x)} {shown(y)}")
        check("databaseMaxTTL" not in str(shown(x)), "which others see as they are")
        check(y.app.plain.index_information() == x.app.plain.index_information(), "the same indexes")
        check(all(FIELD not in d for n in ("plain", "limited") for d in y.app[n].find()), "the field is not stored")
        y.app.command("validate", "plain")
        # Again, over what is there: nothing is lost by it, and with --drop all comes back.
        check(mongorestore(b.uri, dump) > 0, "duplicates are refused")
        check(mongorestore(b.uri, dump, drop=True) == 0, "with --drop none are")
        check(deadlines(y, "app", "limited") == deadlines(x, "app", "limited"), "and the deadlines are back")
        # A limit that is there stays.
        y.app.command("setDatabaseExpiry", 1, maxTTL=60)
        mongorestore(b.uri, dump, drop=True)
        check(y.app.command("getDatabaseExpiry", 1)["maxTTL"] == 60, "a limit that is there is not changed")
        until_60 = max(deadlines(y, "app", "plain").values())
        left = (until_60 - now()).total_seconds()
        check(left <= 61, f"and holds for what is restored: {until_60}")  # clock: at most, and less on a slow machine
        check((max(deadlines(y, "app", "limited").values()) - far).total_seconds() == 0, "the collection's goes first")


def past():
    """Deadlines that have passed: held, archived, replaced."""
    with Server() as a:
        x = a.connect()
        switch_on(x)
        x.app.command("create", "old")
        x.app.command("create", "c", onExpire={"action": "archive", "into": {"db": "app", "coll": "old"}})
        x.app.c.create_index("k", unique=True)
        x.admin.command("setParameter", 1, ttlMonitorEnabled=False)
        with tool_client(a.uri, "mongorestore") as tool:
            gone = later(-100)
            tool.app.c.insert_many([{"_id": i, "k": i, FIELD: gone} for i in range(10)], ordered=False)
            tool.app.c.insert_many([{"_id": "new", "k": 3}], ordered=False)
        check([d["_id"] for d in x.app.c.find()] == ["new"], "hidden, and a unique key of one is free")
        kept = x.app.command({"find": "c", "includeExpired": True})["cursor"]["firstBatch"]
        check(len(kept) == 10, f"those that nobody replaced are kept: {len(kept)}")
        x.admin.command("setParameter", 1, ttlMonitorEnabled=True)
        check(until(lambda: x.app.old.count_documents({}) == 10, 30), "all ten go into the archive")
        check(all(FIELD not in d for d in x.app.old.find()), "without the field")


def own_fields():
    """Documents that have such a field themselves, and a deadline beside it, come back as they were."""
    with Server() as a, Server() as b:
        x, y = a.connect(), b.connect()
        switch_on(x)
        switch_on(y)
        at, soon = later(5000), later(1)
        documents = [
            {"_id": 1, FIELD: "mine", "a": 1},
            {"_id": 2, FIELD: soon, FIELD + "_": 2, FIELD + "__": [FIELD]},
            {"_id": 3, FIELD + "_": None, FIELD + "x": 3, FIELD + "_x": 4, "in": {FIELD: at}},
            {"_id": 4},
        ]
        x.app.command("insert", "with", documents=documents, expireAt=at)
        x.app.command("insert", "without", documents=documents)
        for name, deadline in (("with", at), ("without", None)):
            with tool_client(a.uri, "mongodump") as dump, tool_client(b.uri, "mongorestore") as restore:
                shown = list(dump.app[name].find())
                check([d.get(FIELD) for d in shown] == [deadline] * 4, f"each with its deadline: {shown}")
                restore.app[name].insert_many(shown[:2])
                for d in shown[2:]:
                    restore.app[name].replace_one({"_id": d["_id"]}, d, upsert=True)
            check(list(y.app[name].find()) == documents, f"{name}: the same fields in the same order")
            check(set(deadlines(y, "app", name).values()) == {deadline}, f"{name}: with the same deadline")
        with tool_client(a.uri, "mongodump") as dump:
            x.app.create_collection("life", expiry={"field": "n"})
            y.app.create_collection("life", expiry={"field": "n"})
            x.app.life.insert_many([{"_id": i, "n": 5000} for i in range(2)])
            x.app.command("persist", "life", q={"_id": 1})
            with tool_client(b.uri, "mongorestore") as restore:
                restore.app.life.insert_many(list(dump.app.life.find()))
            same = deadlines(x, "app", "life") == deadlines(y, "app", "life")
            check(same and deadlines(y, "app", "life")[1] is None, "persisted, in a collection with expiry.field")
            part = dump.app["with"].find_one({"_id": 2}, {FIELD: 1})
            check(part == {"_id": 2, FIELD + "_": soon, FIELD: at}, f"also of a part of the fields: {part}")


def bounds():
    """What is refused, and that only the named applications take part."""
    with Server() as a:
        x = a.connect()
        get = lambda: x.admin.command("getClusterParameter", "dumpDeadlines")["clusterParameters"][0]
        check(get()["field"] == "" and len(get()["applications"]) == 4, f"off at first: {get()}")
        with tool_client(a.uri, "mongorestore") as tool:
            tool.app.c.insert_one({"_id": "off", FIELD: later(100)})
        check(x.app.c.find_one({"_id": "off"})[FIELD], "off: a field like any other")
        for bad in ({"field": "_id"}, {"field": "$x"}, {"field": "a.b"}, {"field": "a\0"}, {"field": "f" * 300}):
            check(code(switch_on, x, **bad) == 2, f"refused: {bad}"[:80])
        for bad in ([""], ["x" * 129], [1], ["x"] * 33):
            check(code(switch_on, x, applications=bad) == 2, f"refused: {bad}"[:80])
        check(code(switch_on, x, no=1) != 0, "an unknown field is refused")
        check(code(lambda: x.admin.command("setClusterParameter", {"dumpDeadlines": {}})) == 40414, "field is required")
        switch_on(x)
        with tool_client(a.uri, "mongodump") as tool:
            own = {"_id": "off", FIELD + "_": x.app.c.find_one()[FIELD]}
            check(list(tool.app.c.find()) == [own], "a field of the document's own has another name, and stops nothing")
            check(tool.app.c.find_one({"_id": "off"}) == own, "also of a look-up by _id")
            x.app.c.delete_many({})
            by = {"$expr": {"$lt": [{"$meta": "expireAt"}, later(50)]}}
            x.app.command("insert", "c", documents=[{"_id": 1}], expireAt=later(10))
            x.app.command("insert", "c", documents=[{"_id": 2}], expireAt=later(90))
            check([d["_id"] for d in tool.app.c.find(by)] == [1], "a dump of a part, by deadline")
            for wrong in (
                lambda: list(tool.app.c.find({FIELD: {"$lt": later(50)}})),
                lambda: list(tool.app.c.find({"$or": [{"a": 1}, {"$and": [{FIELD: None}]}]})),
                lambda: list(tool.app.c.find().sort(FIELD, 1)),
                lambda: tool.app.c.replace_one({FIELD: later(1)}, {"a": 1}, upsert=True),
            ):
                check(code(wrong) == 72, "documents cannot be chosen or ordered by the field")
            x.app.c.delete_many({})
            far = later(5000)
            documents = [{"_id": i, "a": i, "b": {"c": i}} for i in range(500)]
            x.app.command("insert", "c", documents=documents, expireAt=far)
            x.app.c.create_index("a")
            c = tool.app.c
            for find in (
                lambda: c.find_one({"_id": 3}),
                lambda: c.find_one({"a": 3}, {"_id": 0, "a": 1}),
                lambda: c.find_one({"_id": 3}, {"b.c": 1}),
                lambda: c.find_one({"a": 3}, {"a": 0}),
                lambda: c.find({}).sort("b.c", -1).limit(1)[0],
                lambda: list(c.find({}, batch_size=7))[-1],
                lambda: c.find_one({"a": 3}, {FIELD: 1}),
            ):
                d = find()
                check(d[FIELD] == far and list(d)[-1] == FIELD, f"the last field: {d}")
            check(FIELD not in tool.app.c.aggregate([{"$limit": 1}]).next(), "not in a pipeline")
            x.app.command("create", "v", viewOn="c", pipeline=[])
            check(FIELD not in tool.app.v.find_one(), "not in a view")
        with tool_client(a.uri, "mongoimport") as tool:
            c = tool.app.c
            for wrong in ("soon", 5, {"a": 1}, [far]):
                check(code(lambda: c.insert_one({"_id": "w", FIELD: wrong})) in (14, 2), f"no date: {wrong}")
                check(code(lambda: c.replace_one({"_id": 1}, {FIELD: wrong})) in (14, 2), f"no date: {wrong}")
            check(x.app.c.find_one({"_id": "w"}) is None, "and is not stored")
            c.insert_one({"_id": "null", FIELD: None})
            c.replace_one({"_id": 1}, {"x": 1, FIELD: later(9000)}, upsert=True)
            c.update_one({"_id": 2}, {"$set": {"x": 1, FIELD: later(9000)}, "$inc": {"a": 1}})
            c.update_one({"_id": "up"}, {"$set": {FIELD: later(9000)}}, upsert=True)
            c.update_one({"_id": 4}, {"$set": {"x": 1}})
            # 16 MB with the field: one that is too large without it is refused.
            c.insert_one({"_id": "big", "x": "y" * (16 * 1024 * 1024 - 100), FIELD: far})
            got = deadlines(x, "app", "c")
            check(got["null"] is None and got[4] is None and got["big"] == far, "none given, none there")
            hour = datetime.timedelta(seconds=3000)
            check(all(got[i] - far > hour for i in (1, 2, "up")), "by replacement and by $set")
            check(x.app.c.find_one({"_id": 2})["a"] == 3 and FIELD not in x.app.c.find_one({"_id": 2}), "with the rest")
            for update in (
                {"$setOnInsert": {FIELD: far}},
                {"$unset": {FIELD: 1}},
                {"$rename": {"a": "b", FIELD: "c"}},
                [{"$set": {FIELD: far}}],
                [{"$unset": FIELD}],
            ):
                check(code(lambda: c.update_one({"_id": "no"}, update, upsert=True)) == 72, f"refused: {update}")
            # A field of the second $set was lost, or the deadline stored as a date; the second of two was left out.
            for update in (
                joined({"$set": {FIELD: far}}, {"$set": {"b": 2}}),
                joined({"$set": {"b": 2}}, {"$set": {FIELD: far}}),
                joined({"a": 1, FIELD: far}, {FIELD: None}),
            ):
                updates = [{"q": {"_id": "no"}, "u": update, "upsert": True}]
                check(code(lambda: tool.app.command("update", "c", updates=updates)) == 40413, f"twice: {dict(update)}")
            check(code(lambda: c.find_one_and_update({"_id": 3}, {"$set": {FIELD: far}})) == 72, "nor findAndModify")
            ops = [{"insert": 0, "document": {"_id": "no", FIELD: far}}]
            bulk = lambda: tool.admin.command("bulkWrite", 1, ops=ops, nsInfo=[{"ns": "app.c"}])
            check(code(bulk) == 72 and x.app.c.find_one({"_id": "no"}) is None, "nor bulkWrite")
            check(code(lambda: tool.app.create_collection("capped", capped=True, size=9999)) == 0, "capped")
            check(code(lambda: tool.app.capped.insert_one({"_id": 1, FIELD: far})) == 72, "cannot have a deadline")
        with tool_client(a.uri, "somebody") as other:
            check(FIELD not in other.app.c.find_one({"_id": 3}), "another application sees none")
            switch_on(x, applications=["somebody"])
            check(other.app.c.find_one({"_id": 3})[FIELD] == far, "unless it is named")
        a.proc.kill()
        a.proc.wait()
        a.start()
        check(get()["applications"] == ["somebody"] and get()["field"] == FIELD, "it survives a restart")
        x.admin.command("setClusterParameter", {"dumpDeadlines": {"field": ""}})
        with tool_client(a.uri, "mongodump") as tool:
            check(FIELD not in tool.app.c.find_one({"_id": 3}), "off again")


def rights():
    """Users with the roles that MongoDB has for this can do it, and no others."""
    with Server(auth=True) as a:
        root = a.first_user()
        switch_on(root)
        for user, role in (("saver", "backup"), ("restorer", "restore"), ("writer", "readWriteAnyDatabase")):
            root.admin.command("createUser", user, pwd=a.root_password, roles=[role])
        root.app.command("create", "c", expiry={"maxTTL": 9000})
        root.app.command("insert", "c", documents=[{"_id": 1}], expireAfterSeconds=8000)
        root.app.command("setDatabaseExpiry", 1, maxTTL=9999)
        before = deadlines(root, "app", "c")
        as_user = lambda u: f"mongodb://{u}:{a.root_password.replace(' ', '%20')}@127.0.0.1:{a.port}/?authSource=admin"
        dump = tempfile.mkdtemp(dir=folder)
        mongodump(as_user("saver"), dump, db="app")
        root.drop_database("app")
        check(code(mongorestore, as_user("writer"), dump) == 13, "who may only write may not set a database's limit")
        check(root.app.command("getDatabaseExpiry", 1)["maxTTL"] == 0, "and has not")
        check(mongorestore(as_user("restorer"), dump) == 0, "who may restore may")
        check(deadlines(root, "app", "c") == before, "with its deadline")
        check(root.app.command("getDatabaseExpiry", 1)["maxTTL"] == 9999, "and the limit")
        with a.connect("writer") as w:
            check(code(switch_on, w) == 13, "nor may he switch it")


def oplog():
    """What changes during a dump comes back by --oplogReplay, in transactions, too; on a set whose primary changes."""
    s = ReplicaSet(3)
    s.initiate()
    uri = "mongodb://" + ",".join(m.host for m in s.members) + "/?replicaSet=rs0"
    try:
        with pymongo.MongoClient(uri, tz_aware=True) as x, Server() as b:
            y = b.connect()
            switch_on(x)
            switch_on(y)
            far, further = later(5000), later(9000)
            put = lambda name, docs, at: x.app.command("insert", name, documents=docs, expireAt=at)
            put("c", [{"_id": i, "n": 0} for i in range(5)], far)
            # What its documents say of their life must not be asked again for those that were persisted.
            x.app.command("create", "f", expiry={"field": "life"})
            x.app.f.insert_many([{"_id": i, "life": 5000} for i in range(4)])
            dump = tempfile.mkdtemp(dir=folder)
            with tool_client(uri, "mongodump") as tool:
                begin = tool.local["oplog.rs"].find().sort("$natural", -1).limit(1).next()["ts"]
            mongodump(uri, dump)
            put("c", [{"_id": "new"}], far)
            x.app.command("update", "c", updates=[{"q": {"_id": 1}, "u": {"$set": {"n": 1}}, "expireAt": further}])
            x.app.command("update", "c", updates=[{"q": {"_id": 2}, "u": {"n": 2}, "expireAt": further}])
            x.app.command("touch", "c", q={"_id": 3}, expireAt=further)
            x.app.command("persist", "c", q={"_id": 4})
            for i in (0, 1):
                x.app.command("persist", "f", q={"_id": i})
            x.app.command("update", "f", updates=[{"q": {"_id": 1}, "u": {"$set": {"n": 1}}, "preserveExpiry": True}])
            x.app.command("insert", "f", documents=[{"_id": "new", "life": 5000}], expireAt=None)
            with x.start_session() as session, session.start_transaction():
                at = {"expireAt": further}
                x.app.command({"insert": "c", "documents": [{"_id": "t1"}], **at}, session=session)
                change = {"q": {"_id": 0}, "u": {"$set": {"n": 7}}, **at}
                x.app.command({"update": "c", "updates": [change]}, session=session)
            plain = x.local["oplog.rs"].find({"ts": {"$gte": begin}})
            check(all(FIELD not in str(e["o"]) for e in plain), "others see entries as they are")
            with tool_client(uri, "mongodump") as tool:
                entries = tool.local.get_collection("oplog.rs", RAW).find({"ts": {"$gte": begin}})
                Path(dump, "oplog.bson").write_bytes(b"".join(e.raw for e in entries))
            mongorestore(b.uri, dump, oplog=True)
            check(deadlines(y, "app", "c") == deadlines(x, "app", "c"), f"{deadlines(y, 'app', 'c')}")
            check(deadlines(y, "app", "f") == deadlines(x, "app", "f"), f"persisted ones: {deadlines(y, 'app', 'f')}")
            none = {i for i, at in deadlines(y, "app", "f").items() if at is None}
            check(len(none) == 3, f"have no deadline: {none}")
            for name in ("c", "f"):
                same = lambda c: sorted(map(str, c.app[name].find()))
                check(same(x) == same(y), f"and the same documents: {name} {same(x)} {same(y)}")
            # The next primary knows it, too.
            s.primary().kill()
            wait_for(lambda: s.primary() is not None, 60)
            with tool_client(uri, "mongorestore") as tool:
                put_one = lambda: tool.app.c.insert_one({"_id": "after", FIELD: far})
                done = until(lambda: code(put_one) in (0, 11000), 60)
            check(done and deadlines(x, "app", "c")["after"] == far, "after a failover the field is taken as before")
    finally:
        for m in s.members:
            if m.running():
                m.kill()
        discard(s.folder)


if __name__ == "__main__":
    try:
        run_parts("dumps", [page, whole, past, own_fields, bounds, rights, oplog], check)
    finally:
        discard(folder)
