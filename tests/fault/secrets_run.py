#!/usr/bin/env python3
"""What must show nowhere, with a real server: passwords, stored credentials, commands of those who have not logged in,
and the data of clients that redactClientLogData takes out of the log.
The last line says "N passed, N failed".
"""

import json, os, resource, shutil, signal, subprocess, tempfile
from pathlib import Path

from pymongo.errors import OperationFailure

from audit_server import DENIED, OK, PASSWORD, WRONG, AuditedServer
from fault_test import ROOT, Checks, Client, log_in, run_parts, until
from own_server import code

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
    make = [ROOT / "scripts/certificates", folder, "server", "server", "127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True, env=os.environ | {"PASSWORD": canary + "-tls"})
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
        check(s.proc.wait(60) != 0, "a crash")
        check(search(s.folder, canary) == "", f"nor after a crash: {search(s.folder, canary)}")
    shutil.rmtree(folder, ignore_errors=True)
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
    shutil.rmtree(folder, ignore_errors=True)


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


run_parts("secrets", (strangers, secrets, redaction), check)
