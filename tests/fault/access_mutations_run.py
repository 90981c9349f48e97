#!/usr/bin/env python3
"""Who owns one database, may use one collection or has a built-in role sends commands that are nearly right: those of
tests/data/privileges.txt, with fields that are there twice, that were moved to another depth or taken out, that belong
elsewhere or that name another database, at any depth, and with lists as sequences of documents beside the command.
What reads a command to say whether it is allowed and what carries it out must see the same: nothing that the user's
privileges do not reach changes or shows, and nobody is given roles or privileges there. (An explain and an entry of
applyOps with a "$db" of their own were found so.) A command with a field twice is never carried out, nor one with a
field and a sequence of the same name.

The audit log says what was allowed: whatever is carried out was asked for and allowed, whatever was refused is refused.
It is so as well for those from whom nothing is kept, because they may give themselves every role.

MAYFLY_MUTATIONS (20000): commands. MAYFLY_SEED. The last line says "N passed, N failed".
"""

import collections, copy, hashlib, json, os, re, struct, tempfile

import bson, pymongo
from bson import json_util

from fault_test import BINARY, ROOT, Checks, Client, log_in, rnd, run_parts, start, stop

COUNT = int(os.environ.get("MAYFLY_MUTATIONS", "20000"))
ROUND = 100  # commands between two looks at what must not change
check = Checks(quiet=True)
PASSWORD, SECRET = "only of this test", "not to be seen"
OWN, OTHER = "shop", "other"
DATABASES = [OWN, OTHER, "admin"]
OF_A_DATABASE = {"dbAdmin", "dbOwner", "read", "readWrite", "userAdmin"}

# What ends the server or what others do there, or takes its time: sent by those only who may do nothing with all of it.
LEFT_OUT = {
    "clock", "configureFailPoint", "fsync", "killAllSessions", "killAllSessionsByPattern", "killOp", "logRotate",
    "replSetInitiate", "rotateCertificates", "setParameter", "shutdown", "waitForFailPoint",
}  # fmt: skip
# Who may give himself every role, or write down users of any: nothing is kept from them, nor is the test's own user.
OF_ALL = {"__system", "restore", "root", "userAdminAnyDatabase"}
READS = {"find", "readExpired"}
SHOWN = READS | {
    "changeStream", "collStats", "connPoolStats", "dbHash", "dbStats", "getDatabaseVersion", "indexStats",
    "killCursors", "killAnyCursor", "listCachedAndActiveUsers", "listCollections", "listIndexes", "planCacheRead",
    "validate", "viewRole", "viewUser",
}  # fmt: skip
GIVES = {"grantRole", "createRole", "createUser"}
# Everybody may, also without a login: nothing is decided.
UNASKED = {
    "buildInfo", "connectionStatus", "hello", "isMaster", "ismaster", "logout", "ping", "saslContinue", "saslStart",
}  # fmt: skip
VALUES = [
    OTHER, f"{OTHER}.c", f"{OTHER}.$cmd", "admin.system.users", "system.users", "c", OWN, f"{OWN}.c", 1, None, True, [],
    {}, {"db": OTHER, "coll": "c"}, {"db": "admin", "coll": "system.users"}, {"role": "root", "db": "admin"}, ["root"],
    [{"role": "root", "db": "admin"}], [{"role": "read", "db": OTHER}],
]  # fmt: skip
NAMES = [
    "allUsers", "applyOps", "authorizedCollections", "coll", "collection", "db", "drop", "dropTarget", "explain",
    "find", "from", "includeExpired", "into", "nameOnly", "ns", "nsInfo", "o", "op", "pipeline", "role", "roles",
    "root", "to", "toCollection", "ui", "upsert", "user", "viewOn", "$lookup", "$merge", "$out", "$unionWith",
]  # fmt: skip
MORE = [
    ("admin", {"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 5}}, {"delete": 1, "filter": {}}],
               "nsInfo": [{"ns": "shop.c"}, {"ns": "shop.d"}]}),
    ("admin", {"applyOps": [{"op": "c", "ns": "shop.$cmd", "o": {"applyOps": [
        {"op": "i", "ns": "shop.c", "o": {"_id": 9}}, {"op": "c", "ns": "shop.$cmd", "o": {"drop": "d"}}]}}]}),
    ("shop", {"explain": {"find": "c", "filter": {"a": 1}}, "verbosity": "executionStats"}),
    ("shop", {"explain": {"aggregate": "c", "cursor": {}, "pipeline": [
        {"$facet": {"x": [{"$lookup": {"from": "d", "pipeline": [], "as": "y"}}]}}]}, "verbosity": "executionStats"}),
    ("shop", {"aggregate": "c", "cursor": {}, "pipeline": [
        {"$lookup": {"from": "d", "pipeline": [{"$unionWith": {"coll": "c", "pipeline": []}}], "as": "x"}},
        {"$merge": {"into": {"db": "shop", "coll": "m"}, "on": "_id", "whenMatched": "merge"}}]}),
]  # fmt: skip


class Node:
    """A document or an array, whose fields may be there more than once; None for `fields`: another value."""

    def __init__(self, value):
        self.value, self.fields = value, None
        if isinstance(value, dict):
            self.fields = [(name, Node(v)) for name, v in value.items()]
        if isinstance(value, list):
            self.fields = [(str(i), Node(v)) for i, v in enumerate(value)]

    def nodes(self):
        """This one and those within that have fields."""
        return [self, *(n for _, f in self.fields if f.fields is not None for n in f.nodes())]

    def element(self, name):
        if self.fields is None:
            return bson.encode({name: self.value})[4:-1]
        return (b"\4" if isinstance(self.value, list) else b"\3") + name.encode() + b"\0" + self.bytes()

    def bytes(self):
        body = b"".join(f.element(name) for name, f in self.fields)
        return struct.pack("<i", len(body) + 5) + body + b"\0"

    def __str__(self):
        return repr(self.value) if self.fields is None else f"{{{', '.join(f'{n}: {f}' for n, f in self.fields)}}}"


def templates():
    for line in (ROOT / "tests/data/privileges.txt").read_text().splitlines():
        if m := re.fullmatch(r"(?:(\w+): )?(\{.*\}) \| .*", line):
            command = json_util.loads(m[2].replace("<db>", OWN).replace("<other>", OWN).replace('"me"', '"own"'))
            yield m[1] or OWN, command
    for _ in range(8):
        yield from MORE


def mutated(command):
    """The first field of all stays: it is the command. Some are as they were: what is right is then tried as well."""
    whole = Node(command)
    for _ in range(rnd.choice([0, 1, 1, 1, 1, 2, 2, 3, 4])):
        node = rnd.choice(whole.nodes())
        fields, first = node.fields, int(node is whole)
        place = rnd.randrange(first, len(fields) + 1) if len(fields) >= first else first
        kind = rnd.random()
        if kind < 0.35 and fields:
            name, value = rnd.choice(fields)
            # Another one that is equal: a field of it may be moved.
            fields.insert(place, (name, Node(rnd.choice(VALUES)) if rnd.random() < 0.7 else copy.deepcopy(value)))
        elif kind < 0.47:
            for _ in range(rnd.choice([1, 2])):
                fields.insert(rnd.randrange(place, len(fields) + 1), ("$db", Node(rnd.choice(DATABASES))))
        elif kind < 0.62 or len(fields) <= first:
            fields.insert(place, (rnd.choice(NAMES), Node(rnd.choice(VALUES))))
        elif kind < 0.77:
            name, value = fields.pop(rnd.randrange(first, len(fields)))
            to = rnd.choice([n for n in whole.nodes() if n is not node] or [node])
            to.fields.insert(rnd.randrange(int(to is whole), len(to.fields) + 1), (name, value))
        elif kind < 0.85:
            del fields[rnd.randrange(first, len(fields))]
        else:
            at = rnd.randrange(len(fields))
            fields[at] = (fields[at][0], Node(rnd.choice(VALUES)))
    return whole


def in_sequences(whole):
    """[(name, documents)]: what stands beside the command. Mostly a list of it, which is taken out, or stays there, or
    comes twice, or by another name."""
    lists = [
        (at, name, [n for _, n in f.fields])
        for at, (name, f) in enumerate(whole.fields)
        if at > 0 and isinstance(f.value, list) and f.fields and all(is_document(n) for _, n in f.fields)
    ]
    if not lists or rnd.random() < 0.5:
        return []
    at, name, documents = rnd.choice(lists)
    kind = rnd.random()
    if kind < 0.85:
        del whole.fields[at]
    if kind > 0.95:
        return [(rnd.choice([*NAMES, "$db"]), documents)]
    split = rnd.randrange(len(documents) + 1) if kind > 0.75 else len(documents)
    return [(name, part) for part in (documents[:split], documents[split:]) if part]


def is_document(node):
    return node.fields is not None and not isinstance(node.value, list)


def send(client, whole, sequences):
    """The command and, as often as they are named, sequences: Client.send would take each name once."""
    data = bytes(5) + whole.bytes()
    for name, documents in sequences:
        part = name.encode() + b"\0" + b"".join(d.bytes() for d in documents)
        data += b"\1" + struct.pack("<i", len(part) + 4) + part
    client.request += 1
    client.sock.sendall(struct.pack("<iiii", 16 + len(data), client.request, 0, 2013) + data)
    return client.reply()


class Server:
    """With a user who has `roles`, may do anything with the namespaces that `owns` is true of ("db.system.users": the
    users and roles of one), and may read those that `reads` is true of. manages: the whole server, in some way.
    keeps: there is something that the user cannot do."""

    def __init__(self, owns, *roles, reads=None, manages=False, keeps=True):
        self.owns, self.roles, self.reads, self.manages = owns, roles, reads or owns, manages
        self.keeps = keeps

    def __enter__(self):
        self.begin()
        return self

    def __exit__(self, *error):
        self.end()

    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.audit, self.read_until = self.folder.name + "/audit", 0
        self.proc, _ = start(
            self.folder.name + "/data",
            *("--auth", "--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", self.audit),
            *("--setParameter", "auditAuthorizationSuccess=true"),
        )
        first = Client("127.0.0.1", self.proc.port)
        first.command("admin", {"createUser": "root", "pwd": PASSWORD, "roles": ["root"]})
        login = {"username": "root", "password": PASSWORD, "authSource": "admin"}
        self.root = pymongo.MongoClient("127.0.0.1", self.proc.port, directConnection=True, **login)
        for name, resource, actions in (
            ("applies", {"cluster": True}, ["applyOps", "forceUUID", "useUUID"]),
            ("clerk", {"db": OWN, "collection": "c"}, ["find", "insert", "remove", "update"]),
        ):
            privileges = [{"resource": resource, "actions": actions}]
            self.root.admin.command({"createRole": name, "privileges": privileges, "roles": []})
        self.fresh()

    def again(self):
        """As at first, for the next commands."""
        self.own.sock.close()
        if self.keeps:
            return self.fresh()
        self.end()  # the root may have gone
        self.begin()

    def end(self):
        self.root.close()
        check(stop(self.proc) == 0, "the server ends well")
        self.folder.cleanup()

    def fresh(self):
        """Both databases as they are at first, and the user logged in."""
        for db in (OWN, OTHER):
            self.root.drop_database(db)
            for what in ("dropAllUsersFromDatabase", "dropAllRolesFromDatabase"):
                self.root[db].command(what, 1)
            for name in ("c", "d"):
                word = "open" if self.reads(f"{db}.{name}") else SECRET
                self.root[db][name].insert_many([{"_id": i, "a": i, "word": word} for i in range(3)])
        roles = [{"role": r, "db": OWN if r in OF_A_DATABASE else "admin"} for r in self.roles]
        self.root[OWN].command({"createUser": "own", "pwd": PASSWORD, "roles": roles})
        self.own = log_in(self.proc.port, "own", PASSWORD, OWN)
        self.was = self.state()
        # Of somebody else, for a getMore that must not be answered.
        self.cursor = self.root[OTHER].command({"find": "c", "batchSize": 0})["cursor"]["id"]
        self.decided()

    def decided(self):
        """What the user was allowed and refused since the last time: {(command, whether): how often}."""
        counts = collections.Counter()
        with open(self.audit, "rb") as f:
            f.seek(self.read_until)
            whole = f.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self.read_until += len(whole)
        for line in whole.splitlines():
            if b'"authCheck"' in line and b'"own"' in line:
                entry = json.loads(line)
                if any(u["user"] == "own" for u in entry["users"]):
                    counts[entry["param"]["command"], entry["result"] == 0] += 1
        return counts

    def state(self):
        """What the user cannot change, and what he has given away of what is not his."""
        if not self.keeps:
            return []
        collections = []
        for db in (OWN, OTHER):
            for c in self.root[db].list_collections():
                if not self.owns(f"{db}.{c['name']}"):
                    coll = self.root[db][c["name"]]
                    collections.append((db, c["name"], c["options"], list(coll.find()), list(coll.list_indexes())))
        users, roles = (list(self.root.admin[f"system.{name}"].find()) for name in ("users", "roles"))
        of_others = [d for d in users + roles if not self.owns(f"{d['db']}.system.users")]
        his = [{"role": r, "db": "admin"} for r in self.roles]  # which he may lose: dropAllUsersFromDatabase
        given = [
            r
            for d in users + roles
            if d["db"] == OWN
            for r in d["roles"]
            if r["db"] != OWN and not (d["_id"] == f"{OWN}.own" and r in his)
        ]
        given += [p for d in roles if d["db"] == OWN for p in d["privileges"] if p["resource"].get("db") != OWN]
        databases = [d for d in self.root.list_database_names() if d != OWN and not self.owns(f"{d}.c")]
        return [sorted(map(str, part)) for part in (collections, of_others, given, databases)]

    def shows(self, reply):
        """What a reply says of what is not the user's."""
        text = str(reply)
        planned = re.search(r"'queryPlanner': {'namespace': '([^']*)'", text)
        if SECRET in text:
            return "a secret"
        if planned and not self.reads(planned[1]) and reply["ok"] == 1:
            return f"a plan for {planned[1]}"
        return None


def twice(command, sequences=()):
    """Whether a command, or one within it, has a field twice; a sequence counts as one."""

    def repeats(node):
        names = [name for name, _ in node.fields or []]
        return len(set(names)) < len(names)

    names = [name for name, _ in command.fields] + [name for name, _ in sequences]
    if len(set(names)) < len(names) or not command.fields:
        return len(set(names)) < len(names)
    name, first = command.fields[0]
    if name == "explain" and first.fields and not isinstance(first.value, list):
        return repeats(first)
    if name != "applyOps" or not isinstance(first.value, list):
        return False
    entries = [e for _, e in first.fields if e.fields is not None]
    inner = [f for e in entries for n, f in e.fields if n == "o" and f.fields and ("op", "c") in plain(e)]
    return any(map(repeats, entries)) or any(map(twice, inner))


def plain(node):
    return [(name, f.value) for name, f in node.fields if f.fields is None]


def mutations(server, count=COUNT // 2):
    """How many were carried out."""
    all_templates = [(db, c) for db, c in templates() if not server.manages or next(iter(c)) not in LEFT_OUT]
    with server:
        allowed, recent, told = 0, [], collections.Counter()
        for n in range(count):
            db, command = rnd.choice(all_templates)
            if "getMore" in command:
                command = {**command, "getMore": bson.Int64(server.cursor)}
            changed = mutated(command)
            sequences = in_sequences(changed)
            for name in [db, *([rnd.choice(DATABASES)] if rnd.random() < 0.1 else [])]:
                changed.fields.insert(rnd.randrange(1, len(changed.fields) + 1), ("$db", Node(name)))
            reply = send(server.own, changed, sequences)
            sent = ", with ".join([str(changed), *(f"{name}: {', '.join(map(str, d))}" for name, d in sequences)])
            allowed += reply["ok"] == 1
            if reply["ok"] == 1 or reply.get("code") == 13:
                told[next(iter(command)), reply["ok"] == 1] += 1
            check(reply["ok"] != 1 or not twice(changed, sequences), f"{sent} has a field twice and was carried out")
            recent.append(f"{sent} -> {reply.get('code', 'ok')}")
            shown = server.shows(reply)
            check(not shown, f"{sent} shows {shown}: {str(reply)[:500]}")
            gone = "requires authentication" in reply.get("errmsg", "")
            if gone or n % ROUND == ROUND - 1:
                decided = server.decided()
                for (name, whether), times in told.items():
                    what = "carried out" if whether else "refused"
                    check(whether is False or name in UNASKED or decided[name, True] >= times,
                          f"{name} was {what} {times} times, and allowed {decided[name, True]} times")  # fmt: skip
                for (name, whether), times in decided.items():
                    check(whether or told[name, False] >= times,
                          f"{name} was to be refused {times} times and was {told[name, False]} times")  # fmt: skip
                told.clear()
                now = server.state()
                done = "\n".join(r for r in recent if r.endswith("ok"))
                check(now == server.was, f"was {server.was}\nis {now}\nby one of these:\n{done}")
                server.again()
                recent.clear()
    return allowed


def enough(allowed, count):
    check(allowed > count // 200, f"{allowed} of {count} commands were carried out")


def owner():
    """Of a database, who may apply entries of an oplog to it."""
    enough(mutations(Server(lambda ns: ns.startswith(f"{OWN}."), "dbOwner", "applies")), COUNT // 2)


def clerk():
    """Who may read and write one collection, by applyOps as well."""
    enough(mutations(Server(lambda ns: ns == f"{OWN}.c", "clerk", "applies")), COUNT // 2)


def reached(privileges, actions, ns):
    """Whether one of these actions is granted on a namespace."""
    db, name = ns.split(".", 1)
    for p in privileges:
        on, granted = p["resource"], set(p["actions"]) & actions
        if granted and "db" in on and on["db"] in ("", db):
            if on["collection"] == name or (on["collection"] == "" and not name.startswith("system.")):
                return on["db"] or db not in ("local", "config")
    return False


def builtin():
    """Who has a built-in role, each of them: what is theirs follows from its privileges."""
    roles = []
    with Server(lambda ns: True) as server:
        for db in (OWN, "admin"):
            asked = {"rolesInfo": 1, "showBuiltinRoles": True, "showPrivileges": True}
            for role in server.root[db].command(asked)["roles"]:
                if role["isBuiltin"] and (db == OWN) == (role["role"] in OF_A_DATABASE):
                    roles.append((role["role"], role["inheritedPrivileges"]))
    names = {name for name, _ in roles}
    check(OF_ALL <= names and OF_A_DATABASE <= names, f"the built-in roles: {names}")
    allowed, each = 0, COUNT // 2 // len(roles) // ROUND * ROUND or ROUND
    for name, privileges in roles:

        def gives(ns, privileges=privileges):
            """Roles of its database, and so everything there."""
            return any(p["resource"].get("db") == ns.split(".", 1)[0] and GIVES & set(p["actions"]) for p in privileges)

        def owns(ns, privileges=privileges, gives=gives):
            changes = {a for p in privileges for a in p["actions"]} - SHOWN
            return gives(ns) or reached(privileges, changes, ns)

        def reads(ns, privileges=privileges, gives=gives):
            return gives(ns) or reached(privileges, READS, ns)

        if name in OF_ALL:
            server = Server(lambda ns: True, name, manages=True, keeps=False)
        else:
            manages = any(p["resource"].get("cluster") for p in privileges)
            server = Server(owns, name, reads=reads, manages=manages)
        done = mutations(server, each)
        print(f"{name}: {done} of {each} were carried out", flush=True)
        allowed += done
    enough(allowed, each * len(roles))


def pairs(*fields):
    """A document of these fields, of which one may be there twice."""
    node = Node({})
    node.fields = [(name, v if isinstance(v, Node) else Node(v)) for name, v in fields]
    return node


def listed(*documents):
    node = Node([])
    node.fields = [(str(i), d) for i, d in enumerate(documents)]
    return node


def nested():
    """No document within a command has a field twice, whoever sends it: here the one who may do everything."""
    one, two = (bson.Binary(bytes([i]) * 16, 4) for i in (1, 2))
    uid = bson.Binary(hashlib.sha256(b"root@admin").digest())
    time = bson.Timestamp(1, 1)
    signature = pairs(("hash", b"0" * 20), ("hash", b"1" * 20), ("keyId", bson.Int64(0)))
    topology = pairs(("processId", bson.ObjectId()), ("processId", bson.ObjectId()), ("counter", bson.Int64(1)))
    driver, system = {"name": "a", "version": "1"}, {"type": "x"}
    role = {"role": "read", "db": OWN}
    cases = [
        (("ping", 1), ("lsid", pairs(("id", one), ("id", two)))),
        (("ping", 1), ("lsid", pairs(("id", one), ("uid", uid), ("uid", uid)))),
        (("ping", 1), ("lsid", pairs(("id", one), ("txnNumber", 1), ("txnNumber", 2)))),
        (("find", "c"), ("$clusterTime", pairs(("clusterTime", time), ("signature", signature)))),
        (("find", "c"), ("$readPreference", pairs(("mode", "nearest"), ("hedge", pairs(("x", 1), ("x", 2)))))),
        (("find", "c"), ("$readPreference", pairs(("mode", "nearest"), ("tags", listed(pairs(("x", 1), ("x", 2))))))),
        (("create", "e"), ("expiry", pairs(("databaseMaxTTL", 50000), ("databaseMaxTTL", 6)))),
        (("create", "e"), ("expiry", pairs(("maxTTL", 50000), ("maxTTL", 6)))),
        (("killAllSessionsByPattern", listed(pairs(("lsid", pairs(("id", one), ("id", two)))))),),
        (("killAllSessionsByPattern", listed(pairs(("uid", uid), ("uid", uid)))),),
        (("killAllSessionsByPattern", listed(pairs(("users", listed(pairs(("user", "q"), ("user", "r"))))))),),
        (("killAllSessionsByPattern", listed(pairs(("roles", listed(pairs(("role", "q"), ("role", "r"))))))),),
        (("setParameter", 1), ("logComponentVerbosity", pairs(("verbosity", 0), ("verbosity", 1)))),
        (("setParameter", 1), ("logComponentVerbosity", pairs(("query", pairs(("verbosity", 0), ("verbosity", 1)))))),
        (("hello", 1), ("maxAwaitTimeMS", 1), ("topologyVersion", topology)),
        (("hello", 1), ("client", pairs(("driver", driver), ("driver", driver), ("os", system)))),
        (("hello", 1), ("client", pairs(("os", system), ("driver", pairs(*driver.items(), ("name", "b")))))),
        (("createUser", "u"), ("pwd", "x"), ("roles", listed(pairs(*role.items(), ("db", "admin"))))),
        (("createUser", "u"), ("pwd", "x"), ("roles", [role]), ("authenticationRestrictions",
            listed(pairs(("clientSource", ["127.0.0.1"]), ("clientSource", ["10.0.0.1"]))))),
        (("createRole", "r"), ("roles", []), ("privileges", listed(pairs(("actions", ["find"]),
            ("resource", pairs(("db", "admin"), ("db", OTHER), ("collection", "c"))))))),
        (("createRole", "r"), ("roles", []), ("privileges", listed(pairs(("actions", ["find"]), ("actions", ["remove"]),
            ("resource", {"db": "admin", "collection": "c"}))))),
        (("usersInfo", pairs(("user", "root"), ("user", "own"), ("db", "admin"))),),
    ]  # fmt: skip
    with Server(lambda ns: True) as server:
        server.root.admin.command("grantRolesToUser", "root", roles=["__system"])
        for fields in cases:
            # Each on a connection of its own: the first hello may say who the client is.
            own = log_in(server.proc.port, "root", PASSWORD)
            command = pairs(*fields, ("$db", "admin"))
            own.send(command.bytes())
            reply = own.reply()
            check(reply.get("code") == 40413, f"{command} -> {reply}")
            own.sock.close()


run_parts("access_mutations", (owner, clerk, builtin, nested), check)
