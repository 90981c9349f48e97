#!/usr/bin/env python3
"""Who gets a connection when there are many: limits for each address and each user, the places above the limit that are
for administrators, the addresses that do not count (net.maxIncomingConnectionsOverride), and how many new ones are
taken up in a second. The last line says "N passed, N failed".
"""

import json, os, socket, subprocess, tempfile

import bson
import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from fault_test import BINARY, Checks, Client, Deadline, discard, log_in, run_parts, start, stop, until

check = Checks()
PASSWORD = "of the crowd"
WRONG = 18


class Server:
    """A mayflyd with access control, an administrator and a user; without it for `auth=False`."""

    def __init__(self, *options, auth=True):
        self.folder = tempfile.mkdtemp(prefix="mayfly-crowd-")
        self.proc, first = start(f"{self.folder}/data", *(["--auth"] if auth else []), *options)
        self.port = self.proc.port
        if auth:
            first.command("admin", {"createUser": "root", "pwd": PASSWORD, "roles": ["root"]})
        first.sock.close()
        if auth:
            with self.client("root") as root:
                root.shop.command("createUser", "app", pwd=PASSWORD, roles=["readWrite"])
                root.admin.command("createUser", "keeper", pwd=PASSWORD, roles=["hostManager"])

    def client(self, user, **more):
        options = (
            dict(directConnection=True, serverSelectionTimeoutMS=Deadline().millis, maxPoolSize=1, retryReads=False)
            | more
        )
        db = "shop" if user == "app" else "admin"
        login = dict(username=user, password=PASSWORD, authSource=db)
        return pymongo.MongoClient("127.0.0.1", self.port, **login | options)

    def connect(self, address="127.0.0.1"):
        """A connection from this address of the machine that has said nothing yet."""
        s = socket.create_connection(("127.0.0.1", self.port), Deadline().seconds, source_address=(address, 0))
        client = Client.__new__(Client)
        client.sock, client.request = s, 0
        return client

    def raw(self, address="127.0.0.1"):
        """A connection from this address of the machine, and whether the server keeps it."""
        client = self.connect(address)
        try:
            return client if client.command("admin", {"hello": 1})["ok"] == 1 else None
        except (ConnectionError, OSError):
            client.sock.close()
            return None

    def log(self):
        with open(f"{self.folder}/data.log", errors="replace") as f:
            return f.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        check(stop(self.proc) == 0, "the server stops cleanly")
        discard(self.folder)


def close(clients):
    for c in clients:
        c.sock.close()


def refusal(client, command="ping"):
    """None, or how the command fails."""
    try:
        client.admin.command(command)
        return None
    except OperationFailure as e:
        return e
    except PyMongoError as e:
        return e


def by_address():
    """maxConnectionsPerAddress, also without access control."""
    with Server("--setParameter", "maxConnectionsPerAddress=10", auth=False) as s:
        own = [s.raw() for _ in range(10)]
        check(all(own), "ten connections of one address")
        check(s.raw() is None, "an eleventh is closed")
        check(until(lambda: '"id":9000133' in s.log()), "and the log says why")
        other = s.raw("127.0.0.2")
        check(other is not None, "another address has its own")
        own.pop().sock.close()
        check(until(lambda: (c := s.raw()) and own.append(c) is None), "the place of one that has gone")
        raised = other.command("admin", {"setParameter": 1, "maxConnectionsPerAddress": 0})
        check(raised["was"] == 10, f"it is changed at run time: {raised}")
        more = [s.raw() for _ in range(5)]
        check(all(more), "0 is no limit")
        negative = other.command("admin", {"setParameter": 1, "maxConnectionsPerAddress": -1})
        check(negative["code"] == 2, "a negative one is refused")
        close([*own, *more, other])


def by_user():
    """maxConnectionsPerUser: the login after the last place fails, and says so to who knows the password."""
    with Server("--setParameter", "maxConnectionsPerUser=3", "--setParameter", "authFailedDelayMs=0") as s:
        clients = [s.client("app") for _ in range(3)]
        check([refusal(c) for c in clients] == [None] * 3, "three connections of a user")
        for _ in range(10):
            late = s.client("app")
            e = refusal(late)
            late.close()
        check(
            e.code == WRONG
            and e.details["errmsg"] == "Too many connections of the user app@shop: maxConnectionsPerUser is 3",
            f"a fourth is refused: {e}",
        )
        wrong = s.client("app", password="wrong")
        e = refusal(wrong)
        check(e.details["errmsg"] == "Authentication failed.", f"which a wrong password is not told: {e}")
        wrong.close()
        with s.client("root") as root:
            check(refusal(root) is None, "another user has his own")
            clients[0].admin.command("logout")
            again = s.client("app")
            check(refusal(again) is None, "a logout gives a place back")
            clients.append(again)
            clients[1].close()

            def place_is_free():
                c = s.client("app")
                clients.append(c)
                return refusal(c) is None

            check(until(place_is_free), "the place of a connection that has ended")
            root.admin.command("setParameter", 1, maxConnectionsPerUser=0)
            more = s.client("app")
            check(refusal(more) is None, "0 is no limit")
            more.close()
        for c in clients:
            c.close()
        events = [json.loads(line) for line in s.log().splitlines() if '"Failed to authenticate"' in line]
        check(any("maxConnectionsPerUser" in e["attr"]["error"] for e in events), "the log says why")


def administrators():
    """When clients have taken every place, who may end operations gets in; eight of them."""
    with Server("--maxConns", "20") as s:
        crowd = []
        check(until(lambda: crowd.append(s.raw()) or len(crowd) >= 20), "every place to be taken")
        check(all(crowd), "the limit is reached")
        app = s.client("app")
        e = refusal(app)
        check(isinstance(e, OperationFailure) and "Too many open connections" in str(e), f"a user is refused: {e}")
        app.close()
        nobody = s.raw()
        check(nobody is not None, "hello is answered above the limit")
        try:
            answer = nobody.command("shop", {"find": "c"})
        except (ConnectionError, OSError):
            answer = None
        check(answer is None, f"and nothing else: {answer}")
        keepers = []
        for _ in range(8):
            keepers.append(log_in(s.port, "keeper", PASSWORD))
        check(True, "eight administrators get in")
        try:
            log_in(s.port, "keeper", PASSWORD)
            check(False, "a ninth does not")
        except AssertionError as e:
            check("8 at a time" in str(e), f"a ninth does not: {e}")
        check("keeper" in str(keepers[0].command("admin", {"connectionStatus": 1})), "they are who they are")
        works = [k.command("admin", {"invalidateUserCache": 1})["ok"] for k in keepers]
        check(works == [1] * 8, "and may do what they may")
        for _ in range(100):
            c = s.raw()
            if c:
                c.sock.close()
        check(keepers[0].command("admin", {"ping": 1})["ok"] == 1, "strangers who come and go do not take their places")
        keepers[1].command("admin", {"logout": 1})
        for k in keepers:
            k.sock.close()
        with s.client("root") as root:
            check(until(lambda: refusal(root) is None), "the place of one that has gone")
            status = root.admin.command("serverStatus")["connections"]
            check(status["rejected"] > 0, f"those who were refused are counted: {status}")
        close([c for c in crowd if c])
        app = s.client("app")
        check(until(lambda: refusal(app) is None), "an ordinary place")
        app.close()


def exempt():
    """Clients of these addresses, ranges and unix sockets count for no limit."""
    folder = tempfile.mkdtemp(prefix="mayfly-crowd-")
    options = ["--maxConns", "10", "--setParameter", "maxConnectionsPerAddress=8"]
    with Server(*options, "--maxIncomingConnectionsOverride", "127.0.1.0/24,127.0.0.9,::1", auth=False) as s:
        crowd = [s.raw(), *[s.raw("127.0.0.3") for _ in range(8)]]
        crowd.append(s.raw("127.0.0.4"))
        check(all(crowd) and s.raw("127.0.0.5") is None, "the limit is reached")
        for address in ("127.0.1.7", "127.0.0.9"):
            mine = [s.raw(address) for _ in range(15)]
            check(all(mine), f"{address} does not count, neither for the limit of an address")
            close([c for c in mine if c])
        check(s.raw("127.0.2.7") is None, "an address outside of the range does")
        shown = crowd[0].command("admin", {"getCmdLineOpts": 1})["parsed"]["net"]["maxIncomingConnectionsOverride"]
        check("127.0.1.0/24" in shown, f"getCmdLineOpts shows them: {shown}")
        close(crowd)
    for wrong in ("10.0.0.0/99", "db.example", "10.0.0"):
        out = subprocess.run(
            [BINARY, "--dbpath", f"{folder}/none", "--maxIncomingConnectionsOverride", wrong],
            capture_output=True,
            text=True,
            timeout=Deadline().seconds,
        )
        check(out.returncode == 2 and wrong in out.stderr, f"{wrong} is refused: {out.stderr}")
    check(os.listdir(folder) == [], "and nothing was made")
    discard(folder)


LIMITER = "ingressConnectionEstablishment"


def by_rate():
    """New connections beyond the rate wait in line, leave it with their clients, and are closed where it is full."""
    given = {"RateLimiterEnabled": "true", "RatePerSec": "1", "BurstCapacitySecs": "1", "MaxQueueDepth": "1000"}
    options = [x for name, v in given.items() for x in ("--setParameter", f"{LIMITER}{name}={v}")]
    with Server(*options, "--maxIncomingConnectionsOverride", "127.0.0.2", auth=False) as s:
        admin = s.raw("127.0.0.2")
        figures = lambda: admin.command("admin", {"serverStatus": 1})
        limit = lambda: figures()["connections"]["establishmentRateLimit"]
        waiting = lambda: figures()["connections"]["queuedForEstablishment"]
        change = lambda name, value: admin.command("admin", {"setParameter": 1, LIMITER + name: value})
        check(limit()["exempted"] == 1, f"an exempt address is counted: {limit()}")
        crowd = [s.connect() for _ in range(200)]
        check(until(lambda: waiting() > 0), "those who come too fast wait")
        close(crowd)
        check(until(lambda: waiting() == 0), "and leave the line when they go")
        check(limit()["interruptedDueToClientDisconnect"] > 0, f"which is counted: {limit()}")
        crowd = [s.connect() for _ in range(50)]
        for c in crowd:
            c.send(bson.encode({"hello": 1, "$db": "admin"}))
        was = change("RateLimiterEnabled", False)
        check(was["was"] is True, f"it is switched off at run time: {was}")
        check(all(c.reply()["ok"] == 1 for c in crowd), "which lets in all who wait")
        close(crowd)
        queue = figures()["queues"]["ingressSessionEstablishment"]
        check(queue["removedFromQueue"] > 0 and queue["averageTimeQueuedMicros"] > 0, f"how long they waited: {queue}")
        change("MaxQueueDepth", 0)
        change("RateLimiterEnabled", True)
        check(limit()["rejected"] == 0, "nobody was refused while there was room in the line")
        served = []
        check(until(lambda: (c := s.raw()) is None or served.append(c)), "where nobody may wait they are closed")
        close(served)
        check(limit()["rejected"] > 0, f"and counted: {limit()}")
        check(until(lambda: '"id":9000141' in s.log()), "and the log says so")
        for name, value in (("RatePerSec", 0), ("MaxQueueDepth", -1), ("BurstCapacitySecs", -1.5)):
            check(change(name, value)["code"] == 2, f"{name}: {value} is refused")
        change("RateLimiterEnabled", False)
        admin.sock.close()


run_parts("crowd", (by_address, by_user, administrators, exempt, by_rate), check)
