#!/usr/bin/env python3
"""Signed cluster times: what members tell of the time is believed by the others, what clients make up is not.

The last line says "N passed, N failed". With the names of parts (functions) as arguments only those run.
"""

import os, tempfile

import pymongo
from bson import Timestamp
from bson.int64 import Int64

from fault_test import Checks, Deadline, discard, run_parts
from replica_set import ReplicaSet, code

check = Checks()
folder = tempfile.mkdtemp(prefix="mayfly-time-")
USER = dict(username="root", password="secret", authSource="admin")
NOBODY = {"hash": b"\0" * 20, "keyId": Int64(0)}
KEY_NOT_FOUND, MISMATCH = 211, 204


def key_file():
    path = f"{folder}/key"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write("S2V5IG9mIHRoZSBtZW1iZXJzIG9mIGEgc2V0IHdpdGggc2lnbmVkIHRpbWVz")
    return path


def time_of(client):
    return client.admin.command("ping")["$clusterTime"]


def tell(client, time, signature, command="ping"):
    """The error of a command that brings this time."""
    with client.start_session() as session:
        session.advance_cluster_time({"clusterTime": time, "signature": signature})
        return code(lambda: client.admin.command(command, session=session))


def later(time, seconds):
    return Timestamp(time.time + seconds, time.inc)


def logged_in(m):
    return m.new_client(**USER)


def make_set(*options, delay=None):
    """Three members and a user; `delay`: of the last one, in seconds."""
    s = ReplicaSet(3, ("--keyFile", key_file(), *options))
    config = s.config()
    if delay:
        config["members"][2] |= {"priority": 0, "secondaryDelaySecs": delay}
    s.members[0].client.admin.command("replSetInitiate", config)
    s.in_place()
    s.primary().client.admin.command("createUser", "root", pwd="secret", roles=["root"])

    def ready(m):
        with logged_in(m) as c:
            return c.admin.command("ping").get("$clusterTime", {"signature": NOBODY})["signature"]["keyId"] > 0

    s.wait(lambda: all(ready(m) for m in s.members), "a user and a key on every member")
    for m in s.members:
        m.client.close()
        m.client = m.new_client(**USER)
    return s


def forged():
    """Times that nobody has told are refused, wherever they are brought to."""
    s = make_set()
    try:
        primary = s.primary()
        for m in s.members:
            where = "the primary" if m is primary else "a secondary"
            true = time_of(primary.client)
            ahead = later(true["clusterTime"], 1000)
            with logged_in(m) as c:
                check(tell(c, ahead, NOBODY) == KEY_NOT_FOUND, f"{where}: a time without a signature is refused")
            with logged_in(m) as c:
                wrong = tell(c, ahead, true["signature"])
                check(wrong == MISMATCH, f"{where}: a signature of another time: {wrong}")
            with logged_in(m) as c:
                guess = {"hash": os.urandom(20), "keyId": true["signature"]["keyId"]}
                check(tell(c, ahead, guess) == MISMATCH, f"{where}: a guess")
            with logged_in(m) as c:
                check(tell(c, true["clusterTime"], NOBODY) == 0, f"{where}: a time that has passed needs no signature")
            check(time_of(m.client)["clusterTime"].time < ahead.time, f"{where}: its own time has not moved")
        # Whoever may do everything may say what the time is.
        primary.client.admin.command("createUser", "system", pwd="secret", roles=["__system"])
        ahead = later(time_of(primary.client)["clusterTime"], 1000)
        with pymongo.MongoClient(
            "127.0.0.1", primary.port, directConnection=True, username="system", password="secret"
        ) as c:
            check(tell(c, ahead, NOBODY) == 0, "with the action advanceClusterTime a time is taken as it is")
        with logged_in(primary) as c:
            check(tell(c, ahead, NOBODY) == 0, "and then known")
        check(time_of(primary.client)["clusterTime"].time < ahead.time, "the set's own time has not moved by that")
    finally:
        s.close()


def gossip():
    """A member that is behind believes what another one has signed, and waits for it."""
    s = make_set(delay=4)
    try:
        primary, delayed = s.primary(), s.members[2]
        primary.client.test.things.insert_one({"_id": 0})
        true = time_of(primary.client)
        behind = time_of(delayed.client)
        check(behind["clusterTime"] < true["clusterTime"], "a delayed member is behind")
        with logged_in(delayed) as c:
            check(tell(c, true["clusterTime"], true["signature"]) == 0, "it believes the time of the primary")
        primary.client.test.things.insert_one({"_id": 1})
        true = time_of(primary.client)
        with logged_in(delayed) as c:
            wrong = tell(c, later(true["clusterTime"], 1), true["signature"])
            check(wrong == MISMATCH, f"and no other one: {wrong}")
        with logged_in(delayed) as c, c.start_session(causal_consistency=True) as session:
            session.advance_cluster_time(true)
            session.advance_operation_time(true["clusterTime"])
            found = c.test.things.with_options(read_concern=pymongo.read_concern.ReadConcern("majority")).find_one(
                {"_id": 1}, session=session
            )
            check(found is not None, "a causally consistent read there waits for the write")
    finally:
        s.close()


def rotation():
    """Keys come and go while clients write and read with causal consistency; another primary goes on with them."""
    s = make_set("--setParameter", "KeysRotationIntervalSec=1")
    try:
        uri = "mongodb://root:secret@" + s.uri.removeprefix("mongodb://") + "&authSource=admin"
        with pymongo.MongoClient(uri, serverSelectionTimeoutMS=Deadline().millis) as c:
            things = c.get_database("test", read_concern=pymongo.read_concern.ReadConcern("majority")).things
            secondary = things.with_options(read_preference=pymongo.ReadPreference.SECONDARY)
            seen, first, n = set(), time_of(s.primary().client), 0

            def write_and_read():
                nonlocal n
                n += 1
                with c.start_session(causal_consistency=True) as session:
                    things.insert_one({"_id": n}, session=session)
                    found = secondary.find_one({"_id": n}, session=session)
                    seen.add(session.cluster_time["signature"]["keyId"])
                assert found is not None, f"{n} was not read on a secondary"
                return len(seen) >= 5

            s.wait(write_and_read, "five keys")
            shown(s, seen)
            check(True, f"{n} writes were each read on a secondary while five keys came and went")
            s.primary().kill()
            s.members = [m for m in s.members if m.running()]
            goal = len(seen) + 2
            s.wait(lambda: write_and_read() and len(seen) >= goal, "keys by another primary")
            check(True, "another primary goes on with the keys, and makes new ones")
            for m in s.members:
                with logged_in(m) as other:
                    check(tell(other, first["clusterTime"], first["signature"]) == 0, "a time of long ago harms nobody")
    finally:
        s.close()


def shown(s, seen):
    """admin.system.keys has the keys of the moment, for who may do everything, and nobody writes there."""
    primary = s.primary().client
    denied = code(lambda: primary.admin["system.keys"].find_one())
    check(denied == 13, f"root does not see the keys: {denied}")
    primary.admin.command("createUser", "keys", pwd="secret", roles=["__system"])
    for m in s.members:
        with m.new_client(username="keys", password="secret", authSource="admin") as c:
            keys = c.get_database("admin", read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED)["system.keys"]
            found = []

            def there():
                found[:] = keys.find()
                return len(found) >= 2 and time_of(c)["signature"]["keyId"] in [k["_id"] for k in found]

            s.wait(there, "the key that signs now and the next")
            check(all(list(k) == ["_id", "purpose", "key", "expiresAt"] for k in found), f"as MongoDB's: {found}")
            check(all(k["purpose"] == "HMAC" and len(k["key"]) == 20 for k in found), "keys of HMAC-SHA1")
            check(all(isinstance(k["expiresAt"], Timestamp) and k["expiresAt"].inc == 0 for k in found), "with an end")
            check(len(found) <= 8, f"those that have ended are gone: {len(found)} of {len(seen)} that were seen")
            if m is s.primary():
                for write in (
                    lambda: keys.insert_one({"_id": 1}), lambda: keys.delete_many({}),
                    lambda: keys.update_many({}, {"$set": {"expiresAt": Timestamp(2**31, 0)}}),
                ):  # fmt: skip
                    check(code(write) == 73, "nobody writes them")


def without_access_control():
    """Nothing is signed, and everything is taken."""
    s = ReplicaSet(1)
    try:
        s.initiate()
        m = s.members[0]
        m.client.close()
        m.client = m.new_client()  # one that has known nothing but a set
        true = time_of(m.client)
        check(true["signature"] == NOBODY, f"nobody's signature: {true}")
        for signature in (NOBODY, {"hash": b"x" * 20, "keyId": Int64(77)}):
            taken = tell(m.client, later(true["clusterTime"], 1000), signature)
            check(taken == 0, f"any time is taken: {taken}")
        check(time_of(m.client)["clusterTime"].time < true["clusterTime"].time + 1000, "and moves nothing")
    finally:
        s.close()


PARTS = (forged, gossip, rotation, without_access_control)
try:
    run_parts("cluster_time", PARTS, check)
finally:
    discard(folder)
