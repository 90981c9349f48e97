#!/usr/bin/env python3
"""What belongs to who asks, where the one who asks has changed since the cursor was opened: another connection of the
user, other roles, no login any more.
  sessions   $listSessions and $listLocalSessions: one's own, and others' with the action
  stages     $currentOp in a batch that another connection asks for than the one that opened the cursor
  roles      $$USER_ROLES in a getMore that waits while roles change
  profile    the user of each entry of system.profile
  names      listCollections {authorizedCollections} in batches after the roles have gone, or have become others
  views      system.views: who may drop what it shows, and what cursors on large definitions keep
  idle       a transaction that waits is of the user who began it, whoever logs in after that on its connection
The last line says "N passed, N failed". MAYFLYD.
"""

import base64, os, tempfile, threading, uuid

from bson import Binary, Int64

from fault_test import Checks, Client, Deadline, initiate, log_in, memory_mb, run_parts, until
from own_server import OwnServer, code

check = Checks()
DENIED = 13
PASSWORD = "only of this test"


class Server(OwnServer):
    check, root_password = check, PASSWORD

    def user(self, name, *roles):
        self.connect("root").admin.command("createUser", name, pwd=PASSWORD, roles=list(roles))
        return self.connect(name)

    def by_hand(self, name):
        return log_in(self.port, name, PASSWORD)


def ids(documents):
    return {bytes(d["_id"]["id"]) for d in documents}


def sessions():
    """One's own sessions need no action, others' listSessions; a view shows whoever reads it their own."""
    with Server() as s:
        root = s.first_user()
        ann, bob = s.user("ann"), s.user("bob")
        with ann.start_session() as of_ann, bob.start_session() as of_bob:
            ann.admin.command("ping", session=of_ann)
            bob.admin.command("ping", session=of_bob)
            both = [bytes(x.session_id["id"]) for x in (of_ann, of_bob)]
            root.admin.command("refreshLogicalSessionCacheNow")
            named = [{"user": u, "db": "admin"} for u in ("ann", "bob")]

            def local(who, spec):
                return ids(who.admin.aggregate([{"$listLocalSessions": spec}]))

            def stored(who, spec):
                return ids(who.config["system.sessions"].aggregate([{"$listSessions": spec}]))

            for where in (local, stored):
                for who, spec, want in (
                    (ann, {}, [True, False]),
                    (bob, {}, [False, True]),
                    (ann, {"users": named[:1]}, [True, False]),
                    (root, {}, [False, False]),
                    (root, {"allUsers": True}, [True, True]),
                    (root, {"users": named[1:]}, [False, True]),
                ):
                    found = where(who, spec)
                    check([i in found for i in both] == want, f"{where.__name__} {spec}: {want}")
                for spec in ({"allUsers": True}, {"users": named}, {"users": named[1:]}, {"users": ["bob"]}):
                    check(code(where, ann, spec) == DENIED, f"{where.__name__} {spec} needs listSessions")
            check(code(local, s.connect(), {}) == DENIED, "and all of them a login")
            root.config.command("create", "v", viewOn="system.sessions", pipeline=[{"$listSessions": {}}])
            see = [{"resource": {"db": "config", "collection": "v"}, "actions": ["find"]}]
            root.admin.command("createRole", "see", privileges=see, roles=[])
            root.admin.command("grantRolesToUser", "ann", roles=["see"])
            for what, found in (
                ("find", ann.config.v.find()),
                ("aggregate", ann.config.v.aggregate([])),
                ("distinct", [{"_id": {"id": i}} for i in ann.config.v.distinct("_id.id")]),
            ):
                found = ids(found)
                check([i in found for i in both] == [True, False], f"{what} on a view of sessions: one's own")


def stages():
    """The connection that opened the cursor is gone, and its memory free, before the stage makes its documents."""
    with Server() as s:
        root = s.first_user()
        s.user("ann")
        bob = s.by_hand("root")
        for all_users, want in ((False, {"ann"}), (True, {"ann", "root"})):
            if all_users:
                root.admin.command("grantRolesToUser", "ann", roles=["clusterMonitor"])
            first, second = s.by_hand("ann"), s.by_hand("ann")
            stage = {"$currentOp": {"idleConnections": True, "allUsers": all_users}}
            command = {"aggregate": 1, "pipeline": [stage], "cursor": {"batchSize": 0}}
            cursor = first.command("admin", command)["cursor"]["id"]
            address = "%s:%d" % first.sock.getsockname()
            first.sock.close()
            everybody = lambda: root.admin.command("currentOp", **{"$all": True})["inprog"]
            check(until(lambda: all(op.get("client") != address for op in everybody())), "a connection goes")
            got = second.command("admin", {"getMore": cursor, "collection": "$cmd.aggregate"})
            users = {u["user"] for op in got["cursor"]["nextBatch"] for u in op.get("effectiveUsers", [])}
            check(users == want, f"$currentOp, allUsers {all_users}, shows operations of {users}")
        bob.sock.close()


def roles():
    """The roles that it shows are not those that it began with, whose memory is free by then."""
    with Server() as s:
        root = s.first_user()
        read = {"role": "read", "db": "shop"}
        root.shop.create_collection("log", capped=True, size=65536)
        root.shop.log.insert_one({"_id": 0})
        ann, said = s.user("ann", read), []
        ann.close()
        ann = s.by_hand("ann")
        find = {"find": "log", "tailable": True, "awaitData": True, "projection": {"r": "$$USER_ROLES.role"}}
        cursor = ann.command("shop", find)["cursor"]
        check(cursor["firstBatch"] == [{"_id": 0, "r": ["read"]}], f"a first batch: {cursor}")
        more = {"getMore": cursor["id"], "collection": "log", "maxTimeMS": 60_000}
        thread = threading.Thread(target=lambda: said.append(ann.command("shop", more)))
        thread.start()
        waits = lambda: root.admin.command("currentOp", **{"command.getMore": cursor["id"]})["inprog"]
        check(until(waits), "a getMore waits")
        root.admin.command("grantRolesToUser", "ann", roles=[{"role": "dbAdmin", "db": "shop"}])
        root.shop.log.insert_one({"_id": 1})
        thread.join(Deadline(90).seconds)
        got = said and said[0].get("cursor", {}).get("nextBatch", said[0])
        check([sorted(d["r"]) for d in got] == [["dbAdmin", "read"]], f"after it has waited: {got}")


def names():
    """Everybody may run it, so each batch shows what its reader may see by then."""
    with Server() as s:
        root = s.first_user()
        for name in "abcd":
            root.shop.create_collection(name)
        one = {"resource": {"db": "shop", "collection": "c"}, "actions": ["find"]}
        root.shop.command("createRole", "one", privileges=[one], roles=[])
        read = [{"role": "read", "db": "shop"}]
        for roles, want in (([], []), ([{"role": "one", "db": "shop"}], ["c"]), (read, ["b", "c", "d"])):
            s.user("ann", *read).close()
            ann = s.by_hand("ann")
            command = {"listCollections": 1, "nameOnly": True, "authorizedCollections": True}
            cursor = ann.command("shop", command | {"cursor": {"batchSize": 1}})["cursor"]
            check([d["name"] for d in cursor["firstBatch"]] == ["a"], f"a first batch: {cursor}")
            root.admin.command("updateUser", "ann", roles=roles)
            found, more = [], {"collection": cursor["ns"].split(".", 1)[1], "batchSize": 1}
            while cursor["id"]:
                cursor = ann.command("shop", {"getMore": Int64(cursor["id"])} | more)["cursor"]
                found += [d["name"] for d in cursor["nextBatch"]]
            check(found == want, f"with the roles {roles} the other batches show {found}")
            ann.sock.close()
            root.admin.command("dropUser", "ann")


def profile():
    """The profile says whose an operation was."""
    for auth in (True, False):
        with Server(auth=auth) as s:
            root = s.first_user() if auth else s.connect()
            ann = s.user("ann", {"role": "readWrite", "db": "shop"}) if auth else s.connect()
            root.shop.command("profile", 2)
            named = lambda user: (f"{user}@admin", [{"user": user, "db": "admin"}]) if auth else ("", [])
            want = {1: named("ann"), 2: named("root")}
            ann.shop.c.find_one({"x": 1})
            root.shop.c.find_one({"x": 2})

            def rows():
                found = root.shop.system.profile.find({"ns": "shop.c", "op": "query"})
                return {d["command"]["filter"]["x"]: (d["user"], d["allUsers"]) for d in found}

            check(until(lambda: len(rows()) == 2) and rows() == want, f"access control {auth}: {rows()}, not {want}")


def views():
    """To drop system.views is to drop each view. A cursor that waits keeps no definition: of 40 on a view of 12 MB each
    kept one."""
    with Server() as s:
        root = s.first_user()
        root.shop.c.insert_one({"_id": 1})
        for name in ("v1", "v2"):
            root.shop.command("create", name, viewOn="c", pipeline=[])
        drop = lambda *names: [
            {"resource": {"db": "shop", "collection": name}, "actions": ["dropCollection"]} for name in names
        ]
        root.shop.command("createRole", "some", privileges=drop("system.views", "v2"), roles=[])
        root.shop.command("createRole", "every", privileges=drop("system.views", "v1", "v2"), roles=[])
        ann, bob = (s.user(n, {"role": r, "db": "shop"}) for n, r in (("ann", "some"), ("bob", "every")))
        there = lambda: sorted(d["name"] for d in root.shop.list_collections())
        check(code(ann.shop.command, "drop", "system.views") == DENIED, "who may drop one of two views")
        check(there() == ["c", "system.views", "v1", "v2"], f"drops none: {there()}")
        check(code(bob.shop.command, "drop", "system.views") == 0, "who may drop both")
        check(there() == ["c"], f"drops them: {there()}")
        large = [{"$match": {"$comment": "x" * 12_000_000}}]
        for name in ("v1", "v2"):
            root.shop.command("create", name, viewOn="c", pipeline=large)
        find = {"find": "system.views", "projection": {"_id": 1}, "batchSize": 1}
        admin = s.by_hand("root")
        check(admin.command("shop", find)["cursor"]["id"] != 0, "one cursor")
        before = memory_mb(s.proc.pid)
        cursors = [admin.command("shop", find)["cursor"]["id"] for _ in range(40)]
        check(all(cursors), "40 cursors wait")
        more = memory_mb(s.proc.pid) - before
        check(more < 240, f"they keep {more} MB, which is less than half of a definition each")
        left = admin.command("shop", {"getMore": Int64(cursors[0]), "collection": "system.views"})["cursor"]
        check([d["_id"] for d in left["nextBatch"]] == ["shop.v2"], f"and go on: {left}")


def idle():
    """Its connection says nothing about whose it is."""
    with tempfile.TemporaryDirectory() as folder:
        key = f"{folder}/key"
        with open(key, "w") as f:
            f.write(base64.b64encode(os.urandom(36)).decode())
        os.chmod(key, 0o600)
        with Server("--replSet", "rs0", "--keyFile", key) as s:
            initiate(Client("127.0.0.1", s.port), f"127.0.0.1:{s.port}")
            root = s.first_user()
            root.shop.create_collection("c")
            root.shop.command("profile", 2)
            for name, roles in (("ann", [{"role": "readWrite", "db": "shop"}]), ("bob", [])):
                root.admin.command("createUser", name, pwd=PASSWORD, roles=roles)
            client, elsewhere = s.by_hand("ann"), s.by_hand("ann")
            of = {"lsid": {"id": Binary(uuid.uuid4().bytes, 4)}, "txnNumber": Int64(7), "autocommit": False}
            insert = {"insert": "c", "documents": [{"_id": 1}], "startTransaction": True}
            check(client.command("shop", insert | of)["ok"] == 1, "a transaction begins")

            def shown(who, **spec):
                command = {"aggregate": 1, "pipeline": [{"$currentOp": spec}], "cursor": {}}
                batch = who.command("admin", command)["cursor"]["firstBatch"]
                return [d["effectiveUsers"] for d in batch if d.get("type") == "idleSession"]

            anns, admin = [[{"user": "ann", "db": "admin"}]], s.by_hand("root")
            check(shown(elsewhere) == anns, "its user sees it on another connection")
            check(client.command("admin", {"logout": 1})["ok"] == 1, "its user logs out")
            check(shown(elsewhere) == anns, "and sees it still, on the other connection")
            log_in(s.port, "bob", PASSWORD, client=client)
            check(shown(client) == [], f"who logs in behind ann is shown {shown(client)}")
            check(shown(elsewhere) == anns, f"ann is shown {shown(elsewhere)}")
            found = shown(admin, allUsers=True)
            check(found == anns, f"whoever sees everything sees whose it is: {found}")
            check(elsewhere.command("admin", {"commitTransaction": 1} | of)["ok"] == 1, "it is ann's to commit")
            rows = lambda: list(root.shop.system.profile.find({"op": "transaction"}))
            check(until(lambda: len(rows()) == 1), "the profile has the transaction")
            whose = [(d["user"], d["allUsers"]) for d in rows()]
            check(whose == [("ann@admin", anns[0])], f"in the profile it is of {whose}")


run_parts("own data", [sessions, stages, roles, names, views, profile, idle], check)
