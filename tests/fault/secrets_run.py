#!/usr/bin/env python3
"""What must show nowhere, with a real server: passwords, stored credentials, commands of those who have not logged in,
and the data of clients that redactClientLogData takes out of the log.
The last line says "N passed, N failed".
"""

import base64, datetime, json, os, re, resource, signal, socket, subprocess, tempfile
import urllib.error, urllib.request
from pathlib import Path

import bson
from bson.binary import Binary
from pymongo.errors import OperationFailure

from audit_server import DENIED, OK, PASSWORD, WRONG, AuditedServer
from fault_test import BINARY, Checks, Client, Deadline, certificate, discard, free_port, log_in, run_parts, until
from own_server import code
from secret_commands import NAMES, NUMBER, at_once, long_ones, others, reads, users_at_once, writes
from secret_errors import by_errors
from secret_views import KEY, NO_NUMBER, USER, VALUE, by_log, by_stages, by_views, error_of

check = Checks()


class Server(AuditedServer):
    check = check


def search(folder, text):
    return subprocess.run(["grep", "-rlaF", text, folder], capture_output=True, text=True).stdout


def credential_commands(secret):
    """Commands with the credentials of users, none of which stores one."""
    key = "credentials.SCRAM-SHA-256.storedKey"
    change = {"q": {"_id": "none"}, "u": {"$set": {key: secret}}}
    user = {"_id": 1, "credentials": {"SCRAM-SHA-256": {k: secret for k in ("storedKey", "serverKey", "salt")}}}
    matches = [{"$match": {"$expr": {"$eq": ["$" + key, secret]}}}]
    for name in ("system.users", "tempusers"):
        ns = "admin." + name
        yield {"update": name, "updates": [change]}
        yield {"update": name, "updates": [change, change]}
        yield {"delete": name, "deletes": [{"q": {key: secret}, "limit": 1}]}
        yield {"find": name, "filter": {key: secret}}
        yield {"find": name, "filter": {"x": secret}}
        yield {"count": name, "query": {"$or": [{"x": secret}]}}
        yield {"distinct": name, "key": "x", "query": {key: secret}}
        yield {"explain": {"find": name, "filter": {key: secret}}}
        yield {"aggregate": name, "pipeline": matches, "cursor": {}}
        yield {"findAndModify": name, "query": {"_id": "none"}, "update": {"$set": {key: secret}}}
        yield {"bulkWrite": 1, "ops": [{"delete": 0, "filter": {"x": secret}}], "nsInfo": [{"ns": ns}]}
        yield {"applyOps": [{"op": "u", "ns": ns, "o": change["u"], "o2": change["q"]}], "alwaysUpsert": False}
        for last in ({"$merge": {"into": {"db": "admin", "coll": name}}}, {"$lookup": {"from": name, "as": "a"}}):
            yield {"aggregate": "nothing", "pipeline": [{"$match": {"x": secret}}, last], "cursor": {}}
    yield {"find": "other", "filter": {"$and": [{"deep": {"storedKey": secret}}]}}
    yield {"insert": "other", "documents": [{"_id": [], "password": secret}]}
    yield {"nothing": 1, "deep": [user]}


def stored_credentials(s, db):
    """Credentials that are stored, so that they may be in the files of the data, and nowhere else that shows them."""
    secret = "canary-2b90d-stored"
    keys = {"iterationCount": 15000, **{k: secret for k in ("salt", "storedKey", "serverKey")}}
    user = {"user": "z", "db": "x", "credentials": {"SCRAM-SHA-256": keys}, "roles": []}
    db.tempusers.insert_one({"_id": "x.a", **user})
    db["system.users"].insert_one({"_id": "x.z", **user})
    db["system.users"].update_one({"_id": "x.z"}, {"$set": {"credentials.SCRAM-SHA-256.salt": secret}})
    insert = {"insert": 0, "document": {"_id": "x.b", **user}}
    db.command("bulkWrite", 1, ops=[insert], nsInfo=[{"ns": "admin.tempusers"}])
    db.command("applyOps", [{"op": "i", "ns": "admin.tempusers", "o": {"_id": "x.c", **user}}])
    cursor = db["system.users"].find({"credentials.SCRAM-SHA-256.salt": {"$ne": secret}}, batch_size=1)
    next(cursor)
    # An error's message has what it could not read.
    number = [{"$project": {"x": {"$toInt": "$credentials.SCRAM-SHA-256.storedKey"}}}]
    check(code(list, db["system.users"].find({}, {"x": number[0]["$project"]["x"]})) != OK, "it is no number")
    check(code(db.command, "aggregate", "system.users", pipeline=number, cursor={}) != OK, "nor here")
    errors_by_views(s, db, secret)
    shown = list(db.aggregate([{"$currentOp": {"idleCursors": True, "allUsers": True}}]))
    cursor.close()
    db["system.users"].delete_one({"credentials.SCRAM-SHA-256.storedKey": secret})
    db.tempusers.drop()
    from_shop = [{"$match": {"x": secret}}, {"$merge": {"into": {"db": "admin", "coll": "tempusers"}}}]
    list(s.connect("root").shop.things.aggregate(from_shop))
    profile = str(list(db.system.profile.find()))
    check("admin.system.users" in profile and "admin.tempusers" in profile, "the profile has these commands")
    places = {
        "getLog": json.dumps(db.command("getLog", "global")["log"]),
        "the log": s.log(),
        "the audit log": Path(s.audit_path).read_text(),
        "the profile": profile,
        "currentOp": str(shown),
    }
    for place, text in places.items():
        at = text.find(secret)
        check(at < 0, f"no credentials in {place}: {text[max(0, at - 200) :][:300] if at >= 0 else ''}")


def errors_by_views(s, db, secret):
    """Who may read a view on the users is not told by its errors what it leaves out."""
    key = "$credentials.SCRAM-SHA-256.storedKey"
    fails = [{"$project": {"x": {"$toInt": key}}}]
    db.create_collection("names", viewOn="system.users", pipeline=[{"$project": {"user": 1}}])
    db.create_collection("broken", viewOn="system.users", pipeline=fails)
    db.create_collection("twice", viewOn="broken", pipeline=[])
    db.create_collection("later", viewOn="system.users", pipeline=[{"$sort": {"user": 1}}, *fails])
    db.command("createUser", "zoe", pwd=PASSWORD, roles=[])  # behind the others, whose keys are no numbers either
    db.create_collection("one", viewOn="tempusers", pipeline=fails)
    db.create_collection("plain")
    db.plain.insert_one({})
    views = ("broken", "twice", "later", "one")
    for v in views:
        lookup = [{"$lookup": {"from": v, "pipeline": [], "as": "y"}}]
        explained = {"explain": {"find": v}, "verbosity": "executionStats"}
        for command in (
            {"find": v}, {"aggregate": v, "pipeline": [], "cursor": {}}, {"count": v, "query": {"x": 1}},
            {"distinct": v, "key": "x"}, {"aggregate": "plain", "pipeline": lookup, "cursor": {}},
            {"aggregate": "plain", "pipeline": [{"$unionWith": v}], "cursor": {}}, explained,
        ):  # fmt: skip
            try:
                db.command(command)
                check(False, f"it fails: {command}")
            except OperationFailure as e:
                check("is not shown" in str(e.details) and e.code == 241, f"{command}: {e.details}")
    check([u["user"] for u in db.names.find()].count("z") == 1, "a view without credentials is read as ever")
    try:
        db.names.find_one({"$expr": {"$toInt": "$user"}})
    except OperationFailure as e:
        check("the message is not shown" in str(e), f"its errors are not shown either: {e}")
    for v in ("names", "plain", *views):
        db[v].drop()


def strangers():
    """Refused commands of who has not logged in: no entry in the profile, and few lines in the log."""
    canary = "canary-of-a-stranger"
    with Server("--slowms", "-1", "--profile", "2") as s:
        root = s.first_user()
        root.shop.command("profile", 2)
        root.shop.things.find_one({"x": "known"})
        nobody = Client("127.0.0.1", s.port)
        for _ in range(1500):
            nobody.command("shop", {"find": "things", "filter": {"x": canary}})
        lines = s.log().count(canary)
        check(0 < lines <= 1200, f"their lines in the log are limited: {lines}")
        profile = str(list(root.shop.system.profile.find()))
        check("known" in profile, "the profile has commands of users")
        check(canary not in profile, "and none of strangers, who would push them out")
        nobody.command("stranger", {"find": "things"})
        check("stranger" not in root.list_database_names(), "nor do these make a database")
        nobody.command("stranger", {"insert": "b", "documents": [{}], "nothing": 1})
        once = log_in(s.port, "root", PASSWORD)
        check(once.command("admin", {"logout": 1})["ok"] == 1, "a logout")
        check(once.command("shop", {"find": "things", "filter": {"x": canary}})["code"] == DENIED, "is one")
        check(canary not in str(list(root.shop.system.profile.find())), "nor are those after a logout there")
        root.admin.command("createUser", "idle", pwd=PASSWORD, roles=[])
        check(code(s.connect("idle").strange.things.find_one) == DENIED, "nor may who has no roles")
        names = root.admin.command("top")["totals"].keys()
        check("shop.things" in names and not any("strange" in n for n in names), f"top has no names of theirs: {names}")
        root.shop.things.find_one({"x": "still-there"})
        check("still-there" in s.log(), "lines of users are not limited")


def secrets():
    """Each command, option and file that carries a secret; then the secret is looked for everywhere."""
    canary = "canary-7f21c-secret"
    folder = tempfile.mkdtemp(prefix="mayfly-audit-tls-")
    certificate(folder, "server", "server", "127.0.0.1", PASSWORD=canary + "-tls")
    tls = ["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", f"{folder}/server.pem", "--tlsCAFile"]
    tls += [f"{folder}/ca.pem", "--tlsCertificateKeyFilePassword", f"{canary}-tls"]
    tls += ["--tlsClusterFile", f"{folder}/server.pem", "--tlsClusterPassword", f"{canary}-tls"]
    every = ["-vvvvv", "--slowms", "-1", "--profile", "2", "--setParameter", "auditAuthorizationSuccess=true"]
    with Server(*every, *tls) as s:
        root = s.first_user()
        db = root.admin
        db.command("profile", 2)
        db.command("createUser", "ann", pwd=canary, roles=[], customData={"a": 1})
        db.command("updateUser", "ann", pwd=canary + "2")
        wrong = [
            {"createUser": "ann", "pwd": canary, "roles": []},
            {"createUser": "x", "pwd": canary, "roles": ["nobody"]},
            {"createUser": "x", "pwd": {"a": canary}, "roles": []},
            {"createUser": "x", "pwd": canary, "roles": [], "unknown": 1},
            {"createUser": 5, "pwd": canary, "roles": []},
            {"createUser": "x", "password": canary, "roles": []},
            {"createUser": "x", "pass": canary, "roles": []},
            {"updateUser": "ann", "secret": canary},
            {"createUser": {"user": "x", "secret": canary}},
            {"createuser": "x", "pass": canary, "roles": []},
            {"updateUser": "ann", "newPassword": canary},
            {"setParameter": 1, "tlsClusterPassword": canary},
            {"updateUser": "nobody", "pwd": canary},
            {"createuser": "x", "pwd": canary, "roles": []},
            {"explain": {"createUser": "x", "pwd": canary, "roles": []}},
            {"saslStart": 1, "mechanism": "PLAIN", "payload": f"\0ann\0{canary}"},
            {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": canary},
            {"saslContinue": 1, "conversationId": 1, "payload": canary},
            {"authenticate": 1, "user": "ann", "nonce": canary, "key": canary},
            {"hello": 1, "speculativeAuthenticate": {"saslStart": 1, "mechanism": "PLAIN", "payload": canary}},
            {"hello": 1, "speculativeAuthenticate": canary},
            {"createUser": {"user": "x", "pwd": canary}},
            {"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"createUser": "x", "pwd": canary, "roles": []}}]},
            {"rotateCertificates": 1, "password": canary},
            {"saslStart": 1, "mechanism": canary, "payload": "x"},
            {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": "x", "options": canary},
            {"saslStart": canary, "mechanism": "SCRAM-SHA-256", "payload": "x"},
            {"authenticate": 1, "mechanism": canary, "user": "ann"},
            *credential_commands(canary),
        ]
        nobody, plain = Client("127.0.0.1", s.port), s.connect("ann", canary + "2")
        replies = []
        for command in wrong:
            replies.append(str(nobody.command("admin", command)))
            for who in (db, plain.admin):
                try:
                    who.command(command)
                except OperationFailure as e:
                    replies.append(str(e.details))
        # Longer than what a line of the log has whole.
        code(db.command, {"explain": {"saslStart": 1, "payload": canary}, "pad": "y" * 60000})
        code(db.command, {"createUser": "x", "secret": canary, "roles": [], "customData": {"pad": "y" * 60000}})
        # The driver sends these documents beside the command.
        for users in (plain.admin["system.users"], plain.admin["tempusers"]):
            code(users.insert_one, {"_id": "x.y", "credentials": {"SCRAM-SHA-256": {"storedKey": canary}}})
            code(users.update_one, {"_id": "x"}, {"$set": {"credentials.SCRAM-SHA-1.salt": canary}})
        stored_credentials(s, db)
        check(code(s.connect("ann", canary).admin.command, "ping") == WRONG, "a wrong password")
        for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
            check(code(s.connect("ann", canary + "2", authMechanism=mechanism).admin.command, "ping") == OK, mechanism)
        check(s.metrics("ann", canary + "2").startswith("40"), "HTTP Basic of one who may not")
        check(s.metrics("ann", canary).startswith("40"), "and a wrong one")
        db.command("rotateCertificates", 1)
        shown = root.admin.aggregate([{"$currentOp": {"idleConnections": True, "allUsers": True, "localOps": True}}])
        places = {
            "replies": "\n".join(replies),
            "getLog": json.dumps(db.command("getLog", "global")["log"]),
            "the profile": str(list(db.system.profile.find())),
            "currentOp": str(list(shown)),
            "serverStatus": str(db.command("serverStatus")),
            "getCmdLineOpts": str(db.command("getCmdLineOpts")),
            "getParameter": str(db.command("getParameter", "*")),
            "usersInfo": str(db.command("usersInfo", {"forAllDBs": True})),
            "/metrics": s.metrics(),
            "the arguments of the process": Path(f"/proc/{s.proc.pid}/cmdline").read_text(),
        }
        for place, text in places.items():
            check(canary not in text, f"no secret in {place}: {text[max(0, text.find(canary) - 200) :][:300]}")
        check("authCheck" in Path(s.audit_path).read_text(), "the audit log has what was allowed")
        db.command("fsync", 1)
        check(search(s.folder, canary) == "", f"no secret in any file: {search(s.folder, canary)}")
        s.stop()
        check(search(s.folder, canary) == "", f"nor after a stop: {search(s.folder, canary)}")
        # What a crash leaves: the log and the files, without a core, which has all of the memory.
        s.start()
        s.connect("root").admin.command("updateUser", "ann", pwd=canary + "3")
        check(code(s.connect("ann", canary + "3").admin.command, "ping") == OK, "a login before a crash")
        resource.prlimit(s.proc.pid, resource.RLIMIT_CORE, (0, 0))
        s.proc.send_signal(signal.SIGSEGV)
        check(s.proc.wait(Deadline().seconds) != 0, "a crash")
        check(search(s.folder, canary) == "", f"nor after a crash: {search(s.folder, canary)}")
    discard(folder)
    key = f"{canary}KeyOfAllMembers0123456789".replace("-", "")
    folder = tempfile.mkdtemp(prefix="mayfly-audit-key-")
    Path(f"{folder}/key").write_text(key)
    os.chmod(f"{folder}/key", 0o600)
    with Server("-vvvvv", "--replSet", "rs", "--keyFile", f"{folder}/key") as s:
        config = {"_id": "rs", "members": [{"_id": 0, "host": f"127.0.0.1:{s.port}"}]}
        check(code(s.connect().admin.command, "replSetInitiate", config) == OK, "a set of one")
        check(until(lambda: s.connect().admin.command("hello")["isWritablePrimary"]), "is primary")
        s.first_user().shop.c.insert_one({})
        check(search(s.folder, key) == "", "a key file is in no other file")
    discard(folder)


def redaction():
    """With redactClientLogData nothing that clients send is in the log, but for names."""
    canary = "canary-51d0e-data"
    number = 918273645546372
    for parameter in (False, True):
        how = [] if parameter else ["--redactClientLogData"]
        with Server("-vvvvv", "--slowms", "-1", *how, auth=False) as s:
            c = s.connect()
            if parameter:
                check(c.admin.command("getParameter", 1, redactClientLogData=1)["redactClientLogData"] is False, "off")
                c.shop.command("find", "things", filter={"x": "visible-before"})
                check(until(lambda: "visible-before" in s.log()), "the log shows what clients send")
                c.admin.command("setParameter", 1, redactClientLogData=True)
            check(c.admin.command("getParameter", 1, redactClientLogData=1)["redactClientLogData"] is True, "on")
            d = c.shop
            d.things.create_index("x", unique=True)
            d.things.insert_one({"_id": 1, "x": canary, "deep": {"list": [canary, {"n": number}]}})
            check(code(d.things.insert_one, {"_id": 2, "x": canary}) == 11000, "a duplicate key")
            check(code(d.things.insert_one, {"_id": canary, "x": 2}) == OK, "an _id")
            d.command("collMod", "things", validator={"y": {"$ne": canary}})
            check(code(d.things.insert_one, {"_id": 3, "x": 3, "y": canary}) == 121, "a failed validation")
            d.command("collMod", "things", validationAction="warn")
            d.things.insert_one({"_id": 4, "x": 4, "y": canary})
            list(d.things.find({"x": canary, "n": {"$in": [number]}}).sort("x").comment(canary))
            list(d.things.aggregate([{"$match": {"x": canary}}, {"$group": {"_id": canary}}], batchSize=0))
            d.things.update_one({"x": canary}, {"$set": {"z": canary}})
            d.things.update_many({"x": canary}, [{"$set": {"z": {"$concat": [canary, "$x"]}}}])
            d.things.find_one_and_update({"x": canary}, {"$set": {"z": number}})
            d.things.delete_many({"z": canary})
            d.things.insert_many([{"x": f"{canary}{i}", "long": canary * 6000} for i in range(3)])
            code(d.command, {"find": "things", "filter": {"$nope": canary}})
            code(
                d.command, {"aggregate": "things", "pipeline": [{"$project": {"a": {"$toInt": canary}}}], "cursor": {}}
            )
            code(d.command, {"count": "things", "query": {"x": canary}, "hint": canary})
            code(d.things.create_index, "long", partialFilterExpression={"long": {"$gt": canary}})
            code(d.things.create_index, "z", unique=True, name="u")
            d.dup.insert_many([{"k": canary}, {"k": canary}])
            check(code(d.dup.create_index, "k", unique=True) == 11000, "an index that cannot be built")
            code(d.command, {"distinct": "things", "key": "x", "query": {"x": canary}})
            code(d.command, "profile", 0, filter={"command.x": canary})
            code(d.command, {"bulkWrite": 1})
            cursor = d.things.find({"_id": {"$ne": canary}}, batch_size=1)
            list(cursor)
            log = lambda: s.log() + "\n".join(c.admin.command("getLog", "global")["log"])
            check(until(lambda: "find" in s.log()), "lines of slow operations")
            text = log()
            at = text.find(canary)
            check(at < 0, f"no data in the log: {text[max(0, at - 600) : at + 100]}")
            check(str(number) not in text, "nor numbers")
            check('"ns":"shop.things"' in text and '"errCode":11000' in text, "namespaces and codes are")
            check('{ "x" : "###"' in text, "and names of fields")
            lines = [json.loads(x) for x in s.log().splitlines() if '"id":51803' in x]
            bad = [x for x in lines if "visible" not in str(x) and x["attr"].get("errMsg", "###") != "###"]
            check(lines and not bad, f"no message of an error: {bad[:1]}")


ANY_MARK = "mark99999qz"


class Marks:
    """Commands that have each a mark of its own, and where these were seen. What was sent under other Marks is still in
    the log and in open cursors, so `first`, the number of the first one, is behind all of theirs."""

    def __init__(self, first=0):
        self.first, self.sent, self.seen = first, [], {}

    def new(self):
        return f"mark{self.first + len(self.sent):05d}qz"

    def sends(self, send, make):
        """Sends what `make` yields, each with its own mark. The replies do not matter; `send` takes a database, a
        command."""
        for command in make(ANY_MARK):
            db, command = command if isinstance(command, tuple) else ("admin", command)
            k = self.new()
            command = bson.decode(bson.encode(command).replace(ANY_MARK.encode(), k.encode()))
            self.sent.append(str(command)[:1000])
            send(db, command)

    def look(self, place, text):
        for mark in re.findall(r"mark(\d{5})qz", text):
            if 0 <= int(mark) - self.first < len(self.sent):
                self.seen.setdefault(place, set()).add(int(mark) - self.first)
        if str(NUMBER) in text:
            self.seen.setdefault(place, set()).add(-1)

    def look_on(self, place, path, read={}):
        """What has come to a file since the last time."""
        with open(path, "rb") as f:
            f.seek(read.get(path, 0))
            self.look(place, f.read().decode(errors="replace"))
            read[path] = f.tell()

    def verdict(self, places, what):
        for place in places:
            seen = sorted(self.seen.get(place, ()))
            first = [self.sent[n][:300] if n >= 0 else "a number" for n in seen[:4]]
            check(not seen, f"{what}: nothing of {len(self.sent)} commands in {place}, but {len(seen)}: {first}")


def running_ones(s, root, marks, place, uuid):
    """Commands that run, as currentOp shows them."""
    k = marks.new()
    marks.sent.append("a command that runs")
    pad = {"$match": {"$or": [{"x": "p" * 5000}, {"x": k}]}}
    lookup = {"$lookup": {"from": place, "as": "a", "pipeline": []}}
    info, delete = [{"ns": f"admin.{place}"}], [{"delete": 0, "filter": {"x": k}}]
    bodies = (
        ({"find": place, "filter": {"x": k}, "comment": k}, {}),
        ({"find": uuid, "filter": {"x": k}, "comment": k}, {}),
        ({"find": place, "comment": k, "let": {"x": k}, "filter": {"$or": [{"x": "p" * 5000}, {"x": k}]}}, {}),
        ({"aggregate": "plain", "comment": k, "let": {"x": k}, "pipeline": [pad, lookup], "cursor": {}}, {}),
        ({"bulkWrite": 1, "ops": delete, "comment": k, "let": {"x": k}}, {"nsInfo": info}),
        ({"bulkWrite": 1, "comment": k}, {"nsInfo": info, "ops": delete}),
        ({"update": place, "comment": k, "let": {"x": k}}, {"updates": [{"q": {"x": k}, "u": {"$set": {"x": k}}}]}),
        ({"createUser": "u1", "roles": [], "pw": k, "pad": "p" * 5000}, {}),
    )
    names = sorted({next(iter(b)) for b, _ in bodies})
    # Longer than the test; the connections end it.
    data = {"failCommands": names, "blockConnection": True, "blockTimeMS": 600_000, "appName": "blocked"}
    root.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
    clients = []
    for body, sequences in bodies:
        c = Client("127.0.0.1", s.port)
        who = {"application": {"name": "blocked"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}}
        c.command("admin", {"hello": 1, "client": who})
        log_in(s.port, "root", PASSWORD, client=c)
        c.send(bson.encode({**body, "$db": "admin"}), **sequences)
        clients.append(c)
    stage = lambda **more: {"$currentOp": {"allUsers": True, **more}}
    run = lambda: list(root.admin.aggregate([stage(), {"$match": {"appName": "blocked", "active": True}}]))
    check(until(lambda: len(run()) == len(bodies)), f"all of them run: {[next(iter(o['command'])) for o in run()]}")
    for more in ({}, {"truncateOps": True}):
        marks.look("currentOp of what runs", str(list(root.admin.aggregate([stage(**more)]))))
    marks.look("currentOp of what runs", str(root.admin.command("currentOp", **{"$all": True})))
    root.admin.command("configureFailPoint", "failCommand", mode="off")
    for o in run():
        root.admin.command("killOp", op=o["opid"])
    for c in clients:
        c.sock.close()


def look_everywhere(s, root, marks):
    db = root.admin
    marks.look("getLog", "\n".join(db.command("getLog", "global")["log"]))
    marks.look("the profile", str([list(root[d].system.profile.find()) for d in ("admin", "shop")]))
    for options in ({}, {"truncateOps": True}):
        shown = db.aggregate([{"$currentOp": {"idleCursors": True, "idleSessions": True, "allUsers": True, **options}}])
        marks.look("currentOp", str(list(shown)))
    marks.look("currentOp", str(db.command("currentOp", **{"$all": True})))
    for command in ({"serverStatus": 1}, {"top": 1}, {"getCmdLineOpts": 1}, {"getParameter": "*"}, {"ttlStatus": 1}):
        marks.look("diagnostics", str(db.command(command)))
    basic = base64.b64encode(f"root:{PASSWORD}".encode()).decode()
    for path in ("/", "/metrics", "/api/status", "/api/forecast", "/healthz", "/readyz"):
        q = urllib.request.Request(f"http://127.0.0.1:{s.http}{path}", headers={"Authorization": f"Basic {basic}"})
        try:
            text = urllib.request.urlopen(q, timeout=Deadline().seconds).read().decode()
        except urllib.error.HTTPError as e:
            text = e.read().decode()
        marks.look("the HTTP endpoint", text)
    marks.look_on("the audit log", s.audit_path)
    marks.look_on("the log", f"{s.folder}/log")


SHOWN = (
    "getLog", "the profile", "currentOp", "currentOp of what runs", "diagnostics", "the HTTP endpoint",
    "the audit log", "the log",
)  # fmt: skip


def everywhere():
    """Every command that names a collection of users, and those for users with fields misspelt, under every verbosity
    and in transactions: a mark in each of them shows nowhere (issue 29)."""
    folder = tempfile.mkdtemp(prefix="mayfly-secrets-")
    Path(f"{folder}/key").write_text("k" * 64)
    os.chmod(f"{folder}/key", 0o600)
    every = ["--slowms", "-1", "--profile", "2", "--setParameter", "auditAuthorizationSuccess=true"]
    every += ["--setParameter", "enableTestCommands=1", "--replSet", "rs", "--keyFile", f"{folder}/key"]
    with Server(*every) as s:
        config = {"_id": "rs", "members": [{"_id": 0, "host": f"127.0.0.1:{s.port}"}]}
        check(code(s.connect().admin.command, "replSetInitiate", config) == OK, "a set of one")
        check(until(lambda: s.connect().admin.command("hello")["isWritablePrimary"]), "is primary")
        root = s.first_user()
        for db in (root.admin, root.shop):
            db.command("profile", 2)
        root.admin.create_collection("plain")
        root.admin.plain.insert_one({"x": 1})
        root.shop.plain.insert_one({"x": 1})
        root.admin.create_collection("tempusers")

        def uuid_of(name):
            listed = root.admin.command("listCollections", filter={"name": name})["cursor"]["firstBatch"]
            return listed[0]["info"]["uuid"]

        client = log_in(s.port, "root", PASSWORD)
        ordinary = Marks()
        ordinary.sends(client.command, lambda k: [{"find": "plain", "filter": {"x": k}, "batchSize": 0}])
        look_everywhere(s, root, ordinary)
        check(ordinary.seen.keys() >= {"getLog", "the profile", "currentOp", "the audit log", "the log"},
              f"what is no secret is shown: {ordinary.seen}")  # fmt: skip
        sent = len(ordinary.sent)
        for level in range(6):
            root.admin.command("setParameter", 1, logLevel=level)
            marks = Marks(sent)

            def send(db, command):
                client.command(db, command)
                if len(marks.sent) % 200 == 0:
                    look_everywhere(s, root, marks)

            for place in NAMES:
                marks.sends(send, at_once(place, uuid_of))
            marks.sends(send, users_at_once)
            if level in (0, 5):
                for place in NAMES:
                    marks.sends(send, long_ones(place))
                    look_everywhere(s, root, marks)
                    running_ones(s, root, marks, place, uuid_of(place))
                in_transactions(client, marks, uuid_of)
            look_everywhere(s, root, marks)
            marks.verdict(SHOWN, f"verbosity {level}")
            sent += len(marks.sent)
        check(s.proc.poll() is None, "and the server goes on")
    discard(folder)


def in_transactions(client, marks, uuid_of):
    """Each command as the first of a transaction, which is aborted."""
    session, number = {"id": Binary(os.urandom(16), 4)}, 0

    def send(db, command):
        nonlocal number
        number += 1
        of = {"lsid": session, "txnNumber": bson.Int64(number), "autocommit": False}
        client.command(db, {**command, **of, "startTransaction": True})
        client.command("admin", {"abortTransaction": 1, **of})

    for place in NAMES:
        for ref in (place, uuid_of(place)):
            marks.sends(send, lambda k, ref=ref: (*reads(ref, k), *writes(ref, k)))
        marks.sends(send, lambda k, place=place: others(place, k))


def shown_nowhere(s, root, what, *more, secrets=(KEY, VALUE)):
    """None of these in whatever the server shows of what has run. `more`: (a place, its text)."""
    db = root.admin
    idle = list(db.aggregate([{"$currentOp": {"idleCursors": True, "allUsers": True}}]))
    profile = [list(root[d].system.profile.find()) for d in ("admin", "shop")]
    for place, text in (
        ("getLog", "\n".join(db.command("getLog", "global")["log"])), ("the log", s.log()), ("currentOp", str(idle)),
        ("the profile", str(profile)), ("the audit log", Path(s.audit_path).read_text()), *more,
    ):  # fmt: skip
        for secret in secrets:
            at = text.find(secret)
            check(at < 0, f"{what}: nothing in {place}: {text[max(0, at - 300) :][:500] if at >= 0 else ''}")


def cursors():
    """A cursor and its getMores are shown as what opened it, of which little is kept (issue 29)."""
    with Server("--slowms", "-1", "--profile", "2") as s:
        root = s.first_user()
        db = root.admin
        for d in (root.admin, root.shop):
            d.command("profile", 2)
        db["system.users"].insert_one(USER)
        db.plain.insert_one({})
        of_z = [{"$match": {"_id": "x.z"}}, {"$project": {"x": NO_NUMBER}}]
        for size in (100, 17_000, 60_000):
            lookup = {"$lookup": {"from": "system.users", "as": "y", "pipeline": of_z}}
            stages = [{"$match": {"p": {"$ne": "p" * size}}}, {"$match": {"q": {"$ne": VALUE}}}, lookup]
            opened = db.command("aggregate", "plain", pipeline=stages, cursor={"batchSize": 0})
            shown_nowhere(s, root, f"a cursor of {size} bytes")
            said = error_of(db.command, "getMore", opened["cursor"]["id"], collection="plain")
            check(KEY in said, f"its client may read users, and is told: {said}")
            shown_nowhere(s, root, f"its getMore, after {size} bytes")
        client = log_in(s.port, "root", PASSWORD)
        for inside in ({"ops": [{"delete": 0, "filter": {"x": VALUE}}]}, {"let": {"x": VALUE}}):
            beside = {"nsInfo": [{"ns": "admin.system.users"}]}
            if "ops" not in inside:
                beside["ops"] = [{"delete": 0, "filter": {"x": "none"}}]
            body = {"bulkWrite": 1, **inside, "cursor": {"batchSize": 0}, "$db": "admin"}
            client.send(bson.encode(body), **beside)
            client.command("admin", {"ping": 1})  # behind the other reply
            idle = db.aggregate([{"$currentOp": {"idleCursors": True}}, {"$match": {"type": "idleCursor"}}])
            ids = [o["cursor"]["cursorId"] for o in idle if "bulkWrite" in o["cursor"]["originatingCommand"]]
            check(len(ids) == 1, f"its cursor is open: {ids}")
            shown_nowhere(s, root, f"a cursor of bulkWrite with {next(iter(inside))}")
            reply = client.command("admin", {"getMore": ids[0], "collection": "$cmd.bulkWrite"})
            check(reply["ok"] == 1, f"its getMore: {reply}")
            shown_nowhere(s, root, f"the getMore of bulkWrite with {next(iter(inside))}")
        check("originatingCommand" in s.log(), "the log has what opened them")
        by_views(root, check)
        by_stages(s, root, check)
        shown_nowhere(s, root, "errors of views with stages that read users")


def log_of_set():
    """The log has what the users' documents have, also where it is not what the command begins with."""
    with Server("--replSet", "rs0", "--slowms", "-1", auth=False) as s:
        client = s.connect()
        client.admin.command("replSetInitiate", {})
        check(until(lambda: client.admin.command("hello")["isWritablePrimary"]), "a set of one")
        by_log(s, client, check)


def quoted():
    """What quotes a document or a command elsewhere: rules of expiry, warnings, the audit log, texts (issue 29)."""
    with Server("--slowms", "-1", "--profile", "2") as s:
        root = s.first_user()
        db = root.admin
        for d in (root.admin, root.shop):
            d.command("profile", 2)
        of_rules(s, root)
        of_validators(s, root)
        by_errors(s, root, check)
        shown_nowhere(s, root, "messages of errors", secrets=(VALUE,))
        # The custom data of a user has no rule of its own.
        own = {"city": "visible-city", "password": VALUE, "deep": [{"passphrase": VALUE}]}
        db.command("createUser", "ann", pwd=PASSWORD, roles=[], customData=own)
        db.command("updateUser", "ann", customData={**own, "city": "visible-town"})
        key, salt = (base64.b64encode(b).decode() for b in (b"k" * 32, b"s" * 28))
        keys = {"iterationCount": 15000, "salt": salt, "storedKey": key, "serverKey": key}
        merged = {"_id": "admin.bea", "user": "bea", "db": "admin", "roles": [], "credentials": {"SCRAM-SHA-256": keys}}
        db.mine.insert_one({**merged, "customData": {"city": "visible-village"}})
        db.tempusers.insert_one({**merged, "customData": {"city": "visible-port", "pwd": VALUE}})
        for temp in ("admin.mine", "admin.tempusers"):
            db.command("_mergeAuthzCollections", 1, tempUsersCollection=temp, drop=False, db="")
        audit = Path(s.audit_path).read_text()
        seen = [v for v in ("city", "town", "village", "port") if f"visible-{v}" in audit]
        check(len(seen) == 4, f"what is no secret is in the audit log: {seen}")
        shown_nowhere(s, root, "custom data")
        # As text, beyond what a line has whole.
        pad = "p" * 60_000
        for command in (
            {"hello": 1, "speculativeAuthenticate": {"db": "admin", "payload": VALUE, "saslStart": 1}, "pad": pad},
            {"explain": {"creatUser": "u", "pw": VALUE}, "pad": pad},
            {"explain": {"setParameter": 1, "tlsClusterPassword": NUMBER}, "pad": pad},
            {"setParameter": 1, "tlsClusterPassword": NUMBER, "pad": pad},
            {"applyOps": [{"op": "c", "ns": "a.$cmd", "o": {"changeUserPassword": "u", "to": VALUE}}], "pad": pad},
        ):
            code(db.command, command)
            shown_nowhere(s, root, f"a long {next(iter(command))}", secrets=(VALUE, str(NUMBER)))
        # In an entry, of whatever database the command is.
        index = {"createIndexes": "tempusers", "key": {"a": 1}, "name": "a", "v": 2}
        entry = {"op": "c", "ns": "admin.$cmd", "o": {**index, "partialFilterExpression": {"a": VALUE}}}
        code(root.shop.command, {"applyOps": [entry]})
        shown_nowhere(s, root, "an entry of another database")
        db.create_collection("first", viewOn="system.users", pipeline=[])
        db.create_collection("second", viewOn="first", pipeline=[{"$match": {"x": "canary-of-a-view"}}])
        check("canary-of-a-view" not in Path(s.audit_path).read_text(), "a view on a view on users")
    arguments()


def of_rules(s, root):
    """What an archive does not take is quoted by its rule."""
    db = root.admin
    root.shop.late.create_index("credentials.SCRAM-SHA-256.storedKey", unique=True)
    root.shop.late.insert_one({"credentials": USER["credentials"]})
    db.command("create", "tempusers", onExpire={"action": "archive", "into": {"db": "shop", "coll": "late"}})
    db.tempusers.create_index("when", expireAfterSeconds=0)
    db.tempusers.insert_one({**USER, "when": datetime.datetime(2020, 1, 1)})
    rule = lambda: [r for r in db.command("ttlStatus", 1)["rules"] if r["ns"] == "admin.tempusers"][0]
    check(until(lambda: "lastError" in rule()), f"the archive does not take it: {rule()}")
    basic = base64.b64encode(f"root:{PASSWORD}".encode()).decode()
    page = urllib.request.Request(f"http://127.0.0.1:{s.http}/api/status", headers={"Authorization": f"Basic {basic}"})
    text = urllib.request.urlopen(page, timeout=Deadline().seconds).read().decode()
    check("lastError" in text, "the page says so, too")
    shown_nowhere(s, root, "a rule on users", ("ttlStatus", str(db.command("ttlStatus", 1))), ("the page", text))
    db.tempusers.drop()


def of_validators(s, root):
    """A warning about a long document has no more of it than one about a short one."""
    d = root.shop
    d.create_collection("things", validator={"password": {"$ne": VALUE}}, validationAction="warn")
    d.create_collection("seen", validator={"y": {"$ne": "visible-long"}}, validationAction="warn")
    d.create_collection("refused", validator={"password": {"$ne": VALUE}}, validationAction="errorAndLog")
    for size in (10, 20_000):
        d.things.insert_one({"password": VALUE, "pad": "p" * size})
        d.seen.insert_one({"y": "visible-long", "pad": "p" * size})
        reply = d.command("insert", "refused", documents=[{"password": VALUE, "pad": "p" * size}], check=False)
        check(reply["writeErrors"][0]["code"] == 121, f"errorAndLog refuses: {reply}")
    d.command("collMod", "refused", validationAction="error")
    reply = d.command("insert", "refused", documents=[{"password": VALUE}], check=False)
    check(reply["writeErrors"][0]["code"] == 121, f"error refuses, too: {reply}")
    lines = [json.loads(x) for x in s.log().splitlines() if '"id":20294' in x]
    refused = [x for x in lines if x["attr"]["namespace"] == "shop.refused"]
    check(len(refused) == 2, f"errorAndLog also logs, error does not: {len(refused)}")
    check(VALUE not in str(refused), f"a password that was refused is hidden: {refused}")
    lines = [x for x in lines if x not in refused]
    check(len(lines) == 4, f"each is told of: {len(lines)}")
    why = [str(x["attr"]["errInfo"]) for x in lines]
    check(sum("visible-long" in w for w in why) == 2 and why.count("xxx") == 2, f"with its reason, or without: {why}")
    warned = "\n".join(map(str, lines))
    check(VALUE not in warned, f"a password of a document of their own is hidden: {warned}")


def arguments():
    """Everybody on the machine may see the arguments of a process."""
    folder = Path(BINARY).parent
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"mongodb://u:{VALUE}@127.0.0.1:{silent.getsockname()[1]}/"
        for command in (
            [folder / "mayfly-link", "--source", uri, f"--target={uri}"],
            [folder / "mayfly-backup", "create", "--uri", uri, "--path", "/nowhere"],
            [folder / "mayfly-backup", "create", f"--uri={uri}", "--path", "/nowhere"],
        ):
            p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            shown = lambda: Path(f"/proc/{p.pid}/cmdline").read_text()
            hidden = until(lambda: "xxx" in shown() and VALUE not in shown())
            check(hidden, f"{Path(command[0]).name}: {shown()}")
            p.kill()
            p.wait()


def files():
    """A file with a secret that others can read is refused, by whatever option it is named (issue 29: two were not)."""
    folder = tempfile.mkdtemp(prefix="mayfly-secret-files-")
    canary = "canary-c07e5-of-a-file"
    certificate(folder, "server", "server", "127.0.0.1")
    pem, ca, file = f"{folder}/server.pem", f"{folder}/ca.pem", f"{folder}/secret"
    key = base64.b64encode(os.urandom(32)).decode()
    tls = ["--tlsMode", "requireTLS", "--tlsCAFile", ca]
    config = f"net:\n  tls:\n    mode: requireTLS\n    CAFile: {ca}\n    certificateKeyFile: {pem}\n"
    config += f"    certificateKeyFilePassword: {canary}\n"
    master = f"{folder}/master"
    Path(master).write_text(base64.b64encode(os.urandom(32)).decode())
    os.chmod(master, 0o600)
    encrypted = ["--enableEncryption", "--encryptionKeyFile"]
    root = {"MONGO_INITDB_ROOT_USERNAME": "root", "MONGO_INITDB_ROOT_PASSWORD_FILE": file}
    of_key = {"MAYFLYD_TLS_CERTIFICATE_KEY_FILE_PASSWORD_FILE": file}
    link = [str(Path(BINARY).parent / "mayfly-link"), "--source", "mongodb://127.0.0.1:1"]
    # The option, what it holds, the arguments, the variables, and whether any group may read a file of root.
    cases = (
        ("keyFile", canary.replace("-", ""), ["--replSet", "rs", "--keyFile", file], {}, False),
        ("initialRootPasswordFile", canary, ["--initialRootUser", "r", "--initialRootPasswordFile", file], {}, False),
        ("httpMetricsTokenFile", canary, ["--auth", "--httpMetricsTokenFile", file], {}, False),
        ("encryptionKeyFile", key, [*encrypted, file], {}, False),
        ("encryptionRotateFrom", key, [*encrypted, master, "--encryptionRotateFrom", file], {}, False),
        ("certificateKeyFile", Path(pem).read_text(), [*tls, "--tlsCertificateKeyFile", file], {}, True),
        ("clusterFile", Path(pem).read_text(),
         [*tls, "--tlsCertificateKeyFile", pem, "--tlsClusterFile", file], {}, True),
        ("certificateKeyFilePassword", config, ["--config", file], {}, True),
        ("MONGO_INITDB_ROOT_PASSWORD_FILE", canary, ["--environment"], root, False),
        (next(iter(of_key)), canary, ["--environment", *tls, "--tlsCertificateKeyFile", pem], of_key, False),
        ("it has a password", f'target = "mongodb://u:{canary}@127.0.0.1:1"\n', [*link, "--config", file], {}, True),
        ("tlsCertificateKeyFile", Path(pem).read_text(),
         [*link, "--target", f"mongodb://127.0.0.1:1/?tls=true&tlsCertificateKeyFile={file}"], {}, True),
    )  # fmt: skip
    common = ["--dbpath", f"{folder}/data", "--bind_ip", "127.0.0.1", "--nounixsocket"]

    def said_of(arguments, variables):
        """How it ends, and what it says."""
        if arguments[0] != link[0]:
            # The ports are free: nothing but the file may be what ends the start.
            ports = ["--port", str(free_port()), "--httpPort", str(free_port())]
            arguments = [BINARY, *common, *ports, *arguments]
        p = subprocess.run(
            arguments, capture_output=True, text=True, timeout=Deadline(120).seconds, env=os.environ | variables
        )
        return p.returncode, p.stdout + p.stderr

    own, other, root_runs = os.geteuid(), 12345, os.geteuid() == 0
    for option, text, arguments, variables, group in cases:
        Path(file).write_text(text)
        modes = [(0o644, own, 0), (0o604, own, 0), (0o602, own, 0), (0o444, own, 0), (0o660, own, 0)]
        if not root_runs or not group:
            modes += [(0o640, own, other), (0o440, own, other)]
        if root_runs:
            modes += [(0o640, other, 0), (0o440, other, 0)]
        for mode, owner, of_group in modes:
            os.chmod(file, mode)
            if root_runs:
                os.chown(file, owner, of_group)
            status, said = said_of(arguments, variables)
            right = all(s in said for s in (option, file, f"{mode:04o}", "chmod 600"))
            check(status != 0 and right, f"{option} of {owner}:{of_group} {mode:o} is refused: {said[-500:]}")
            check(text not in said and canary not in said, f"{option}: without showing it")
        if root_runs:
            os.chown(file, 0, 0)
        os.chmod(file, 0o600)
    # As Kubernetes mounts secrets: what is wrong is that nothing is in it.
    Path(file).write_text("")
    if root_runs:
        os.chmod(file, 0o440)
        os.chown(file, 0, os.getegid())
        for option, _, arguments, variables, _ in cases[:4]:
            status, said = said_of(arguments, variables)
            check(status != 0 and file in said and "too open" not in said, f"{option}, its own group: {said[-500:]}")
    discard(folder)


run_parts("secrets", (strangers, secrets, redaction, cursors, log_of_set, quoted, files, everywhere), check)
