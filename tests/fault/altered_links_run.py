#!/usr/bin/env python3
"""Somebody between the members of a set who changes what they say to one another: by key file alone, and by TLS too.
Bits that are turned, bytes that are left out, repeated, put in, held back until later, or said again from another
connection; greetings of another version, and refusals that no member has sent. What was changed has no effect but the
end of its connection (docs/tls.md, docs/replication.md): no member ends, nothing acknowledged is lost, all hold the
same. Clients reach the members directly. MAYFLY_ALTERED (60): changes in each part. The last line says "N passed, N
failed".
"""

import os, struct, tempfile, threading

from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from fault_test import Checks, Deadline, certificate, rnd, run_parts, until
from proxy import Network
from replica_set import ReplicaSet

WANTED = int(os.environ.get("MAYFLY_ALTERED", "60"))
check = Checks()
folder = tempfile.mkdtemp(prefix="mayfly-altered-")
KEY = f"{folder}/key"
with open(KEY, "w") as key:
    key.write("0123456789abcdefghijklmnopqrstuvwxyz")
os.chmod(KEY, 0o600)


def flip(data):
    at = rnd.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rnd.randrange(8))]) + data[at + 1 :]


CHANGES = [
    flip,
    lambda data: data[:-1],
    lambda data: data + data,
    lambda data: data + os.urandom(rnd.randrange(1, 200)),
    lambda data: data[::-1],
    lambda data: os.urandom(len(data)),
    lambda data: b"",
]


def refusal(code):
    """A frame that refuses, which nobody has signed (replication/member_link.h)."""
    body = struct.pack("<IH", code, 12) + b"not from me\n"
    return struct.pack("<IB", 1 + len(body), 4) + body


def version(number):
    """The dialler's challenge says that it is of this version."""
    return lambda data: data[:5] + bytes([number]) + data[6:] if len(data) > 6 and data[4] == 1 else flip(data)


# NodeNotFound makes a leader look who lives there; InvalidReplicaSetConfig, AuthenticationFailed, what is no code.
GREETINGS = [
    flip,
    lambda data: b"",
    lambda data: data + data,
    *(lambda data, code=code: refusal(code) for code in (74, 93, 18, 0, 364, 0xFFFFFFFF)),
    *(version(n) for n in (0, 1, 3, 255)),
]


class Meddler:
    """Changes one of some pieces that pass, and one of some greetings."""

    def __init__(self):
        self.changed = self.greetings = 0
        self.heard, self.heard_greetings, self.held = [], [], {}

    def __call__(self, data, direction, greeting):
        if greeting:
            self.heard_greetings = [*self.heard_greetings[-200:], data]
            if rnd.random() > 0.2:
                return data
            self.greetings += 1
            if rnd.random() < 0.3:
                return rnd.choice(self.heard_greetings)
            return rnd.choice(GREETINGS)(data)
        earlier = self.held.pop(direction, None)
        if earlier is not None:
            return data + earlier
        self.heard = [*self.heard[-200:], data]
        if rnd.random() > 0.02:
            return data
        self.changed += 1
        way = rnd.randrange(len(CHANGES) + 3)
        if way < len(CHANGES):
            return CHANGES[way](data)
        if way == len(CHANGES):  # until after the next piece
            self.held[direction] = data
            return b""
        again = rnd.choice(self.heard)
        return again if way == len(CHANGES) + 1 else data + again


def attack(what, *options):
    net, meddler = Network(), Meddler()
    s = ReplicaSet(network=net, extra=["--keyFile", KEY, "--noauth", *options])
    try:
        s.initiate()
        ends, kept = threading.Event(), []

        def write():
            n = 0
            while not ends.is_set():
                n += 1
                try:
                    to = s.primary().client.test.get_collection("kept", write_concern=WriteConcern("majority", 5000))
                    to.insert_one({"_id": n, "text": f"as it was written {n} " + "x" * 200})
                    kept.append(n)
                except (PyMongoError, AssertionError):
                    pass  # not acknowledged

        thread = threading.Thread(target=write)
        thread.start()
        check(until(lambda: len(kept) > 20, 60), f"{what}: writes before")
        # The proxy knows members by what it can read of their greeting.
        check(bool(net.nodes) != bool(options), f"{what}: links that can be read by others, or not: {net.nodes}")
        net.alter = meddler
        until(lambda: meddler.changed >= WANTED and meddler.greetings >= WANTED // 4, 240)
        changes = f"{meddler.changed} changes, {meddler.greetings} of greetings"
        check(meddler.changed >= WANTED and meddler.greetings >= WANTED // 4, f"{what}: {changes}")
        net.alter = None
        before = len(kept)
        check(until(lambda: len(kept) > before + 20, 90), f"{what}: writes go on")
        ends.set()
        thread.join(Deadline(120).seconds)
        s.in_place()
        check(all(m.running() for m in s.members), f"{what}: no member has ended")
        check(s.same(), f"{what}: all hold the same")
        found = {d["_id"]: d["text"] for d in s.primary().client.test.kept.find()}
        lost = [n for n in kept if n not in found]
        check(not lost, f"{what}: of {len(kept)} acknowledged writes none is lost: {lost[:5]}")
        wrong = [n for n, text in found.items() if text != f"as it was written {n} " + "x" * 200]
        check(not wrong, f"{what}: and none is another one: {wrong[:5]}")
        config = s.primary().client.admin.command("replSetGetConfig")["config"]
        check([m["_id"] for m in config["members"]] == [0, 1, 2], f"{what}: the members are those of before")
        logs = [open(f"{m.folder}/log", errors="replace").read() for m in s.members]
        check(not any('"s":"F"' in log for log in logs), f"{what}: nothing fatal is in the logs")
    finally:
        s.close()
        net.close()


def by_key_file():
    attack("a key file")


def by_tls():
    file = certificate(f"{folder}/own", "server", "member", "localhost", "127.0.0.1")
    # Clients of this run come without TLS; members use it (preferTLS).
    files = ["--tlsCertificateKeyFile", file, "--tlsCAFile", f"{folder}/own/ca.pem"]
    attack("TLS", "--tlsMode", "preferTLS", *files)


run_parts("altered links", [by_key_file, by_tls], check)
