#!/usr/bin/env python3
"""What users may do, on a real server with access control: one user for each built-in role, and every command of
tests/data/privileges.txt by each of them, over the socket. Which are refused is worked out here from the privileges
that the server shows of the role (rolesInfo), by the manual's rules for resources.
  roles      each command x each role: 13, or not
  shown      listDatabases, listCollections, currentOp and killOp show and stop what belongs to the user
  user_roles, own_roles   $$USER_ROLES; rolesInfo and usersInfo about oneself
  messages   what a refusal says
  granted    what is granted and revoked holds on open connections from the next command on
  by_uuid, views, before_users
             ways around: entries of applyOps by UUID, changes of views, results of writes of before there were users
  escalation, databases, cursors, waiting   ways to what one may not have, or may not have any more
  restored   users and roles from one server to another, as mongodump and mongorestore do it
The last line says "N passed, N failed". MAYFLY_SEED, MAYFLYD.
"""

import json
import os
import re
import struct
import tempfile
import threading
from functools import partial

import bson
from bson import Binary, Int64, ObjectId, json_util
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from bulk_write_cursor import of_bulk_write
from fault_test import ROOT, Checks, Deadline, log_in, run_parts, start, stop, until, wait_for
from guarded_server import PASSWORD, GuardedServer, code
from listed_by_uuid import listed_by_uuid

check = Checks(quiet=True)
Server = partial(GuardedServer, check, "--setParameter", "enableTestCommands=1")
UNAUTHORIZED = 13
OF_DATABASE = ["read", "readWrite", "dbAdmin", "dbOwner", "userAdmin"]

# Allowed, these would end the server, stop others, or change who may do what: only their refusal is tried.
NOT_RUN = {
    "_mergeAuthzCollections", "applyOps", "clock", "configureFailPoint", "createRole", "createUser",
    "dropAllRolesFromDatabase",
    "dropAllUsersFromDatabase", "dropDatabase", "dropRole", "dropUser", "fsync", "fsyncUnlock",
    "grantPrivilegesToRole", "grantRolesToRole", "grantRolesToUser", "killAllSessions", "killAllSessionsByPattern",
    "killOp", "killSessions", "logRotate", "replSetFreeze", "replSetInitiate", "replSetMaintenance",
    "replSetReconfig", "replSetResizeOplog", "replSetStepDown", "replSetStepUp", "replSetSyncFrom",
    "revokePrivilegesFromRole", "revokeRolesFromRole", "revokeRolesFromUser", "setClusterParameter",
    "setDefaultRWConcern", "setFeatureCompatibilityVersion", "shutdown", "testDeprecation", "testVersion2",
    "ttlPause", "updateRole", "updateUser", "waitForFailPoint",
}  # fmt: skip


def lines(user):
    """(database, command, alternatives of needs, the line) for a user of `shop`."""
    for line in (ROOT / "tests/data/privileges.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        text = line.replace("<db>", "shop").replace("<other>", "other").replace('"me"', json.dumps(user))
        m = re.fullmatch(r"(?:(\w+): )?(\{.*\}) \| (.*)", text)
        yield m[1] or "shop", json_util.loads(m[2]), [way.split() for way in m[3].split(" or ")], line


def is_system(db, collection):
    return collection.startswith("system.") or (db == "local" and collection.startswith("replset."))


def covers(granted, asked):
    """Whether the resource of a privilege is, or contains, `asked` (manual: "Resource Document")."""
    if granted.get("anyResource"):
        return True
    if granted.get("cluster") or asked == "cluster":
        return bool(granted.get("cluster")) and asked == "cluster"
    db, _, collection = ("", "", "") if asked == "every" else asked.partition(".")
    if "system_buckets" in granted:
        of_series = granted["system_buckets"] or collection.removeprefix("system.buckets.")
        return granted["db"] in ("", db) and collection == f"system.buckets.{of_series}"
    of, name = granted["db"], granted["collection"]
    if not of and not name:
        return db not in ("local", "config") and not is_system(db, collection)
    if not name:
        return of == db and not is_system(db, collection)
    return name == collection and of in ("", db)


def allowed(privileges, ways):
    def holds(term):
        if term == "login":
            return True
        actions, at = term.lstrip("!").split("@")
        for action in actions.split(","):
            has = any(
                (action in p["actions"] or "anyAction" in p["actions"]) and covers(p["resource"], at)
                for p in privileges
            )
            if has == term.startswith("!"):
                return False
        return True

    return any(all(holds(term) for term in way) for way in ways)


def roles():
    with Server() as server:
        for db in ("shop", "other"):
            server.root[db].c.insert_one({"_id": 1, "a": 1})
        all_roles = [(r, db) for db in ("shop", "other") for r in OF_DATABASE]
        shown = server.root.admin.command({"rolesInfo": 1, "showBuiltinRoles": True})["roles"]
        all_roles += [(r["role"], "admin") for r in shown if r.get("isBuiltin")]
        check(len(all_roles) > 25, f"built-in roles: {len(all_roles)}")
        for role, of in all_roles:
            info = server.root[of].command({"rolesInfo": {"role": role, "db": of}, "showPrivileges": True})
            info = info["roles"][0]
            privileges = info["privileges"] + info.get("inheritedPrivileges", [])
            name = f"{role}-{of}"
            client = server.user(name, [{"role": role, "db": of}])
            for db, command, ways, line in lines(name):
                may = allowed(privileges, ways)
                if may and (next(iter(command)) in NOT_RUN or "system." in line or "config:" in line):
                    continue
                got = code(client[db], command)
                check((got == UNAUTHORIZED) != may, f"{role}@{of}: {line}: {got}, {'allowed' if may else 'refused'}")
            client.close()


def shown():
    with Server() as server:
        for ns in ("shop.a", "shop.b", "other.c"):
            db, collection = ns.split(".")
            server.root[db][collection].insert_one({})
        one = {"resource": {"db": "shop", "collection": "a"}, "actions": ["find"]}
        server.root.shop.command({"createRole": "one", "privileges": [one], "roles": []})
        client, other = server.user("reader", ["one"]), server.user("writer", ["readWrite"])
        check(client.list_database_names() == ["shop"], "listDatabases shows the database of one collection")
        names = client.shop.command({"listCollections": 1, "nameOnly": True, "authorizedCollections": True})
        check([c["name"] for c in names["cursor"]["firstBatch"]] == ["a"], f"listCollections: {names}")
        by_options = {"listCollections": 1, "nameOnly": True, "authorizedCollections": True}
        by_options["filter"] = {"info.readOnly": False}
        found = client.shop.command(by_options)["cursor"]["firstBatch"]
        check(found == [], f"a filter says nothing of what is not shown: {found}")
        # Links between clusters, in the reply about a collection of somebody who may not read them.
        server.root.shop.b.create_index("t", expireAfterSeconds=3600)
        server.root.mayflyLink.links.insert_one({"_id": "from the other side", "phase": "running"})
        local, wide = server.user("local", ["read"]), server.user("wide", [{"role": "readAnyDatabase", "db": "admin"}])
        for who, expected in ((local, None), (wide, 1), (server.root, 1)):
            links = who.shop.command({"ttlCheck": "b"}).get("links")
            check((links and len(links)) == expected, f"ttlCheck shows links to who may read them: {links}, {expected}")
        server.root.mayflyLink.links.drop()
        own = client.admin.command({"currentOp": 1, "$ownOps": True, "$all": True})["inprog"]
        users = {u["user"] for op in own for u in op.get("effectiveUsers", [])}
        check(users == {"reader"}, f"currentOp with $ownOps: {users}")
        # Idle cursors: one's own, and those of all who may see them.
        server.root.shop.a.insert_many([{} for _ in range(5)])
        cursors = [c.shop.a.find(batch_size=2) for c in (client, other)]
        for cursor in cursors:
            next(cursor)
        for who, all_users, expected in (
            (client, False, {"reader"}),
            (other, False, {"writer"}),
            (server.root, False, set()),
            (server.root, True, {"reader", "writer"}),
        ):
            stage = {"$currentOp": {"allUsers": all_users, "idleCursors": True}}
            ops = list(who.admin.aggregate([stage, {"$match": {"type": "idleCursor"}}]))
            users = {u["user"] for op in ops for u in op["effectiveUsers"]}
            check(users == expected, f"idle cursors with allUsers {all_users}: {users}, not {expected}")
        for cursor in cursors:
            cursor.close()
        # An operation that waits, of somebody else.
        client.shop.command({"find": "a"})
        done = threading.Event()

        def wait():
            try:
                command = {"waitForFailPoint": "failCommand", "timesEntered": 1, "maxTimeMS": 60_000}
                server.root.admin.command(command)
            except OperationFailure as e:
                check(e.code == 11601, f"the operation that was killed: {e}")
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        ops = []
        while not ops:
            ops = server.root.admin.command({"currentOp": 1, "command.waitForFailPoint": {"$exists": True}})["inprog"]
        kill = {"killOp": 1, "op": ops[0]["opid"]}
        check(code(other.admin, kill) == UNAUTHORIZED, "killOp of another user's operation")
        check(not done.is_set(), "which goes on")
        check(code(server.root.admin, kill) == 0, "and by who has the action")
        thread.join(Deadline().seconds)
        client.close()
        other.close()


def user_roles():
    """$$USER_ROLES: the roles of whoever asks, with those that they are made of, wherever there are expressions."""
    with Server() as server:
        shop = server.root.shop
        shop.docs.insert_many([{"_id": 1, "for": ["hr"]}, {"_id": 2, "for": ["read"]}, {"_id": 3, "for": []}])
        shop.command({"createRole": "hr", "privileges": [], "roles": ["readWrite"]})
        mine = {"$gt": [{"$size": {"$setIntersection": ["$for", "$$USER_ROLES.role"]}}, 0]}
        shop.command({"create": "v", "viewOn": "docs", "pipeline": [{"$match": {"$expr": mine}}]})
        ann, bob = server.user("ann", ["hr"]), server.user("bob", ["read"])
        want = [{"_id": f"shop.{r}", "role": r, "db": "shop"} for r in ("hr", "readWrite")]

        def ids(cursor):
            return sorted(d["_id"] for d in cursor)

        got = ann.shop.docs.find_one({"_id": 1}, {"r": "$$USER_ROLES"})["r"]
        check(got == want, f"a projection of find: {got}")
        got = list(ann.shop.docs.aggregate([{"$limit": 1}, {"$project": {"r": "$$USER_ROLES"}}]))[0]["r"]
        check(got == want, f"a pipeline: {got}")
        got = list(ann.shop.docs.aggregate([{"$limit": 1}, {"$project": {"r": "$$r"}}], let={"r": "$$USER_ROLES"}))
        check(got[0]["r"] == want, f"let: {got}")
        for client, seen in ((ann, [1]), (bob, [2])):
            check(ids(client.shop.docs.find({"$expr": mine})) == seen, "a filter of find")
            check(client.shop.docs.count_documents({"$expr": mine}) == 1, "of an aggregate")
            check(ids(client.shop.v.find()) == seen, "a view")
            facet = [{"$facet": {"a": [{"$match": {"$expr": mine}}]}}, {"$unwind": "$a"}, {"$replaceWith": "$a"}]
            check(ids(client.shop.v.aggregate(facet)) == seen, "$facet")
            lookup = [{"$limit": 1}, {"$lookup": {"from": "v", "pipeline": [{"$match": {"$expr": mine}}], "as": "x"}}]
            got = list(client.shop.docs.aggregate(lookup))[0]["x"]
            check(ids(got) == seen, f"$lookup: {got}")
            check(client.shop.docs.distinct("_id", {"$expr": mine}) == seen, "distinct")
        set_roles = [{"$set": {"r": "$$USER_ROLES._id"}}]
        names = ["shop.hr", "shop.readWrite"]
        ann.shop.docs.update_one({"_id": 1}, set_roles)
        check(shop.docs.find_one({"_id": 1})["r"] == names, "an update pipeline")
        got = ann.shop.docs.find_one_and_update({"_id": 2}, set_roles, projection={"x": "$$USER_ROLES"})
        check(got["x"] == want, f"findAndModify: {got}")
        check(shop.docs.find_one({"_id": 2})["r"] == names, "and what it writes")
        found = ann.shop.docs.update_many({"$expr": mine}, {"$set": {"seen": 1}}).matched_count
        check(found == 1, f"a filter of update: {found}")
        check(ann.shop.docs.delete_many({"$expr": mine}).deleted_count == 1, "and of delete")
        # A cursor's later batches show what holds then; a stored filter is the same whoever writes.
        shop.many.insert_many([{"_id": i} for i in range(4)])
        cursor = ann.shop.many.find({}, {"r": {"$size": "$$USER_ROLES"}}, batch_size=2)
        check([next(cursor)["r"], next(cursor)["r"]] == [2, 2], "a first batch")
        shop.command({"grantRolesToUser": "ann", "roles": ["dbAdmin"]})
        check([d["r"] for d in cursor] == [3, 3], "and one after a role was granted")
        shop.command({"create": "checked", "validator": {"$expr": {"$eq": ["$$USER_ROLES", []]}}})
        check(code(ann.shop, {"insert": "checked", "documents": [{"_id": 1}]}) == 0, "a validator sees no roles")
        ann.close()
        bob.close()
    with tempfile.TemporaryDirectory() as folder:
        proc, client = start(folder)
        client.command("shop", {"insert": "c", "documents": [{"_id": 1}]})
        found = client.command("shop", {"find": "c", "projection": {"r": "$$USER_ROLES", "n": "$$USER_ROLES.role"}})
        found = found["cursor"]["firstBatch"]
        check(found == [{"_id": 1, "r": [], "n": []}], f"without access control there are none: {found}")
        stop(proc)


def own_roles():
    """What one may see of oneself without an action."""
    with Server() as server:
        server.root.shop.command({"createRole": "inner", "privileges": [], "roles": []})
        server.root.shop.command({"createRole": "mine", "privileges": [], "roles": ["inner"]})
        client = server.user("u", ["mine", {"role": "read", "db": "other"}])
        role = {"role": "mine", "db": "shop"}
        asked = ["mine", role, ["mine", {"role": "read", "db": "other"}], {"role": "read", "db": "other"}]
        for what in asked:
            for more in ({}, {"showPrivileges": True}, {"showAuthenticationRestrictions": True}):
                check(code(client.shop, {"rolesInfo": what, **more}) == 0, f"a role of one's own: {what} {more}")
        shown = client.shop.command({"rolesInfo": "mine"})["roles"][0]
        check(shown["inheritedRoles"] == [{"role": "inner", "db": "shop"}], f"and what it is made of: {shown}")
        others = [1, "inner", "read", {"role": "mine", "db": "other"}, ["mine", "inner"], {"role": "read", "db": "x"}]
        for what in others:
            check(code(client.shop, {"rolesInfo": what}) == UNAUTHORIZED, f"others need viewRole: {what}")
        server.root.shop.command({"revokeRolesFromUser": "u", "roles": ["mine"]})
        check(code(client.shop, {"rolesInfo": "mine"}) == UNAUTHORIZED, "as does one that was taken away")
        me = {"user": "u", "db": "shop"}
        for what in ("u", me, [me]):
            check(code(client.shop, {"usersInfo": what}) == 0, f"usersInfo about oneself: {what}")
            check(code(client.shop, {"usersInfo": what, "showPrivileges": True}) == 0, "with privileges")
            check(code(client.shop, {"usersInfo": what, "showCredentials": True}) == UNAUTHORIZED, "not credentials")
        client.close()


def messages():
    """Every refusal says which command on which database, and shows no password."""
    with Server() as server:
        client = server.user("u", [])
        seen = set()
        for db, command, ways, line in lines("u"):
            if any("login" in way for way in ways):
                continue
            name = next(iter(command))
            if "pwd" in command:
                command["pwd"] = PASSWORD
            try:
                client[db].command(command)
                check(False, f"{line}: is refused")
            except OperationFailure as e:
                if e.code != UNAUTHORIZED:
                    continue  # what is wrong with it is told before
                text = e.details["errmsg"]
                right = text.startswith(f"not authorized on {db} to execute command {{ {name}: ")
                check(right and PASSWORD not in text, f"{line}: {text}")
                seen.add(name)
        check(len(seen) > 80, f"commands that were refused: {len(seen)}")
        kill = {"killOp": 1, "op": 4_000_000}
        try:
            client.admin.command(kill)
        except OperationFailure as e:
            want = "not authorized on admin to execute command { killOp: 1, op: 4000000"
            check(e.code == UNAUTHORIZED and e.details["errmsg"].startswith(want), f"killOp: {e}")
        client.close()


def granted():
    with Server() as server:
        server.root.shop.c.insert_one({})
        client = server.user("u", [])
        check(code(client.shop, {"find": "c"}) == UNAUTHORIZED, "without a role")
        server.root.shop.command({"grantRolesToUser": "u", "roles": ["read"]})
        check(code(client.shop, {"find": "c"}) == 0, "with one that was granted")
        insert = {"insert": "c", "documents": [{"_id": ObjectId()}]}
        check(code(client.shop, insert) == UNAUTHORIZED, "which does not write")
        own = code(client.shop, {"grantRolesToUser": "u", "roles": ["readWrite"]})
        check(own == UNAUTHORIZED, "nobody grants himself a role")
        server.root.shop.command({"revokeRolesFromUser": "u", "roles": ["read"]})
        check(code(client.shop, {"find": "c"}) == UNAUTHORIZED, "and after it was revoked")
        client.close()
        # Built-in roles have these three together or none of them.
        ops = {
            "insert": {"insert": 0, "document": {}},
            "update": {"update": 0, "filter": {}, "updateMods": {"$set": {"a": 1}}},
            "remove": {"delete": 0, "filter": {"_id": 0}},
        }
        for without in ops:
            has = {"resource": {"db": "shop", "collection": "c"}, "actions": [a for a in ops if a != without]}
            server.root.shop.command({"createRole": f"no_{without}", "privileges": [has], "roles": []})
            client = server.user(f"no_{without}", [f"no_{without}"])
            for action, op in ops.items():
                got = code(client.admin, {"bulkWrite": 1, "ops": [op], "nsInfo": [{"ns": "shop.c"}]})
                check((got == UNAUTHORIZED) == (action == without), f"{action} of bulkWrite, no {without}: {got}")
            client.close()


def by_uuid():
    """An entry of applyOps that names a collection by its UUID, too (`ui`)."""
    with Server() as server:
        server.root.shop.open.insert_one({"_id": 1})
        server.root.shop.closed.insert_one({"_id": 1})
        uuid = {c["name"]: c["info"]["uuid"] for c in server.root.shop.list_collections()}
        on_open = {
            "resource": {"db": "shop", "collection": "open"},
            "actions": ["insert", "update", "remove", "find", "bypassDocumentValidation", "dropCollection"],
        }
        for name, cluster in (("plain", ["applyOps"]), ("by_uuid", ["applyOps", "useUUID"])):
            own = [on_open, {"resource": {"cluster": True}, "actions": cluster}]
            server.root.admin.command({"createRole": name, "privileges": own, "roles": []})
        plain, trusted = server.user("plain", ["plain"], "admin"), server.user("trusted", ["by_uuid"], "admin")

        def insert(client, ui, i):
            entry = {"op": "i", "ns": "shop.open", "o": {"_id": i}} | ({"ui": uuid[ui]} if ui else {})
            return code(client.admin, {"applyOps": [entry]})

        check(insert(plain, None, 2) == 0, "by its name")
        check(insert(plain, "open", 3) == UNAUTHORIZED, "by its UUID only with useUUID")
        check(insert(trusted, "open", 4) == 0, "with it")
        check(insert(trusted, "closed", 5) != 0, "a UUID of another collection than the name's is refused")
        drop = {"op": "c", "ns": "shop.$cmd", "ui": uuid["closed"], "o": {"drop": "open"}}
        check(code(trusted.admin, {"applyOps": [drop]}) != 0, "for a drop as well")
        gone = drop | {"ui": Binary(os.urandom(16), 4)}
        # The answers to these two differ, and so tell whether a collection has the UUID.
        for entry in (drop, gone, drop | {"ui": uuid["open"]}):
            nested = {"op": "c", "ns": "shop.$cmd", "o": {"applyOps": [entry]}}
            got = [code(plain.admin, {"applyOps": [e]}) for e in (entry, nested)]
            check(got == [UNAUTHORIZED] * 2, f"a command by UUID only with useUUID: {got}")
        check(code(trusted.admin, {"applyOps": [gone]}) == 0, "a drop of a collection that is gone is done already")
        update = {"op": "u", "ns": "shop.open", "ui": uuid["closed"], "o2": {"_id": 1}, "o": {"_id": 1, "x": 1}}
        check(code(trusted.admin, {"applyOps": [update]}) != 0, "and for an update")
        nested = {"op": "c", "ns": "admin.$cmd", "o": {"applyOps": [update]}}
        check(code(trusted.admin, {"applyOps": [nested]}) != 0, "also within applyOps")
        check(list(server.root.shop.closed.find()) == [{"_id": 1}], "and the other one is as it was")
        ids = sorted(d["_id"] for d in server.root.shop.open.find())
        check(ids == [1, 2, 4], f"as is what was named: {ids}")
        for c in (plain, trusted):
            c.close()


def views():
    """Who changes what a view shows reads nothing by it that they could not read; who reads it needs the view alone."""
    with Server() as server:
        server.root.shop.secret.insert_one({"_id": "secret"})
        server.root.shop.known.insert_one({"_id": "known"})
        server.root.shop.command({"create": "v", "viewOn": "known", "pipeline": []})

        def role(name, *privileges):
            own = [{"resource": {"db": "shop", "collection": c}, "actions": a} for c, a in privileges]
            server.root.shop.command({"createRole": name, "privileges": own, "roles": []})
            return server.user(name, [name])

        makes = ["collMod", "createCollection", "dropCollection"]
        reader = role("reader", ("v", ["find"]))
        both = role("both", ("v", [*makes, "find"]), ("known", ["find"]))
        blind = role("blind", ("v", makes))
        lookup = [{"$lookup": {"from": "secret", "pipeline": [], "as": "x"}}]
        union = [{"$facet": {"x": [{"$unionWith": "secret"}]}}]
        for on, pipeline in (("secret", []), ("known", lookup), ("known", union)):
            change = {"collMod": "v", "viewOn": on, "pipeline": pipeline}
            check(code(both.shop, change) == UNAUTHORIZED, f"who reads the view needs its sources: {change}")
            make = {"create": "w", "viewOn": on, "pipeline": pipeline}
            check(code(both.shop, make) == UNAUTHORIZED, f"and to make one: {make}")
        check(
            code(both.shop, {"collMod": "v", "viewOn": "known", "pipeline": [{"$match": {}}]}) == 0, "of which it may"
        )
        check(
            code(both.shop, {"collMod": "v", "pipeline": lookup}) == UNAUTHORIZED, "also when only the pipeline changes"
        )
        check(code(blind.shop, {"collMod": "v", "viewOn": "secret", "pipeline": []}) == 0, "who cannot read it may")
        check(code(blind.shop, {"find": "v"}) == UNAUTHORIZED, "and does not")
        check(code(blind.shop, {"aggregate": "v", "pipeline": [], "cursor": {}}) == UNAUTHORIZED, "in any way")
        seen = reader.shop.v.find_one()
        check(seen == {"_id": "secret"}, f"who may read the view reads what it shows: {seen}")
        check(code(reader.shop, {"find": "secret"}) == UNAUTHORIZED, "and not what it is on")
        check(code(reader.shop, {"collMod": "v", "pipeline": []}) == UNAUTHORIZED, "nor changes it")
        for c in (reader, both, blind):
            c.close()


def before_users():
    """Results of retryable writes from before access control are nobody's: no user gets them."""
    folder = tempfile.TemporaryDirectory()
    lsid, insert = {"id": Binary(os.urandom(16), 4)}, {"insert": "c", "documents": [{"_id": 1}]}
    retried = {**insert, "lsid": lsid, "txnNumber": Int64(1)}
    data = folder.name + "/data"
    options = ("--replSet", "rs0", "--setParameter", "enableTestCommands=1")
    proc, client = start(data, *options)
    client.command("admin", {"replSetInitiate": {}})
    check(client.command("shop", retried)["n"] == 1, "a retryable write without access control")
    client.command("admin", {"createUser": "ann", "pwd": PASSWORD, "roles": ["root"]})
    check(stop(proc) == 0, "the server stops")
    key = f"{folder.name}/key"
    with open(key, "w") as f:
        f.write("0123456789abcdef")
    os.chmod(key, 0o600)
    port = ("--port", str(proc.port))
    for access in (True, False):
        proc, client = start(data, *options, *port, *(["--keyFile", key] if access else []))
        wait_for(lambda: client.command("admin", {"hello": 1})["isWritablePrimary"])
        ann = log_in(proc.port, "ann", PASSWORD) if access else client
        r = ann.command("shop", retried)
        if access:
            errors = [e["code"] for e in r.get("writeErrors", [])]
            check(errors == [11000], f"by a user it is a write of its own: {r}")
        else:
            check(r["n"] == 1 and "writeErrors" not in r, f"without access control it is known: {r}")
        check(stop(proc) == 0, "the server stops")
    folder.cleanup()


class Twice:
    """A document with a field that is there more than once, which no dict can have."""

    def __new__(cls, *pairs):
        body = b"".join(bson.encode({name: value})[4:-1] for name, value in pairs)
        return RawBSONDocument(struct.pack("<i", len(body) + 5) + body + b"\0")


def escalation():
    """Ways to what was not given, each of which led there once."""
    with Server() as server:
        admin, nobody = server.user("admin", ["userAdmin"]), server.user("nobody", [])
        root = Twice(("role", "root"), ("db", "shop"), ("db", "admin"))
        for command in (
            {"grantRolesToUser": "admin", "roles": [root]},
            {"updateUser": "admin", "roles": [root]},
            {"createUser": "more", "pwd": PASSWORD, "roles": [root]},
            {"createRole": "more", "privileges": [], "roles": [root]},
            {"rolesInfo": root},
        ):
            check(code(admin.shop, command) == UNAUTHORIZED, f"a role of two databases: {next(iter(command))}")
        # Also to who may grant both: it is no name.
        check(code(server.root.shop, {"grantRolesToUser": "admin", "roles": [root]}) == 40413, "which nobody can grant")
        info = server.root.shop.command({"usersInfo": "admin"})["users"][0]
        check(info["roles"] == [{"role": "userAdmin", "db": "shop"}], f"nothing has come of it: {info['roles']}")
        other = Twice(("user", "nobody"), ("db", "shop"), ("user", "root"), ("db", "admin"))
        check(code(nobody.shop, {"usersInfo": other}) == UNAUTHORIZED, "another user under one's own name")
        # An archive into which one may only insert: what expires would take the place of what is there.
        server.root.other.old.insert_one({"_id": 1})
        only = [{"resource": {"db": "other", "collection": "old"}, "actions": ["insert"]}]
        server.root.admin.command({"createRole": "appends", "privileges": only, "roles": []})
        owner = server.user("owner", [{"role": "dbOwner", "db": "shop"}, {"role": "appends", "db": "admin"}])
        archive = {"action": "archive", "into": {"db": "other", "coll": "old"}}
        check(code(owner.shop, {"create": "c", "onExpire": archive}) == UNAUTHORIZED, "create with such an archive")
        check(code(owner.shop, {"create": "c"}) == 0, "and without")
        check(code(owner.shop, {"collMod": "c", "onExpire": archive}) == UNAUTHORIZED, "collMod to such an archive")
        server.root.admin.command(
            {"grantPrivilegesToRole": "appends", "privileges": [{**only[0], "actions": ["update"]}]}
        )
        check(code(owner.shop, {"collMod": "c", "onExpire": archive}) == 0, "with update as well it goes")
        # An archive of documents that one may not read, where one may.
        blind = server.user("blind", ["dbAdmin", {"role": "appends", "db": "admin"}, {"role": "read", "db": "other"}])
        check(code(blind.shop, {"collMod": "c", "onExpire": archive}) == UNAUTHORIZED, "an archive to read by")
        check(code(blind.shop, {"create": "more", "onExpire": archive}) == UNAUTHORIZED, "also of a new collection")
        # Or of those that one may read and not remove: they leave the collection when the rule says so.
        applies = [{"resource": {"cluster": True}, "actions": ["applyOps"]}]
        server.root.admin.command({"createRole": "applies", "privileges": applies, "roles": []})
        mover = server.user("mover", ["dbAdmin", "read", *({"role": r, "db": "admin"} for r in ("appends", "applies"))])
        for command in ({"collMod": "c", "onExpire": archive}, {"create": "more", "onExpire": archive}):
            check(code(mover.shop, command) == UNAUTHORIZED, f"an archive to remove by: {command}")
            entry = {"op": "c", "ns": "shop.$cmd", "o": command}
            check(code(mover.admin, {"applyOps": [entry]}) == UNAUTHORIZED, f"by an entry of an oplog: {command}")
        # A document past its deadline, which ttlExplain would find by what is in it.
        server.root.shop.create_collection("old")
        server.root.shop.command({"ttlPause": "old"})
        past = {"insert": "old", "documents": [{"_id": 1, "word": "hidden"}], "expireAfterSeconds": 1}
        server.root.shop.command(past)
        while server.root.shop.old.find_one():
            pass
        rule = {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 60}
        reader, explain = server.user("reader", ["read"]), {"ttlExplain": "old", "q": {"word": "hidden"}}
        check(code(reader.shop, explain) == 47, "ttlExplain without readExpired finds none")
        check(code(owner.shop, explain) == 0, "and with it one")
        server.root.shop.command({"createIndexes": "old", "indexes": [rule]})
        counted = reader.shop.command({"ttlCheck": "old", "index": "at"})
        check(counted["neverExpires"] == {"missing": 1} and not counted["samples"], f"ttlCheck names none: {counted}")
        for client in (admin, nobody, owner, blind, mover, reader):
            client.close()


def databases():
    """A command is about one database. Each of these once did in one database what had been asked for another."""
    with Server() as server:
        for db in ("shop", "other"):
            server.root[db].c.insert_one({"_id": 1, "word": "hidden"})
        applies = [{"resource": {"cluster": True}, "actions": ["applyOps"]}]
        server.root.admin.command({"createRole": "applies", "privileges": applies, "roles": []})
        reader = server.user("reader", ["read"])
        owner = server.user("owner", ["dbOwner", {"role": "applies", "db": "admin"}])
        find = Twice(("find", "c"), ("filter", {"word": "hidden"}), ("$db", "shop"), ("$db", "other"))
        explained = code(reader.shop, {"explain": find, "verbosity": "executionStats"})
        check(explained == 40413, f"explain of a command with two databases: {explained}")
        count = Twice(("count", "c"), ("$db", "shop"), ("$db", "shop"))
        check(code(reader.shop, {"explain": count}) == 40413, "or with one and the same twice")
        check(code(reader.shop, {"explain": {"count": "c", "$db": "shop"}}) == 0, "which it may have once")
        inner = {"explain": {"find": "c", "$db": "other"}}
        check(code(reader.shop, inner) == 73, "explain of a command for another database")
        for o in ({"drop": "c", "$db": "other"}, {"dropDatabase": 1, "$db": "other"}, {"create": "x", "$db": "other"}):
            entry = {"op": "c", "ns": "shop.$cmd", "o": o}
            for entries in ([entry], [{"op": "c", "ns": "shop.$cmd", "o": {"applyOps": [entry]}}]):
                for client in (owner, server.root):
                    got = code(client.admin, {"applyOps": entries})
                    check(got == 73, f"applyOps with {o}: {got}")
        check(server.root.other.list_collection_names() == ["c"], "nothing has come of it")
        # The same collection by its UUID, which no grant on the database reaches.
        server.root.shop.command({"createUser": "x", "pwd": PASSWORD, "roles": []})
        of_users = {"listCollections": 1, "filter": {"name": "system.users"}}
        uuid = server.root.admin.command(of_users)["cursor"]["firstBatch"][0]["info"]["uuid"]
        any_of_them = server.user("any", ["dbAdminAnyDatabase"], "admin")
        check(code(any_of_them.admin, {"listIndexes": uuid}) == UNAUTHORIZED, "listIndexes of users by UUID")
        uses = [{"resource": {"cluster": True}, "actions": ["useUUID"]}]
        server.root.admin.command({"createRole": "uses", "privileges": uses, "roles": ["dbAdminAnyDatabase"]})
        server.root.admin.command({"updateUser": "any", "roles": ["uses"]})
        check(code(any_of_them.admin, {"listIndexes": uuid}) == UNAUTHORIZED, "also with useUUID")
        of_c = {"listCollections": 1, "filter": {"name": "c"}}
        uuid = server.root.shop.command(of_c)["cursor"]["firstBatch"][0]["info"]["uuid"]
        check(code(any_of_them.shop, {"listIndexes": uuid}) == 0, "of a collection that it may")
        # What expired of the users, in a list of all databases.
        server.root.admin.command({"touch": "system.users", "q": {"user": "x"}, "expireAfterSeconds": 1})
        server.root.shop.command({"insert": "c", "documents": [{"_id": 2}], "expireAfterSeconds": 1})
        expired = server.user("expired", ["expiryAdmin"], "admin")
        tombstones = lambda: [t["ns"] for t in expired.admin.aggregate([{"$tombstones": {}}])]
        check(until(lambda: "shop.c" in tombstones(), 90), "who administers expiry sees what has expired")
        asked = {"usersInfo": {"user": "x", "db": "shop"}}
        check(until(lambda: not server.root.admin.command(asked)["users"], 90), "a user has expired as well")
        sees = [{"resource": {"db": "admin", "collection": "system.users"}, "actions": ["readExpired"]}]
        server.root.admin.command({"createRole": "sees", "privileges": sees, "roles": []})
        server.root.admin.command({"grantRolesToUser": "expired", "roles": ["sees"]})
        of_users = lambda: [t["id"] for t in expired.admin.system.users.aggregate([{"$tombstones": {}}])]
        check(until(lambda: "shop.x" in of_users(), 90), f"the collection's own list has that user: {of_users()}")
        check(set(tombstones()) == {"shop.c"}, f"a list of all does not tell: {tombstones()}")
        for client in (reader, owner, any_of_them, expired):
            client.close()


def archives():
    """An archive belongs to its collection: it goes on when who has set it loses the rights, or goes, and whoever comes
    after needs them all to set it again."""
    with Server() as server:
        server.root.shop.create_collection("c")
        server.root.kept.create_collection("old")
        own = [{"resource": {"db": "kept", "collection": "old"}, "actions": ["insert", "update"]}]
        server.root.admin.command({"createRole": "keeps", "privileges": own, "roles": []})
        owner = server.user("owner", [{"role": "dbOwner", "db": "shop"}, {"role": "keeps", "db": "admin"}])
        archive = {"action": "archive", "into": {"db": "kept", "coll": "old"}}
        set_it = {"collMod": "c", "onExpire": archive}
        check(code(owner.shop, set_it) == 0, "who may write to the archive sets it")

        def expire(number):
            documents = [{"_id": number}]
            server.root.shop.command({"insert": "c", "documents": documents, "expireAfterSeconds": 1})
            return until(lambda: server.root.kept.old.find_one({"_id": number}), 60)

        check(expire(1), "what expires goes there")
        server.root.shop.command({"revokeRolesFromUser": "owner", "roles": [{"role": "keeps", "db": "admin"}]})
        check(expire(2), "also once its owner may not write there any more")
        check(code(owner.kept, {"insert": "old", "documents": [{"_id": 9}]}) == UNAUTHORIZED, "who does not by himself")
        check(code(owner.shop, set_it) == UNAUTHORIZED, "nor sets it again")
        other = {**archive, "into": {"db": "kept", "coll": "other"}}
        check(code(owner.shop, {"collMod": "c", "onExpire": other}) == UNAUTHORIZED, "or to another place")
        server.root.shop.command({"dropUser": "owner"})
        check(expire(3), "nor does it end with that user")
        second = server.user("second", ["dbOwner"])
        off = {"collMod": "c", "onExpire": {"action": "delete"}}
        check(code(second.shop, off) == 0, "whoever may change the collection ends it")
        for client in (owner, second):
            client.close()


def cursors():
    """What was opened while it was allowed ends when it is allowed no more."""
    with Server() as server:
        server.root.shop.c.insert_many([{"_id": i} for i in range(20)])
        client = server.user("u", ["read"])
        long = {"_id": {"$in": list(range(20)) + ["x" * 1000] * 40}}
        with client.start_session() as session:

            def open_one(filter):
                command = {"find": "c", "filter": filter, "batchSize": 2}
                return client.shop.command(command, session=session)["cursor"]["id"]

            def more(cursor):
                try:
                    client.shop.command({"getMore": cursor, "collection": "c", "batchSize": 2}, session=session)
                    return 0
                except OperationFailure as e:
                    return e.code

            opened = [open_one({}), open_one(long)]
            check([more(c) for c in opened] == [0, 0], "cursors of a short and a long command")
            server.root.shop.command({"createUser": "somebody", "pwd": PASSWORD, "roles": []})
            check([more(c) for c in opened] == [0, 0], "go on when others change")
            server.root.shop.command({"updateUser": "u", "roles": ["readWrite"]})
            check([more(c) for c in opened] == [0, 0], "and with other roles that allow it")
            server.root.shop.command({"updateUser": "u", "roles": [{"role": "read", "db": "other"}]})
            check([more(c) for c in opened] == [UNAUTHORIZED] * 2, "but not with some that do not")
            server.root.shop.command({"updateUser": "u", "roles": ["read"]})
            check([more(c) for c in opened] == [43, 43], "they are gone for good")
        client.close()
        listed_by_uuid(server, check)
        for beside in (True, False):
            of_bulk_write(server, f"b{int(beside)}", beside, check, log_in, PASSWORD)


def waiting():
    """A getMore that waits for documents while its user is dropped."""
    with Server() as server:
        server.root.shop.create_collection("log", capped=True, size=65536)
        server.root.shop.log.insert_one({"_id": 0})
        drop, revoke = {"dropUser": "u"}, {"revokeRolesFromUser": "u", "roles": ["read"]}
        # Nothing need come for the cursor to see it.
        for change, comes in ((drop, True), (revoke, True), (drop, False), (revoke, False)):
            client = server.user("u", ["read"])
            done = []
            with client.start_session() as session:
                find = {"find": "log", "tailable": True, "awaitData": True}
                cursor = client.shop.command(find, session=session)["cursor"]["id"]

                def wait(client=client, cursor=cursor, session=session, done=done):
                    try:
                        command = {"getMore": cursor, "collection": "log", "maxTimeMS": 60_000}
                        done.append(client.shop.command(command, session=session)["cursor"]["nextBatch"])
                    except OperationFailure as e:
                        done.append(e.code)

                thread = threading.Thread(target=wait)
                thread.start()
                waits = {"currentOp": 1, "command.getMore": cursor}
                while not server.root.admin.command(waits)["inprog"]:
                    pass
                server.root.shop.command(change)
                if comes:
                    server.root.shop.log.insert_one({})
                thread.join(Deadline().seconds)
                check(done == [UNAUTHORIZED], f"{next(iter(change))} during a getMore: {done}")
            client.close()
            server.root.shop.command({"dropAllUsersFromDatabase": 1})


def dump(admin):
    """What `mongodump` and `mongodump --db shop --dumpDbUsersAndRoles` read of users and roles."""
    check(admin.command("getParameter", 1, authSchemaVersion=1)["authSchemaVersion"] == 5, "the format is known")
    check(admin["system.version"].count_documents({"_id": "authSchema"}) == 1, "and stored beside the users")
    check({"system.users", "system.roles", "system.version"} <= set(admin.list_collection_names()), "they are listed")
    return {name: list(admin[f"system.{name}"].find()) for name in ("users", "roles")}


def restore(admin, dumped, **more):
    """What `mongorestore` does with them; the code."""
    check(admin.command("getParameter", 1, authSchemaVersion=1)["authSchemaVersion"] == 5, "the format is known")
    merge = {"_mergeAuthzCollections": 1}
    for name, documents in dumped.items():
        temp = f"temp{name}"
        admin.list_collection_names()
        insert = {"insert": temp, "documents": documents, "ordered": False, "bypassDocumentValidation": True}
        admin.command(insert)
        merge[f"temp{name.capitalize()}Collection"] = f"admin.{temp}"
    got = code(admin, {**merge, "drop": False, "db": "", "writeConcern": {"w": "majority"}, **more})
    for name in dumped:
        admin[f"temp{name}"].drop()
    return got


def restored():
    with Server() as source, Server() as target:
        find = {"resource": {"db": "shop", "collection": "c"}, "actions": ["find"]}
        source.root.shop.command({"createRole": "clerk", "privileges": [find], "roles": []})
        extra = {"customData": {"team": 7}, "authenticationRestrictions": [{"clientSource": ["127.0.0.0/8"]}]}
        source.root.shop.command({"createUser": "app", "pwd": PASSWORD, "roles": ["clerk"], **extra})
        source.root.shop.command(
            {"createUser": "old", "pwd": PASSWORD, "roles": ["read"], "mechanisms": ["SCRAM-SHA-1"]}
        )
        backup = source.user("saver", ["backup"], "admin")
        dumped = dump(backup.admin)
        check(len(dumped["users"]) == 4 and len(dumped["roles"]) == 1, f"what was dumped: {dumped}")
        backup.close()

        target.root.shop.c.insert_one({"_id": 1})
        for name in ("shop", "admin"):
            target.root[name].command({"createUser": "here", "pwd": PASSWORD, "roles": ["userAdmin", "readWrite"]})
            client = target.client("here", name)
            merge = {"_mergeAuthzCollections": 1, "tempUsersCollection": "admin.tempusers", "db": "shop"}
            check(code(client.admin, merge) == UNAUTHORIZED, f"an administrator of {name} alone may not")
            client.close()
        target.root.admin.command({"dropUser": "here"})
        restorer = target.user("restorer", ["restore"], "admin")
        got = restore(restorer.admin, dumped)
        check(got == 0, f"a user with the role restore: {got}")
        # Another user of the same name is in the place of who made this connection.
        check(code(target.root.admin, {"usersInfo": 1}) == UNAUTHORIZED, "who was replaced is not logged in any more")
        target.root.close()
        target.root = target.client("root", "admin")
        for user in ("app", "old"):
            client = target.client(user, "shop")
            check(code(client.shop, {"find": "c"}) == 0, f"{user} logs in with the old password and may read")
            check(code(client.shop, {"find": "d"}) == (UNAUTHORIZED if user == "app" else 0), "and no more than before")
            client.close()
        asked = {"usersInfo": {"user": "app", "db": "shop"}, "showAuthenticationRestrictions": True}
        shown = [s.root.shop.command(asked)["users"][0] for s in (source, target)]
        check(shown[0] == shown[1], f"nothing of a user is lost: {shown}")
        names = [(u["db"], u["user"]) for u in target.root.admin.command({"usersInfo": {"forAllDBs": True}})["users"]]
        check(("shop", "here") in names and ("admin", "restorer") in names, f"others are still there: {names}")

        # --db shop --restoreDbUsersAndRoles --drop: of this database only, and what the dump does not have goes.
        open_one = target.client("here", "shop")
        check(code(open_one.shop, {"find": "c"}) == 0, "a user who is not in the dump")
        one = {name: [d for d in documents if d["db"] == "shop"] for name, documents in dumped.items()}
        check(restore(restorer.admin, one, db="shop", drop=True) == 0, "with drop")
        check(code(open_one.shop, {"find": "c"}) == UNAUTHORIZED, "goes at once, on open connections")
        open_one.close()
        names = [(u["db"], u["user"]) for u in target.root.admin.command({"usersInfo": {"forAllDBs": True}})["users"]]
        check(("admin", "restorer") in names and len(names) == 5, f"other databases are left alone: {names}")
        # A document that is nobody's: nothing is changed.
        bad = {
            "users": [*one["users"], {"_id": "shop.bad", "user": "bad", "db": "shop", "credentials": 1, "roles": []}]
        }
        check(restore(restorer.admin, bad, db="shop", drop=True) == 12, "a dump that cannot be used")
        check(len(target.root.shop.command({"usersInfo": 1})["users"]) == 2, "changes nothing")
        restorer.close()


PARTS = (
    roles, shown, user_roles, own_roles, messages, granted, by_uuid, views, before_users, escalation, databases,
    archives, cursors, waiting, restored,
)  # fmt: skip
run_parts("access", PARTS, check)
