#!/usr/bin/env python3
"""Requests of 15 MB of every command, by who may do all, by who may do nothing, by who has as many privileges as one
user may have (on the database that the commands are about) and, of the commands about users and roles, by who has as
many roles: what decides whether they are allowed and what reads them holds none of the threads that serve connections,
can be interrupted, and takes no more memory than a stated number of MB. Judged by the processor's time of those threads
and by the peak of the process, not by the clock.

MAYFLY_LARGE_ONLY=TEXT,TEXT runs the requests whose name has one of them.
"""

import glob, os, re, struct, tempfile, threading, uuid
from functools import partial

import bson
from bson import json_util

from fault_test import (
    BINARY,
    ROOT,
    Checks,
    Client,
    figure,
    forget_peak,
    log_in,
    memory_mb,
    run_parts,
    start,
    stop,
    until,
)

BYTES = 15_000_000
# A connection's turn on its thread is half a millisecond; ten times that, beside what it takes to receive the bytes.
MOST_MS = 5
MOST_SHORT_MS = 2  # of a request of up to 16 KiB: four such turns
MOST_MB = 300  # beside the message, which is there once as it came and once where a document is made of it
PASSWORD = "only of this test"
ONLY = os.environ.get("MAYFLY_LARGE_ONLY", "").split(",")
check = Checks(quiet=True)

# Ends the server: sent by those only whom it is refused.
ENDS = {"shutdown"}
# Ends users or what the other commands need: by those who may, on a database of its own.
OF_SPARE = {"dropAllUsersFromDatabase", "dropDatabase", "dropUser", "updateUser"}
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


def commands(me, db="shop", spare="shop", left_out=frozenset()):
    """{name: what makes the request}: each command with each of its lists made large, or with a large comment. `me`:
    who is the user of some; `db`: the database that they are about, or (OF_SPARE) `spare`."""
    large = {}
    for line in (ROOT / "tests/data/privileges.txt").read_text().splitlines():
        m = re.fullmatch(r"(?:(\w+): )?(\{.*\}) \| .*", line)
        if not m:
            continue
        name = next(iter(json_util.loads(m[2])))
        at = spare if name in OF_SPARE else db
        command = json_util.loads(m[2].replace("<db>", at).replace("<other>", at).replace('"me"', f'"{me}"'))
        if name in left_out or (name == "drop" and command[name] == "system.users"):
            continue
        lists = [f for f, v in command.items() if isinstance(v, list) and v]
        if name in ("usersInfo", "rolesInfo") and not lists:
            command[name], lists = [me if name == "usersInfo" else "read"], [name]
        for field in lists or ["comment"]:
            value = command.get(field, ["x"])
            what = f"{name} with many of {field}"
            if name == "applyOps":
                what += " of " + next(iter(value[0]["o"])) if value[0]["op"] == "c" else f" {value[0]['op']}"
            what += "".join(f" and {f}" for f in command if name == "updateUser" and f not in (name, field))
            rest = [(f, plain(v)) for f, v in command.items() if f != field]
            large[what] = partial(large_field, m[1] or at, field, value[0], rest, field == name)

    def more(name, fields):
        large[name] = lambda: document(fields())

    for stage in ({"$unionWith": "c"}, {"$match": {}}):
        view = [("create", plain("v")), ("viewOn", plain("c"))]
        more(
            f"a view of many {next(iter(stage))}",
            lambda stage=stage, view=view: [*view, ("pipeline", array(stage)), ("$db", plain(db))],
        )
    bulk = [("bulkWrite", plain(1)), ("ops", plain([{"insert": 0, "document": {}}]))]
    for ns in (f"{db}.c", "admin.system.users"):
        more(
            f"bulkWrite with many of {ns}",
            lambda ns=ns: [*bulk, ("nsInfo", array({"ns": ns})), ("$db", plain("admin"))],
        )
    strict = [("apiVersion", plain("1")), ("apiStrict", plain(True)), ("$db", plain(db))]
    index = {"key": {"a": 1}, "name": "a"}
    more(
        "createIndexes with apiStrict", lambda: [("createIndexes", plain("c")), ("indexes", array(index)), *strict]
    )

    def explained():
        inner = [("aggregate", plain("c")), ("pipeline", array({"$unionWith": "c"})), ("cursor", plain({}))]
        return [("explain", (b"\3", document(inner))), ("$db", plain(db))]

    more("explain of many stages", explained)
    # Names that are equal but for their last letter but one, which somebody may compare each with each.
    for count, length in ((62, 230_000), (900, 16_000)):

        def long_names(count=count, length=length):
            names = [f"{'n' * length}{n:04d}n"[-length:] for n in range(count)]
            return [("find", plain("c")), *((name, plain(1)) for name in names), ("$db", plain(db))]

        more(f"find with {count} long names", long_names)

    def many_fields():
        many = document([(f"f{n}", plain(1)) for n in range(BYTES // 14)])
        one = ("documents", (b"\4", document([("0", (b"\3", many))])))
        return [("insert", plain("c")), one, ("$db", plain(db))]

    more("insert of many fields", many_fields)
    # A line of the table that is read no more drops out without a word: today there are 162.
    check(len(large) >= 150, f"each command of the table is there: {len(large)}")
    return {name: of for name, of in large.items() if any(text in name for text in ONLY)}


def about_users(large):
    """Those of commands() that are about users and roles."""
    return {name: of for name, of in large.items() if re.search("user|role|privileges", name.split()[0], re.I)}


def send(client, body):
    client.send(body)
    return client.reply()


class Server:
    """With access control, the audit log, and the users root, plain and spare (without a role), and many."""

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
            ("shop", {"createUser": "spare", "pwd": PASSWORD, "roles": []}),
            ("spare", {"createUser": "spare", "pwd": PASSWORD, "roles": []}),
        ):
            done = self.root.command(db, command)
            check(done["ok"] == 1, f"{command}: {done}")
        self.plain = log_in(self.proc.port, "plain", PASSWORD, "shop")
        for n, count in enumerate(ROLE_SIZES):
            names = [f"c{n}-{i}" for i in range(count - n)] + ["c"] * n  # what commands() are about is among them
            each = [
                {"resource": {"db": "other", "collection": name}, "actions": ["find", "insert", "update"]}
                for name in names
            ]
            made = {"createRole": f"many{n}", "privileges": each, "roles": []}
            check(self.root.command("other", made)["ok"] == 1, "a role of many privileges")
        roles = [{"role": f"many{n}", "db": "other"} for n in range(len(ROLE_SIZES))]
        self.root.command("other", {"createUser": "many", "pwd": PASSWORD, "roles": roles})
        self.many = log_in(self.proc.port, "many", PASSWORD, "other")
        seen = self.many.command("admin", {"connectionStatus": 1, "showPrivileges": True})["authInfo"]
        check(len(seen["authenticatedUserPrivileges"]) >= sum(ROLE_SIZES), "and a user of all of them")
        return self

    def of_many_roles(self):
        """A client of a user of `shop` with as many roles as one may have, r000 to r999, which grant nothing."""
        roles = [f"r{n:03}" for n in range(1000)]
        for role in roles:
            self.root.command("shop", {"createRole": role, "privileges": [], "roles": []})
        made = self.root.command("shop", {"createUser": "roles", "pwd": PASSWORD, "roles": roles})
        check(made["ok"] == 1, f"a user of many roles: {made}")
        return log_in(self.proc.port, "roles", PASSWORD, "shop")

    def users(self):
        """(client, its name, the requests that it sends), one after another."""
        yield self.root, "root", commands("spare", spare="spare", left_out=ENDS)
        yield self.plain, "plain", commands("plain")
        yield self.many, "many", commands("many", db="other", spare="other")
        yield self.of_many_roles(), "roles", about_users(commands("roles"))

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
        for client, who, requests in server.users():
            base = min(server.io_cpu(client, ping)[0] for _ in range(5))
            check(base > 0, f"the time of the threads of connections is seen: {base}")
            print(f"{who}: {base:.1f} ms to receive {BYTES} bytes", flush=True)
            worst = 0
            for name, make in requests.items():
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
    """The longest requests that are still decided about on a thread of connections, by who has many privileges and by
    who has many roles."""
    with Server() as server:
        many, roles = server.many, server.of_many_roles()
        stages = [{"$unionWith": {"coll": "c0-1"}}] * 330
        bulk = {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}]}
        worst = 0
        for who, client, db, command in (
            ("many privileges", many, "other", {"aggregate": "c0-1", "pipeline": stages, "cursor": {}}),
            ("many privileges", many, "other",
             {"aggregate": "c0-1", "pipeline": [{"$unionWith": f"c0-{n}"} for n in range(480)], "cursor": {}}),
            ("many privileges", many, "admin", {**bulk, "nsInfo": [{"ns": f"other.c0-{n}"} for n in range(520)]}),
            ("many privileges", many, "other", {"usersInfo": ["many"] * 1150}),
            ("many roles", roles, "shop", {"usersInfo": ["roles"] * 1050}),
            ("many roles", roles, "shop", {"rolesInfo": [f"r{n * 619 % 1000:03}" for n in range(1130)]}),
            ("many roles", roles, "shop", {"rolesInfo": [{"role": f"r{n:03}", "db": "shop"} for n in range(400)]}),
        ):  # fmt: skip
            name = next(iter(command))
            body = bson.encode({**command, "$db": db})
            check(12000 < len(body) <= 16300, f"{name} is short: {len(body)} bytes")
            taken = [server.io_cpu(client, body) for _ in range(20)]
            code = taken[0][1].get("code", "ok")
            # Refused, it may have been decided about by its first name.
            check(code != 13, f"{who}: {name} is allowed: {code}")
            ms = min(ms for ms, _ in taken)
            print(f"{who}, {name} of {len(body)} bytes: {ms:.2f} ms, {code}", flush=True)
            worst = max(worst, ms)
            check(ms < MOST_SHORT_MS, f"{who}: a short {name} takes {ms:.1f} ms of a thread of connections")
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
        for client, who, requests in server.users():
            base = min(server.io_cpu(client, ping)[0] for _ in range(5))
            check(base > 0, f"the time of the threads of connections is seen: {base}")
            for name, make in requests.items():
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


def limited(folder, kilobytes):
    """A program that is the server with so much address space, of which a quarter may be large values."""
    path = folder + "/limited"
    with open(path, "w") as f:
        f.write(f'#!/bin/sh\nulimit -v {kilobytes}\nexec "{BINARY}" "$@"\n')
    os.chmod(path, 0o755)
    return path


def code_of(reply):
    """That of the command or of its one statement."""
    errors = [reply, *reply.get("writeErrors", []), *reply.get("cursor", {}).get("firstBatch", [])]
    return next((e["code"] for e in errors if "code" in e), "ok")


def parsed_together():
    """What runs is charged for what it was parsed into: of requests of 14 MB that become ten times as much each, sent
    one by one while those before them run, some are refused, whatever the command."""
    most_mb, each_mb = 768, 100
    expression = {"$max": ["$v"] * 900_000}
    stages = [{"$addFields": {"x": expression}}, {"$match": {"x": "none"}}]
    aggregate = {"aggregate": "c", "pipeline": stages, "cursor": {}}
    stage = [{"$set": {"z": expression}}]
    commands = {
        "aggregate": aggregate,
        "an explained aggregate": {"explain": aggregate, "verbosity": "executionStats"},
        "update": {"update": "c", "updates": [{"q": {}, "u": stage, "multi": True}]},
        "bulkWrite": {"bulkWrite": 1, "ops": [{"update": 0, "filter": {}, "updateMods": stage, "multi": True}],
                      "nsInfo": [{"ns": "shop.c"}]},
    }  # fmt: skip
    for name, command in commands.items():
        with tempfile.TemporaryDirectory() as folder:
            proc, client = start(folder + "/data", binary=limited(folder, most_mb * 4 * 1024))
            for n in range(10):
                documents = [{"_id": n * 3000 + i, "v": i} for i in range(3000)]
                check(client.command("shop", {"insert": "c", "documents": documents})["ok"] == 1, "documents")
            db = "admin" if name == "bulkWrite" else "shop"
            body = bson.encode({**command, "comment": "together", "$db": db})
            before = memory_mb(proc.pid)
            replies, threads = [], []

            def one(body=body, replies=replies, port=proc.port):
                other = Client("127.0.0.1", port)
                replies.append(code_of(send(other, body)))
                other.sock.close()

            # Each when those before it are parsed, so that what they hold then counts.
            for _ in range(8):
                threads.append(threading.Thread(target=one))
                threads[-1].start()

                def parsed(pid=proc.pid, before=before, threads=threads, replies=replies):
                    return replies or memory_mb(pid) - before >= each_mb * len(threads)

                check(until(parsed), f"{name}: the request is read")
            check(until(lambda replies=replies: 146 in replies), f"{name}: some are refused: {replies}")
            peak = memory_mb(proc.pid, "VmHWM") - before
            print(f"{name}: {peak} MB, {replies}", flush=True)
            figure(f"memory of {name}, eight at once", peak, "MB")

            def ended(client=client, threads=threads):
                asked = {"currentOp": 1, "command.comment": "together"}
                for op in client.command("admin", asked)["inprog"]:
                    client.command("admin", {"killOp": 1, "op": op["opid"]})
                return not any(t.is_alive() for t in threads)

            check(until(ended), f"{name}: they end")
            check(set(replies) <= {"ok", 146, 11601}, f"{name}: each is carried out, refused or killed: {replies}")
            check(client.command("admin", {"ping": 1})["ok"] == 1, f"{name}: the server goes on")
            check(stop(proc) == 0, f"{name}: and ends well")


def interrupted():
    """What decides is interrupted: by killOp, which finds it, and by maxTimeMS."""
    with Server() as server:
        entries = array({"op": "n", "ns": "", "o": {}})
        limited = document([("applyOps", entries), ("maxTimeMS", plain(1)), ("$db", plain("admin"))])
        check(send(server.root, limited).get("code") == 50, "a time limit holds while it is decided")
        client, other = server.plain, log_in(server.proc.port, "plain", PASSWORD, "shop")
        names = ("usersInfo", array("plain"))
        found = set()

        def kill():
            ops = server.root.command("admin", {"currentOp": 1, "command.comment": "to be killed"})["inprog"]
            for op in ops:
                server.root.command("admin", {"killOp": 1, "op": op["opid"]})
                found.add(op["opid"])

        def of_operation():
            found.clear()
            return client, document([names, ("comment", plain("to be killed")), ("$db", plain("shop"))]), kill

        check(until_killed(of_operation), "killed by its number while it is decided about")
        check(len(found) == 1, f"and found for that, as one operation: {found}")

        # By its session as well, which is known before it is decided about.
        def of_session():
            session = {"id": bson.Binary(uuid.uuid4().bytes, 4)}

            def kill_session():
                killed = other.command("admin", {"killSessions": [session]})
                check(killed["ok"] == 1, f"killSessions: {killed}")

            return client, document([names, ("lsid", plain(session)), ("$db", plain("shop"))]), kill_session

        check(until_killed(of_session), "killed by its session")


def until_killed(make, most=20):
    """Sends requests, `make()` each: (client, body, what kills it), until one was killed while it was decided about;
    one that is decided about in full is refused for its length. False: none was."""
    for _ in range(most):
        client, body, kill = make()
        replies = []
        asks = threading.Thread(target=lambda client=client, body=body: replies.append(send(client, body)))
        asks.start()

        def ends():
            kill()
            return bool(replies)

        check(until(ends, 60), "it ends")
        asks.join()
        if replies[0].get("code") == 11601:
            return True
        check(replies[0]["ok"] == 0 and "code" in replies[0], f"it is refused: {str(replies[0])[:200]}")
    return False


run_parts("large_requests", (kinds, short, point_reads, shown, together, parsed_together, interrupted), check)
