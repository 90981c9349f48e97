#!/usr/bin/env python3
"""Logins and access control with a real driver: both mechanisms, wrong passwords and unknown users, what nobody may do,
changes that hold on open connections, restrictions, the localhost exception, cursors and sessions of others, limits
before a login, passwords that show nowhere, a restart, and a set of three whose members know of changes at once. The
last line says "N passed, N failed".
"""

import base64, hashlib, json, os, select, socket, struct, subprocess, tempfile, threading, time
import urllib.error, urllib.request
from pathlib import Path

import bson
import pymongo
from bson.binary import Binary
from pymongo.errors import OperationFailure

from fault_test import BINARY, Checks, Client, Deadline, discard, free_port, log_in, processor_seconds, run_parts, until
from own_server import OwnServer, code
from replica_set import ReplicaSet

check = Checks()
CANARY = "canary-9f31c-password"
OK, DENIED, WRONG = 0, 13, 18


class Server(OwnServer):
    check, root_password = check, CANARY


def localhost_exception():
    s = Server()
    try:
        nobody = s.connect()
        check(code(nobody.shop.things.find_one) == DENIED, "nobody reads")
        check(code(nobody.shop.command, "createUser", "x", pwd="x", roles=[]) == DENIED, "the first user is of admin")
        check(code(nobody.admin.command, "createUser", "root", pwd=CANARY, roles=["root"]) == OK, "the first user")
        check(code(nobody.admin.command, "createUser", "more", pwd="x", roles=[]) == DENIED, "and no other")
        check(code(nobody.admin.command, "createRole", "r", privileges=[], roles=[]) == DENIED, "nor a role")
        root = s.connect("root", CANARY)
        check(code(root.admin.command, "connectionStatus") == OK, "the first user logs in")
        raw = Client("127.0.0.1", s.port)
        r = raw.command("admin", {"replSetGetStatus": 1})
        check(r["code"] == DENIED, "it is closed for what else it allows")
    finally:
        s.end()
    s = Server("--setParameter", "enableLocalhostAuthBypass=false")
    try:
        check(code(s.connect().admin.command, "createUser", "x", pwd="x", roles=[]) == DENIED, "it can be switched off")
    finally:
        s.end()


def logins():
    s = Server("--setParameter", "scramIterationCount=5000", "--setParameter", "scramSHA256IterationCount=5000")
    try:
        root = s.first_user()
        root.admin.command("createUser", "old", pwd="p=1,", roles=[], mechanisms=["SCRAM-SHA-1"])
        root.shop.command("createUser", "I\u00adX", pwd="IX", roles=[])
        for user, password, mechanism, db in [
            ("root", CANARY, "SCRAM-SHA-256", "admin"),
            ("root", CANARY, "SCRAM-SHA-1", "admin"),
            ("root", CANARY, None, "admin"),
            ("old", "p=1,", None, "admin"),
            ("old", "p=1,", "SCRAM-SHA-1", "admin"),
            ("I\u00adX", "I\u00adX", "SCRAM-SHA-256", "shop"),
        ]:
            more = {"authMechanism": mechanism} if mechanism else {}
            c = s.connect(user, password, authSource=db, **more)
            who = c.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
            check(who == [{"user": user, "db": db}], f"{user!r} by {mechanism}: {who}")
        for user, password, more, why in [
            ("root", "wrong", {}, "a wrong password"),
            ("nobody", CANARY, {}, "an unknown user"),
            ("root", CANARY, {"authSource": "shop"}, "another database"),
            ("old", "p=1,", {"authMechanism": "SCRAM-SHA-256"}, "a mechanism without a password"),
        ]:
            try:
                s.connect(user, password, **more).admin.command("ping")
                check(False, f"{why} is refused")
            except OperationFailure as e:
                check((e.code, e.details["errmsg"]) == (WRONG, "Authentication failed."), f"{why}: {e.details}")
        check("Failed to authenticate" in s.log() and '"user":"nobody"' in s.log(), "failures are in the log")
        # What an unknown user is shown is the same each time, and after a restart.
        first = challenge(s, "nobody")
        check(first == challenge(s, "nobody") != challenge(s, "noone"), "a made-up salt is the same each time")
        s.stop()
        s.start()
        check(first == challenge(s, "nobody"), "and after a restart")
        check(code(s.connect("root", CANARY).admin.command, "ping") == OK, "users outlive a restart")
        hello = Client("127.0.0.1", s.port).command("admin", {"hello": 1, "saslSupportedMechs": "admin.old"})
        check(hello["saslSupportedMechs"] == ["SCRAM-SHA-1"], "hello names the user's mechanisms")
        hello = Client("127.0.0.1", s.port).command("admin", {"hello": 1, "saslSupportedMechs": "admin.nobody"})
        check(hello["saslSupportedMechs"] == ["SCRAM-SHA-1", "SCRAM-SHA-256"], "an unknown user has those of a new one")
    finally:
        s.end()


def downgrades():
    """To a weaker mechanism than the user has a password for, or than the server offers; and to none."""
    begin = Binary(b"n,,n=root,r=abcdefgh")

    def start(c, mechanism, payload):
        return c.command("admin", {"saslStart": 1, "mechanism": mechanism, "payload": payload})

    with Server() as s:
        admin = s.first_user().admin
        admin.command("createUser", "new", pwd="p", roles=[], mechanisms=["SCRAM-SHA-256"])
        admin.command("createUser", "both", pwd="p", roles=[])
        admin.command("updateUser", "both", mechanisms=["SCRAM-SHA-256"])
        for user in ("new", "both"):
            got = code(s.connect(user, "p", authMechanism="SCRAM-SHA-1").admin.command, "ping")
            check(got == WRONG, f"{user} has no password for SCRAM-SHA-1: {got}")
            check(code(s.connect(user, "p").admin.command, "ping") == OK, "and one for SCRAM-SHA-256")
        c = Client("127.0.0.1", s.port)
        plain = Binary(b"\0root\0" + CANARY.encode())
        for mechanism, payload in (("PLAIN", plain), ("SCRAM-SHA-256-PLUS", begin), ("", begin)):
            got = start(c, mechanism, payload).get("code")
            check(got == 334, f"{mechanism!r} is not offered: {got}")
        got = c.command("admin", {"authenticate": 1, "user": "root", "nonce": "0" * 16, "key": "0" * 32}).get("code")
        check(got == 2, f"nor is what there was before SCRAM: {got}")
        # What was proven for one mechanism is none for the other.
        step = start(c, "SCRAM-SHA-1", begin)
        nonce = dict(p.split("=", 1) for p in bytes(step["payload"]).decode().split(","))["r"]
        proof = f"c=biws,r={nonce},p={base64.b64encode(bytes(32)).decode()}".encode()
        more = {"saslContinue": 1, "conversationId": step["conversationId"], "payload": Binary(proof)}
        check(c.command("admin", more).get("code") == WRONG, "a proof of the other mechanism's length")
    with Server("--setParameter", "authenticationMechanisms=SCRAM-SHA-256") as s:
        admin = s.first_user().admin
        c = Client("127.0.0.1", s.port)
        got = start(c, "SCRAM-SHA-1", begin).get("code")
        check(got == 334, f"SCRAM-SHA-1 can be switched off: {got}")
        for user in ("root", "nobody"):
            speculative = {"saslStart": 1, "mechanism": "SCRAM-SHA-1", "payload": begin, "db": "admin"}
            hello = {"hello": 1, "saslSupportedMechs": f"admin.{user}", "speculativeAuthenticate": speculative}
            said = c.command("admin", hello)
            check(said["saslSupportedMechs"] == ["SCRAM-SHA-256"], f"and is not named for {user}")
            check("speculativeAuthenticate" not in said, "nor taken within a hello")
        weak = code(admin.command, "createUser", "weak", pwd="p", roles=[], mechanisms=["SCRAM-SHA-1"])
        check(weak == 2, f"nobody gets a password for it: {weak}")
        admin.command("createUser", "strong", pwd="p", roles=[])
        made = admin.command("usersInfo", "strong", showCredentials=True)["users"][0]["credentials"]
        check(list(made) == ["SCRAM-SHA-256"], f"not even beside the other one: {list(made)}")


def challenge(s, user):
    """The salt that a user is shown."""
    r = Client("127.0.0.1", s.port).command(
        "admin",
        {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(f"n,,n={user},r=abcdef".encode())},
    )
    return dict(p.split("=", 1) for p in bytes(r["payload"]).decode().split(","))["s"]


def guessing():
    """Failures make further tries slower, for who fails."""
    s = Server("--setParameter", "scramSHA256IterationCount=5000")
    try:
        s.first_user()
        work, unknown = [], []

        def tried(user, worked):
            """Seconds that the answer took."""
            began, before = time.monotonic(), processor_seconds(s.proc.pid)
            code(s.connect(user, "wrong", authMechanism="SCRAM-SHA-256").admin.command, "ping")
            worked.append(processor_seconds(s.proc.pid) - before)
            return time.monotonic() - began

        for user, tries, worked in (("root", 7, work), ("stranger", 3, unknown)):
            for _ in range(tries):
                tried(user, worked)
        # On a slow machine the first are forgotten before the eighth, and more are needed.
        waited = until(lambda: tried("root", work) > 0.15)  # clock: at least
        check(waited, f"who tries wrong passwords has to wait, after {len(work)}")
        guess_together(s)
        ratio = min(unknown) / min(work)
        check(0.1 < ratio < 10, f"an unknown user is as much work as a wrong password ({ratio:.2f})")
    finally:
        s.end()


def guess_together(s):
    """100 connections that guess at one user at the same time: each waited for itself alone, and a few seconds were
    hundreds of guesses. Others of that address go on."""
    s.connect("root", CANARY).admin.command("createUser", "ann", pwd="a", roles=[])
    s.connect("root", CANARY).admin.command("createUser", "bob", pwd="b", roles=[])
    check(code(s.connect("ann", "a").admin.command, "ping") == OK, "ann has been here before")
    stop = threading.Event()

    def guess():
        while not stop.is_set():
            try:
                log_in(s.port, "eve", "wrong")
            except (AssertionError, OSError):
                pass

    threads = [threading.Thread(target=guess) for _ in range(100)]
    began = time.monotonic()
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            check(code(s.connect("ann", "a").admin.command, "ping") == OK, "who is known does not wait for eve")
            check(code(s.connect("bob", "b").admin.command, "ping") == OK, "nor does who is not")
        waited = until(lambda: "its password was not looked at" in s.log())
        log, took = s.log(), time.monotonic() - began
        check(waited, "who has waited in vain has failed")
        failed = [line for line in log.splitlines() if '"user":"eve"' in line and '"id":5286307' in line]
        looked = sum("not looked at" not in line for line in failed)
        few = 0 < looked <= 13 + took / 5  # clock: a rate; a slow machine looks at fewer
        check(few, f"{looked} guesses of 100 connections were looked at in {took:.0f} s")
    finally:
        stop.set()
        for t in threads:
            t.join()


def nobody_may():
    s = Server()
    try:
        s.first_user()
        raw = Client("127.0.0.1", s.port)
        open_ = [
            {"hello": 1},
            {"isMaster": 1},
            {"ping": 1},
            {"buildInfo": 1},
            {"connectionStatus": 1},
            {"whatsmyuri": 1},
            {"logout": 1},
            {"endSessions": []},
        ]
        for c in open_:
            r = raw.command("admin", c)
            check(r["ok"] == 1, f"{next(iter(c))} needs no login: {r.get('errmsg')}")
        for c in [
            {"find": "c"},
            {"insert": "c", "documents": [{}]},
            {"listDatabases": 1},
            {"serverStatus": 1},
            {"getLog": "global"},
            {"getParameter": "*"},
            {"shutdown": 1},
            {"usersInfo": 1},
            {"createUser": "x", "pwd": "x", "roles": []},
            {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}},
            {"currentOp": 1},
            {"ttlStatus": 1},
        ]:
            r = raw.command("admin", c)
            name = next(iter(c))
            check(
                (r.get("code"), r.get("errmsg")) == (DENIED, f"Command {name} requires authentication"),
                f"{name} needs one: {r.get('errmsg')}",
            )

        def http(path):
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{s.http}{path}", timeout=Deadline().seconds).status
            except urllib.error.HTTPError as e:
                return e.code

        check([http(p) for p in ("/healthz", "/readyz")] == [200, 200], "health is open")
        check([http(p) for p in ("/", "/metrics", "/api/rules", "/events")] == [401] * 4, "nothing else by HTTP")
    finally:
        s.end()


def chunked_requests():
    """A chunked body, byte by byte, which ended the process: it is refused."""
    s = Server(auth=False)
    try:
        head = b"POST /api/action HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n"
        for body in (b"0\r\nP!TT x\r\ny", b"5\r\nabcde\r\n0\r\nP!TT x\r\ny", b"0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", s.http), Deadline().seconds) as c:
                c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    for byte in head + body:
                        c.sendall(bytes([byte]))
                    answer = c.recv(1000)
                except ConnectionError:
                    answer = b"HTTP/1.1 411"
                check(b" 411 " in answer + b" ", f"a chunked body is refused: {answer[:40]}")
        health = urllib.request.urlopen(f"http://127.0.0.1:{s.http}/healthz", timeout=Deadline().seconds).status
        check(health == 200, "and the server lives")
    finally:
        s.end()


def http_logins():
    """The HTTP endpoint: a user of admin by name and password, and what each may see and do."""
    s = Server("--httpBindIp", "127.0.0.1,127.0.0.2")
    try:
        root = s.first_user()
        for name, role in (("ops", "clusterMonitor"), ("janitor", "expiryAdmin"), ("writer", "readWriteAnyDatabase")):
            root.admin.command("createUser", name, pwd=CANARY, roles=[role])
        sha1 = ["SCRAM-SHA-1"]
        root.admin.command("createUser", "old:", pwd=CANARY, roles=["clusterMonitor"], mechanisms=sha1)
        root.admin.command("createUser", "old", pwd=CANARY, roles=["clusterMonitor"], mechanisms=sha1)
        away = [{"clientSource": ["10.0.0.1"]}]
        root.admin.command("createUser", "away", pwd=CANARY, roles=["root"], authenticationRestrictions=away)
        root.shop.sessions.create_index("at", expireAfterSeconds=60, name="at_1")

        ask = s.ask
        check(ask("/") == (401, 'Basic realm="Mayfly", charset="UTF-8"'), "a browser is told to ask for a password")
        check("mayfly_" in ask("/metrics", "ops")[1], "a scraper with clusterMonitor gets the metrics")
        check(ask("/metrics", "ops", scheme="basic")[0] == 200, "however the scheme is spelt")
        pages = ("/", "/app.js", "/events", "/api/forecast")
        for user in ("ops", "janitor", "root", "old"):
            got = [ask(p, user)[0] for p in pages]
            check(got == [200] * 4, f"{user} sees the page: {got}")
        check(ask("/metrics", "janitor")[0] == 403, "who may see expiry may not see the server")
        check([ask(p, "writer")[0] for p in (*pages, "/metrics")] == [403] * 5, "who may see neither sees nothing")
        wrong = [
            ask("/metrics", "ops", "wrong"), ask("/metrics", "nobody"), ask("/metrics", "away"),
            ask("/metrics", "old:"),
            ask("/metrics", "ops", ""), ask("/metrics", ""), ask("/metrics", "ops", scheme="Bearer"),
            ask("/metrics", "a" * 5000), ask("/metrics", "ops", "x" * 5000),
        ]  # fmt: skip
        check([code for code, _ in wrong] == [401] * len(wrong), f"wrong ones: {wrong}")
        check("Authentication failed" not in s.log() or CANARY not in s.log(), "no password is in the log")

        pause = {"action": "pause", "ns": "shop.sessions"}
        check(ask("/api/action", "ops", body=pause)[0] == 403, "who may look may not pause expiry")
        check(ask("/api/action", body=pause)[0] == 401, "nor may nobody")
        # The action's privilege alone does not do: nobody acts on what he may not see.
        for name, actions, wanted in (("holds", ["holdExpiry"], 403), ("both", ["holdExpiry", "viewExpiry"], 200)):
            granted = [{"resource": {"cluster": True}, "actions": actions}]
            root.admin.command("createRole", name, privileges=granted, roles=[])
            root.admin.command("createUser", name, pwd=CANARY, roles=[name])
            got = ask("/api/action", name, body=pause)
            check(got[0] == wanted, f"who has {' and '.join(actions)} on the cluster: {got}")
        done = ask("/api/action", "janitor", body=pause)
        check(done[0] == 200, f"who may change it may: {done}")
        root.admin.command("updateUser", "ops", pwd="another")
        check(ask("/metrics", "ops")[0] == 401, "an old password is not remembered")
        check(ask("/metrics", "ops", "another")[0] == 200, "a new one holds at once")
        root.admin.command("revokeRolesFromUser", "ops", roles=["clusterMonitor"])
        check(ask("/metrics", "ops", "another")[0] == 403, "nor are roles")
        root.admin.command("dropUser", "ops")
        check(ask("/metrics", "ops", "another")[0] == 401, "nor is a user")
        check(ask("/healthz")[0] == 200, "health is open")
        # Restrictions hold for each address of the endpoint, whatever is remembered of another one.
        here = [{"serverAddress": ["127.0.0.1"]}]
        root.admin.command("createUser", "here", pwd=CANARY, roles=["clusterMonitor"], authenticationRestrictions=here)
        got = [ask("/metrics", "here", host=host)[0] for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1")]
        check(got == [200, 401, 200], f"an address that is allowed, and another one: {got}")
    finally:
        s.end()


def http_tokens():
    """A scraper's token opens the metrics, and nothing else."""
    with tempfile.TemporaryDirectory() as d:
        path, token = f"{d}/token", "scraper-token-5e0b7c41"
        with open(path, "w") as f:
            f.write(token + "\n")
        os.chmod(path, 0o600)
        s = Server("--httpMetricsTokenFile", path)
        try:
            root = s.first_user()

            def ask(at, given=token, scheme="Bearer"):
                request = urllib.request.Request(f"http://127.0.0.1:{s.http}{at}")
                request.add_header("Authorization", f"{scheme} {given}")
                try:
                    answer = urllib.request.urlopen(request, timeout=Deadline().seconds)
                    return answer.status, answer.read(200_000).decode()
                except urllib.error.HTTPError as e:
                    return e.code, e.headers.get_all("WWW-Authenticate", [])

            got = ask("/metrics")
            check(got[0] == 200 and "mayfly_" in got[1], f"the metrics by token: {got[0]}")
            check(ask("/metrics", scheme="bearer")[0] == 200, "however the scheme is spelt")
            paths = ("/", "/app.js", "/events", "/api/forecast", "/api/rules")
            check([ask(p)[0] for p in paths] == [403] * len(paths), "and nothing else")
            wrong = (token[:-1], token + "x", "", "x", token.upper(), "x" * 5000, token + " " + token)
            got = [ask("/metrics", t) for t in wrong]
            check([g[0] for g in got] == [401] * len(wrong), f"wrong ones: {got}")
            ways = " ".join(got[0][1])
            check("Bearer" in ways and "Basic" in ways, f"both ways are named: {ways}")
            check(ask("/metrics", base64.b64encode(f"x:{token}".encode()).decode(), "Basic")[0] == 401, "no password")
            body = json.dumps({"action": "pause", "ns": "shop.x"}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{s.http}/api/action", body)
            request.add_header("Authorization", f"Bearer {token}")
            request.add_header("Content-Type", "application/json")
            request.add_header("Origin", f"http://127.0.0.1:{s.http}")
            try:
                status = urllib.request.urlopen(request, timeout=Deadline().seconds).status
            except urllib.error.HTTPError as e:
                status = e.code
            check(status == 403, f"nor an action: {status}")
            shown = json.dumps([root.admin.command(c) for c in ("getCmdLineOpts", {"getLog": "global"})], default=str)
            audit = open(f"{s.folder}/data/audit/audit.json").read()
            check(path in shown, "the options name the file")
            check(token not in shown + s.log() + audit, "and nothing shows the token")
            check('"HTTP Bearer"' in audit, "wrong ones are in the audit log")
        finally:
            s.end()
        common = [BINARY, "--dbpath", f"{d}/never", "--port", str(free_port()), "--httpMetricsTokenFile", path]
        for text, options, says in (
            ("short", ["--auth"], "at least 16 characters"),
            ("two words, more than sixteen", ["--auth"], "only letters, digits"),
            ("", ["--auth"], "is empty"),
            (token, [], "access control"),
        ):
            with open(path, "w") as f:
                f.write(text)
            port = ["--httpPort", str(free_port()), "--nounixsocket"]
            got = subprocess.run(
                [*common, *options, *port], capture_output=True, text=True, timeout=Deadline(120).seconds
            )
            check(got.returncode != 0 and says in got.stdout + got.stderr, f"{text!r} {options}: {got.stdout[-300:]}")
            check(not text or text not in got.stdout + got.stderr, "without showing it")


def http_crowds():
    """Whoever waits because of wrong passwords keeps nobody from the HTTP endpoint: once, /healthz was refused."""
    s = Server()
    guesses = []
    try:
        s.first_user()
        wrong = base64.b64encode(b"root:wrong").decode()
        request = f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {wrong}\r\n\r\n".encode()

        def guess():
            g = socket.create_connection(("127.0.0.1", s.http), Deadline().seconds)
            guesses.append(g)
            g.sendall(request)
            return g

        answers = [guess().recv(20) for _ in range(10)]
        check(all(b" 401 " in a for a in answers), "wrong passwords")
        for _ in range(200):  # more than there are places
            guess()
        got = []
        for _ in range(20):
            with urllib.request.urlopen(f"http://127.0.0.1:{s.http}/healthz", timeout=Deadline().seconds) as r:
                got.append(r.status)
            guess()
        check(got == [200] * 20, f"health is answered beside them: {got}")
        check(guesses[-1].recv(20) in (b"", b"HTTP/1.1 401 Unautho"), "and none of them got in")
    finally:
        for g in guesses:
            g.close()
        s.end()


def before_login():
    """Small messages, little time, few connections."""
    s = Server("--setParameter", "loginTimeoutMillis=500", "--setParameter", "maxConnectionsBeforeLogin=20")
    try:
        root = s.first_user()
        root.admin.command("ping")
        raw = Client("127.0.0.1", s.port)
        try:
            raw.command("admin", {"hello": 1, "x": "y" * 20_000})
            check(False, "a large message ends the connection")
        except ConnectionError:
            check(True, "a large message ends the connection")
        check(code(root.shop.c.insert_one, {"x": "y" * 100_000}) == OK, "not after a login")
        silent = socket.create_connection(("127.0.0.1", s.port), timeout=Deadline().seconds)
        half = socket.create_connection(("127.0.0.1", s.port), timeout=Deadline().seconds)
        half.sendall(struct.pack("<iiii", 100, 1, 0, 2013))
        check(silent.recv(1) == b"", "who says nothing is disconnected")
        check(half.recv(1) == b"", "who says half of something, too")
    finally:
        s.end()
    # Nobody of the crowd is turned away because of the time that it takes.
    s = Server("--setParameter", "loginTimeoutMillis=3600000", "--setParameter", "maxConnectionsBeforeLogin=20")
    try:
        root = s.first_user()
        root.admin.command("ping")  # it has a connection before the crowd comes
        crowd = [socket.create_connection(("127.0.0.1", s.port), timeout=Deadline().seconds) for _ in range(40)]
        ended, _, _ = select.select(crowd, [], [], Deadline().seconds)
        check(len(ended) > 0, "a crowd that does not log in is turned away")
        check(code(root.admin.command, "ping") == OK, "who has logged in goes on")
        for c in crowd:
            c.close()
    finally:
        s.end()


def pipelined(s, requests):
    """A connection that has sent the commands and has read none of the replies."""
    frames = b""
    for number, (db, command) in enumerate(requests, 1):
        body = b"\0" * 5 + bson.encode(command | {"$db": db})
        frames += struct.pack("<iiii", 16 + len(body), number, 0, 2013) + body
    c = socket.create_connection(("127.0.0.1", s.port), timeout=Deadline().seconds)
    c.sendall(frames)
    return c


def gone_in_a_login():
    """Guesses that wait for their turn behind one another are not worked off for a client that has gone: they kept
    others from logging in, a minute and more."""
    s = Server()
    try:
        root = s.first_user()
        figures = lambda: root.admin.command("serverStatus")
        opened, guesses = figures()["connections"]["current"], 100
        start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=made-up,r=abc")}
        requests = []
        for n in range(1, guesses + 1):
            requests += [("admin", start), ("admin", {"saslContinue": 1, "conversationId": n, "payload": b"x"})]
        many = 8
        crowd = [pipelined(s, requests) for _ in range(many)]
        failed = lambda: figures()["metrics"]["commands"]["saslContinue"]["failed"]
        check(until(lambda: failed() >= 5), "the first of them are answered")
        for c in crowd:
            c.close()
        # Each connection would wait for each guess, and those wait for 10 seconds.
        check(until(lambda: figures()["connections"]["current"] <= opened, 30), "they end with their clients")
        after = failed()
        check(after < many * guesses / 2, f"and what they have sent is not worked off: {after}")
    finally:
        s.end()


def deaf_before_login():
    """A client that sends and never reads does not keep a place of those who have not logged in."""
    s = Server("--setParameter", "loginTimeoutMillis=500")
    try:
        root = s.first_user()
        c = socket.create_connection(("127.0.0.1", s.port), timeout=Deadline().seconds)
        body = b"\0" * 5 + bson.encode({"listCommands": 1, "$db": "admin"})
        frame = struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body
        ended = False
        try:
            for _ in range(100_000):
                c.sendall(frame)
        except (TimeoutError, socket.timeout):
            # Both sides are full; more can only be sent when the server reads, or it has ended.
            def sends():
                try:
                    c.sendall(frame)
                except (TimeoutError, socket.timeout):
                    return False
                except OSError:
                    return True

            ended = until(sends, 60)
        except OSError:
            ended = True
        check(ended, "it is disconnected")
        check("does not read its replies" in s.log(), "and the log says why")
        check(code(root.admin.command, "ping") == OK, "who has logged in goes on")
    finally:
        s.end()


def open_connections():
    """A change holds from the next command on."""
    s = Server()
    try:
        root = s.first_user()
        root.admin.command("createUser", "ann", pwd="a", roles=["__system"])
        root.shop.things.insert_one({"_id": 1})
        ann = s.connect("ann", "a", maxPoolSize=1)
        check(ann.shop.things.find_one() == {"_id": 1}, "with the role she reads")
        root.admin.command("revokeRolesFromUser", "ann", roles=["__system"])
        check(code(ann.shop.things.find_one) == DENIED, "without it she does not")
        root.admin.command("grantRolesToUser", "ann", roles=["__system"])
        check(code(ann.shop.things.find_one) == OK, "with it again she does")
        root.admin.system.users.update_one({"_id": "admin.ann"}, {"$set": {"roles": []}})
        check(code(ann.shop.things.find_one) == DENIED, "a write to system.users holds as well")
        root.admin.command("updateUser", "ann", roles=["__system"], pwd="b")
        check(code(ann.shop.things.find_one) == OK, "who is logged in stays so when the password changes")
        check(code(s.connect("ann", "a").admin.command, "ping") == WRONG, "the old password is none")
        root.admin.command("dropUser", "ann")
        check(code(ann.shop.things.find_one) == DENIED, "a dropped user is nobody")
        root.admin.command("createUser", "ann", pwd="c", roles=["__system"])
        check(code(ann.shop.things.find_one) == DENIED, "and is not who has the name afterwards")
    finally:
        s.end()


def one_login():
    s = Server()
    try:
        root = s.first_user()
        root.admin.command("createUser", "ann", pwd="a", roles=[])
        raw = Client("127.0.0.1", s.port)
        r = raw.command("admin", {"saslContinue": 1, "conversationId": 1, "payload": Binary(b"")})
        check(r["code"] == 17, "no login is under way")
        start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=root,r=abcdef")}
        r = raw.command("admin", start)
        check(r["done"] is False and r["ok"] == 1, "one begins")
        wrong = raw.command("admin", {"saslContinue": 1, "conversationId": r["conversationId"] + 1, "payload": b""})
        check(wrong["code"] == 17, "another conversation's number ends it")
        r = raw.command("admin", start)
        proof = b"c=biws,r=" + bytes(r["payload"]).split(b",")[0][2:] + b",p=" + b"A" * 43 + b"="
        r = raw.command("admin", {"saslContinue": 1, "conversationId": r["conversationId"], "payload": Binary(proof)})
        check(r["code"] == WRONG, "a made-up proof is refused")
        r = raw.command("admin", {"saslContinue": 1, "conversationId": 1, "payload": Binary(proof)})
        check(r["code"] == 17, "and is not looked at twice")
        ann = s.connect("ann", "a", maxPoolSize=1)
        ann.admin.command("ping")
        check(code(ann.admin.command, start) == 17, "a connection is one user's")
        check(code(ann.admin.command, "logout") == OK, "logout")
        check(ann.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"] == [], "then nobody is logged in")
    finally:
        s.end()


def restrictions():
    s = Server()
    try:
        root = s.first_user()
        for name, allowed in [("here", ["127.0.0.0/8"]), ("elsewhere", ["10.1.2.3"])]:
            root.admin.command(
                "createUser", name, pwd="x", roles=[], authenticationRestrictions=[{"clientSource": allowed}]
            )
        root.admin.command(
            "createRole", "far", privileges=[], roles=[], authenticationRestrictions=[{"serverAddress": ["10.9.9.9"]}]
        )
        root.admin.command("createUser", "byrole", pwd="x", roles=["far"])
        check(code(s.connect("here", "x").admin.command, "ping") == OK, "from an address that is allowed")
        check(code(s.connect("elsewhere", "x").admin.command, "ping") == WRONG, "from one that is not")
        check(code(s.connect("byrole", "x").admin.command, "ping") == WRONG, "a role's restriction holds as well")
        # Restrictions that come later hold on open connections.
        root.admin.command("createRole", "near", privileges=[], roles=["__system"])
        root.admin.command("createUser", "later", pwd="x", roles=["near"])
        later = s.connect("later", "x", maxPoolSize=1)
        check(code(later.shop.things.find_one) == OK, "without a restriction")
        of_role = {"updateRole": "near", "authenticationRestrictions": [{"clientSource": ["10.1.2.3"]}]}
        root.admin.command(of_role)
        check(code(later.shop.things.find_one) == DENIED, "with one that the role has got meanwhile")
        root.admin.command({**of_role, "authenticationRestrictions": []})
        again = s.connect("later", "x", maxPoolSize=1)
        check(code(again.shop.things.find_one) == OK, "a new login, as it has none any more")
        root.admin.command("updateUser", "later", authenticationRestrictions=[{"serverAddress": ["10.1.2.3"]}])
        check(code(again.shop.things.find_one) == DENIED, "with one that the user has got meanwhile")
    finally:
        s.end()


def stealing():
    """Cursors, sessions and retries are their user's."""
    s = Server()
    try:
        root = s.first_user()
        root.admin.command("createUser", "ann", pwd="a", roles=["__system"])
        root.admin.command("createUser", "bob", pwd="b", roles=["__system"])
        ann, bob = log_in(s.port, "ann", "a"), log_in(s.port, "bob", "b")
        ann.command("shop", {"insert": "things", "documents": [{"_id": i} for i in range(10)]})
        lsid = {"id": Binary(os.urandom(16), 4)}

        def answer(client, db, c):
            return client.command(db, c).get("code", OK)

        of_session = ann.command("shop", {"find": "things", "batchSize": 2, "lsid": lsid})["cursor"]["id"]
        plain = ann.command("shop", {"find": "things", "batchSize": 2})["cursor"]["id"]
        more = {"getMore": of_session, "collection": "things", "lsid": lsid, "batchSize": 1}
        check(answer(bob, "shop", more) == DENIED, "another user's cursor, with her session's id")
        more_plain = {"getMore": plain, "collection": "things", "batchSize": 1}
        check(answer(bob, "shop", more_plain) == DENIED, "and one without a session")
        check(answer(ann, "shop", more_plain) == OK, "her own")
        check(answer(bob, "shop", {"endSessions": [lsid]}) == OK, "he ends a session of the same id, which is his own")
        check(answer(ann, "shop", more) == OK, "hers goes on")
        digest = hashlib.sha256(b"ann@admin").digest()
        by_uid = {"find": "things", "lsid": {**lsid, "uid": Binary(digest)}}
        check(answer(bob, "shop", by_uid) == DENIED, "nor by her uid")
        check(answer(ann, "shop", by_uid) == OK, "which is hers")
        shown = {"aggregate": 1, "pipeline": [{"$listLocalSessions": {}}], "cursor": {}, "lsid": lsid}
        sessions = ann.command("config", shown)["cursor"]["firstBatch"]
        check({bytes(d["_id"]["uid"]) for d in sessions} == {digest}, "$listLocalSessions shows her own")
        # The kills of a user are its own, too.
        root.admin.command("updateUser", "bob", roles=[{"role": "readWrite", "db": "shop"}])
        check(answer(bob, "admin", {"killSessions": []}) in (OK, DENIED), "he kills all that are his")
        check(answer(ann, "shop", more) == OK, "hers goes on")
        root.admin.command("killAllSessions", [{"user": "ann", "db": "admin"}])
        check(answer(ann, "shop", more) == 43, "an administrator ends those of a user")
    finally:
        s.end()


def secrets():
    """Passwords show nowhere."""
    s = Server("-vvvvv", "--slowms", "0")
    try:
        root = s.first_user()
        root.admin.command("profile", 2)
        root.admin.command("createUser", "ann", pwd=CANARY, roles=[])
        root.admin.command("updateUser", "ann", pwd=CANARY + "2")
        code(root.admin.command, "createUser", "ann", pwd=CANARY, roles=[])
        code(root.admin.command, "createUser", "x", pwd=CANARY, roles=["nobody"])
        code(root.admin.command, {"createUser": "x", "pwd": {"a": CANARY}, "roles": []})
        code(s.connect("ann", CANARY).admin.command, "ping")
        code(s.connect().admin.command, "createUser", "y", pwd=CANARY, roles=[])
        stored = root.admin.system.users.find_one({"_id": "admin.ann"})["credentials"]["SCRAM-SHA-256"]
        places = {
            "the log": s.log(),
            "getLog": json.dumps(root.admin.command("getLog", "global")["log"]),
            "the profile": str(list(root.admin.system.profile.find())),
            "currentOp": str(list(root.admin.aggregate([{"$currentOp": {"idleConnections": True, "allUsers": True}}]))),
            "getCmdLineOpts": str(root.admin.command("getCmdLineOpts")),
            "usersInfo": str(root.admin.command("usersInfo", {"forAllDBs": True})),
            "the audit log": Path(f"{s.folder}/data/audit/audit.json").read_text(),
        }
        for place, text in places.items():
            check(CANARY not in text, f"no password in {place}")
            check(stored["storedKey"] not in text and stored["salt"] not in text, f"no credential in {place}")
        s.stop()
        found = subprocess.run(["grep", "-rla", CANARY, s.folder], capture_output=True, text=True).stdout
        check(found == "", f"no password in any file: {found}")
    finally:
        s.end()


def audit():
    s = Server()
    try:
        root = s.first_user()
        root.admin.command("createUser", "ann", pwd="a", roles=["read"])
        code(s.connect("ann", "wrong").admin.command, "ping")
        events = [json.loads(l) for l in Path(f"{s.folder}/data/audit/audit.json").read_text().splitlines()]
        logins_ = [(e["param"]["user"], e["result"]) for e in events if e["atype"] == "authenticate"]
        check(("root", 0) in logins_ and ("ann", 18) in logins_, f"logins are in the audit log: {logins_}")
        made = [e for e in events if e["atype"] == "createUser" and e["param"]["user"] == "ann"]
        check(len(made) == 1 and made[0]["users"] == [{"user": "root", "db": "admin"}], f"and who made a user: {made}")
    finally:
        s.end()


def replica_set():
    folder = tempfile.mkdtemp(prefix="mayfly-key-")
    key = f"{folder}/key"
    Path(key).write_text("QmVnaW5uaW5nT2ZBTG9uZ0tleUZvck1lbWJlcnM=")
    os.chmod(key, 0o600)
    s = ReplicaSet(3, ("--keyFile", key))
    try:
        first = s.members[0].client
        first.admin.command("replSetInitiate", s.config())
        s.wait(lambda: any(m.hello()["isWritablePrimary"] for m in s.members), "a primary", 60)
        primary = next(m for m in s.members if m.hello()["isWritablePrimary"])
        roles = ["root", "__system"]
        made = code(primary.client.admin.command, "createUser", "root", pwd=CANARY, roles=roles)
        check(made == OK, f"the first user: {made}")
        check(code(primary.client.admin.command, "createUser", "x", pwd="x", roles=[]) == DENIED, "only the first")

        def on(m, user, password):
            return pymongo.MongoClient(
                "127.0.0.1", m.port, directConnection=True, username=user, password=password, authSource="admin",
                readPreference="secondaryPreferred", serverSelectionTimeoutMS=Deadline().millis, maxPoolSize=1,
            )  # fmt: skip

        root = on(primary, "root", CANARY)
        root.shop.things.insert_one({"_id": 1})
        root.admin.command("createUser", "ann", pwd="a", roles=["__system"], writeConcern={"w": 3})
        ann = [on(m, "ann", "a") for m in s.members]
        s.wait(lambda: all(code(c.shop.things.find_one) == OK for c in ann), "ann to read on each member")
        root.admin.command("revokeRolesFromUser", "ann", roles=["__system"], writeConcern={"w": 3})
        check([code(c.shop.things.find_one) for c in ann] == [DENIED] * 3, "a change holds on every member at once")
        secondary = next(m for m in s.members if m is not primary)
        there = code(on(secondary, "root", CANARY).admin.command, "createUser", "y", pwd="y", roles=[])
        check(there == 10107, f"only a primary makes users: {there}")
        salts = {challenge(m, "nobody") for m in s.members}
        check(len(salts) == 1, "unknown users are shown the same on every member")
        late = code(secondary.client.admin.command, "createUser", "y", pwd="y", roles=[])
        check(late in (DENIED, 10107), f"the exception is closed there: {late}")
        root.admin.command("dropUser", "ann", writeConcern={"w": 3})
        check([code(c.shop.things.find_one) for c in ann] == [DENIED] * 3, "a dropped user is nobody on every member")
    finally:
        for m in s.members:
            if m.running():
                m.stop()
        discard(s.folder)
        discard(folder)


PARTS = (
    localhost_exception,
    logins,
    downgrades,
    guessing,
    nobody_may,
    chunked_requests,
    http_logins,
    http_tokens,
    http_crowds,
    before_login,
    gone_in_a_login,
    deaf_before_login,
    open_connections,
    one_login,
    restrictions,
    stealing,
    secrets,
    audit,
    replica_set,
)
run_parts("login", PARTS, check)
