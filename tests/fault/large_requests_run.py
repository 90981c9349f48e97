#!/usr/bin/env python3
"""Requests of 15 MB of every command, by who may do all, by who may do nothing and by who has as many privileges
as one user may have: what decides whether they are
allowed and what reads them holds none of the threads that serve connections, can be interrupted, and takes no more
memory than a stated number of MB. Judged by the processor's time of those threads and by the peak of the process, not
by the clock.

MAYFLY_LARGE_ONLY: names of commands, to run these only.
"""

import glob, os, re, struct, tempfile, threading, uuid
from functools import partial

import bson
from bson import json_util

from fault_test import ROOT, Checks, Client, figure, forget_peak, log_in, memory_mb, run_parts, start, stop, until

BYTES = 15_000_000
# A connection's turn on its thread is half a millisecond; ten times that, beside what it takes to receive the bytes.
MOST_MS = 5
MOST_MB = 300  # beside the message, which is there once as it came and once where a document is made of it
PASSWORD = "only of this test"
ONLY = os.environ.get("MAYFLY_LARGE_ONLY", "")
check = Checks(quiet=True)

# What ends the server, the connection or the users, or waits: sent by those only whom it is refused.
LEFT_OUT = {
    "clock", "configureFailPoint", "dropAllUsersFromDatabase", "dropUser", "dropDatabase", "fsync", "fsyncUnlock",
    "killAllSessions", "killAllSessionsByPattern", "killOp", "logRotate", "replSetInitiate", "rotateCertificates",
    "setParameter", "shutdown", "updateUser", "waitForFailPoint",
}  # fmt: skip
# Privileges of the user "many": two roles with as many as one role may have, without the user's own.
ROLE_SIZES = (10_000, 9_990)


def array(element, size=BYTES):
    """An array of one element again and again."""
    one = bson.encode({"": element})
    kind, value = one[4:5], one[6:-1]
    parts, total, n = [], 0, 0
    while total < size:
        part = kind + str(n).encode() + b"\0" + value
        parts.append(part)
        total, n = total + len(part), n + 1
    body = b"".join(parts)
    return b"\4", struct.pack("<i", len(body) + 5) + body + b"\0"


def plain(value):
    one = bson.encode({"": value})
    return one[4:5], one[6:-1]


def document(fields):
    body = b"".join(kind + name.encode() + b"\0" + value for name, (kind, value) in fields)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def large_field(db, field, element, rest, first):
    many = (field, array(element))
    return document([*([many, *rest] if first else [*rest, many]), ("$db", plain(db))])


def commands(left_out=LEFT_OUT):
    """{name: (database, what makes the request)}: each command with each of its lists made large, or with a large
    comment."""
    large = {}
    for line in (ROOT / "tests/data/privileges.txt").read_text().splitlines():
        m = re.fullmatch(r"(?:(\w+): )?(\{.*\}) \| .*", line)
        if not m:
            continue
        command = json_util.loads(m[2].replace("<db>", "shop").replace("<other>", "shop").replace('"me"', '"plain"'))
        name, first = next(iter(command.items()))
        if name in left_out or (name == "drop" and first == "system.users"):
            continue
        lists = [f for f, v in command.items() if isinstance(v, list) and v]
        if name in ("usersInfo", "rolesInfo") and not lists:
            command[name], lists = ["plain" if name == "usersInfo" else "read"], [name]
        for field in lists or ["comment"]:
            value = command.get(field, ["x"])
            what = f"{name} with many of {field}"
            if name == "applyOps":
                what += " of " + next(iter(value[0]["o"])) if value[0]["op"] == "c" else f" {value[0]['op']}"
            rest = [(f, plain(v)) for f, v in command.items() if f != field]
            large[what] = partial(large_field, m[1] or "shop", field, value[0], rest, field == name)

    def more(name, fields):
        large[name] = lambda: document(fields())

    for stage in ({"$unionWith": "c"}, {"$match": {}}):
        view = [("create", plain("v")), ("viewOn", plain("c"))]
        more(
            f"a view of many {next(iter(stage))}",
            lambda stage=stage, view=view: [*view, ("pipeline", array(stage)), ("$db", plain("shop"))],
        )
    bulk = [("bulkWrite", plain(1)), ("ops", plain([{"insert": 0, "document": {}}]))]
    for ns in ("shop.c", "admin.system.users"):
        more(
            f"bulkWrite with many of {ns}",
            lambda ns=ns: [*bulk, ("nsInfo", array({"ns": ns})), ("$db", plain("admin"))],
        )
    strict = [("apiVersion", plain("1")), ("apiStrict", plain(True)), ("$db", plain("shop"))]
    index = {"key": {"a": 1}, "name": "a"}
    more(
        "createIndexes with apiStrict", lambda: [("createIndexes", plain("c")), ("indexes", array(index)), *strict]
    )

    def explained():
        inner = [("aggregate", plain("c")), ("pipeline", array({"$unionWith": "c"})), ("cursor", plain({}))]
        return [("explain", (b"\3", document(inner))), ("$db", plain("shop"))]

    more("explain of many stages", explained)
    # Names that are equal but for their last letter but one, which somebody may compare each with each.
    for count, length in ((62, 230_000), (900, 16_000)):

        def long_names(count=count, length=length):
            names = [f"{'n' * length}{n:04d}n"[-length:] for n in range(count)]
            return [("find", plain("c")), *((name, plain(1)) for name in names), ("$db", plain("shop"))]

        more(f"find with {count} long names", long_names)

    def many_fields():
        many = document([(f"f{n}", plain(1)) for n in range(BYTES // 14)])
        one = ("documents", (b"\4", document([("0", (b"\3", many))])))
        return [("insert", plain("c")), one, ("$db", plain("shop"))]

    more("insert of many fields", many_fields)
    # A line of the table that is read no more drops out without a word: today there are 140.
    check(len(large) >= 130, f"each command of the table is there: {len(large)}")
    return {name: of for name, of in large.items() if ONLY in name}


def send(client, body):
    client.send(body)
    return client.reply()


class Server:
    """With access control, the audit log, and the users root and plain (without a role)."""

    def __init__(self, *options):
        self.options = options

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.proc, first = start(self.folder.name + "/data", "--auth", *self.options)
        made = first.command("admin", {"createUser": "root", "pwd": PASSWORD, "roles": ["root"]})
        check(made["ok"] == 1, f"the first user: {made}")
        self.root = log_in(self.proc.port, "root", PASSWORD)
        applies = [{"resource": {"cluster": True}, "actions": ["applyOps", "forceUUID", "useUUID"]}]
        for db, command in (
            ("shop", {"insert": "c", "documents": [{"_id": 1, "a": 1}]}),
            ("admin", {"createRole": "applies", "privileges": applies, "roles": []}),
            ("admin", {"grantRolesToUser": "root", "roles": ["applies"]}),
            ("shop", {"createUser": "plain", "pwd": PASSWORD, "roles": []}),
        ):
            done = self.root.command(db, command)
            check(done["ok"] == 1, f"{command}: {done}")
        self.plain = log_in(self.proc.port, "plain", PASSWORD, "shop")
        for n, count in enumerate(ROLE_SIZES):
            each = [
                {"resource": {"db": "other", "collection": f"c{n}-{i}"}, "actions": ["find", "insert", "update"]}
                for i in range(count)
            ]
            made = {"createRole": f"many{n}", "privileges": each, "roles": []}
            check(self.root.command("other", made)["ok"] == 1, "a role of many privileges")
        roles = [{"role": f"many{n}", "db": "other"} for n in range(len(ROLE_SIZES))]
        self.root.command("other", {"createUser": "many", "pwd": PASSWORD, "roles": roles})
        self.many = log_in(self.proc.port, "many", PASSWORD, "other")
        seen = self.many.command("admin", {"connectionStatus": 1, "showPrivileges": True})["authInfo"]
        check(len(seen["authenticatedUserPrivileges"]) >= sum(ROLE_SIZES), "and a user of all of them")
        return self

    def users(self):
        """(client, its name, what is not sent by it)."""
        return (self.root, "root", LEFT_OUT), (self.plain, "plain", set()), (self.many, "many", set())

    def __exit__(self, *error):
        check(stop(self.proc) == 0, "the server ends well")
        self.folder.cleanup()

    def io_ms(self):
        """Of the processor, by all threads that serve connections."""
        total = 0
        for task in glob.glob(f"/proc/{self.proc.pid}/task/*"):
            try:
                with open(task + "/comm") as f:
                    if not f.read().startswith("io"):
                        continue
                with open(task + "/schedstat") as f:
                    total += int(f.read().split()[0]) / 1e6
            except FileNotFoundError:
                pass  # it ended
        return total

    def io_cpu(self, client, body):
        before = self.io_ms()
        reply = send(client, body)
        return self.io_ms() - before, reply

    def least(self, client, body, ms, base):
        """One that is over the bound must be so every time: the machine has other things to do."""
        for _ in range(5):
            if ms <= base + MOST_MS:
                break
            ms = min(ms, self.io_cpu(client, body)[0])
        return ms


def kinds():
    with Server() as server:
        ping = document([("ping", plain(1)), ("comment", array("x")), ("$db", plain("admin"))])
        for client, who, left_out in server.users():
            base = min(server.io_cpu(client, ping)[0] for _ in range(5))
            check(base > 0, f"the time of the threads of connections is seen: {base}")
            print(f"{who}: {base:.1f} ms to receive {BYTES} bytes", flush=True)
            worst = 0
            for name, make in commands(left_out).items():
                body = make()
                forget_peak(server.proc.pid)
                before = memory_mb(server.proc.pid)
                ms, reply = server.io_cpu(client, body)
                grown = memory_mb(server.proc.pid, "VmHWM") - before
                ms = server.least(client, body, ms, base)
                worst = max(worst, ms - base)
                shown = f"{ms:.1f} ms, {grown} MB, {reply.get('code', 'ok')}"
                print(f"{who}, {name}: {shown}", flush=True)
                held = ms > base + MOST_MS
                check(not held, f"{who}, {name} holds a thread of connections: {shown}")
                check(grown <= MOST_MB, f"{who}, {name} takes {grown} MB")
            figure(f"the request of {who} that took a connections' thread longest, beside receiving it", worst)
            check(client.command("admin", {"ping": 1})["ok"] == 1, f"the connection of {who} goes on")


def short():
    """The longest requests that are still decided about on a thread of connections, by who has many privileges."""
    with Server() as server:
        worst = 0
        stages = [{"$unionWith": {"coll": "c0-1"}}] * 330
        requests = {
            "aggregate": {"aggregate": "c0-1", "pipeline": stages, "cursor": {}},
            "bulkWrite": {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}],
                          "nsInfo": [{"ns": f"other.c0-{n}"} for n in range(520)]},
        }  # fmt: skip
        for name, command in requests.items():
            db = "admin" if name == "bulkWrite" else "other"
            body = bson.encode({**command, "$db": db})
            check(12000 < len(body) <= 16300, f"{name} is short: {len(body)} bytes")
            ms = min(server.io_cpu(server.many, body)[0] for _ in range(20))
            worst = max(worst, ms)
            check(ms < MOST_MS, f"a short {name} takes {ms:.1f} ms of a thread of connections")
        figure("the largest privilege request that is decided on a connections' thread", worst)


def point_reads():
    """One document of 16 MB among small ones, which the average of its collection does not show."""
    with Server() as server:
        small = [{"_id": n} for n in range(100)]
        check(server.root.command("shop", {"insert": "mixed", "documents": small})["ok"] == 1, "small ones")
        large = {"_id": "large", "d": [{"k": n} for n in range(500_000)]}
        check(server.root.command("shop", {"insert": "mixed", "documents": [large]})["ok"] == 1, "a large one")
        for name, command in (
            ("find", {"find": "mixed", "filter": {"_id": "large"}}),
            ("find without a field", {"find": "mixed", "filter": {"_id": "large"}, "projection": {"d.k": 0}}),
            ("find with 60 names", {"find": "mixed", "filter": {"_id": "large"},
                                    "projection": {f"d.k{n}": 1 for n in range(60)}}),
            ("update", {"update": "mixed", "updates": [{"q": {"_id": "large"}, "u": {"$set": {"x": 1}}}]}),
            ("delete", {"delete": "mixed", "deletes": [{"q": {"_id": "large"}, "limit": 1}]}),
        ):  # fmt: skip
            before = server.io_ms()
            reply = server.root.command("shop", command)
            ms = server.io_ms() - before
            print(f"{name}: {ms:.1f} ms", flush=True)
            check(reply["ok"] == 1, f"{name}: {str(reply)[:200]}")
            # What it takes to send the reply and, once, to read the document.
            check(ms < 20, f"{name} of a large document takes {ms:.1f} ms of a thread of connections")
            small = server.root.command("shop", {"find": "mixed", "filter": {"_id": 7}})["cursor"]["firstBatch"]
            check(small == [{"_id": 7}], f"a small one is found as well: {small}")
        sliced_reads(server, small=[{"_id": n} for n in range(100)], large=large)


def sliced_reads(server, small, large):
    """Reads that are tried for a slice of time: it ends behind a large document, and must not be tried again soon.
    Replies are small, so that all the time is that of reading."""
    commands = {
        "find": {"find": "", "filter": {"_id": "large", "none": None}, "projection": {"_id": 1}},
        "count": {"count": "", "query": {"_id": "large", "none": None}},
        "distinct": {"distinct": "", "key": "_id", "query": {"_id": "large", "none": None}},
        "aggregate": {"aggregate": "", "pipeline": [{"$match": {"_id": "large"}}, {"$count": "n"}], "cursor": {}},
    }
    for name, command in commands.items():
        coll = "sliced_" + name
        check(server.root.command("shop", {"insert": coll, "documents": small})["ok"] == 1, "small ones")
        check(server.root.command("shop", {"insert": coll, "documents": [large]})["ok"] == 1, "a large one")
        command = {**command, name: coll}
        check(server.root.command("shop", command)["ok"] == 1, name)  # meets it
        before = server.io_ms()
        for _ in range(20):
            check(server.root.command("shop", command)["ok"] == 1, name)
        ms = server.io_ms() - before
        print(f"20 of {name} in slices: {ms:.1f} ms", flush=True)
        check(ms < 20, f"{name}: a large document is read again and again by a thread of connections, {ms:.1f} ms")


def shown():
    """The audit log, the profile and the log show a part of each request, which takes as long to find as the request is
    large: on none of the threads that serve connections, whether it is allowed or refused."""
    with Server("--setParameter", "auditAuthorizationSuccess=true") as server:
        for db in ("shop", "admin"):
            server.root.command(db, {"profile": 2})
        ping = document([("ping", plain(1)), ("comment", array("x")), ("$db", plain("admin"))])
        for client, who, left_out in server.users():
            base = min(server.io_cpu(client, ping)[0] for _ in range(5))
            check(base > 0, f"the time of the threads of connections is seen: {base}")
            for name, make in commands(left_out).items():
                if not name.startswith(("insert", "update", "aggregate", "applyOps", "explain", "usersInfo", "find")):
                    continue
                body = make()
                ms, reply = server.io_cpu(client, body)
                ms = server.least(client, body, ms, base)
                shown = f"{ms:.1f} ms, {reply.get('code', 'ok')}"
                print(f"{who}, {name}: {shown}", flush=True)
                held = ms > base + MOST_MS
                check(not held, f"{who}, {name} holds a thread of connections: {shown}")


def together():
    """Six at once, each of half a million names: what they are read into is charged, and what there is no room for is
    refused."""
    with Server() as server:
        body = document(
            [
                ("applyOps", array({"op": "c", "ns": "shop.$cmd", "o": {"dropIndexes": "none", "index": "a_1"}})),
                ("$db", plain("admin")),
            ]
        )
        before = memory_mb(server.proc.pid)
        replies = []

        def one():
            client = log_in(server.proc.port, "root", PASSWORD)
            replies.append(send(client, body))
            client.sock.close()

        threads = [threading.Thread(target=one) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        grown = memory_mb(server.proc.pid, "VmHWM") - before
        codes = [r.get("code", "ok") for r in replies]
        print(f"six of {len(body)} bytes: {grown} MB, {codes}", flush=True)
        figure("memory of six large requests at once", grown, "MB")
        check(len(replies) == 6 and set(codes) <= {"ok", 146}, f"each is carried out or refused: {codes}")
        check(grown < 1500, f"six at once take {grown} MB")


def interrupted():
    """What decides is interrupted: by killOp, which finds it, and by maxTimeMS."""
    with Server() as server:
        entries = array({"op": "n", "ns": "", "o": {}})
        limited = document([("applyOps", entries), ("maxTimeMS", plain(1)), ("$db", plain("admin"))])
        check(send(server.root, limited).get("code") == 50, "a time limit holds while it is decided")
        roles = [(f"r{n}", "shop") for n in range(900)]
        for role, db in roles:
            server.root.command(db, {"createRole": role, "privileges": [], "roles": []})
        granted = [{"role": r, "db": db} for r, db in roles]
        made = server.root.command("shop", {"createUser": "many", "pwd": PASSWORD, "roles": granted})
        check(made["ok"] == 1, f"a user of many roles: {made}")
        client = log_in(server.proc.port, "many", PASSWORD, "shop")
        body = document([("rolesInfo", array("r899")), ("comment", plain("to be killed")), ("$db", plain("shop"))])
        replies, found = [], set()
        asks = threading.Thread(target=lambda: replies.append(send(client, body)))
        asks.start()

        def kill():
            ops = server.root.command("admin", {"currentOp": 1, "command.comment": "to be killed"})["inprog"]
            for op in ops:
                server.root.command("admin", {"killOp": 1, "op": op["opid"]})
                found.add(op["opid"])
            return bool(replies)

        check(until(kill, 60), "it ends")
        asks.join()
        # Decided in full, it is refused for its length.
        check(replies[0].get("code") == 11601, f"killed: {replies}")
        check(len(found) == 1, f"and found for that, as one operation: {found}")
        # By its session as well, which is known before it is decided about.
        session = {"id": bson.Binary(uuid.uuid4().bytes, 4)}
        body = document([("rolesInfo", array("r899")), ("lsid", plain(session)), ("$db", plain("shop"))])
        other = log_in(server.proc.port, "many", PASSWORD, "shop")
        replies.clear()
        asks = threading.Thread(target=lambda: replies.append(send(client, body)))
        asks.start()

        def kill_session():
            killed = other.command("admin", {"killSessions": [session]})
            check(killed["ok"] == 1, f"killSessions: {killed}")
            return bool(replies)

        check(until(kill_session, 60), "it ends")
        asks.join()
        check(replies[0].get("code") == 11601, f"killed by its session: {replies}")


def ways(depth, value):
    """Nested arrays in which each number of a path is a position and a name: the ways to the value double."""
    for _ in range(depth):
        value = [{"0": value}]
    return value


def many_errors():
    """What failed statements quote: of a document of 400 kB by each of thousands of short operations, and of a value by
    each of the ways that lead to it."""
    with Server() as server:
        root = server.root
        for command in (
            {"insert": "long", "documents": [{"_id": 1, "a": "x" * 400_000}]},
            {"collMod": "long", "validator": {"a": {"$type": "int"}}},
            {"create": "ways", "validator": {"a" + 13 * ".0": 1}},
        ):
            check(root.command("shop", command)["ok"] == 1, f"{list(command)[0]}")
        change = {"$inc": {"n": 1}}
        ops = [{"update": 0, "filter": {"_id": 1}, "updateMods": change}] * 3000
        bulk = {"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": "shop.long"}], "ordered": False, "$db": "admin"}
        updates = [{"q": {"_id": 1}, "u": change}] * 3000
        requests = {
            "bulkWrite": bulk,
            "bulkWrite of errors": {**bulk, "errorsOnly": True},
            "update": {"update": "long", "updates": updates, "ordered": False, "$db": "shop"},
            "insert": {"insert": "ways", "documents": [{"_id": 1, "a": ways(40, "x" * 1_000_000)}], "$db": "shop"},
        }
        for name, command in requests.items():
            forget_peak(server.proc.pid)
            before = memory_mb(server.proc.pid)
            reply = send(root, bson.encode(command))
            grown = memory_mb(server.proc.pid, "VmHWM") - before
            print(f"{name}: {grown} MB", flush=True)
            figure(f"memory of the errors of {name}", grown, "MB")
            errors = reply.get("writeErrors", reply.get("cursor", {}).get("firstBatch"))
            check(reply.get("ok") == 1 and errors and errors[0]["code"] == 121, f"{name} fails: {str(reply)[:300]}")
            check(grown < 100, f"the errors of {name} take {grown} MB")
            check(len(bson.encode(reply)) < 4_000_000, f"the reply to {name} has {len(bson.encode(reply))} bytes")


run_parts("large_requests", (kinds, short, point_reads, shown, together, many_errors, interrupted), check)
