#!/usr/bin/env python3
"""mayfly-link between two sets: what is there is copied with its deadlines, what changes follows, whoever is killed.

A link process runs as a user would start it. The parts look at the rows that docs/between-clusters.md names: deadlines
and limits (a limit of the target applies, limits are not copied), each filter, expiry that comes late, definitions,
renames, both directions, a second process, pause, history that is lost, kills of the link and of both primaries. At the
end of each both sides are equal by content and deadline. The last line says "N passed, N failed".
"""

import contextlib, datetime, io, json, os, re, shlex, signal, subprocess, tempfile, urllib.request, weakref

import bson
import pymongo
from pymongo.errors import PyMongoError

from fault_test import ROOT, Checks, Deadline, discard, free_port, random_moment, rnd, run_parts, until
from replica_set import ReplicaSet

LINK = os.environ.get("MAYFLY_LINK", str(ROOT / "build/release/mayfly-link"))
check = Checks(quiet=True)
folder = tempfile.mkdtemp(prefix="mayfly-link-")
NEVER = datetime.timedelta(days=1)
started = weakref.WeakSet()  # sides and links


def eventually(condition, seconds=90):
    """What it gave once that is true, or what it last gave when a Deadline has come."""
    return until(condition, seconds)


def now():
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


class Side:
    """A set of `count` members and a client that follows its primary."""

    def __init__(self, count=1, extra=()):
        self.set = ReplicaSet(count, extra)
        started.add(self)
        self.set.initiate()
        self.uri = "mongodb://" + ",".join(m.host for m in self.set.members) + "/?replicaSet=rs0"
        self.client = pymongo.MongoClient(self.uri, heartbeatFrequencyMS=500, tz_aware=True)

    def run(self, db, command):
        return self.client[db].command(command)

    def processes(self):
        return [m.proc.pid for m in self.set.members if m.running()]

    def documents(self, db, name):
        """{_id: (document, deadline)} of what is shown."""
        rows = self.client[db][name].aggregate([{"$project": {"_id": 0, "d": "$$ROOT", "e": {"$meta": "expireAt"}}}])
        return {bson.encode({"": r["d"]["_id"]}): (bson.encode(r["d"]), r.get("e")) for r in rows}

    def close(self):
        self.client.close()
        for m in self.set.members:
            if m.running():
                m.kill()
        discard(self.set.folder)


class LinkProcess:
    def __init__(self, source, target, *options, name="link"):
        self.source, self.target, self.name = source, target, name
        self.options, self.http = options, free_port()
        self.start()

    def start(self):
        self.log = open(f"{folder}/{self.name}.log", "ab+")
        self.proc = subprocess.Popen(
            [LINK, "--name", self.name, "--source", self.source.uri, "--target", self.target.uri]
            + ["--httpPort", str(self.http), *self.options],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        started.add(self)

    def processes(self):
        return [self.proc.pid] if self.proc.poll() is None else []

    def status(self):
        """What it says of itself; {} before it listens, and once it has ended."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/status", timeout=Deadline().seconds) as r:
                return json.load(r)
        except OSError:
            return {}

    def state(self):
        return self.status().get("state")

    def counter(self, what):
        return self.status().get("counters", {}).get(what, 0)

    def follows(self):
        """Waits until it is behind a change that is made now, and has followed it: a copy may bring a change before the
        link follows what came before that, and may bring a mark, too."""
        over = lambda: self.proc.poll() is not None
        noted = lambda: gentle(lambda: self.target.client.mayflyLink.links.find_one({"_id": self.name})) or {}
        copies = lambda: noted().get("counters", {}).get("copiesBegun")
        marks = lambda side: side.client.mark[self.name]
        while eventually(lambda: noted().get("phase") == "follow" or over()) and not over():
            begun, mark = copies(), bson.ObjectId()
            make = lambda: marks(self.source).replace_one({"_id": mark}, {"token": mark}, upsert=True)
            eventually(lambda: gentle(make) or over())
            seen = lambda: gentle(lambda: marks(self.target).find_one({"_id": mark}))
            if not eventually(lambda: seen() or over()) or over():
                break
            if copies() == begun:
                return True
        print(f"     {self.status()} {self.said()}"[:2000], flush=True)
        return False

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def stop(self):
        """Its exit code and what it has said."""
        self.proc.send_signal(signal.SIGTERM)
        code = self.proc.wait(Deadline().seconds)
        return code, self.said()

    def said(self):
        self.log.seek(0)
        return self.log.read().decode()


def gentle(f):
    """f(), or None while a side has no primary."""
    try:
        return f()
    except PyMongoError:
        return None


def equal(source, target, db, *names):
    for name in names:
        a, b = source.documents(db, name), target.documents(db, name)
        if a != b:
            odd = [k for k in a.keys() | b.keys() if a.get(k) != b.get(k)]
            print(f"     {db}.{name}: {len(a)} and {len(b)}, different: {len(odd)}, such as", flush=True)
            print(f"     {[(a.get(k), b.get(k)) for k in odd[:3]]}"[:1500], flush=True)
            return False
    return True


class Pair:
    """Two sides, and links that are stopped with them."""

    def __init__(self, members=1, extra=(), target=()):
        self.a, self.b, self.links = Side(members, extra), Side(members, target), []

    def link(self, *options, back=False, **more):
        self.links.append(LinkProcess(*((self.b, self.a) if back else (self.a, self.b)), *options, **more))
        return self.links[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for l in self.links:
            if l.proc.poll() is None:
                l.kill()
        self.a.close()
        self.b.close()


def deadlines_and_limits():
    """docs/expiry.md C16."""
    with Pair() as p:
        a, b = p.a, p.b
        late = now() + NEVER
        a.run("app", {"create": "s", "expiry": {"maxTTL": 7200}})
        a.run("app", {"insert": "s", "documents": [{"_id": 1}, {"_id": 2}], "expireAfterSeconds": 7000})
        a.run("app", {"insert": "plain", "documents": [{"_id": i, "x": "y" * i} for i in range(3000)]})
        a.run("app", {"insert": "plain", "documents": [{"_id": "at"}], "expireAt": late})
        a.run("app", {"createIndexes": "plain", "indexes": [{"key": {"x": 1}, "name": "x_1"}]})
        a.run("app", {"create": "v", "viewOn": "plain", "pipeline": [{"$match": {"_id": 7}}]})
        b.run("short", {"create": "s", "expiry": {"maxTTL": 3600}})
        link = p.link()
        check(link.follows(), "it copies and follows")
        check(equal(a, b, "app", "plain", "s"), "what was there is equal by content and deadline")
        info = b.client.app.command("listCollections", filter={"name": "s"})["cursor"]["firstBatch"][0]
        check("maxTTL" not in info["options"].get("expiry", {}), "a limit is not copied")
        check("x_1" in b.client.app.plain.index_information(), "an index is")
        check([d["_id"] for d in b.client.app.v.find()] == [7], "a view is")
        # 7200 at the source, 3600 at the target: 3600.
        began = now()
        a.run("short", {"insert": "s", "documents": [{"_id": 1}], "expireAfterSeconds": 7200})
        link.follows()
        left = (b.documents("short", "s").popitem()[1][1] - began).total_seconds()
        check(3590 <= left < 7000, f"the target's limit applies: {left}")  # clock: a deadline of one hour, not of two
        # Every kind of change of a deadline.
        a.run("app", {"touch": "plain", "q": {"_id": 5}, "expireAt": late})
        a.run("app", {"persist": "plain", "q": {"_id": "at"}})
        a.run("app", {"update": "plain", "updates": [{"q": {"_id": 6}, "u": {"$set": {"n": 1}}, "expireAt": late}]})
        a.run("app", {"update": "s", "updates": [{"q": {"_id": 2}, "u": {"$set": {"n": 1}}}]})
        a.run("app", {"delete": "plain", "deletes": [{"q": {"_id": {"$gt": 2900}}, "limit": 0}]})
        link.follows()
        check(equal(a, b, "app", "plain", "s"), "what changed is equal by content and deadline")
        # Values of all kinds, and documents of all sizes.
        odd = [
            {"_id": bson.Binary(b"\0\1", 128), "r": bson.regex.Regex("b"), "o": {"$ref": "c", "$id": 1}},
            {"_id": {"a": 1}, "": {"$x": 1, "a.b": [None, bson.MinKey(), bson.Decimal128("1E+3")]}},
            {"_id": bson.Int64(1 << 40), "t": bson.Timestamp(5, 6), "c": bson.Code("f()", {"x": 1})},
            {"_id": None, "big": "z" * (16 * 1024 * 1024 - 200)},
        ]
        for d in odd:
            a.client.app.odd.insert_one(d)
        a.client.app.odd.update_one({"_id": None}, {"$set": {"big": "w" * (16 * 1024 * 1024 - 200)}})
        link.follows()
        check(equal(a, b, "app", "odd"), "odd and large documents are equal")
        with urllib.request.urlopen(f"http://127.0.0.1:{link.http}/metrics", timeout=Deadline().seconds) as r:
            check('mayfly_link_documents_total{link="link",what="written"}' in r.read().decode(), "metrics say so")
        code, said = link.stop()
        check(code == 0, f"it stops when it is told to: {code} {said}")


def pass_days(side, days):
    """Moves the clock of a side: what is due by then has expired when this returns."""
    side.run("admin", {"clock": {"advanceSeconds": days * 86400}})


def expiry():
    """What expires at the source goes at the target, but never a document that was written since."""
    with Pair(extra=["--testClock"]) as p:
        a, b = p.a, p.b
        for side in (a, b):
            side.client.app.s.create_index("at", expireAfterSeconds=5, name="at_1")
        b.run("admin", {"setParameter": 1, "ttlMonitorEnabled": False})
        link = p.link()
        link.follows()
        due = now() + NEVER
        a.client.app.s.insert_many([{"_id": i, "at": due} for i in range(10)])
        a.run("app", {"insert": "own", "documents": [{"_id": 1}, {"_id": 2}], "expireAt": due})
        link.follows()
        check(b.client.app.s.count_documents({}) == 10, "what is not due yet is there")
        # Written at the target meanwhile: later ones must stay.
        b.client.app.s.update_one({"_id": 3}, {"$set": {"at": due + NEVER}})
        b.run("app", {"update": "own", "updates": [{"q": {"_id": 2}, "u": {"$set": {"n": 1}}}]})
        pass_days(a, 2)
        check(a.client.app.s.count_documents({}) == 0 and a.client.app.own.count_documents({}) == 0, "all expire")
        link.follows()
        check([d["_id"] for d in b.client.app.s.find()] == [3], "expired: only what was not written since")
        check([d["_id"] for d in b.client.app.own.find()] == [2], "the same with a deadline of its own")
        check(link.counter("expired") >= 10, f"they are counted: {link.status().get('counters')}")


def filters():
    """docs/expiry.md C17."""
    with Pair(extra=["--testClock"]) as p:
        a, b = p.a, p.b
        a.client.app.c.insert_many([{"_id": i, "keep": i % 2 == 0} for i in range(100)])
        a.client.app.no.insert_one({"_id": 1})
        a.client.other.c.insert_one({"_id": 1})
        a.run("app", {"insert": "c", "documents": [{"_id": "x", "keep": True}], "expireAt": now() + NEVER})
        options = ["--include", "app", "--include", "mark", "--exclude", "app.no"]
        options += ["--filter", '{"$or": [{"keep": true}, {"token": {"$exists": true}}]}']
        options += ["--filterExpiration", "--filterDeletion", "--filterBypassExpiry"]
        link = p.link(*options)
        link.follows()
        check(b.client.app.c.count_documents({}) == 51, "only what matches")
        check("other" not in b.client.list_database_names(), "only the chosen databases")
        check("no" not in b.client.app.list_collection_names(), "not what is excluded")
        check(b.documents("app", "c")[bson.encode({"": "x"})][1] is None, "without its deadline")
        a.client.app.c.delete_many({"_id": {"$lt": 50}})
        a.client.app.c.insert_many([{"_id": 1000, "keep": True}, {"_id": 1001, "keep": False}])
        a.client.app.no.drop()
        pass_days(a, 2)
        check(a.client.app.c.count_documents({"_id": "x"}) == 0, "one expires")
        link.follows()
        ids = {d["_id"] for d in b.client.app.c.find()}
        check({0, 48, 1000, "x"} <= ids and 1001 not in ids, "deletes and expiry are not sent, and what matches is")
        said = link.said()
        for word in ("filterExpiration", "filterDeletion", "filterBypassExpiry", "no longer matches"):
            check(word in said, f"the log warns: {word}")


def definitions():
    with Pair() as p:
        a, b = p.a, p.b
        link = p.link()
        link.follows()
        db = a.client.app
        db.create_collection("capped", capped=True, size=100000)
        db.c.insert_many([{"_id": i, "n": i} for i in range(20)])
        db.c.create_index("n", name="n_1", expireAfterSeconds=86400)
        db.command({"collMod": "c", "index": {"name": "n_1", "expireAfterSeconds": 90000}})
        db.gone.insert_one({"_id": 1})
        db.gone.drop()
        db.c.create_index("m", name="m_1")
        db.c.drop_index("m_1")
        db.old.insert_one({"_id": 1})
        a.client.admin.command({"renameCollection": "app.old", "to": "app.new"})
        a.client.later.c.insert_one({"_id": 1})
        a.client.drop_database("later")
        link.follows()
        names = set(b.client.app.list_collection_names())
        check({"capped", "c", "new"} <= names and not {"gone", "old"} & names, f"collections follow: {names}")
        index = b.client.app.c.index_information()
        check(index.get("n_1", {}).get("expireAfterSeconds") == 90000 and "m_1" not in index, f"indexes: {index}")
        check("later" not in b.client.list_database_names(), "a dropped database is gone")
        # What the target refuses is named, and the others are written.
        b.client.app.u.create_index("k", unique=True, name="k_1")
        a.client.app.u.insert_many([{"_id": 1, "k": 1}, {"_id": 2, "k": 1}, {"_id": 3, "k": 3}])
        link.follows()
        check([d["_id"] for d in b.client.app.u.find().sort("_id", 1)] == [1, 3], "the others are written")
        refused = list(b.client.mayflyLink.refused.find())
        check([(r["_id"]["ns"], r["_id"]["id"], r["code"]) for r in refused] == [("app.u", 2, 11000)], f"{refused}")


def both_directions():
    with Pair() as p:
        a, b = p.a, p.b
        one = p.link(name="there")
        one.follows()
        back = p.link(back=True, name="back")
        code = back.proc.wait(Deadline().seconds)
        check(code == 1 and "other direction" in back.said(), f"a link back is refused: {code} {back.said()}")
        one.stop()
        b.client.mayflyLink.links.delete_many({})
        there = p.link("--versionField", "v", "--include", "app", name="there")
        eventually(lambda: there.state() == "following")
        again = p.link("--versionField", "v", "--include", "app", back=True, name="back")
        eventually(lambda: again.state() == "following")
        base = now()
        for i in range(50):
            a.client.app.c.insert_one({"_id": i, "v": base, "of": "a"})
        eventually(lambda: b.client.app.c.count_documents({}) == 50)
        # Both change the same ones: the later date wins on both sides.
        for i in range(50):
            first, second = (a, b) if i % 2 else (b, a)
            for side, seconds in ((first, 1), (second, 2)):
                of = "a" if side is a else "b"
                side.client.app.c.replace_one({"_id": i}, {"v": base + datetime.timedelta(seconds=seconds), "of": of})
        won = lambda side: all(
            d["of"] == ("b" if d["_id"] % 2 else "a") for d in side.client.app.c.find()
        )
        check(eventually(lambda: won(a) and won(b)), "the later one wins on both sides")
        check(equal(a, b, "app", "c"), "both are equal")


def one_process():
    with Pair() as p:
        link = p.link(name="same")
        link.follows()
        second = LinkProcess(p.a, p.b, name="same")
        p.links.append(second)
        check(eventually(lambda: second.state() == "waiting"), "a second process stands by")
        link.kill()
        check(eventually(lambda: second.state() == "following"), "and takes over")
        tell = lambda what: subprocess.run(
            [LINK, what, "--name", "same", "--target", p.b.uri],
            capture_output=True,
            text=True,
            timeout=Deadline().seconds,
        )
        check(tell("pause").returncode == 0, "it is told to pause")
        check(eventually(lambda: second.state() == "paused"), "it pauses")
        p.a.client.app.c.insert_one({"_id": "while paused"})
        check(json.loads(tell("status").stdout)["paused"] is True, "its status says so")
        check(p.b.client.app.c.count_documents({}) == 0, "nothing is sent")
        tell("resume")
        check(second.follows() and p.b.client.app.c.count_documents({}) == 1, "it goes on")
        missing = subprocess.run(
            [LINK, "status", "--name", "x", "--target", p.b.uri],
            capture_output=True,
            text=True,
            timeout=Deadline().seconds,
        )
        check(missing.returncode == 1 and "knows no link" in missing.stderr, "a link that is not there")


def write(side, n, seconds=None):
    """Some changes, as an application makes them, over failovers."""
    c = side.client.app.c
    for _ in range(n):
        i = rnd.randrange(300)
        command = {"update": "c", "updates": [{"q": {"_id": i}, "u": {"_id": i, "n": rnd.random()}, "upsert": True}]}
        if rnd.random() < 0.3:
            command["updates"][0]["expireAt"] = now() + NEVER + datetime.timedelta(seconds=rnd.randrange(1000))
        if rnd.random() < 0.2:
            command = {"delete": "c", "deletes": [{"q": {"_id": i}, "limit": 1}]}
        eventually(lambda: attempt(side, command))


def attempt(side, command):
    try:
        side.client.app.command(command)
        return True
    except PyMongoError:
        return False


def kills():
    """The link and both primaries are killed at random moments while an application writes."""
    with Pair(members=3) as p:
        a, b = p.a, p.b
        write(a, 500)
        link = p.link()
        for round in range(4):
            write(a, 150)
            random_moment(0, 0.5)
            victim = rnd.choice(("link", "source", "target")) if round else "link"
            if victim == "link":
                link.kill()
                write(a, 50)
                link.start()
            else:
                side = a if victim == "source" else b
                primary = side.set.primary()
                primary.kill()
                write(a, 50)
                primary.start()
                primary.wait_up()
            print(f"     killed: {victim}", flush=True)
        write(a, 100)
        check(eventually(lambda: link.follows(), 120), "it follows after all")
        check(equal(a, b, "app", "c"), "both are equal by content and deadline")
        check(link.status()["counters"]["copiesBegun"] == 1, f"and it has not begun anew: {link.status()}")


def refused_for_a_while():
    """A batch that the target does not take now is read again, however far the link had read."""
    with Pair(target=["--setParameter", "enableTestCommands=1"]) as p:
        a, b = p.a, p.b
        link = p.link()
        link.follows()
        # No primary, a full disk, somebody who ended the request or its cursor: none is a reason to end.
        for code in (91, 14031, 11601, 237):
            fail = {"failCommands": ["bulkWrite", "update"], "errorCode": code, "appName": "mayfly-link link"}
            b.run("admin", {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": fail})
            for i in range(3):
                write(a, 10)
                check(eventually(lambda: link.state() == "waiting"), f"it waits for the target: {code}")
            b.run("admin", {"configureFailPoint": "failCommand", "mode": "off"})
            check(link.follows(), "it follows again")
        check(equal(a, b, "app", "c"), "nothing was left out")


def lost_history():
    """While the link is away the source's log is trimmed: what came meanwhile can only be copied."""
    with Pair(extra=["--oplogSize", "8"]) as p:
        a, b = p.a, p.b
        a.client.app.c.insert_many([{"_id": i} for i in range(1000)])
        link = p.link()
        link.follows()
        link.kill()
        a.client.app.c.delete_many({"_id": {"$lt": 500}})
        last = a.client.local["oplog.rs"].find().sort("$natural", -1).limit(1).next()["ts"]
        b.client.app.c.insert_one({"_id": "the target's own"})

        def trimmed():
            a.client.fat.c.insert_one({"x": rnd.randbytes(1 << 20)})
            first = next(a.client.local["oplog.rs"].find().sort("$natural", 1).limit(1), None)
            return first and first["ts"] > last

        check(eventually(trimmed), "the log is trimmed")
        a.client.app.c.insert_many([{"_id": i} for i in range(2000, 2100)])
        link.start()
        check(eventually(lambda: link.counter("copiesBegun") >= 2 and link.state() == "following"), "it copies again")
        link.follows()
        check(equal(a, b, "app", "c"), "and removes what is gone")


def odd_data():
    """What a source's documents, names and definitions can be: all of it is data, none of it stops the link."""
    with Pair() as p:
        a, b = p.a, p.b
        deep = {"v": 1}
        for _ in range(178):
            deep = {"d": deep}
        odd = [
            {"_id": 1, "$set": {"x": 1}, "a.b": {"c.d": 1}, "": 0},
            {"_id": 2, "$unset": 1, "x": "$$ROOT", "y": {"$literal": 1}},
            {"_id": {"a.b": 1}, "deep": deep},
            {"_id": 4, "big": "z" * (16 * 1024 * 1024 - 300)},
            {"_id": "\u0000\U0001f600", "n": float("nan"), "t": bson.Timestamp(0, 0)},
        ]
        taken = []
        for d in odd:
            try:
                a.client.app.odd.insert_one(d)
                taken.append(d["_id"])
            except PyMongoError as e:
                print(f"     not taken by the source: {str(e)[:100]}", flush=True)
        check(len(taken) >= 4, f"the source takes most of them: {len(taken)}")
        names = ["a.b.c", "x-y", "ü ñ", "n" * 100, "links", "view", "1"]
        for n in names:
            a.client.app[n].insert_one({"_id": n})
        a.client.mayflyLink.links.insert_one({"_id": "somebody's", "source": 5, "versionField": []})
        a.client.mayflyLink.refused.insert_one({"_id": 1})
        a.client.app.create_collection("capped", capped=True, size=100000)
        a.client.app.capped.insert_many([{"_id": i} for i in (3, 1, 2)])
        a.client.app.create_collection("onView", viewOn="x-y", pipeline=[{"$match": {}}])
        a.client.app.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
        a.client.app.series.insert_one({"t": now(), "m": 1})
        a.client.app.many.create_index("u", unique=True, name="u_1")
        b.client.app.create_collection("many", validator={"bad": {"$exists": False}})
        a.client.app.many.insert_many([{"_id": i, "u": i} for i in range(2000)])
        link = p.link()
        check(link.follows(), "it copies")

        def same(when):
            check(equal(a, b, "app", "odd", *names), f"odd documents and names are equal, {when}")
            capped = [[d["_id"] for d in side.client.app.capped.find()] for side in (a, b)]
            check(capped[0] == capped[1], f"a capped collection has the same documents in the same order: {capped}")

        same("copied")
        check("series" not in b.client.app.list_collection_names(), "a time series is not carried")
        check(link.status().get("notCarried") == ["app.series"], f"and is named: {link.status().get('notCarried')}")
        check("app.series is a time series" in link.said(), "also in the log")
        there = [l["_id"] for l in b.client.mayflyLink.links.find()]
        check(there == ["link"], f"a link's database is not carried: {there}")
        for d in odd:
            if d["_id"] in taken:
                a.client.app.odd.replace_one({"_id": d["_id"]}, {"gone": 1})
                a.client.app.odd.delete_one({"_id": d["_id"]})
                a.client.app.odd.insert_one(d)
        a.client.app.capped.insert_many([{"_id": i} for i in (9, 7)])
        a.client.app.series.insert_one({"t": now(), "m": 2})
        a.client.app.create_collection("series2", timeseries={"timeField": "t"})
        a.client.app.series2.insert_one({"t": now()})
        a.client.app.series2.create_index("t")
        a.client.app.series2.drop()
        # Unique values change hands, in one transaction of many documents and outside.
        c = a.client.app.many
        with a.client.start_session() as session, session.start_transaction():
            c.delete_many({"_id": {"$lt": 1000}}, session=session)
            c.insert_many([{"_id": i, "u": 999 - i} for i in range(1000)], session=session)
        for one, other in ((5, 6), (1500, 1501)):
            first, second = c.find_one({"_id": one})["u"], c.find_one({"_id": other})["u"]
            c.update_one({"_id": one}, {"$set": {"u": -1}})
            c.update_one({"_id": other}, {"$set": {"u": first}})
            c.update_one({"_id": one}, {"$set": {"u": second}})
        check(link.follows(), "it follows")
        same("followed")
        check(equal(a, b, "app", "many"), "values of a unique index that changed hands are equal")
        c.insert_one({"_id": "bad", "bad": 1})
        check(link.follows(), "it goes on")
        check(b.client.app.many.find_one({"_id": "bad"}), "a validator of the target is not asked: the source was")
        check("series2" not in b.client.app.list_collection_names(), "a new time series is not carried either")


def renames():
    """Collections get other names, come and go while the link copies: it meets them under either name, or none."""
    with Pair() as p:
        a, b = p.a, p.b
        names = ["b", "f", "z", "m"]
        for n in names:
            documents = [{"_id": i, "of": n} for i in range(700)]
            a.run("app", {"insert": n, "documents": documents, "expireAt": now() + NEVER})
        link = p.link("--maxDocumentsPerSecond", "1000")
        eventually(lambda: link.counter("copied") >= 500)
        moves = [("z", "a"), ("b", "y"), ("m", "n"), ("f", "f2")]
        for old, new in moves:
            a.client.admin.command({"renameCollection": f"app.{old}", "to": f"app.{new}"})
        a.client.admin.command({"renameCollection": "app.n", "to": "app.n2"})
        a.client.app.z.insert_one({"_id": "new z"})
        a.client.app.a.delete_many({"_id": {"$lt": 100}})
        a.client.app.brief.insert_one({"_id": 1})
        a.client.app.brief.drop()
        check(link.follows(), "it follows")
        check(equal(a, b, "app", "a", "y", "n2", "f2", "z"), "all are equal under their new names")
        there, here = (set(s.client.app.list_collection_names()) for s in (a, b))
        check(there == here, f"and there are no others: {there ^ here}")


def late_process():
    """A process that stood still while another took over must not write what it had read before."""
    with Pair() as p:
        a, b = p.a, p.b
        a.client.app.c.insert_many([{"_id": i, "n": 0} for i in range(100)])
        first = p.link(name="same")
        first.follows()
        second = LinkProcess(a, b, name="same")
        p.links.append(second)
        eventually(lambda: second.state() == "waiting")
        a.client.app.c.update_many({}, {"$set": {"n": 1}})
        first.proc.send_signal(signal.SIGSTOP)
        a.client.app.c.update_many({}, {"$set": {"n": 2}})
        # Behind the lifetime of a transaction (60 s) that the first may have begun at the target.
        check(eventually(lambda: second.state() == "following", 120), "the second takes over")
        check(second.follows(), "and follows")
        a.client.app.c.delete_many({"_id": {"$lt": 50}})
        check(second.follows(), "on")
        first.proc.send_signal(signal.SIGCONT)
        check(eventually(lambda: first.state() == "waiting"), f"the first stands by: {first.status()}")
        for n in range(3, 6):
            a.client.app.c.update_many({}, {"$set": {"n": n}})
            second.follows()
        check(equal(a, b, "app", "c"), "nothing old was written")
        second.stop()
        check(eventually(lambda: first.state() == "following") and first.follows(), "the first goes on after it")
        check(equal(a, b, "app", "c"), "from where the other was")


def stalls():
    """Members of either side stand still for some seconds, as behind a partition or a slow disk, while others write."""
    with Pair() as p:
        a, b = p.a, p.b
        write(a, 200)
        link = p.link()
        link.follows()
        for side in (b, a, b):
            proc = side.set.members[0].proc
            proc.send_signal(signal.SIGSTOP)
            if side is b:
                write(a, 100)
            random_moment(2, 4)
            proc.send_signal(signal.SIGCONT)
            write(a, 50)
        check(eventually(lambda: link.follows(), 120), "it follows after all")
        check(equal(a, b, "app", "c"), "both are equal by content and deadline")
        check(link.status()["counters"]["copiesBegun"] == 1, "without another copy")


def shorter_deadlines():
    """docs/expiry.md C18: in both directions a limit of one side reaches the other with the next change there."""
    with Pair() as p:
        a, b = p.a, p.b
        b.run("app", {"setDatabaseExpiry": 1, "maxTTL": 3600})
        there = p.link("--versionField", "v", "--include", "app", name="there")
        back = p.link("--versionField", "v", "--include", "app", back=True, name="back")
        eventually(lambda: there.state() == back.state() == "following")
        began, v = now(), lambda n: began + datetime.timedelta(seconds=n)
        a.run("app", {"insert": "c", "documents": [{"_id": 1, "v": v(1)}], "expireAfterSeconds": 7200})
        left = lambda side: (side.documents("app", "c").popitem()[1][1] - began).total_seconds()
        check(eventually(lambda: b.client.app.c.count_documents({}) == 1), "it is there")
        check(3590 <= left(b) <= 3660 and left(a) > 7100, f"with the limit of there: {left(b)}, {left(a)}")
        check(eventually(lambda: back.counter("notNewer") >= 1) and left(a) > 7100, "what comes back changes nothing")
        change = {"q": {"_id": 1}, "u": {"$set": {"v": v(2)}}, "preserveExpiry": True}
        b.run("app", {"update": "c", "updates": [change]})
        check(eventually(lambda: a.client.app.c.find_one()["v"] == v(2)), "a change of there comes here")
        check(3590 <= left(a) <= 3660, f"with the shorter life: {left(a)}")


def both_killed():
    """Both directions while links and members of both sides are killed: every document is the latest anywhere."""
    with Pair(members=3) as p:
        options = ["--versionField", "v", "--include", "app"]
        there, back = p.link(*options, name="there"), p.link(*options, back=True, name="back")
        eventually(lambda: there.state() == back.state() == "following")
        base, tick = now(), 0
        for _ in range(3):
            for _ in range(60):
                tick += 1
                side, i = rnd.choice((p.a, p.b)), rnd.randrange(40)
                doc = {"_id": i, "v": base + datetime.timedelta(milliseconds=tick), "n": tick}
                at = now() + NEVER + datetime.timedelta(seconds=tick)
                change = {"q": {"_id": i}, "u": doc, "upsert": True, "expireAt": at}
                eventually(lambda: attempt(side, {"update": "c", "updates": [change]}))
            victim = rnd.choice(("there", "back", "a", "b"))
            print(f"     killed: {victim}", flush=True)
            if victim in ("there", "back"):
                link = there if victim == "there" else back
                link.kill()
                link.start()
            else:
                primary = (p.a if victim == "a" else p.b).set.primary()
                primary.kill()
                primary.start()
                primary.wait_up()
        same = lambda: equal(p.a, p.b, "app", "c")
        over = lambda: there.state() == back.state() == "following" and quietly(same)
        check(eventually(over, 120), "both become equal")
        check(same(), "by content and deadline")


def quietly(f):
    """f() without what it prints, False where it fails."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return f()
    except PyMongoError:
        return False


def at_the_target():
    """ttlStatus, ttlCheck and the expiry page of the target tell of its links, and of clocks that are apart."""
    with Pair() as p:
        link = p.link()
        link.follows()
        shown = lambda: p.b.run("admin", {"ttlStatus": 1}).get("links", [])
        check(eventually(lambda: [l["phase"] for l in shown()] == ["follow"]), f"ttlStatus: {shown()}")
        only = shown()[0]
        check(only["link"] == "link" and only["source"] == "rs0" and only["seenMillisAgo"] < 60000, f"{only}")
        check(abs(only["clockAheadMillis"]) < 1000 and "advice" not in only, "the clocks are in step")
        p.b.client.app.c.create_index("at", expireAfterSeconds=5)
        check(len(p.b.run("app", {"ttlCheck": "c", "index": "at_1"})["links"]) == 1, "ttlCheck has it, too")
        check("links" not in p.a.run("admin", {"ttlStatus": 1}), "the source has none")
        # Documents of any kind may be there.
        links = p.b.client.mayflyLink.links
        links.insert_many([{"_id": 5}, {"_id": "x", "clockSkewMillis": {"apart": 90000}, "source": [], "phase": 1}])
        links.insert_many([{"_id": f"n{i}", "phase": "y" * 100000} for i in range(50)])
        check(len(shown()) <= 20, f"at most twenty: {len(shown())}")
        links.delete_many({"_id": {"$regex": "^n"}})
        advice = [l["advice"] for l in shown() if l["link"] == "x"]
        check(advice and "ahead" in advice[0] and "earlier" in advice[0], f"what clocks that are apart mean: {advice}")


def refusals():
    with Pair() as p:
        def said(*args):
            r = subprocess.run([LINK, *args], capture_output=True, text=True, timeout=Deadline().seconds)
            return r.returncode, r.stderr

        a, b = p.a.uri, p.b.uri
        for args, words in (
            (["--source", a], "--target"),
            (["--target", b], "--source is missing"),
            (["--source", a, "--target", a], "same cluster"),
            (["--source", "nonsense", "--target", b], "connection string"),
            (["--source", a, "--target", b, "--filter", "{"], "JSON"),
            (["--source", a, "--target", b, "--filter", '{"$where": "1"}'], "$where"),
            (["--source", a, "--target", b, "--include", "admin"], "never replicated"),
            (["--source", a, "--target", b, "--include", "a*"], "names no collections"),
            (["--source", a, "--target", b, "--versionField", "a.b"], "top-level"),
            (["--source", a, "--target", b, "--maxDocumentsPerSecond", "-1"], "negative"),
            (["dance", "--source", a, "--target", b], "dance"),
        ):
            code, text = said(*args)
            check(code == 1 and words in text, f"{args}: {code} {text}")


def limit():
    with Pair() as p:
        p.a.client.app.c.insert_many([{"_id": i} for i in range(6000)])
        began = now()
        link = p.link("--maxDocumentsPerSecond", "2000")
        link.follows()
        check(p.b.client.app.c.count_documents({}) == 6000, "all are there")
        took = (datetime.datetime.now(datetime.timezone.utc) - began).total_seconds()
        check(took > 1.9, "not faster than the limit")  # clock: at least, which a slow machine cannot miss


def recipes():
    """The commands of docs/between-clusters.md, as they stand there, with other hosts."""
    text = (ROOT / "docs/between-clusters.md").read_text()
    commands = [l for b in re.findall(r"```sh\n(.*?)```", text, re.S) for l in b.splitlines() if l.strip()]
    check(len(commands) == 5, f"{len(commands)} commands")
    with Pair() as p:
        hosts = {"mongodb://a1,a2,a3/?replicaSet=a": p.a.uri, "mongodb://b1,b2,b3/?replicaSet=b": p.b.uri}
        running = []
        for command in commands:
            words = [hosts.get(w, w) for w in shlex.split(command)]
            words[0] = LINK
            if "--source" in words:
                running.append(subprocess.Popen(words, stderr=subprocess.PIPE))
                links = p.b.client.mayflyLink.links
                check(eventually(lambda: links.count_documents({"phase": "follow"}) == len(running)), command)
            else:
                r = subprocess.run(words, capture_output=True, text=True, timeout=Deadline().seconds)
                check(r.returncode == 0 and json.loads(r.stdout)["_id"] == "link", f"{command}: {r.stderr}")
        for proc in running:
            proc.terminate()
            check(proc.wait(Deadline().seconds) == 0, "it stops")


PARTS = [deadlines_and_limits, expiry, filters, definitions, both_directions, one_process, kills]
PARTS += [refused_for_a_while, lost_history, odd_data, renames, late_process, stalls, shorter_deadlines]
PARTS += [both_killed, at_the_target, refusals, limit, recipes]

if __name__ == "__main__":
    try:
        run_parts("link", PARTS, check)
    finally:
        discard(folder)
