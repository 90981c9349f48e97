#!/usr/bin/env python3
"""What access control costs, in instructions of the server in user space (callgrind; the machine may be busy): a find
by _id and an insert with access control off and on, with 10,000 users and 1,000 roles, with the audit log, and on a
member of a set that signs cluster times; and a login by SCRAM-SHA-256 of a driver that has its salted password.

    bench/access.py [BINARY] [--operations N]
"""

import hashlib
import hmac
import os
import sys
from base64 import b64decode, b64encode
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/fault"), str(ROOT / "tests/golden")]
binary = next((a for a in sys.argv[1:] if "/" in a), str(ROOT / "build/release/mayflyd"))
os.environ["MAYFLYD"] = binary
from bson.binary import Binary
from counted import Counted
from fault_test import Client, log_in

operations = int(sys.argv[sys.argv.index("--operations") + 1]) if "--operations" in sys.argv else 2000
PASSWORD, USERS, ROLES = "secret", 10_000, 1_000
KEY = "S2V5IG9mIHRoZSBtZW1iZXJzIG9mIGEgc2V0IHdpdGggc2lnbmVkIHRpbWVz"
# What is looked for: functions with all that they call.
PARTS = {
    "privileges": "Dispatcher::Authorize(",
    "signing a time": "TimeKeys::Sign(",
    "the audit log": "AuditAllowedCommand(",
}


def find(i):
    return {"find": "c", "filter": {"_id": i % 1000}, "limit": 1, "singleBatch": True}


inserted = 0


def insert(_):
    global inserted
    inserted += 1
    return {"insert": "c", "documents": [{"_id": 10_000 + inserted, "text": "x" * 200}]}


def both(server, client):
    client.command("shop", {"insert": "c", "documents": [{"_id": i, "text": "x" * 200} for i in range(1000)]})
    return server.count(client, find, operations), server.count(client, insert, operations)


def first_user(server):
    server.nobody.command("admin", {"createUser": "root", "pwd": PASSWORD, "roles": ["root"]})
    root = log_in(server.port, "root", PASSWORD)
    root.command("shop", {"createUser": "app", "pwd": PASSWORD, "roles": ["readWrite"]})
    return root


def many(server, root):
    """Users and roles, each role in the one before; `deep` has the last ten."""
    for i in range(ROLES):
        privilege = {"resource": {"db": f"d{i}", "collection": "c"}, "actions": ["find", "insert"]}
        roles = [f"r{i - 1}"] if i % 10 else []
        root.command("admin", {"createRole": f"r{i}", "privileges": [privilege], "roles": roles})
    root.command("shop", {"createUser": "deep", "pwd": PASSWORD, "roles": [
        "readWrite", *({"role": f"r{i * 10 - 1}", "db": "admin"} for i in range(1, 11))]})  # fmt: skip
    if not root.command("shop", {"usersInfo": "app"})["users"]:
        root.command("shop", {"createUser": "app", "pwd": PASSWORD, "roles": ["readWrite"]})
    stored = root.command("admin", {"find": "system.users", "filter": {"user": "app"}})["cursor"]["firstBatch"][0]
    for at in range(0, USERS, 500):
        users = [stored | {"_id": f"shop.u{i}", "user": f"u{i}", "userId": Binary(os.urandom(16), 4)}
                 for i in range(at, at + 500)]  # fmt: skip
        root.command("admin", {"insert": "system.users", "documents": users})


def logins(server, n=100):
    """Instructions of a login whose client has the salted password already."""
    salted = {}

    def one():
        c = Client("127.0.0.1", server.port)
        first = f"n=app,r={os.urandom(12).hex()}"
        start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(f"n,,{first}".encode()),
                 "options": {"skipEmptyExchange": True}}  # fmt: skip
        r = c.command("shop", start)
        challenge = bytes(r["payload"]).decode()
        f = dict(p.split("=", 1) for p in challenge.split(","))
        key = (f["s"], f["i"])
        if key not in salted:
            salted[key] = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b64decode(f["s"]), int(f["i"]))
        mac = lambda k, m: hmac.digest(k, m, "sha256")
        client_key = mac(salted[key], b"Client Key")
        bare = f"c=biws,r={f['r']}"
        signature = mac(hashlib.sha256(client_key).digest(), f"{first},{challenge},{bare}".encode())
        proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature))).decode()
        r = c.command("shop", {"saslContinue": 1, "conversationId": r["conversationId"],
                               "payload": Binary(f"{bare},p={proof}".encode())})  # fmt: skip
        assert r.get("done"), r

    class Logins:
        def command(self, _, __):
            one()
            return {"ok": 1}

    return server.count(Logins(), lambda i: None, n)


def show(what, *counted):
    cells = [f"{total:,.0f}" for total, _ in counted]
    for part in PARTS:
        cells.append(" / ".join(f"{parts[part]:,.0f}" for _, parts in counted))
    print(f"| {what} | {' | '.join(cells)} |", flush=True)


def measured(what, *flags, crowd=None, key=None, logged_in=True):
    """A row: find and insert of a new server, by `crowd`, a user among many, if given."""
    s = Counted(binary, *flags, key=key, parts=PARTS)
    root = first_user(s) if logged_in else s.nobody
    if crowd:
        many(s, root)
    show(what, *both(s, log_in(s.port, crowd or "app", PASSWORD, "shop") if logged_in else s.nobody))
    login = logins(s)[0] if what == "on" else 0
    s.end()
    return login


print("Instructions, and those of find / insert that are spent on …\n")
print(f"| access control | find by `_id` | insert | {' | '.join(PARTS)} |")
print("| --- | ---: | ---: |" + " ---: |" * len(PARTS))
measured("off", logged_in=False)
measured("on, no audit log", "--auth", "--auditDestination", "none")
login = measured("on", "--auth")
measured(f"on, {USERS:,} users and {ROLES:,} roles", "--auth", crowd="app")
measured("the same, a user with 100 of the roles", "--auth", crowd="deep")
measured("on, auditAuthorizationSuccess", "--auth", "--setParameter", "auditAuthorizationSuccess=true")
measured("off, a set of one", "--replSet", "rs0", logged_in=False)
measured("on its way to on (transitionToAuth), a set of one", "--transitionToAuth", key=KEY, logged_in=False)
print(f"\na login by SCRAM-SHA-256, with a connection of its own: {login:,.0f}")
