#!/usr/bin/env python3
"""What mayfly-link must bear: replies of wrong types, partitions, a rename that was not noted, definitions that changed
while its history was lost, every kind of `_id`, transactions, TLS and logins on both sides, and the compose file of the
page.

At the end of each part both sides are equal by content and deadline. The last line says "N passed, N failed".
"""

import copy, datetime, json, os, re, socket, struct, subprocess, tempfile, threading, uuid

import bson
import pymongo
from pymongo.errors import PyMongoError

import link_run
from fault_test import BINARY, ROOT, Deadline, certificate, discard, free_port, random_moment, rnd, run_parts
from link_run import LINK, LinkProcess, NEVER, Pair, Side, attempt, check
from link_run import equal, eventually, now, pass_days, started, write
from proxy import Network
from replica_set import Member, ReplicaSet


def trim(side, last):
    """Fills the source's log (--oplogSize) until `last` is no longer in it."""

    def trimmed():
        side.client.fat.c.insert_one({"x": rnd.randbytes(1 << 20)})
        # None: what the cursor was at has just been trimmed.
        first = next(side.client.local["oplog.rs"].find().sort("$natural", 1).limit(1), None)
        return first and first["ts"] > last

    return eventually(trimmed)


def lost_definitions():
    """Collections, views and indexes that went or changed while the history was lost: the target has them no more."""
    with Pair(extra=["--oplogSize", "8"]) as p:
        a, b = p.a, p.b
        for name in ("stays", "dropped", "renamed"):
            a.client.app[name].insert_many([{"_id": i, "at": now() + NEVER} for i in range(50)])
        a.client.gone.c.insert_one({"_id": 1})
        a.client.app.stays.create_index("at", name="at_1", expireAfterSeconds=5)
        a.client.app.create_collection("view", viewOn="stays", pipeline=[])
        link = p.link()
        link.follows()
        b.client.app.own.insert_one({"_id": "the target's own"})
        link.kill()
        a.client.app.dropped.drop()
        a.client.app.view.drop()
        a.client.app.renamed.rename("new")
        a.client.drop_database("gone")
        a.client.app.command("collMod", "stays", index={"name": "at_1", "expireAfterSeconds": 7000})
        last = a.client.local["oplog.rs"].find().sort("$natural", -1).limit(1).next()["ts"]
        check(trim(a, last), "the log is trimmed")
        link.start()
        check(eventually(lambda: link.counter("copiesBegun") >= 2 and link.state() == "following"), "it copies again")
        link.follows()
        check(set(b.client.app.list_collection_names()) == {"stays", "new", "own"}, "what is gone, and only that, goes")
        check("gone" not in b.client.list_database_names(), "a database, too")
        check(equal(a, b, "app", "stays", "new"), "both are equal")
        seconds = b.client.app.stays.index_information()["at_1"]["expireAfterSeconds"]
        check(seconds == 7000, f"and an index is as at the source: {seconds}")


def slow_copy():
    """Behind a change that the copy brought a link has yet to follow what came before: a rename then is another's."""
    with Pair() as p:
        p.a.client.app.c.insert_many([{"_id": i} for i in range(200)])
        link = p.link("--maxDocumentsPerSecond", "100")
        check(link.follows(), "it copies and follows")
        check(p.b.client.mayflyLink.links.find_one()["phase"] == "follow", "it does not copy any more")


def copy_goes_on():
    """A link that is killed while it copies goes on behind the collections that were whole, and saves what changed."""
    with Pair() as p:
        a, b = p.a, p.b
        for i in range(12):
            a.client.app[f"c{i:02}"].insert_many([{"_id": n} for n in range(20)])
        link = p.link("--maxDocumentsPerSecond", "50")
        whole = lambda: b.client.mayflyLink.carried.count_documents({"copied": {"$exists": True}})
        check(eventually(lambda: whole() >= 4), "it copies one after the other")
        link.kill()
        b.client.app.c00.delete_one({"_id": 0})
        link.options = ()
        link.start()
        check(link.follows(), "it goes on, and follows")
        check(equal(a, b, "app", *(f"c{i:02}" for i in range(1, 12))), "what was not whole is copied")
        check(b.client.app.c00.count_documents({}) == 19, "what was whole is not copied again")
        check(link.counter("copiesBegun") == 1, "it is the same copy")
        # Only what changed of its state is in the entries of the target's log.
        last = b.client.local["oplog.rs"].find().sort("$natural", -1).limit(1).next()["ts"]
        a.client.app.c01.insert_one({"_id": "more"})
        link.follows()
        ours = b.client.local["oplog.rs"].find({"ts": {"$gt": last}})
        said = "".join(str(e["o"]) for e in ours if "mayflyLink.links" in str(e))
        right = "token" in said and "hosts" not in said and "copyTime" not in said
        check(right, f"what changed is saved: {said}"[:500])
        # A new copy has none of the old one's collections.
        link.stop()
        b.client.mayflyLink.links.delete_many({})
        link.start()
        check(link.follows() and equal(a, b, "app", "c00", "c01"), "a link that was forgotten copies all of them")


def rename_again():
    """A rename whose position could not be saved is sent again: what came before it is not written under the old name,
    which would then replace all that has the new one."""
    with Pair(target=["--setParameter", "enableTestCommands=1"]) as p:
        a, b = p.a, p.b
        a.client.app.old.insert_many([{"_id": i} for i in range(500)])
        link = p.link()
        link.follows()
        tell = lambda **more: b.run("admin", {"configureFailPoint": "failCommand", **more})
        for round in range(3):
            name, new = ("old", "new")[round % 2], ("new", "old")[round % 2]
            # Refused: what comes behind the rename at the target.
            tell(mode="alwaysOn", data={"failCommands": ["delete"], "errorCode": 91, "appName": "mayfly-link link"})
            a.client.app[name].insert_one({"_id": f"before {round}"})
            a.client.admin.command({"renameCollection": f"app.{name}", "to": f"app.{new}"})
            a.client.app[new].insert_one({"_id": f"behind {round}"})
            check(eventually(lambda: new in b.client.app.list_collection_names()), "it is renamed at the target")
            check(eventually(lambda: link.state() == "waiting"), "and not noted")
            link.kill()
            tell(mode="off")
            link.start()
            check(link.follows(), "it goes on")
            check(equal(a, b, "app", new), "nothing is lost")
            check(name not in b.client.app.list_collection_names(), "and the old name is gone")
        # At any moment, with writes around the renames.
        for round in range(8):
            name, new = ("new", "old") if "new" in a.client.app.list_collection_names() else ("old", "new")
            a.client.app[name].insert_many([{"_id": f"{round}.{i}"} for i in range(20)])
            a.client.admin.command({"renameCollection": f"app.{name}", "to": f"app.{new}"})
            a.client.app[new].insert_many([{"_id": f"{round}.{i} behind"} for i in range(20)])
            random_moment(0, 0.08)
            link.kill()
            link.start()
        check(eventually(lambda: link.follows(), 120), "it follows after all")
        check(equal(a, b, "app", new), "both are equal")


GONE = object()  # a lie: the field is not there


class Liar:
    """A member as a client sees it whose replies `lie(command, reply)` changes: it gives whether it did. Replies of a
    driver's own handshake pass as they are."""

    def __init__(self, member):
        self.member, self.lie, self.told, self.last = member, lambda command, reply: False, 0, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            with client, socket.create_connection(("127.0.0.1", self.member.port)) as server:
                for s in (client, server):
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    asked = self.message(client)
                    if refusal := self.refuse(asked):
                        client.sendall(refusal)
                        continue
                    server.sendall(asked)
                    client.sendall(self.changed(asked, self.message(server)))
        except (OSError, EOFError):
            pass

    @staticmethod
    def message(sock):
        out = b""
        while len(out) < 4 or len(out) < struct.unpack_from("<i", out)[0]:
            size = struct.unpack_from("<i", out)[0] if len(out) >= 4 else 4
            part = sock.recv(size - len(out))
            if not part:
                raise EOFError
            out += part
        return out

    def refuse(self, asked):
        """A reply instead of the member's; none: it is asked."""

    def changed(self, asked, answer):
        if struct.unpack_from("<i", asked, 12)[0] != 2013 or asked[20] != 0:
            return answer
        size = struct.unpack_from("<i", asked, 21)[0]
        request = bson.decode(asked[21 : 21 + size])
        reply = bson.decode(answer[21:])
        if "lsid" not in request or not self.lie(next(iter(request)), reply):
            return answer
        self.told, self.last = self.told + 1, (next(iter(request)), str(reply)[:1000])
        body = answer[16:21] + bson.encode(reply)
        return struct.pack("<i", 16 + len(body)) + answer[4:16] + body

    def through(self, side):
        """The side as a link sees it."""
        out = copy.copy(side)
        out.uri = f"mongodb://127.0.0.1:{self.port}/?directConnection=true"
        return out

    def close(self):
        self.listener.close()


class Foreign(Liar):
    """A member as a server that has nothing of Mayfly's own: it does not say that it is one, does not know its options,
    deadlines and events, and lacks what is in `without` (commands, or startTransaction)."""

    OWN = {"expireAt", "expireAfterSeconds", "showExpiryEvents", "showExpireAt", "preserveExpiry"}

    def __init__(self, member, without=()):
        super().__init__(member)
        self.without, self.refused = without, []

        def lie(command, reply):
            return command == "buildInfo" and reply.pop("mayfly", None) is not None

        self.lie = lie

    def refuse(self, asked):
        if struct.unpack_from("<i", asked, 12)[0] != 2013:
            return None
        size = struct.unpack_from("<i", asked, 21)[0]
        request = bson.decode(asked[21 : 21 + size])
        command = next(iter(request))
        if command in self.without:
            code_, what = 59, f"no such command: '{command}'"
        elif request.get("startTransaction") and "startTransaction" in self.without:
            command, code_, what = "startTransaction", 20, "Transaction numbers are for members of sets"
        elif what := self.own(request, command):
            code_, what = 40415, f"BSON field '{what}' is an unknown field."
        else:
            return None
        self.refused.append((command, what))
        reply = b"\0\0\0\0\0" + bson.encode({"ok": 0.0, "code": code_, "codeName": "Unknown", "errmsg": what})
        return struct.pack("<iiii", 16 + len(reply), 1, struct.unpack_from("<i", asked, 4)[0], 2013) + reply

    def own(self, request, command):
        """The first of Mayfly's own names in what is no document of a user."""
        for field in ("updates", "deletes", "ops", "pipeline"):
            for one in request.get(field, ()):
                for name, value in one.items():
                    if name in self.OWN:
                        return name
                    if name == "$changeStream" and (self.OWN & value.keys()):
                        return next(iter(self.OWN & value.keys()))
        if command in ("insert", "update", "touch") and (self.OWN & request.keys()):
            return next(iter(self.OWN & request.keys()))
        asks = command in ("find", "delete", "bulkWrite") and "{'$meta': 'expireAt'}" in str(request)
        return "$meta: expireAt" if asks else ""


def foreign_target():
    """A target that speaks the protocol and has no deadlines: refused without --filterBypassExpiry; with it, all else
    is carried, with bulkWrite and without, in transactions and without."""
    for without in ((), ("bulkWrite",), ("startTransaction",)):
        with Pair(extra=["--testClock"]) as p:
            a, b = p.a, p.b
            at = now() + NEVER
            a.run("app", {"insert": "c", "documents": [{"_id": i, "u": i} for i in range(300)], "expireAt": at})
            a.client.app.c.create_index("u", unique=True, name="u_1")
            b.client.app.c.insert_one({"_id": 7, "u": "the target's"})
            target = Foreign(b.set.members[0], without)
            link = LinkProcess(a, target.through(b), name="early")
            p.links.append(link)
            check(
                link.proc.wait(Deadline().seconds) == 1 and "filterBypassExpiry" in link.said(),
                f"refused: {link.said()}",
            )
            link = LinkProcess(a, target.through(b), "--filterBypassExpiry", name="foreign")
            p.links.append(link)
            check(link.follows(), f"it copies and follows: {without}")
            documents = lambda side: {d["_id"]: d for d in side.client.app.c.find()}
            check(documents(a) == documents(b), "documents are equal")
            check(all(e is None for _, e in b.documents("app", "c").values()), "and have no deadlines")
            a.client.app.c.update_many({"_id": {"$lt": 100}}, {"$inc": {"n": 1}})
            a.client.app.c.delete_many({"_id": {"$gte": 250}})
            a.client.app.c.insert_one({"_id": "odd", "$set": 1})
            for one, other in ((5, 6), (150, 151)):
                a.client.app.c.update_one({"_id": one}, {"$set": {"u": -1}})
                a.client.app.c.update_one({"_id": other}, {"$set": {"u": one}})
                a.client.app.c.update_one({"_id": one}, {"$set": {"u": other}})
            a.client.app.c.rename("d")
            a.run("app", {"insert": "e", "documents": [{"_id": i} for i in range(50)], "expireAt": at})
            check(link.follows(), "it follows")
            documents = lambda side: {d["_id"]: d for d in side.client.app.d.find()}
            check(documents(a) == documents(b), "changes are equal")
            link.kill()
            a.client.app.d.delete_many({"_id": {"$lt": 50}})
            link.start()
            check(link.follows() and documents(a) == documents(b), "also after a kill")
            pass_days(a, 2)
            check(link.follows() and b.client.app.e.count_documents({}) == 0, "what expires at the source goes")
            refused = list(b.client.mayflyLink.refused.find())
            check(not refused, f"no document was refused: {refused[:2]}")
            wrong = [r for r in target.refused if r[0] not in without]
            check(not wrong, f"and nothing of Mayfly's own was sent: {wrong[:3]}")
            check(link.counter("copiesBegun") == 1, "it was one copy")
            link.stop()
            target.close()


def foreign_source():
    """A source without deadlines: its expiry comes as ordinary deletes, and the target's own limits apply."""
    with Pair(extra=["--testClock"]) as p:
        a, b = p.a, p.b
        a.client.app.c.insert_many([{"_id": i} for i in range(300)])
        a.client.app.s.create_index("at", name="at_1", expireAfterSeconds=5)
        b.run("app", {"create": "c", "expiry": {"maxTTL": 3600}})
        b.run("admin", {"setParameter": 1, "ttlMonitorEnabled": False})
        source = Foreign(a.set.members[0])
        link = LinkProcess(source.through(a), b, name="foreign")
        p.links.append(link)
        check(link.follows(), "it copies and follows")
        a.client.app.s.insert_many([{"_id": i, "at": now() + NEVER * (i % 2)} for i in range(20)])
        a.client.app.c.update_many({"_id": {"$lt": 100}}, {"$inc": {"n": 1}})
        a.client.app.c.delete_many({"_id": {"$gte": 250}})
        check(link.follows(), "it follows")
        documents = lambda side, name: {d["_id"]: d for d in side.client.app[name].find()}
        check(documents(a, "c") == documents(b, "c"), "documents are equal")
        check(all(e for _, e in b.documents("app", "c").values()), "a limit of the target applies")
        pass_days(a, 3)
        check(a.client.app.s.count_documents({}) == 0, "what is at the source expires")
        check(link.follows() and b.client.app.s.count_documents({}) == 0, "and goes at the target")
        check(link.counter("deleted") >= 20 and link.counter("expired") == 0, f"as deletes: {link.status()}")
        check(not source.refused, f"nothing of Mayfly's own was asked for: {source.refused[:3]}")
        link.stop()
        source.close()


def lies():
    """Replies with wrong types: the link says what is wrong and waits, and goes on when they end."""
    with Pair() as p:
        a, b = p.a, p.b
        source, target = Liar(a.set.members[0]), Liar(b.set.members[0])
        db = a.client.app
        a.run("app", {"insert": "c", "documents": [{"_id": i, "u": i} for i in range(30)], "expireAt": now() + NEVER})
        db.c.create_index("u", name="u_1", unique=True)
        db.create_collection("view", viewOn="c", pipeline=[])

        def put(path, value):
            """A lie: this value at a path of a reply that has one."""
            *way, last = path.split(".")
            at = lambda x, k: x[int(k)] if isinstance(x, list) else x[k]

            def lie(reply):
                try:
                    for k in way:
                        reply = at(reply, k)
                    at(reply, last)
                except (KeyError, IndexError, TypeError):
                    return False
                if value is GONE:
                    del reply[last]
                else:
                    reply[int(last) if isinstance(reply, list) else last] = value
                return True

            return lie

        said = "not as it must be"
        for n, (liar, command, path, value) in enumerate((
            (source, "listDatabases", "databases", 5),
            (source, "listDatabases", "databases.0", "x"),
            (source, "listDatabases", "databases.0.name", 5),
            (source, "listCollections", "cursor", []),
            (source, "listCollections", "cursor.firstBatch.0", "x"),
            (source, "listCollections", "cursor.firstBatch.0.name", None),
            (source, "listIndexes", "cursor.firstBatch", {"0": {}}),
            (source, "find", "cursor.firstBatch", {}),
            (source, "find", "cursor.firstBatch.0.d", 5),
            (source, "find", "cursor.id", "x"),
            (source, "aggregate", "cursor", "x"),
            (source, "getMore", "cursor.nextBatch", [7]),
            (source, "getMore", "cursor.nextBatch.0.operationType", 7),
            (source, "getMore", "cursor.nextBatch.0.ns", "app.c"),
            (source, "getMore", "cursor.nextBatch.0.fullDocument", []),
            (target, "find", "cursor.firstBatch", [5]),
            (target, "findAndModify", "value", 5),
            (target, "bulkWrite", "cursor", []),
            # While it copies again.
            (target, "listCollections", "cursor.firstBatch.0", 5),
            (target, "listCollections", "cursor.firstBatch.0.name", "another"),
            (target, "listCollections", "cursor.id", None),
            (target, "listIndexes", "cursor.firstBatch", 5),
            (target, "listIndexes", "cursor.firstBatch.0", None),
            (target, "find", "cursor.firstBatch.0._id", GONE),
            (target, "find", "cursor.firstBatch.0", "x"),
            (source, "find", "cursor.firstBatch.0", "x"),
        )):  # fmt: skip
            change, before = put(path, value), liar.told
            again = n >= 18
            name = f"told{n}"
            if again:
                # As a link whose history is lost: the target has a copy, and it begins another one.
                link = LinkProcess(source.through(a), target.through(b), name=name)
                p.links.append(link)
                check(link.follows(), "it copies and follows")
                link.stop()
                lost = {"phase": "copy", "copiedOnce": True, "copyId": "another"}
                b.client.mayflyLink.links.update_one({"_id": name}, {"$set": lost})
            liar.lie = lambda c, reply: c == command and change(reply)
            link = LinkProcess(source.through(a), target.through(b), name=name)
            p.links.append(link)

            def waits():
                db.more.insert_one({})
                s = link.status()
                return s.get("state") == "waiting" and said in s.get("error", "") or link.proc.poll() is not None

            check(eventually(waits) and link.proc.poll() is None, f"it waits: {command} {path} {link.said()}")
            check(liar.told > before, f"a lie was told: {command} {path}")
            liar.lie = lambda c, reply: False
            check(link.follows(), f"and goes on: {command} {path}")
            check(equal(a, b, "app", "c", "more"), f"with all documents: {command} {path}")
            link.stop()

        # Any value at any place. What it says is data: it may end the link with an error, never by a signal.
        values = [
            5, -1, bson.Int64(1 << 62), bson.Int64(-1 << 63), "x", "", "a\0b", [], [5], [[]], {}, {"": 1}, None, True,
            float("nan"), bson.Binary(b"", 0), bson.MinKey(), datetime.datetime(1, 1, 1), bson.Timestamp(0, 0),
            bson.Decimal128("1E6000"), bson.Code("x"), bson.regex.Regex("("),
        ]  # fmt: skip

        def places(x, depth=0):
            for k in list(x) if isinstance(x, dict) else range(len(x)):
                if k == "$clusterTime":
                    continue
                yield x, k
                if isinstance(x[k], (dict, list)) and depth < 5:
                    yield from places(x[k], depth + 1)

        def any_lie(command, reply):
            if rnd.random() > 0.2:
                return False
            all_of = list(places(reply))
            x, k = rnd.choice(all_of[:20] if rnd.random() < 0.5 else all_of)
            x[k] = rnd.choice(values)
            return True

        for n in range(6):
            link = LinkProcess(source.through(a), target.through(b), name=f"any{n}")
            p.links.append(link)
            enough = source.told + target.told + 6
            source.lie = target.lie = any_lie

            def over():
                i = rnd.randrange(30)
                db.c.replace_one({"_id": i}, {"u": i, "n": rnd.random()}, upsert=True)
                db.c.delete_one({"_id": rnd.randrange(30)})
                return source.told + target.told >= enough or link.proc.poll() is not None

            eventually(over, 8)
            # An error that only an operator can mend ends it with 1; a signal has a negative code.
            code = link.proc.poll()
            check(code in (None, 1), f"it lives, or says why: {code} {source.last} {target.last} {link.said()}")
            link.kill()
        source.lie = target.lie = lambda c, reply: False
        b.client.drop_database("app")
        link = LinkProcess(source.through(a), target.through(b), name="honest")
        p.links.append(link)
        check(link.follows() and equal(a, b, "app", "c", "more"), "without lies all is well")
        source.close()
        target.close()


def through_network(network, prefix):
    """A Side whose members are reached through the network, each by a name of its own."""
    side = object.__new__(Side)
    side.set = ReplicaSet(0)
    started.add(side)
    for i in range(3):
        m = Member(f"{side.set.folder}/{i}", (), network, f"{prefix}{i}")
        side.set.members.append(m)
        m.start()
        m.wait_up()
    side.set.initiate()
    side.uri = "mongodb://" + ",".join(m.host for m in side.set.members) + "/?replicaSet=rs0"
    # The application's network is another one than the link's.
    side.client = pymongo.MongoClient(
        side.uri, heartbeatFrequencyMS=500, tz_aware=True, appname="zone-app", socketTimeoutMS=Deadline().millis
    )
    return side


def partitions():
    """The link is cut off from members of both sides, or these from each other, while an application writes."""
    network = Network()
    a, b = through_network(network, "a"), through_network(network, "b")
    link = None
    try:
        write(a, 200)
        link = LinkProcess(a, b, name="zone-link")
        check(link.follows(), "it copies and follows")
        for round in range(5):
            side, prefix = rnd.choice(((a, "a"), (b, "b")))
            names = [f"{prefix}{i}" for i in range(3)]
            one = names[side.set.members.index(side.set.primary())]
            kind = ("link from all", "link from the primary", "answers", "primary", "lost")[round]
            cut = {
                "link from all": [("zone-link", n) for n in names] + [(n, "zone-link") for n in names],
                "link from the primary": [("zone-link", one), (one, "zone-link")],
                "answers": [(one, "zone-link")],
                "primary": [(x, y) for n in names if n != one for x, y in ((n, one), (one, n))],
                "lost": [],
            }[kind]
            print(f"     cut: {kind} at {prefix}", flush=True)
            if kind == "lost":
                network.lose([("zone-link", one), (one, "zone-link")])
            network.set(cut)
            write(a, 60)
            random_moment(1, 8)
            network.heal()
            write(a, 40)
        check(eventually(lambda: link.follows(), 200), "it follows after all")
        check(equal(a, b, "app", "c"), "both are equal by content and deadline")
        check(link.status()["counters"]["copiesBegun"] == 1, f"without another copy: {link.status()}")
    finally:
        if link and link.proc.poll() is None:
            link.kill()
        a.close()
        b.close()
        network.close()


def kinds():
    """`_id`s of all types, transactions, and definitions that change while documents come."""
    with Pair() as p:
        a, b = p.a, p.b
        db = a.client.app
        ids = [
            1, bson.Int64(2), 3.5, "4", {"a": 5, "b": {"c": None}}, bson.Binary(b"6"), bson.Binary(b"7", 9),
            uuid.UUID(int=8), bson.ObjectId(), True, now(), None, bson.Timestamp(9, 1), bson.Decimal128("10.50"),
            bson.MinKey(), bson.MaxKey(), bson.Code("x"), bson.Code("x", {"y": 1}), float("inf"), float("nan"), -0.0,
            "$set", {"$x": 1}, "", "a\0b", bson.Int64(1 << 62), bson.DBRef("c", 1), datetime.datetime(1950, 1, 1),
        ]  # fmt: skip
        kept = []
        codec = bson.CodecOptions(uuid_representation=bson.binary.STANDARD)
        ids_of = lambda name: db.get_collection(name, codec_options=codec)
        for i in ids:
            try:
                ids_of("ids").insert_one({"_id": i, "n": 0})
                kept.append(i)
            except PyMongoError as e:
                print(f"     not taken by the source: {i!r} {str(e)[:80]}", flush=True)
        check(len(kept) >= 25, f"{len(kept)} kinds of _id")
        link = p.link()
        check(link.follows() and equal(a, b, "app", "ids"), "copied: all kinds of _id are equal")
        ids_of("ids").update_many({}, {"$inc": {"n": 1}})
        for i in kept:
            ids_of("later").insert_one({"_id": i, "n": 0})
            ids_of("later").update_one({"_id": {"$eq": i}}, {"$set": {"n": 2}})
        ids_of("ids").delete_many({"_id": {"$in": kept[::3]}})
        check(link.follows() and equal(a, b, "app", "ids", "later"), "followed: all kinds of _id are equal")
        # An _id that is another number of the same value by now.
        db.same.insert_one({"_id": 1, "n": 1})
        link.follows()
        db.same.delete_one({"_id": 1})
        db.same.insert_one({"_id": 1.0, "n": 2})
        check(link.follows() and equal(a, b, "app", "same"), "1 and then 1.0")
        # Transactions of several collections, one that is aborted, and a large one.
        with a.client.start_session() as s:
            for i in range(5):
                with s.start_transaction():
                    db.t1.insert_one({"_id": i}, session=s)
                    db.t2.insert_one({"_id": i, "text": "x" * (3 << 20)}, session=s)
                    a.client.app.command("insert", "t3", documents=[{"_id": i}], expireAt=now() + NEVER, session=s)
                    if i:
                        db.t1.delete_one({"_id": i - 1}, session=s)
                    if i == 3:
                        s.abort_transaction()
                        continue
            with s.start_transaction():
                for i in range(8):
                    db.t2.replace_one({"_id": i}, {"text": "y" * (4 << 20)}, upsert=True, session=s)
        check(link.follows() and equal(a, b, "app", "t1", "t2", "t3"), "transactions")
        # What keeps a document from expiring, in a collection whose documents say how long they live.
        a.run("app", {"create": "f", "expiry": {"field": "life"}})
        a.run("app", {"insert": "f", "documents": [{"_id": i, "life": 5000} for i in range(3)]})
        a.run("app", {"persist": "f", "q": {"_id": 1}})
        link.follows()
        check(equal(a, b, "app", "f"), "a document that was persisted, in a collection with expiry.field")
        check(a.documents("app", "f")[bson.encode({"": 1})][1] is None, "has no deadline")
        a.client.app.f.update_one({"_id": 1}, {"$set": {"n": 1}})
        check(link.follows() and equal(a, b, "app", "f"), "nor when it is changed at the source")
        # Definitions.
        db.create_collection("v", validator={"n": {"$type": "number"}})
        db.v.insert_one({"_id": 1, "n": 1})
        a.run("app", {"collMod": "v", "validator": {"n": {"$type": "string"}}})
        db.v.insert_one({"_id": 2, "n": "2"})
        db.v.create_index("at", name="at_1")
        a.run("app", {"collMod": "v", "index": {"name": "at_1", "expireAfterSeconds": 100}})
        db.create_collection("cap", capped=True, size=4096)
        db.cap.insert_many([{"_id": i, "x": "y" * 500} for i in range(30)])
        db.create_collection("cl", clusteredIndex={"key": {"_id": 1}, "unique": True}, expireAfterSeconds=86400)
        db.cl.insert_one({"_id": now()})
        a.run("app", {"create": "view", "viewOn": "v", "pipeline": [{"$match": {"_id": 2}}]})
        a.run("app", {"collMod": "view", "viewOn": "v", "pipeline": [{"$match": {"_id": 1}}]})
        check(link.follows() and equal(a, b, "app", "v", "cl"), "definitions that change between documents")
        listed = lambda side, n: side.run("app", {"listCollections": 1, "filter": {"name": n}})["cursor"]["firstBatch"]
        options = lambda side, n: listed(side, n)[0]["options"]
        for n in ("v", "cap", "cl", "view"):
            check(options(a, n) == options(b, n), f"{n}: {options(a, n)} {options(b, n)}")
        check(a.client.app.v.index_information() == b.client.app.v.index_information(), "indexes")
        check([d["_id"] for d in b.client.app.view.find()] == [1], "a view that was changed")
        refused = list(b.client.mayflyLink.refused.find())
        check(not refused, f"nothing was refused: {refused[:2]}")


def secured():
    """TLS and logins on both sides, with the roles that the page names and no more."""
    made = tempfile.mkdtemp(prefix="mayfly-link-tls-")

    server = certificate(made, "server", "server", "localhost", "127.0.0.1")
    key = f"{made}/key"
    with open(key, "w") as f:
        f.write("bGluayBrZXkgb2YgYSB0ZXN0IDEyMzQ1Njc4\n")
    os.chmod(key, 0o600)
    ca = f"{made}/ca.pem"
    tls = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", server, "--tlsCAFile", ca]
    tls += ["--tlsAllowConnectionsWithoutCertificates", "--keyFile", key, "--auth"]

    class Secured:
        def __init__(self, roles):
            self.set = ReplicaSet(0)
            started.add(self)
            m = Member(f"{self.set.folder}/0", tls)
            self.set.members.append(m)
            m.new_client = lambda **more: pymongo.MongoClient(
                "127.0.0.1",
                m.port,
                directConnection=True,
                tls=True,
                tlsCAFile=ca,
                socketTimeoutMS=Deadline().millis,
                **more,
            )
            m.client = m.new_client()
            m.start()
            eventually(lambda: attempt_hello(m))
            m.client.admin.command("replSetInitiate", self.set.config())
            eventually(lambda: m.client.admin.command("hello").get("isWritablePrimary"))
            m.client.admin.command("createUser", "root", pwd="r", roles=["root"])
            self.client = m.new_client(username="root", password="r", tz_aware=True)
            self.client.admin.command("createUser", "link", pwd="p:@", roles=roles)
            host = f"127.0.0.1:{m.port}"
            self.bare = f"mongodb://{host}/?replicaSet=rs0&tls=true&tlsCAFile={ca}"
            self.uri = f"mongodb://link:p%3A%40@{host}/?replicaSet=rs0&tls=true&tlsCAFile={ca}"

        documents, run, close, processes = Side.documents, Side.run, Side.close, Side.processes

    def attempt_hello(m):
        try:
            return m.client.admin.command("hello")
        except PyMongoError:
            return None

    a = Secured(["readAnyDatabase", "clusterMonitor"])
    b = Secured(["readWriteAnyDatabase", "dbAdminAnyDatabase"])
    link = None
    try:
        a.run("app", {"insert": "c", "documents": [{"_id": i} for i in range(100)], "expireAt": now() + NEVER})
        a.client.app.c.create_index("n")
        short = "&serverSelectionTimeoutMS=2000"  # clock: it is to fail
        untrusted = a.uri.replace(f"&tlsCAFile={ca}", "") + short
        for uri, target, words in (
            (a.bare, b.uri, "auth"),
            (a.uri, b.bare, "auth"),
            (a.uri.replace("p%3A%40", "wrong"), b.uri, "uthentication failed"),
            (untrusted, b.uri, "certificate"),
        ):
            words_ = [LINK, "--name", "link", "--source", uri, "--target", target]
            with open(f"{made}/refused", "w+") as log:
                proc = subprocess.Popen(words_, stderr=log)
                said = lambda: open(log.name).read()
                # It ends, or says why it waits for what may come.
                waits = lambda: words == "certificate" and words in said()
                eventually(lambda: proc.poll() is not None or waits())
                check(proc.poll() == 1 and words in said() or waits(), f"refused: {proc.poll()} {said()[-300:]}")
                proc.kill()
                proc.wait()
            check("app" not in b.client.list_database_names(), "and nothing was copied")
        link = LinkProcess(a, b)
        check(link.follows(), "with TLS and logins on both sides it follows")
        a.client.app.c.update_many({"_id": {"$lt": 50}}, {"$set": {"n": 1}})
        a.client.app.c.rename("d")
        a.client.app.e.insert_one({"_id": 1})
        a.client.app.e.drop()
        check(link.follows() and equal(a, b, "app", "d"), "both are equal")
        check("n_1" in b.client.app.d.index_information(), "with indexes")
        check("p:@" not in link.said() and "p%3A" not in link.said(), "and the password is nowhere in its output")
        stated = json.dumps(link.status()) + str(list(b.client.mayflyLink.links.find()))
        check("p:@" not in stated and "p%3A" not in stated, "nor in its status")
    finally:
        if link and link.proc.poll() is None:
            link.kill()
        a.close()
        b.close()
        discard(made)


def composed():
    """The commands of docker/compose.link.yaml, with other ports and folders and without containers."""
    text = (ROOT / "docker/compose.link.yaml").read_text()
    commands = [json.loads(re.sub(r"\s+", " ", c)) for c in re.findall(r"command: (\[.*?\])\n", text, re.S)]
    commands = [c for c in commands if c != ["mayfly-link"]]
    check(len(commands) == 3 and 'entrypoint: ["mayfly-link"]' in text, f"{len(commands)} commands")
    made = tempfile.mkdtemp(prefix="mayfly-link-compose-")
    ports = {"source": free_port(), "target": free_port()}
    http = free_port()
    procs = []
    try:
        for name, command in zip(("source", "target", "link"), commands):
            words = []
            for w in command:
                for n, port in ports.items():
                    w = w.replace(f"{n}:27017", f"127.0.0.1:{port}")
                words.append(w.replace("/data/db", f"{made}/{name}").replace("9117", str(http)))
            own = ["--port", str(ports[name]), "--nounixsocket", "--httpPort", "0"] if name in ports else []
            with open(f"{made}/{name}.log", "wb") as log:
                binary = BINARY if name in ports else LINK
                procs.append(subprocess.Popen([binary, *words, *own], stdout=log, stderr=subprocess.STDOUT))
        a, b = (pymongo.MongoClient("127.0.0.1", ports[n], directConnection=True) for n in ("source", "target"))

        def leads():
            try:
                return a.admin.command("hello")["isWritablePrimary"]
            except PyMongoError:
                return False

        check(eventually(leads), "the source is a set by itself")
        a.app.command("insert", "c", documents=[{"_id": 1}], expireAfterSeconds=3600)
        find = lambda: [d["_id"] for d in b.app.c.find({"$expr": {"$gt": [{"$meta": "expireAt"}, now()]}})]

        def there():
            try:
                return find() == [1]
            except PyMongoError:
                return False

        check(eventually(there), "what is written at the source comes to the target with its deadline")
    finally:
        for p in procs:
            p.kill()
            p.wait()
        discard(made)


PARTS = [lies, foreign_target, foreign_source, lost_definitions, slow_copy, copy_goes_on, rename_again]
PARTS += [kinds, secured, composed, partitions]

if __name__ == "__main__":
    try:
        run_parts("link_attacks", PARTS, check)
    finally:
        discard(link_run.folder)
