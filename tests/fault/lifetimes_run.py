#!/usr/bin/env python3
"""Cursors that outlive the connection and the login that opened them, on a server whose allocator fills what is freed
(MALLOC_CONF), so that a use of freed memory shows at once.
  parked    every stage of pipelines and every kind of cursor, opened with batchSize 0 and 1; its connection then ends,
            logs out, or belongs to somebody else; another connection of the same user reads on and finds all documents,
            another user finds nothing
  asks      $currentOp and the lists of sessions show what belongs to whoever reads, not to who has opened the cursor
  logins    logins over one another, on one connection and on many, while users change and the audit log is on
  roles     $$USER_ROLES in change streams and tailable cursors that wait while users change
  memory    a transaction that finds no memory when it begins, for a statement or at its end is answered and aborted;
            nothing of it is left: neither its session nor its locks, and nothing that points to its command
  short_logins  a login that finds no memory for its last steps leaves nobody logged in, and no place taken
The last line says "N passed, N failed". MAYFLY_SEED, MAYFLYD, MAYFLY_FAULT_ROUNDS.
"""

import base64
import os
import re
import subprocess
import tempfile
import threading
import uuid
from datetime import datetime, timedelta
from pathlib import Path

from bson import Binary, Int64

from fault_test import BINARY, ROOT, Checks, Client, initiate, log_in, rnd, run_parts, start, stop, until
from replica_set import FAULTY, ReplicaSet

check = Checks(quiet=True)
ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "1"))
PASSWORD = "only of this test"
# The allocator says what it has taken of it. With a sanitizer it is another one, which finds as much by itself.
os.environ["MALLOC_CONF"] = ",".join(filter(None, [os.environ.get("MALLOC_CONF"), "junk:true,confirm_conf:true"]))
SANITIZED = re.search(r"/(asan|tsan|debug)/", str(Path(BINARY).resolve())) is not None


class Server:
    """A set of one member with access control and an administrator."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        key = self.folder.name + "/key"
        with open(key, "w") as f:
            f.write(base64.b64encode(os.urandom(36)).decode())
        os.chmod(key, 0o600)
        self.proc, first = start(
            self.folder.name + "/data",
            *("--replSet", "rs0", "--keyFile", key, "--setParameter", "scramSHA256IterationCount=5000"),
        )
        initiate(first, f"127.0.0.1:{self.proc.port}")
        made = first.command("admin", {"createUser": "root", "pwd": PASSWORD, "roles": ["root"]})
        assert made["ok"] == 1, made
        first.sock.close()
        self.root = self.connect("root")
        return self

    def connect(self, user, db="admin", client=None):
        return log_in(self.proc.port, user, PASSWORD, db, client)

    def user(self, name, roles, db="admin"):
        ok(self.root, db, {"createUser": name, "pwd": PASSWORD, "roles": roles})
        return self.connect(name, db)

    def close(self, client):
        """And waits until the server has forgotten the connection."""
        me = client.command("admin", {"hello": 1})["connectionId"]
        client.sock.close()
        asked = {"currentOp": 1, "$all": True, "connectionId": me}
        check(until(lambda: not ok(self.root, "admin", asked)["inprog"]), f"connection {me} is gone")

    def __exit__(self, *error):
        self.root.sock.close()
        ended = stop(self.proc) if self.proc.poll() is None else self.proc.returncode
        check(ended == 0, f"the server ends well: {ended}")
        self.folder.cleanup()


def ok(client, db, command):
    reply = client.command(db, command)
    assert reply["ok"] == 1 and not reply.get("writeErrors"), (command, reply)
    return reply


def read_on(client, db, cursor, size=2, most=1000):
    """All that is left of a cursor."""
    found, at = list(cursor.get("firstBatch", [])), cursor["id"]
    more = {"collection": cursor["ns"].split(".", 1)[1], "batchSize": size, **cursor.get("session", {})}
    while at and len(found) < most:
        batch = ok(client, db, {"getMore": Int64(at), **more})["cursor"]
        found, at = found + batch["nextBatch"], batch["id"]
    return found


# One pipeline for each stage. A tuple: what it answers changes from time to time, only that it answers matters.
LOOKUP = {"from": "d", "localField": "n", "foreignField": "n", "as": "x"}
WITH_ROLES = {"from": "d", "let": {"n": "$n"}, "as": "x", "pipeline": [
    {"$match": {"$expr": {"$and": [{"$eq": ["$n", "$$n"]}, {"$gt": [{"$size": "$$USER_ROLES"}, 0]}]}}}]}  # fmt: skip
WINDOW = {"partitionBy": "$g", "sortBy": {"n": 1}, "output": {"s": {"$sum": "$n", "window": {"documents": [-1, 0]}}}}
REACHED = {"from": "d", "startWith": "$n", "connectFromField": "n", "connectToField": "m", "as": "x"}
FEW = [{"$unwind": "$x"}, {"$limit": 20}]
OF_C = {
    "$addFields": [[{"$addFields": {"r": "$$USER_ROLES"}}]],
    "$bucket": [[{"$bucket": {"groupBy": "$n", "boundaries": [0, 3, 6, 100]}}]],
    "$bucketAuto": [[{"$bucketAuto": {"groupBy": "$n", "buckets": 4}}]],
    "$collStats": ([{"$collStats": {"count": {}, "storageStats": {}}}, {"$unwind": "$ns"}],),
    "$count": [[{"$count": "n"}]],
    "$densify": [[{"$project": {"n": 1}}, {"$densify": {"field": "n", "range": {"step": 0.5, "bounds": "full"}}}]],
    "$facet": [
        [{"$facet": {"a": [{"$sort": {"n": -1}}], "b": [{"$lookup": LOOKUP}]}}, {"$unwind": "$a"}],
        # What they have read of the others is less than all of it.
        *(
            [{"$facet": {"a": [{"$unionWith": on}, {"$limit": 20}]}}, {"$unwind": "$a"}]
            for on in ("many", "series")
        ),
        *(
            [{"$facet": {"a": [{"$lookup": {"from": on, "pipeline": [], "as": "x"}}, *FEW]}}, {"$unwind": "$a"}]
            for on in ("many", "series")
        ),
    ],
    "$fill": [[{"$fill": {"sortBy": {"n": 1}, "output": {"sometimes": {"method": "locf"}}}}]],
    "$graphLookup": [[{"$graphLookup": REACHED}]],
    "$group": [[{"$group": {"_id": "$n", "r": {"$first": "$$USER_ROLES"}}}, {"$sort": {"_id": 1}}]],
    "$indexStats": ([{"$indexStats": {}}],),
    "$limit": [[{"$limit": 5}]],
    "$lookup": [[{"$lookup": LOOKUP}], [{"$lookup": WITH_ROLES}], [{"$lookup": {**LOOKUP, "from": "v"}}]],
    "$match": [[{"$match": {"n": {"$gte": 2}}}], [{"$match": {"$expr": {"$gt": [{"$size": "$$USER_ROLES"}, 0]}}}]],
    "$merge": ([{"$merge": "merged"}],),
    "$out": ([{"$out": "made"}],),
    "$planCacheStats": ([{"$planCacheStats": {}}],),
    "$project": [[{"$project": {"n": 1, "r": "$$USER_ROLES"}}]],
    "$redact": [[{"$redact": {"$cond": [{"$gt": [{"$size": "$$USER_ROLES"}, 0]}, "$$KEEP", "$$PRUNE"]}}]],
    "$replaceRoot": [[{"$replaceRoot": {"newRoot": {"n": "$n", "r": "$$USER_ROLES"}}}]],
    "$replaceWith": [[{"$replaceWith": {"n": "$n", "r": "$$USER_ROLES"}}]],
    "$sample": ([{"$sample": {"size": 5}}],),
    "$set": [[{"$set": {"r": "$$USER_ROLES"}}]],
    "$setWindowFields": [[{"$setWindowFields": WINDOW}]],
    "$skip": [[{"$skip": 2}]],
    "$sort": [[{"$sort": {"g": 1, "n": -1}}], [{"$sort": {"r": 1, "_id": 1}}, {"$set": {"r": "$$USER_ROLES"}}]],
    "$sortByCount": [[{"$sortByCount": "$g"}]],
    "$tombstones": ([{"$tombstones": {}}],),
    "$ttlForecast": ([{"$ttlForecast": {}}],),
    "$unionWith": [[{"$unionWith": "d"}], [{"$unionWith": "v"}]],
    "$unset": [[{"$unset": "n"}]],
    "$unwind": [[{"$unwind": "$list"}]],
}
WITHOUT_COLLECTION = {
    "$currentOp": ("admin", 1, {"$currentOp": {"allUsers": True, "idleCursors": True, "idleConnections": True}}),
    "$documents": ("shop", 1, {"$documents": [{"n": n} for n in range(5)]}),
    "$listLocalSessions": ("admin", 1, {"$listLocalSessions": {}}),
    "$listSessions": ("config", "system.sessions", {"$listSessions": {}}),
}


# Between their batches these go on reading the moment of the first.
PINNING = ("a time series", "a time series, grouped", "find of a time series", "find at a point in time")


def kinds():
    """(what it is, database, command without its batchSize, whether each read of it finds the same)."""
    def aggregate(what, db, on, pipeline, same=True):
        return what, db, {"aggregate": on, "pipeline": pipeline, "cursor": {}}, same

    for stage, pipelines in OF_C.items():
        for pipeline in pipelines:
            yield aggregate(stage, "shop", "c", pipeline, isinstance(pipelines, list))
    for stage, (db, on, spec) in WITHOUT_COLLECTION.items():
        yield aggregate(stage, db, on, [spec], stage == "$documents")
    yield aggregate("a view", "shop", "v", [{"$sort": {"n": -1}}])
    yield aggregate("a time series", "shop", "series", [{"$sort": {"t": 1}}])
    newest = {"$group": {"_id": "$m", "x": {"$first": "$_id"}}}
    yield aggregate("the newest points of a time series", "shop", "series", [{"$sort": {"t": -1}}, newest])
    yield aggregate("a time series, grouped", "shop", "series", [{"$group": {"_id": "$t"}}, {"$sort": {"_id": 1}}])
    roles = {"$expr": {"$gt": [{"$size": "$$USER_ROLES"}, 0]}}
    for what, more in (
        ("find", {}),
        ("find with a sort", {"sort": {"g": 1, "n": -1}}),
        ("find by an index", {"filter": {"n": {"$gte": 2}}, "sort": {"n": 1}}),
        ("find with roles", {"filter": roles, "projection": {"r": "$$USER_ROLES"}}),
        ("find of expired documents", {"includeExpired": True}),
        ("find at a point in time", {"readConcern": {"level": "snapshot"}}),
        ("find by $or", {"filter": {"$or": [{"n": {"$lt": 3}}, {"g": 1}]}}),
        ("find that skips", {"skip": 1, "limit": 6}),
    ):
        yield what, "shop", {"find": "c", **more}, True
    yield "find of a view", "shop", {"find": "v", "filter": roles}, True
    yield "find of a time series", "shop", {"find": "series", "sort": {"t": 1}}, True
    yield "find of the oplog", "local", {"find": "oplog.rs", "limit": 5}, True
    yield "listCollections", "shop", {"listCollections": 1, "cursor": {}}, True
    yield "listIndexes", "shop", {"listIndexes": "c", "cursor": {}}, True


def with_batch(command, size):
    return {**command, "cursor": {"batchSize": size}} if "cursor" in command else {**command, "batchSize": size}


def prepare(root):
    documents = [
        {"_id": n, "n": n, "g": n % 3, "list": [1, 2], "text": "x" * 100, **({"sometimes": n} if n % 2 else {})}
        for n in range(9)
    ]
    ok(root, "shop", {"insert": "c", "documents": documents})
    ok(root, "shop", {"insert": "d", "documents": [{"_id": -1 - n, "n": n, "m": n - 1} for n in range(9)]})
    indexes = [{"key": {"n": 1}, "name": "n"}, {"key": {"g": 1}, "name": "g"}]
    ok(root, "shop", {"createIndexes": "c", "indexes": indexes})
    ok(root, "shop", {"create": "v", "viewOn": "c", "pipeline": [{"$set": {"r": "$$USER_ROLES"}}]})
    # More buckets than a first batch has documents.
    ok(root, "shop", {"create": "series", "timeseries": {"timeField": "t", "metaField": "m"}})
    points = [{"_id": n, "m": n % 120, "t": datetime(2026, 1, 1) + timedelta(minutes=n)} for n in range(130)]
    ok(root, "shop", {"insert": "series", "documents": points})
    ok(root, "shop", {"insert": "many", "documents": [{"_id": n} for n in range(300)]})
    ok(root, "shop", {"create": "tail", "capped": True, "size": 1000000})
    ok(root, "shop", {"insert": "tail", "documents": [{"_id": n} for n in range(3)]})


def leave(server, client, how):
    """What becomes of the connection that has opened a cursor."""
    if how == "ends":
        return server.close(client)
    ok(client, "admin", {"logout": 1})
    if how == "is another user's":
        server.connect("other", client=client)
    # What was freed is used again by others.
    for _ in range(3):
        client.command("admin", {"hello": 1, "comment": "z" * rnd.randrange(4000)})
    return None


def parked():
    known = re.findall(r'\{"(\$\w+)", [^&;]*?(nullptr|&Parse\w+)', (ROOT / "query/pipeline/pipeline.cc").read_text())
    stages = {name for name, parse in known if parse != "nullptr" and not name.startswith("$_")}
    missing = sorted(stages - set(OF_C) - set(WITHOUT_COLLECTION))
    check(len(stages) > 30 and not missing, f"a pipeline for each stage: {missing or len(stages)}")
    with Server() as server:
        said = Path(server.folder.name + "/data.log").read_text(errors="replace")
        check(SANITIZED or "Set conf value: junk:true\n" in said, "the allocator fills what is freed")
        prepare(server.root)
        reader, other = server.user("owner", ["root"]), server.user("other", ["root"])
        nothing_open = min(held_snapshots(server) for _ in range(20))
        for what, db, command, same in kinds():
            all_of_it = read_on(reader, db, ok(reader, db, command)["cursor"])
            for how in ("ends", "logs out", "is another user's"):
                for size, session in ((0, {}), (1, {}), (0, {"lsid": {"id": Binary(uuid.uuid4().bytes, 4)}})):
                    pins = None if what in PINNING else nothing_open
                    park(server, reader, other, what, db, command, same and all_of_it, how, size, session, pins)
        for how in ("ends", "logs out", "is another user's"):
            of_one_life(server, reader, other, how)
            waiting(server, reader, how)


def held_snapshots(server):
    """Without those that the server keeps for further reads at the same point in time."""
    snapshots = ok(server.root, "admin", {"serverStatus": 1})["snapshots"]
    return snapshots["held"] - snapshots["snapshotReads"]["points"]


def park(server, reader, other, what, db, command, expected, how, size, session, pins):
    """pins: the snapshots that are held while no cursor is open; a parked one adds none."""
    name = f"{what}: batchSize {size}{' in a session' if session else ''}, its connection {how}"
    client = server.connect("owner")
    cursor = ok(client, db, {**with_batch(command, size), **session})["cursor"]
    check(len(cursor["firstBatch"]) <= size, f"{name}: its first batch")
    leave(server, client, how)
    if cursor["id"]:
        check(pins is None or until(lambda: held_snapshots(server) <= pins), f"{name}: it pins a snapshot")
        more = {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].split(".", 1)[1], **session}
        check(other.command(db, more).get("code") == 13, f"{name}: another user does not read it")
    found = read_on(reader, db, {**cursor, "session": session})
    check(expected is False or found == expected, f"{name}: {str(found)[:400]} and not {str(expected)[:400]}")
    if how != "ends":
        client.sock.close()


def of_one_life(server, reader, other, how):
    """Cursors that cannot be opened again and again: the results of a bulkWrite, and those of a transaction, which goes
    on from another connection of its user."""
    client, mark = server.connect("owner"), uuid.uuid4().hex
    ops = [{"insert": 0, "document": {"_id": f"{mark}{n}"}} for n in range(7)]
    bulk = {"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": "shop.bulk"}], "cursor": {"batchSize": 1}}
    cursor = ok(client, "admin", bulk)["cursor"]
    leave(server, client, how)
    name = f"results of a bulkWrite, its connection {how}"
    more = {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].split(".", 1)[1]}
    check(other.command("admin", more).get("code") == 13, f"{name}: another user does not read it")
    found = read_on(reader, "admin", cursor)
    check([r["idx"] for r in found] == list(range(7)), f"{name}: {found}")
    if how != "ends":
        client.sock.close()
    for what, command in (
        ("find", {"find": "many", "sort": {"_id": 1}}),
        ("aggregate", {"aggregate": "many", "pipeline": [{"$sort": {"_id": 1}}], "cursor": {}}),
    ):
        client = server.connect("owner")
        of = {"lsid": {"id": Binary(uuid.uuid4().bytes, 4)}, "txnNumber": Int64(1), "autocommit": False}
        cursor = ok(client, "shop", {**with_batch(command, 1), **of, "startTransaction": True})["cursor"]
        leave(server, client, how)
        name = f"{what} of a transaction, its connection {how}"
        found = read_on(reader, "shop", {**cursor, "session": of}, 100)
        check([d["_id"] for d in found] == list(range(300)), f"{name}: {len(found)} documents")
        check(ok(reader, "admin", {"commitTransaction": 1, **of}), f"{name}: it ends")
        if how != "ends":
            client.sock.close()


def waiting(server, reader, how):
    """Cursors that have no end."""
    first = ok(reader, "shop", {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}})["cursor"]
    token = first["postBatchResumeToken"]
    ok(reader, "shop", {"killCursors": "c", "cursors": [Int64(first["id"])]})
    streams = (
        ("a tailable cursor", {"find": "tail", "tailable": True, "awaitData": True}, "tail"),
        ("a change stream", {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}, "c"),
        (
            "a change stream with roles",
            {"aggregate": 1, "pipeline": [{"$changeStream": {}}, {"$set": {"r": "$$USER_ROLES"}}], "cursor": {}},
            "c",
        ),
        (
            "a stream of large changes",
            {"aggregate": "c", "pipeline": [{"$changeStream": {}}, {"$changeStreamSplitLargeEvent": {}}], "cursor": {}},
            "c",
        ),
    )
    for option in ("resumeAfter", "startAfter"):
        pipeline = [{"$changeStream": {option: token}}]
        streams += ((f"a stream with {option}", {"aggregate": "c", "pipeline": pipeline, "cursor": {}}, "c"),)
    everywhere = {"aggregate": 1, "pipeline": [{"$changeStream": {"allChangesForCluster": True}}], "cursor": {}}
    streams += (("a stream of the whole cluster", everywhere, "c"),)
    for what, command, on in streams:
        db = "admin" if command is everywhere else "shop"
        for size in (0, 1):
            name = f"{what}: batchSize {size}, its connection {how}"
            client = server.connect("owner")
            cursor = ok(client, db, with_batch(command, size))["cursor"]
            leave(server, client, how)
            mark = uuid.uuid4().hex
            ok(server.root, "shop", {"insert": on, "documents": [{"_id": mark}]})
            more = {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].split(".", 1)[1], "maxTimeMS": 1000}
            check(until(lambda: mark in str(ok(reader, db, more)["cursor"]["nextBatch"])), f"{name}: reads on")
            ok(reader, db, {"killCursors": more["collection"], "cursors": [Int64(cursor["id"])]})
            ok(server.root, "shop", {"delete": "c", "deletes": [{"q": {"_id": mark}, "limit": 0}]})
            if how != "ends":
                client.sock.close()


def asks():
    """A cursor of these asks who reads it, not who has opened it."""
    with Server() as server:
        reader = server.user("nobody", [])
        ask = [
            ("admin", {"aggregate": 1, "pipeline": [{"$currentOp": {"idleConnections": True}}]}),
            ("admin", {"aggregate": 1, "pipeline": [{"$listLocalSessions": {}}]}),
            ("config", {"aggregate": "system.sessions", "pipeline": [{"$listSessions": {}}]}),
        ]
        of_root, own = ({"lsid": {"id": Binary(uuid.uuid4().bytes, 4)}} for _ in range(2))
        ok(server.root, "admin", {"ping": 1, **of_root})
        ok(reader, "admin", {"ping": 1, **own})
        ok(server.root, "admin", {"refreshLogicalSessionCacheNow": 1})
        for db, command in ask:
            client = server.connect("nobody")
            cursor = ok(client, db, {**command, "cursor": {"batchSize": 0}})["cursor"]
            ok(client, "admin", {"logout": 1})
            server.connect("root", client=client)
            found = read_on(reader, db, cursor)
            stage = next(iter(command["pipeline"][0]))
            if stage == "$currentOp":
                users = {u["user"] for d in found for u in d["effectiveUsers"]}
                check(users == {"nobody"}, f"{stage} of somebody without a role shows operations of {users}")
            else:
                shown = [d["_id"]["id"].bytes for d in found]
                check(bytes(own["lsid"]["id"]) in shown, f"{stage} shows somebody without a role his session: {found}")
                check(bytes(of_root["lsid"]["id"]) not in shown, f"{stage} shows somebody without a role one of root")
            client.sock.close()


class Workers:
    """Threads that do something until they are told to stop; what they raise has failed."""

    def __init__(self):
        self.over, self.threads, self.errors = threading.Event(), [], []

    def add(self, step, times=None):
        def run():
            n = 0
            try:
                while not self.over.is_set() and (times is None or n < times):
                    step(n)
                    n += 1
            except Exception as e:  # pylint: disable=broad-except
                self.errors.append(repr(e)[:500])

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()
        return self.threads[-1]

    def end(self, what, wait_for=()):
        for t in wait_for:
            if not until(lambda t=t: not t.is_alive(), 300):
                self.errors.append("did not end")
        self.over.set()
        if not until(lambda: not any(t.is_alive() for t in self.threads)):
            self.errors.append("goes on after it was told to stop")
        check(not self.errors, f"{what}: {self.errors[:3]}")


def changes_of_users(client):
    """One change after the other, of users and of roles; also of those that others are using."""

    def step(n):
        name = f"x{n % 5}"
        client.command("admin", {"createUser": name, "pwd": PASSWORD, "roles": []})
        client.command("mine", {"createRole": name, "privileges": [], "roles": []})
        ok(client, "admin", {"grantRolesToUser": "owner", "roles": ["readAnyDatabase"]})
        ok(client, "admin", {"updateUser": "owner", "customData": {"n": n, "text": "LEAKED" * 50}})
        client.command("admin", {"dropUser": f"x{(n + 2) % 5}"})
        client.command("mine", {"dropRole": f"x{(n + 2) % 5}"})

    return step


def logins():
    with Server() as server:
        prepare(server.root)
        server.user("owner", ["root"]).sock.close()
        server.user("fleeting", ["root"]).sock.close()
        workers = Workers()
        workers.add(changes_of_users(server.connect("root")))

        def again():
            """The same user over and over, half a login, a login of somebody else in between, streams of hello."""
            client = server.connect("owner")

            def step(n):
                what = n % 6
                if what < 2:
                    server.connect("owner", client=client)
                elif what == 2:
                    first = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=owner,r=abcdefgh")}
                    ok(client, "admin", first)
                elif what == 3:
                    wrong = client.command("admin", {"saslStart": 1, "mechanism": "SCRAM-SHA-256",
                                                     "payload": Binary(b"n,,n=root,r=abcdefgh")})  # fmt: skip
                    assert wrong.get("code") == 17, wrong
                elif what == 4:
                    speculative = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "db": "admin",
                                   "payload": Binary(b"n,,n=owner,r=abcdefgh")}  # fmt: skip
                    ok(client, "admin", {"hello": 1, "speculativeAuthenticate": speculative})
                else:
                    ok(client, "admin", {"logout": 1})
                    server.connect("owner", client=client)
                ok(client, "shop", {"find": "c", "filter": {"$expr": {"$gt": [{"$size": "$$USER_ROLES"}, 0]}}})

            return step

        def dropped(n):
            """A user who is dropped while somebody is logged in as that, and comes again."""
            client = server.connect("fleeting")
            ok(server.root, "admin", {"dropUser": "fleeting"})
            refused = client.command("shop", {"find": "c"})
            assert refused.get("code") == 13, refused
            ok(server.root, "admin", {"createUser": "fleeting", "pwd": PASSWORD, "roles": ["root"]})
            server.connect("fleeting", client=client)
            ok(client, "shop", {"find": "c"})
            client.sock.close()

        bounded = [workers.add(again(), 30 * ROUNDS) for _ in range(3)] + [workers.add(dropped, 15 * ROUNDS)]
        workers.end("logins over one another", bounded)
        check(ok(server.root, "admin", {"ping": 1}), "the server answers")


def roles():
    legal = {"mine.dbOwner", "admin.readAnyDatabase"}
    with Server() as server:
        first = server.user("owner", [{"role": "dbOwner", "db": "mine"}])
        ok(first, "mine", {"create": "c"})
        ok(first, "mine", {"create": "tail", "capped": True, "size": 1000000})
        ok(first, "mine", {"insert": "tail", "documents": [{"_id": -1}]})
        shown = "$$USER_ROLES"
        commands = [
            ("c", {"aggregate": "c", "pipeline": [{"$changeStream": {}}, {"$addFields": {"r": shown}}], "cursor": {}}),
            ("c", {"aggregate": 1, "pipeline": [{"$changeStream": {}}, {"$project": {"r": shown}}], "cursor": {}}),
            ("tail", {"find": "tail", "tailable": True, "awaitData": True, "projection": {"r": shown}}),
            ("tail", {"find": "tail", "tailable": True, "awaitData": True, "projection": {"r": shown},
                      "filter": {"$expr": {"$gt": [{"$size": shown}, 0]}}}),
        ]  # fmt: skip
        workers, root = Workers(), server.root
        change, writer = changes_of_users(server.connect("root")), server.connect("root")
        workers.add(change)

        def write(n):
            for on in ("c", "tail"):
                ok(writer, "mine", {"insert": on, "documents": [{"_id": n}]})
            ok(writer, "noise", {"insert": "noise", "documents": [{"s": "LEAKED" * 300} for _ in range(5)]})

        seen = [0] * len(commands)

        def follow(which, on, command):
            client = server.connect("owner")
            cursor = ok(client, "mine", command)["cursor"]
            more = {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].split(".", 1)[1], "maxTimeMS": 2000}

            def step(_):
                for d in ok(client, "mine", more)["cursor"]["nextBatch"]:
                    shown = {r["_id"] for r in d["r"]}
                    assert shown and shown <= legal, d
                    seen[which] += 1

            return step

        bounded = [workers.add(follow(n, *of), 60 * ROUNDS) for n, of in enumerate(commands)]
        workers.add(write)
        workers.end("roles in cursors that wait", bounded)
        check(min(seen) > 0, f"each of them was given documents: {seen}")
        check(ok(root, "admin", {"ping": 1}), "the server answers")


def memory():
    s = ReplicaSet(1, binary=FAULTY)
    try:
        s.initiate()
        member, n = s.members[0], 0
        member.client.t.c.insert_one({"_id": 0, "x": 0})
        client, root = Client("127.0.0.1", member.port), member.client.admin

        for when in ("begin", "statement", "statement and answer", "end", "commit"):
            for command in (
                {"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$inc": {"x": 1}}}]},
                {"find": "c"},
                {"commitTransaction": 1},
            ):
                name = f"no memory at {when} of {next(iter(command))}"
                n += 1
                of = {"lsid": {"id": Binary(uuid.uuid4().bytes, 4)}, "txnNumber": Int64(n), "autocommit": False}
                first = when == "begin" or (when == "end" and n % 2 == 0)
                ends = "commitTransaction" in command
                if when == "commit" and not ends:
                    continue
                if ends or not first:
                    insert = {"insert": "c", "documents": [{"_id": f"t{n}"}]}
                    ok(client, "t", {**insert, **of, "startTransaction": True})
                member.tell(f"memory {when}", wait=True)
                starts = {"startTransaction": True} if first and not ends else {}
                try:
                    reply = client.command("admin" if ends else "t", {**command, **of, **starts})
                except (OSError, EOFError):
                    # Without memory for an answer its connection ends.
                    reply = {"ok": int(when != "statement and answer"), "code": 146}
                    client = Client("127.0.0.1", member.port)
                member.tell("memory enough", wait=True)
                hit = not ends or when == "commit"
                # A commit begins nothing and is no statement; at its end it has been made.
                good = reply["ok"] == 0 and reply["code"] in (146, 251) if hit else reply["ok"] == 1
                check(good, f"{name}: {reply}")
                # Its session is free, and the transaction is over: the next one of both is as every other.
                asked = client.command("admin", {"commitTransaction": 1, **of})
                if hit:
                    check(asked.get("code") == 251, f"{name}: it goes on: {asked}")
                else:
                    check(asked["ok"] == 1, f"{name}: asked again, it was made: {asked}")
                open_now = root.command("serverStatus")["transactions"]["currentOpen"]
                check(open_now == 0, f"{name}: {open_now} open")
                again = {**of, "txnNumber": Int64(1000 + n), "startTransaction": True}
                update = {"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$inc": {"x": 1}}}], "maxTimeMS": 20000}
                check(client.command("t", {**update, **again}).get("n") == 1, f"{name}: the next one of its session")
                ok(client, "admin", {"commitTransaction": 1, **of, "txnNumber": Int64(1000 + n)})
                ok(client, "admin", {"currentOp": 1})
        check(member.running(), "the server goes on")
        check(member.stop() == 0, "the server ends well")
    finally:
        s.close()


def short_logins():
    with tempfile.TemporaryDirectory() as folder:
        data = folder + "/data"
        limits = ("maxConnectionsPerUser=1", "scramSHA256IterationCount=5000")
        options = [word for limit in limits for word in ("--setParameter", limit)]
        proc, first = start(data, "--auth", *options, binary=FAULTY, stdin=subprocess.PIPE)
        ok(first, "admin", {"createUser": "root", "pwd": PASSWORD, "roles": ["root"]})
        root = log_in(proc.port, "root", PASSWORD)
        ok(root, "admin", {"createUser": "app", "pwd": PASSWORD, "roles": ["readWriteAnyDatabase"]})

        def said(what):
            line = f"done: memory {what}\n"
            lines = lambda: open(data + ".log", errors="replace").read().count(line)
            before = lines()
            proc.stdin.write(f"memory {what}\n".encode())
            proc.stdin.flush()
            check(until(lambda: lines() > before), f"it is told: {what}")

        def again(client=None):
            """A login; its place may have been free for no more than a moment."""
            return until(lambda: attempt(client)[0])

        def attempt(client=None):
            client = client or Client("127.0.0.1", proc.port)
            try:
                return log_in(proc.port, "app", PASSWORD, client=client), None
            except AssertionError as e:
                return None, e.args[0]

        client = Client("127.0.0.1", proc.port)
        me = client.command("admin", {"hello": 1})["connectionId"]
        # A connection without a login, and one whose user logs in once more; at the login itself, and at the lines that
        # tell of it, behind which the client was logged in although it got an error.
        for when in ("login", "login line"):
            for which in ("a first login", "another login of the same user"):
                name = f"{which}, no memory at {when}"
                said(when)
                there, reply = attempt(client)
                said("enough")
                check(there is None and reply.get("code") == 146, f"{name}: {reply}")
                users = ok(client, "admin", {"connectionStatus": 1})["authInfo"]["authenticatedUsers"]
                check(users == [], f"{name}: nobody is logged in: {users}")
                refused = client.command("t", {"find": "c"})
                check(refused.get("code") == 13, f"{name}: and nobody reads: {refused}")
                shown = ok(root, "admin", {"currentOp": 1, "$all": True, "connectionId": me})["inprog"]
                nobody = shown and not any(op.get("effectiveUsers") for op in shown)
                check(nobody, f"{name}: nor is one shown: {shown}")
                other = again()
                check(other is not None, f"{name}: the user's only place is free")
                other.sock.close()
                check(again(client) is not None, f"{name}: the connection can log in")
                check(client.command("t", {"find": "c"})["ok"] == 1, f"{name}: and reads then")
            ok(client, "admin", {"logout": 1})
        check(stop(proc) == 0, "the server ends well")


run_parts("lifetimes", [parked, asks, logins, roles, memory, short_logins], check)
