#!/usr/bin/env python3
"""The audit log with a real server: each kind of event by who did it, authCheck, filters, all destinations and formats,
rotation, and an audit log that cannot be written. What it must not show: secrets_run.py. The last line says "N passed,
N failed".
"""

import base64, json, os, re, signal, socket, struct, subprocess, tempfile, threading
from pathlib import Path

import bson
from bson.binary import Binary
from pymongo.errors import OperationFailure

from audit_server import DENIED, OK, PASSWORD, WRONG, AuditedServer
from fault_test import BINARY, Checks, Client, Deadline, discard, log_in, run_parts, skip, until, wait_for
from own_server import code
from replica_set import ReplicaSet

check = Checks()
REFUSED, NOT_OFFERED, ABANDONED = 96, 334, 337
ROOT_USER = {"user": "root", "db": "admin"}


class Server(AuditedServer):
    check = check


def schema():
    """Every change of the schema, whoever asks for it and however."""
    with Server() as s:
        root = s.first_user()
        db = root.shop
        db.create_collection("a")
        db.b.insert_one({"_id": 1, "x": 1})  # made by its first document
        db.create_collection("v", viewOn="b", pipeline=[{"$match": {"x": 1}}])
        db.b.create_index("x", name="x_1")
        db.b.insert_one({"_id": 2, "x": 1})
        check(code(db.b.create_index, "x", unique=True, name="u") == 11000, "an index that cannot be built")
        db.command("collMod", "b", index={"name": "x_1", "hidden": True})
        db.command("collMod", "b", validator={"x": {"$gt": 0}})
        db.command("collMod", "v", viewOn="a", pipeline=[])
        db.b.create_index("t", name="ttl", expireAfterSeconds=60)
        db.b.drop_index("x_1")
        db.b.drop_index("ttl")
        root.admin.command("renameCollection", "shop.a", to="shop.c")
        list(db.b.aggregate([{"$out": "made"}]))
        db.b.update_one({"_id": 1}, {"$set": {"y": 1}})
        root.shop.upserted.update_one({"_id": 1}, {"$set": {"y": 1}}, upsert=True)
        db.c.drop()
        db.command("drop", "nothing")
        root.drop_database("shop")
        made = [p for p in s.params("createCollection") if p["ns"].startswith("shop.")]
        names = [p["ns"] for p in made]
        for name in ("a", "b", "v", "upserted"):
            check(names.count("shop." + name) == 1, f"{name} was made: {names}")
        view = made[names.index("shop.v")]
        check(view == {"ns": "shop.v", "viewOn": "shop.b", "pipeline": [{"$match": {"x": 1}}]}, f"a view: {view}")
        check(s.params("createDatabase").count({"ns": "shop"}) == 1, "its database, once")
        builds = [(p["indexName"], p["indexBuildState"]) for p in s.params("createIndex") if p["ns"] == "shop.b"]
        for name, states in {"x_1": ["Started", "Succeeded"], "u": ["Started", "Aborted"]}.items():
            got = [state for n, state in builds if n == name]
            check(got == ["IndexBuild" + x for x in states], f"the build of {name}: {got}")
        aborted = [e for e in s.events("createIndex") if e["result"] != 0]
        check([e["result"] for e in aborted] == [276], f"one was aborted: {aborted}")
        ttl = next(p for p in s.params("createIndex") if p["indexName"] == "ttl")
        check(ttl["indexSpec"]["expireAfterSeconds"] == 60, f"the specification: {ttl}")
        drops = [p for p in s.params("dropIndex")]
        check(
            drops
            == [
                {"ns": "shop.b", "indexName": "x_1"},
                {"ns": "shop.b", "indexName": "ttl", "old": {"expireAfterSeconds": 60}, "new": None},
            ],
            f"dropped indexes: {drops}",
        )
        check({"old": "shop.a", "new": "shop.c"} in s.params("renameCollection"), "a rename")
        check(any(p["new"] == "shop.made" for p in s.params("renameCollection")), "$out")
        changed = [p for p in s.params("collMod") if p["ns"].startswith("shop")]
        check(len(changed) == 3, f"three changes: {changed}")
        check(changed[0]["new"] == {"hidden": True, "prepareUnique": False}, f"a hidden index: {changed[0]}")
        check(changed[1]["new"]["validator"] == {"x": {"$gt": 0}}, f"a validator: {changed[1]}")
        check(changed[2]["new"] == {"viewOn": "a", "pipeline": []}, f"a view: {changed[2]}")
        dropped = [(e["param"]["ns"], e["result"]) for e in s.events("dropCollection")]
        for x in (("shop.c", 0), ("shop.b", 0), ("shop.v", 0), ("shop.nothing", 26)):
            check(dropped.count(x) == 1, f"{x} among {dropped}")
        check(s.params("dropDatabase") == [{"ns": "shop"}], "the database")
        own = [e for e in s.events() if str(e["param"].get("ns", "")).startswith("shop")]
        check(all(e["users"] == [ROOT_USER] for e in own), "all by the user who asked")
        check(all(e["roles"] and e["remote"]["ip"] == "127.0.0.1" for e in own), "with roles and address")
        check(all(e["local"] == {"ip": "127.0.0.1", "port": s.port} for e in own), "and where")
        uuids = {e["uuid"]["$binary"] for e in own}
        check(len(uuids) == 1 and own[0]["uuid"]["$type"] == "04", f"one connection, one uuid: {uuids}")
        for e in own:
            want = ["atype", "ts", "uuid", "local", "remote", "users", "roles", "param", "result"]
            check(list(e) == want, f"the shape of {e['atype']}")


def by_oplog(root):
    """Users and roles written as documents, by commands that name their collections in other places."""
    user = {"_id": "x.z", "user": "z", "db": "x", "credentials": {}, "roles": []}
    uuid = next(c["info"]["uuid"] for c in root.admin.list_collections() if c["name"] == "system.users")
    root.x.command("applyOps", [{"op": "i", "ns": "admin.system.users", "o": user}])
    root.x.command("applyOps", [{"op": "d", "ns": "x.y", "ui": uuid, "o": {"_id": "x.z"}}])
    role = {"_id": "x.r", "role": "r", "db": "x", "privileges": [], "roles": []}
    both = [{"ns": "admin.system.users"}, {"ns": "admin.system.roles"}]
    made = [{"insert": 0, "document": user}, {"insert": 1, "document": role}]
    root.admin.command("bulkWrite", 1, ops=made, nsInfo=both)
    lost = {"op": "u", "ns": "admin.system.users", "o": {"$set": {"x": 1}}, "o2": {"_id": "x.none"}}
    check(code(root.x.command, "applyOps", [lost], alwaysUpsert=False) == 47, "one that fails")


def users():
    """Users, roles, logins, what was refused, and the server itself."""
    with Server() as s:
        root = s.first_user()
        db = root.admin
        grants = [{"resource": {"db": "shop", "collection": ""}, "actions": ["find"]}]
        steps = [
            ("createRole", "r", dict(privileges=grants, roles=[])),
            ("createUser", "ann", dict(pwd="a", roles=["read"], customData={"n": 1})),
            ("updateUser", "ann", dict(pwd="b", customData={"n": 2})),
            ("updateUser", "ann", dict(roles=[])),
            ("grantRolesToUser", "ann", dict(roles=["r"])),
            ("revokeRolesFromUser", "ann", dict(roles=["r"])),
            ("updateRole", "r", dict(privileges=[])),
            ("grantPrivilegesToRole", "r", dict(privileges=grants)),
            ("revokePrivilegesFromRole", "r", dict(privileges=grants)),
            ("grantRolesToRole", "r", dict(roles=["read"])),
            ("revokeRolesFromRole", "r", dict(roles=["read"])),
            ("dropRole", "r", {}),
        ]
        for command, name, more in steps:
            db.command(command, name, **more)
        refused = code(db.command, "backup", 1, path="not/absolute")
        failed = [(e["param"], e["result"]) for e in s.events("backup")]
        check(failed == [({"path": "not/absolute"}, refused)] and refused, f"a backup that failed: {failed} {refused}")
        ann = s.connect("ann", "b", maxPoolSize=1)
        check(code(ann.shop.things.find_one) == DENIED, "she may not read")
        check(code(ann.admin.command, "logout") == OK, "she logs out")
        check(code(s.connect("ann", "wrong").admin.command, "ping") == WRONG, "a wrong password")
        check(code(s.connect().shop.things.find_one) == DENIED, "nobody may read")
        external = s.connect()["$external"]
        plain = {"saslStart": 1, "mechanism": "PLAIN", "payload": b"\0ann\0canary-plain"}
        check(code(external.command, plain) == NOT_OFFERED, "a mechanism that there is not")
        x509 = {"authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=ann"}
        check(code(external.command, x509) == WRONG, "a certificate where there is no TLS")
        db.command("dropUser", "ann")
        root.other.command("dropAllUsersFromDatabase")
        root.other.command("dropAllRolesFromDatabase")
        db.system.users.insert_one({"_id": "x.y", "user": "y", "db": "x", "credentials": {}, "roles": []})
        db.command("touch", "system.users", q={"_id": "x.y"}, expireAfterSeconds=100_000)
        db.command("persist", "system.users", q={"_id": "x.y"})
        db.system.users.delete_one({"_id": "x.y"})
        by_oplog(root)
        for command, name, _ in steps:
            got = [e for e in s.events(command) if name in (e["param"].get("user"), e["param"].get("role"))]
            check(bool(got) and all(e["users"] == [ROOT_USER] and e["result"] == 0 for e in got), command)
        made = [p for p in s.params("createUser") if p["user"] == "ann"][0]
        want = {"user": "ann", "db": "admin", "customData": {"n": 1}, "roles": [{"role": "read", "db": "admin"}]}
        check(made == want, f"createUser: {made}")
        changes = [p["passwordChanged"] for p in s.params("updateUser")]
        check(changes == [True, False], f"passwords changed: {changes}")
        logins = [(e["param"]["user"], e["result"], e["users"]) for e in s.events("authenticate")]
        check(("ann", OK, [{"user": "ann", "db": "admin"}]) in logins, f"her login: {logins}")
        check(("ann", WRONG, []) in logins, "and what was none")
        # They failed before there was anything to prove, and were not in the log at all.
        check(("", NOT_OFFERED, []) in logins, f"one by a mechanism that is not offered: {logins}")
        check(("CN=ann", WRONG, []) in logins, f"and one by a certificate: {logins}")
        check("canary-plain" not in Path(s.audit_path).read_text(), "without what was sent")
        out = [e["param"] for e in s.events("logout") if e["param"]["initialUsers"][0]["user"] == "ann"]
        check(
            any(p["reason"] == "Explicit logout from admin" and p["updatedUsers"] == [] for p in out), f"logout: {out}"
        )
        s.connect("root").admin.command("ping")
        gone = lambda: [p for p in s.params("logout") if p["reason"].startswith("Implicit logout")]
        check(until(gone), "a connection that goes")
        refused = {(e["param"]["command"], e["param"].get("ns"), len(e["users"])) for e in s.events("authCheck")}
        check(("find", "shop.things", 1) in refused, f"what she was refused: {refused}")
        check(("find", "shop.things", 0) in refused, "and what nobody was")
        check(all(e["result"] == DENIED for e in s.events("authCheck")), "and no more than that")
        direct = [(p["ns"], p["operation"]) for p in s.params("directAuthMutation")]
        want = [("users", w) for w in ("insert", "touch", "persist", "delete", "applyOps", "applyOps")]
        want += [("users", "bulkWrite"), ("roles", "bulkWrite"), ("users", "applyOps")]
        check(direct == [(f"admin.system.{c}", w) for c, w in want], f"direct: {direct}")
        late = s.events("directAuthMutation")[-1]
        check(late["result"] == 47, f"also what failed: {late}")
        started = s.events("startup")
        check(len(started) == 1 and started[0]["remote"] == {"isSystemUser": True}, "the start")
        check(started[0]["param"]["startupOptions"]["net"]["port"] == s.port, "with its options")
        s.stop()
        check(len(s.events("shutdown")) == 1, "the end")
        s.start()
        code(s.connect("root").admin.command, "shutdown")
        s.proc.wait(Deadline().seconds)
        ends = s.events("shutdown")
        check(len(ends) == 2 and ends[1]["users"] == [ROOT_USER], f"who ended it: {ends[1:]}")


EXPLICIT, CLOSED, DROPPED, RESTRICTED = (
    "Explicit logout from admin",
    "Implicit logout due to client connection closure",
    "Implicit logout because the user was dropped",
    "Implicit logout because authenticationRestrictions do not allow the address any more",
)


def logouts():
    """Each login that ends has one entry that says why, whether or not the client says anything afterwards. A change of
    a user that ends no login has none."""
    elsewhere = [{"clientSource": ["192.0.2.1"]}]
    with Server() as s:
        root = s.first_user()
        db, want, held = root.admin, {}, []

        def told(user, of="admin"):
            of_user = [{"user": user, "db": of}]
            return [e["param"]["reason"] for e in s.events("logout") if e["param"]["initialUsers"] == of_user]

        def ends(user, reason, of="admin"):
            want[user, of] = [*want.get((user, of), []), reason]
            check(until(lambda: len(told(user, of)) >= len(want[user, of])), f"{user} is logged out")

        def user(name, **more):
            db.command({"createUser": name, "pwd": "p", "roles": [{"role": "read", "db": "shop"}], **more})
            held.append(log_in(s.port, name, "p"))
            return held[-1]

        def dropped(name):
            db.command("dropUser", name)

        # Of clients that say nothing any more.
        idle = user("idle")
        dropped("idle")
        ends("idle", DROPPED)
        check(idle.command("shop", {"find": "c"}).get("code") == DENIED, "and may do nothing")
        for name, many in (("one", 2), ("two", 1)):
            root.other.command("createUser", name, pwd="p", roles=[])
            for _ in range(many):
                held.append(log_in(s.port, name, "p", "other"))
        root.other.command("dropAllUsersFromDatabase")
        for name in ("one", "one", "two"):
            ends(name, DROPPED, "other")
        user("document")
        db.system.users.delete_one({"_id": "admin.document"})
        ends("document", DROPPED)
        user("moved")
        db.command("updateUser", "moved", authenticationRestrictions=elsewhere)
        ends("moved", RESTRICTED)
        db.command("createRole", "far", privileges=[], roles=[], authenticationRestrictions=elsewhere)
        user("byRole")
        db.command("grantRolesToUser", "byRole", roles=["far"])
        ends("byRole", RESTRICTED)

        # Of one whose next command comes at once, and of one that looks who it is.
        quick = user("quick")
        dropped("quick")
        check(quick.command("shop", {"find": "c"}).get("code") == DENIED, "the next command is refused")
        ends("quick", DROPPED)
        asks = user("asks")
        dropped("asks")
        shown = asks.command("admin", {"connectionStatus": 1})["authInfo"]["authenticatedUsers"]
        check(shown == [], f"nobody is shown: {shown}")
        ends("asks", DROPPED)

        # While a command waits.
        root.shop.create_collection("log", capped=True, size=65536)
        root.shop.log.insert_one({"_id": 0})
        waits = user("waits")
        cursor = waits.command("shop", {"find": "log", "tailable": True, "awaitData": True})["cursor"]["id"]
        said = []
        more = {"getMore": cursor, "collection": "log", "maxTimeMS": 60_000}
        thread = threading.Thread(target=lambda: said.append(waits.command("shop", more)))
        thread.start()
        check(until(lambda: db.command("currentOp", **{"command.getMore": cursor})["inprog"]), "a getMore waits")
        dropped("waits")
        root.shop.log.insert_one({"_id": 1})
        thread.join(Deadline(90).seconds)
        check(said and said[0].get("code") == DENIED, f"it ends: {said}")
        ends("waits", DROPPED)

        # A connection may log in again once its user is gone: as a new one of that name, or as another.
        again = user("again")
        dropped("again")
        db.command("createUser", "again", pwd="q", roles=[])
        log_in(s.port, "again", "q", client=again)
        ends("again", DROPPED)
        again.sock.close()
        ends("again", CLOSED)
        other = user("former")
        user("latter").sock.close()
        ends("latter", CLOSED)
        dropped("former")
        log_in(s.port, "latter", "p", client=other)
        ends("former", DROPPED)
        check(other.command("admin", {"logout": 1})["ok"] == 1, "it logs out")
        ends("latter", EXPLICIT)
        check(other.command("admin", {"logout": 1})["ok"] == 1, "once more, as nobody")
        other.sock.close()

        # A login in progress outlives the one before.
        unfinished = user("begins")
        start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=begins,r=abcdefgh")}
        step = unfinished.command("admin", start)
        dropped("begins")
        ends("begins", DROPPED)
        go_on = {"saslContinue": 1, "conversationId": step["conversationId"], "payload": Binary(b"c=biws")}
        check(unfinished.command("admin", go_on).get("code") == WRONG, "an unfinished login is still one")

        # What ends no login.
        stays = user("stays")
        db.command("updateUser", "stays", pwd="q", mechanisms=["SCRAM-SHA-256"])
        db.command("updateUser", "stays", roles=[], customData={"x": 1})
        check(stays.command("shop", {"find": "c"}).get("code") == DENIED, "roles hold at once")
        db.command("updateUser", "stays", authenticationRestrictions=[{"clientSource": ["127.0.0.1"]}])
        db.command("grantRolesToUser", "stays", roles=[{"role": "read", "db": "shop"}])
        check(stays.command("shop", {"find": "c"})["ok"] == 1, "and the login goes on")
        log_in(s.port, "stays", "q", client=stays)
        check(stays.command("shop", {"find": "c"})["ok"] == 1, "also when it is repeated")

        # However the connection ends.
        reset = user("reset")
        reset.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.sock.close()
        ends("reset", CLOSED)
        broken = user("broken")
        broken.sock.sendall(b"\xff" * 64)
        ends("broken", CLOSED)
        s.stop()
        ends("stays", CLOSED)
        for (name, of), reasons in want.items():
            check(told(name, of) == reasons, f"once for each login of {name}: {told(name, of)}")
        logins = {json.dumps(e["uuid"]): e["users"] for e in s.events("authenticate") if e["result"] == OK}
        out = s.events("logout")
        check(all(json.dumps(e["uuid"]) in logins for e in out), "each is of the connection of its login")
        by = all(e["users"] == e["param"]["initialUsers"] and e["param"]["updatedUsers"] == [] for e in out)
        check(by, "and says by whom")


def checks():
    """authCheck of what is allowed, its arguments, and filters."""
    with Server("--setParameter", "auditAuthorizationSuccess=true") as s:
        root = s.first_user()
        root.shop.things.insert_one({"_id": 1, "x": "y" * 10_000})
        list(root.shop.things.find({"x": "narrow"}))
        seen = lambda command: [e for e in s.events("authCheck") if e["param"]["command"] == command]
        found = seen("find")
        check(len(found) == 1 and found[0]["result"] == OK, f"one find: {found}")
        check(found[0]["param"]["ns"] == "shop.things", "of which collection")
        check(found[0]["param"]["args"]["filter"] == {"x": "narrow"}, "with its filter")
        check("lsid" not in found[0]["param"]["args"], "without its session")
        check(seen("insert")[0]["param"]["args"]["documents"] == "...", "what is long is left out")
        # The names of "insert" and "profile" contain what commands of users and roles are called by.
        check(seen("insert")[0]["param"].get("ns") == "shop.things", "of which collection, for an insert")
        root.shop.command("explain", {"find": "things"})
        check(seen("explain")[0]["param"].get("ns") == "shop.things", "and of what is explained")
        root.admin.command("renameCollection", "shop.things", to="shop.renamed")
        root.admin.command("renameCollection", "shop.renamed", to="shop.things")
        check(seen("renameCollection")[0]["param"].get("ns") == "shop.things", "of a rename its source")
        root.shop.command("rolesInfo", "read")
        check("ns" not in seen("rolesInfo")[0]["param"], "no collection for a role")
        root.admin.command("createUser", "ann", pwd="canary-args", roles=[])
        check(seen("createUser")[-1]["param"]["args"]["pwd"] == "xxx", "no password")
        # It goes by the names in the command, since it is written before the view's stages are known.
        root.admin.create_collection("names", viewOn="system.users", pipeline=[{"$project": {"user": 1}}])
        for on, shown in (("names", {"user": "ann"}), ("system.users", "xxx")):
            list(root.admin[on].find({"user": "ann"}))
            found = seen("find")[-1]["param"]
            check((found["ns"], found["args"]["filter"]) == (f"admin.{on}", shown), f"a filter on {on}: {found}")
        check(not seen("hello") and not seen("ping"), "what needs no privilege is not checked")
        get = lambda: root.admin.command("getParameter", 1, auditFilter=1, auditAuthorizationSuccess=1)
        check(get()["auditFilter"] == {} and get()["auditAuthorizationSuccess"] is True, "the parameters")
        before = len(s.events())
        bad = [{"$nope": 1}, {"a": {"$nope": 1}}, {"$where": "1"}, {"$expr": True}, 5, "{", {"a": "x" * 20_000}]
        for f in bad:
            check(code(root.admin.command, "setParameter", 1, auditFilter=f) in (2, 9, 14), f"refused: {str(f)[:40]}")
        only = {"atype": "authCheck", "param.command": {"$in": ["find"]}}
        root.admin.command("setParameter", 1, auditFilter=only)
        check(get()["auditFilter"] == only, "a filter is set")
        configured = s.events("auditConfigure")
        check(len(configured) == 1 and configured[0]["users"] == [ROOT_USER], f"which is audited: {configured}")
        check(configured[0]["param"]["config"]["filter"] == only, "with what it is now")
        count = len(s.events())
        check(count > before, "refused ones changed nothing")
        root.shop.things.insert_one({})
        list(root.shop.things.find())
        check([e["param"]["command"] for e in s.events()[count:]] == ["find"], "and holds")
        root.admin.command("setParameter", 1, auditAuthorizationSuccess=False)
        check(s.events()[-1]["atype"] == "auditConfigure", "to switch it off is audited whatever the filter says")
        list(root.shop.things.find())
        check(s.events()[-1]["atype"] == "auditConfigure", "and holds")
        root.admin.command("setParameter", 1, auditFilter="{ atype: /^drop/ }")
        root.shop.other.insert_one({})
        root.shop.other.drop()
        check(s.events()[-1]["atype"] == "dropCollection", "a filter as text")
        check(s.events()[-2]["atype"] == "auditConfigure", "leaves out the rest")
        many = Client("127.0.0.1", s.port)
        root.admin.command("setParameter", 1, auditFilter={})
        for _ in range(1500):
            many.command("shop", {"find": "x"})
        state = root.admin.command("serverStatus")["auditLog"]
        check(0 < state["suppressed"] <= 1300, f"who has not logged in cannot fill the disk: {state}")
    config = """
auditLog:
  destination: file
  format: JSON
  path: FOLDER/own.json
  filter: '{ atype: { $in: [ "createCollection", "dropCollection" ] }, "param.ns": /^test\\\\./ }'
"""
    with Server(auth=False, config=config) as s:
        s.audit_path = f"{s.folder}/own.json"
        c = s.connect()
        for name in ("test", "testing"):
            c[name].create_collection("c")
            c.drop_database(name)
        got = [(e["atype"], e["param"]["ns"]) for e in s.events()]
        check(got == [("createCollection", "test.c"), ("dropCollection", "test.c")], f"the manual's filter: {got}")
    for bad in ("{ a: { $nope: 1 } }", "{ a:", "{ $expr: true }"):
        p = subprocess.run([BINARY, "--auditFilter", bad], capture_output=True, text=True, timeout=Deadline().seconds)
        check(p.returncode == 2 and "auditFilter" in p.stderr, f"refused at start: {p.stderr[:100]}")


def destinations():
    """Console, BSON, syslog, none; rotation."""
    with Server("--auditDestination", "console", auth=False) as s:
        s.connect().shop.create_collection("c")
        s.audit_path = f"{s.folder}/out"
        check({"ns": "shop.c"} in s.params("createCollection"), "on standard output")
        check(code(s.connect().admin.command, "logRotate", "audit") == 20, "there is no file to rotate")
    with Server("--auditFormat", "BSON", auth=False) as s:
        s.connect().shop.create_collection("c")
        events = bson.decode_all(Path(f"{s.folder}/data/audit/audit.bson").read_bytes())
        check(any(e["param"].get("ns") == "shop.c" for e in events), "a BSON file")
        check(all(e["uuid"].subtype == 4 if hasattr(e["uuid"], "subtype") else e["uuid"] for e in events), "with uuids")
    with Server("--auditDestination", "none", auth=False) as s:
        c = s.connect()
        c.shop.create_collection("c")
        check(not os.path.exists(f"{s.folder}/data/audit"), "none: no file")
        check("auditLog" not in c.admin.command("serverStatus"), "and no figures")
        for name in ("auditFilter", "auditAuthorizationSuccess"):
            value = {} if name == "auditFilter" else True
            check(code(c.admin.command, "setParameter", 1, **{name: value}) == 20, f"nor {name}")
    # With a syslog daemon, of which this machine must have none.
    if os.geteuid() == 0 and not os.path.exists("/dev/log"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
            daemon.bind("/dev/log")
            try:
                daemon.setblocking(False)
                with Server("--auditDestination", "syslog", auth=False) as s:
                    s.connect().shop.create_collection("c")
                    lines = []

                    def has_event():
                        # A thread of its own sends them.
                        try:
                            while True:
                                lines.append(daemon.recv(65536).decode())
                        except BlockingIOError:
                            return any('"shop.c"' in x for x in lines)

                    check(until(has_event), "has the event")
                    good = [x for x in lines if re.match(r"<14>mayflyd\[\d+\]: \{ \"atype\" : ", x)]
                    check(lines and good == lines, f"syslog: {lines[:2]}")
            finally:
                os.unlink("/dev/log")
    else:
        skip("the audit log in syslog", "making /dev/log needs root and a machine without a syslog daemon")
    with Server(auth=False) as s:
        c, folder = s.connect(), Path(s.audit_path).parent
        c.shop.create_collection("one")
        c.admin.command("logRotate", "audit")
        check(len(list(folder.iterdir())) == 2, "rotated")
        first = s.events()[0]
        old = first["param"]["logRotationStatus"]["rotatedLogPath"]
        check(first["atype"] == "rotateLog" and Path(old).exists(), f"the new file says so: {first}")
        check("shop.one" in Path(old).read_text(), "the old one has what was before")
        c.shop.create_collection("two")
        check("shop.two" in Path(s.audit_path).read_text(), "the new one what came after")
        c.admin.command("logRotate", 1)
        check(len(list(folder.iterdir())) == 3, "with the log")
        check(len([f for f in os.listdir(s.folder) if f.startswith("log")]) == 2, "which was rotated as well")
        s.proc.send_signal(signal.SIGUSR1)
        check(until(lambda: len(list(folder.iterdir())) == 4), "by a signal")
        check(until(lambda: s.events("rotateLog")), "which is in the new file")
        c.admin.command("logRotate", "server")
        check(len(list(folder.iterdir())) == 4, "the log alone")


def fail_closed():
    """With auditFailClosed nothing is done that could not be audited. The disk is full before the first try."""
    disk = tempfile.mkdtemp(prefix="mayfly-audit-disk-")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True).returncode != 0:
        print("     (no tmpfs may be mounted here: a full disk is not tried)")
        return
    try:
        path = f"{disk}/audit.json"
        with Server("--auditPath", path, "--setParameter", "auditFailClosed=true") as s:
            s.audit_path = path
            root = s.first_user()
            root.shop.create_collection("before")
            held = root.shop.command("ttlHold", "before", filter={"a": 1})["holdId"]
            fill = Path(f"{disk}/fill")
            with open(fill, "wb", buffering=0) as f:
                try:
                    while f.write(b"x" * 4096) == 4096:
                        pass
                except OSError:
                    pass
            # Room was kept for what is going on; once that is used up, everything is refused.
            n = 0
            while n < 20_000 and code(root.shop.command, "create", f"c{n}") == OK:
                n += 1
            audited = {p["ns"] for p in s.params("createCollection")}
            check(n < 20_000, f"refused after {n}")
            check(all(f"shop.c{i}" in audited for i in range(n)), "all that were made are in it")
            check(f"c{n}" not in root.shop.list_collection_names(), "what was refused was not made")
            state = root.admin.command("serverStatus")["auditLog"]
            check(state["lost"] == 0 and state["waiting"] == 0, f"nothing was lost: {state}")
            check(code(root.shop.newly.insert_one, {}) == REFUSED, "nor a collection by its first document")
            check(code(root.shop.before.insert_one, {}) == OK, "other commands go on")
            check(code(root.admin.command, "createUser", "x", pwd="x", roles=[]) == REFUSED, "nor a user")
            controls = (
                *({name: "before"} for name in ("ttlPause", "ttlResume")),
                {"ttlHold": "before", "filter": {}},
                {"ttlHoldRelease": "before", "holdId": held},
                {"setDatabaseExpiry": 1, "maxTTL": 60},
                {"collMod": "before", "onExpire": {"action": "delete"}},
            )
            got = {next(iter(c)): code(root.shop.command, c) for c in controls}
            check(set(got.values()) == {REFUSED}, f"nor a change of what expires: {got}")
            user = {"_id": "x.y", "user": "y", "db": "x", "credentials": {}, "roles": []}
            users, bulk = root.admin["system.users"], dict(nsInfo=[{"ns": "admin.system.users"}])
            check(code(users.insert_one, user) == REFUSED, "nor a user as a document")
            bulk["ops"] = [{"insert": 0, "document": user}]
            check(code(root.admin.command, "bulkWrite", 1, **bulk) == REFUSED, "nor one by bulkWrite")
            check(users.count_documents({}) == 1, "and none was made")
            check(code(s.connect("root").admin.command, "ping") == REFUSED, "nor a login")
            check("mayfly_audit_entries_total" not in s.metrics(), "nor one by HTTP")
            list(root.shop.list_collection_names())
            fill.unlink()
            check(code(root.shop.command, "create", f"c{n}") == OK, "with room again it goes")
            check(f"shop.c{n}" in {p["ns"] for p in s.params("createCollection")}, "and is audited")
            check(until(lambda: 'mayfly_audit_entries_total{outcome="lost"} 0' in s.metrics()), "the loss counter")
            root.admin.command("setParameter", 1, auditAuthorizationSuccess=True)
            check(code(root.shop.before.find_one) == OK, "with each command audited")
            s.stop()
            check(os.stat(path).st_blocks * 512 < os.stat(path).st_size + 65536, "what was reserved is given back")
    finally:
        subprocess.run(["umount", "-l", disk])
        os.rmdir(disk)


def given_up(primary, other, events):
    """A transaction makes a collection, and its client gives up while the commit waits for the other member."""
    client = Client("127.0.0.1", primary.port)
    of = {"lsid": {"id": bson.Binary(os.urandom(16), 4)}, "txnNumber": bson.Int64(1), "autocommit": False}
    begun = client.command("shop", {"create": "kept", "startTransaction": True, **of})
    check(begun["ok"] == 1, f"a transaction makes a collection: {begun}")
    client.command("shop", {"insert": "kept", "documents": [{"_id": 1}], **of})
    check(not events("kept"), "no entry before the commit")
    commit = {"commitTransaction": 1, **of}
    other.pause()
    try:
        reply = client.command("admin", {**commit, "maxTimeMS": 300})
        check(reply["ok"] == 0 and not events("kept"), f"the client gives up: {reply}")
    finally:
        other.resume()
    wait_for(lambda: events("kept"), 30)
    again = client.command("admin", commit)
    check(again["ok"] == 1, f"it was committed: {again}")
    got = events("kept")
    check([e["atype"] for e in got] == ["createCollection"], f"one entry: {got}")
    who = client.sock.getsockname()
    check(got and got[0]["remote"] == {"ip": who[0], "port": who[1]}, f"by who committed: {got}")


def members():
    """On a set: reconfigurations, and what a secondary applies is in the primary's log alone."""
    s = ReplicaSet(2)
    try:
        s.initiate()
        s.all_vote()  # until the other one does, the first commits alone
        primary = s.primary()
        other = next(m for m in s.members if m is not primary)
        config = primary.client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        config["settings"] = {"heartbeatTimeoutSecs": 9}
        primary.client.admin.command("replSetReconfig", config)
        primary.client.shop.command("create", "c", writeConcern={"w": 2})
        read = lambda m: [json.loads(x) for x in Path(m.folder + "/data/audit/audit.json").read_text().splitlines()]
        changes = [e["param"] for e in read(primary) if e["atype"] == "replSetReconfig"]
        check(changes and changes[-1]["new"]["settings"]["heartbeatTimeoutSecs"] == 9, f"reconfig: {changes[-1:]}")
        check(changes[-1]["old"].get("version") == config["version"] - 1, "with the one before")
        made = lambda m: [e for e in read(m) if e["atype"] == "createCollection" and e["param"]["ns"] == "shop.c"]
        check(len(made(primary)) == 1 and not made(other), "a collection: where it was asked for")
        primary.client.admin.command("createUser", "ann", pwd="a", roles=[], writeConcern={"w": 2})
        with log_in(other.port, "ann", "a").sock:
            primary.client.admin.command("dropUser", "ann")
            gone = lambda: [e["param"]["reason"] for e in read(other) if e["atype"] == "logout"]
            check(until(gone) and gone() == [DROPPED], f"a login on another member than the user's end: {gone()}")
        given_up(primary, other, lambda name: [e for e in read(primary) if e["param"].get("ns") == f"shop.{name}"])
    finally:
        for m in s.members:
            if m.running():
                m.stop()
        discard(s.folder)


def failed_logins():
    """Logins that fail are counted when they are many, and one that is not ended is told of."""
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "options": {"skipEmptyExchange": True}}

    def begin(client, user):
        reply = client.command("admin", {**start, "payload": Binary(f"n,,n={user},r=abcdef".encode())})
        return reply["conversationId"], dict(p.split("=", 1) for p in bytes(reply["payload"]).decode().split(","))["r"]

    with Server() as s:
        s.first_user()
        client = Client("127.0.0.1", s.port)
        begin(client, "left")
        begin(client, "again")
        client.sock.close()
        results = lambda: {e["param"]["user"]: e["result"] for e in s.events("authenticate")}
        check(until(lambda: results().get("again") == ABANDONED), f"a connection that goes within a login: {results()}")
        check(results().get("left") == ABANDONED, f"and a login that another one replaces: {results()}")
        seen = s.params("clientMetadata")
        check(bool(seen) and {"localEndpoint", "clientMetadata"} <= set(seen[0]), f"what drivers say: {seen[:1]}")
        check(seen[0]["localEndpoint"] == {"ip": "127.0.0.1", "port": s.port}, f"and where: {seen[0]}")
        s.connect("root").admin.command("getClusterParameter", "*")
        got = s.params("getClusterParameter")
        check(got == [{"requestedClusterServerParameters": "*"}], f"getClusterParameter: {got}")
        # Names of nobody, each once: only what an address may fail costs time.
        before, many = len(s.events("authenticate")), 90
        client = Client("127.0.0.1", s.port)
        for i in range(many):
            number, nonce = begin(client, f"nobody{i}")
            proof = Binary(f"c=biws,r={nonce},p={base64.b64encode(bytes(32)).decode()}".encode())
            said = client.command("admin", {"saslContinue": 1, "conversationId": number, "payload": proof})
            check(said["code"] == WRONG, f"a wrong proof: {said}")
        client.sock.close()
        told = s.events("authenticate")[before:]
        # It may have begun in one minute and ended in the next but one.
        check(len(told) <= 3 * 20 + 3, f"an address has 20 entries a minute: {len(told)}")
        suppressed = s.connect("root").admin.command("serverStatus")["auditLog"]["suppressed"]
        check(suppressed > 0, f"the others are counted: {suppressed}")
        s.stop()
        told = [e for e in s.events("authenticate")[before:] if e["result"] == WRONG]
        alone = sum("repeated" not in e["param"] for e in told)
        counted = sum(e["param"].get("repeated", 0) for e in told)
        check(alone + counted == many, f"and none is lost: {alone} and {counted}")
        of = [e["remote"]["ip"] for e in told if "repeated" in e["param"]]
        check(set(of) == {"127.0.0.1"}, f"by their address: {of}")


def refusals():
    """A user without a role cannot fill the disk with what it is refused; nothing goes uncounted."""
    with Server() as s:
        root = s.first_user()
        root.admin.command("createUser", "nobody", pwd="n", roles=[])
        root.admin.command("setParameter", 1, auditRefusedPerMinute=20)
        check(code(root.admin.command, "setParameter", 1, auditRefusedPerMinute=-1) == 2, "a limit below 0")
        nobody, many, long = s.connect("nobody", "n", maxPoolSize=1), 200, "y" * 3900
        command = {"find": "things", **{f"f{i}": long for i in range(4)}}
        of = lambda: [e for e in s.events("authCheck") if e["users"] == [{"user": "nobody", "db": "admin"}]]
        for _ in range(many):
            check(code(nobody.shop.command, command) == DENIED, "it is refused")
        # It may have begun in one minute and ended in the next but one.
        alone = [e for e in of() if "repeated" not in e["param"]]
        check(0 < len(alone) <= 3 * 20, f"a user has 20 entries a minute: {len(alone)}")
        size = sum(len(json.dumps(e)) for e in alone)
        check(size < 3 * (20 * 2048 + 20_000), f"of limited size: {size}")
        check(root.admin.command("serverStatus")["auditLog"]["suppressed"] > 0, "the others are counted")
        root.admin.command("setParameter", 1, auditRefusedPerMinute=0)
        before = len([e for e in of() if "repeated" not in e["param"]])
        for _ in range(50):
            code(nobody.shop.things.find_one)
        check(len([e for e in of() if "repeated" not in e["param"]]) == before + 50, "with 0 all are written")
        configured = [p["config"]["auditRefusedPerMinute"] for p in s.params("auditConfigure")]
        check(configured == [20, 0], f"who changes it is audited: {configured}")
        s.stop()
        told = of()
        alone = sum("repeated" not in e["param"] for e in told)
        counted = sum(e["param"].get("repeated", 0) for e in told)
        check(alone + counted == many + 50, f"and none is lost: {alone} and {counted}")


PARTS = (schema, users, logouts, failed_logins, refusals, checks, destinations, fail_closed, members)
run_parts("audit", PARTS, check)
