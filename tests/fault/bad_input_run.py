#!/usr/bin/env python3
"""What must not get through, on real processes: configurations that are wrong, sets that begin twice, members of other
sets, other key files, bytes on the member port that nobody sends or that were sent before, writes where none may be,
write concerns nobody can meet. Each is answered with MongoDB's error, changes nothing, and disturbs nobody else: the
set keeps its primary, its term and its data. The last line says "N passed, N failed". MAYFLY_SEED,
MAYFLY_FAULT_CONNECTIONS (600).
"""

import os, socket, struct, threading
from pathlib import Path

import bson
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from fault_test import SEED, Deadline, rnd
from replica_set import Checks, Member, ReplicaSet, code
from run import Client

CONNECTIONS = int(os.environ.get("MAYFLY_FAULT_CONNECTIONS", "600"))
check = Checks()


def refused(what, want, f):
    got = code(f)
    check(got == want, f"{what}: {got}")


class Untouched:
    """The set has the same primary, term and configuration afterwards, and takes writes."""

    def __init__(self, s, what):
        self.s, self.what = s, what

    def look(self):
        status = self.s.primary().client.admin.command("replSetGetStatus")
        config = self.s.primary().client.admin.command("replSetGetConfig")["config"]
        return (
            status["term"],
            config["version"],
            [m["name"] for m in status["members"] if m["stateStr"] == "PRIMARY"],
            [m["stateStr"] for m in status["members"]],
        )

    def __enter__(self):
        self.s.wait(lambda: all(x in ("PRIMARY", "SECONDARY") for x in self.look()[3]), "a quiet set")
        self.before = self.look()

    def __exit__(self, kind, *_):
        if kind is None:
            self.s.primary().client.test.get_collection(
                "after", write_concern=WriteConcern(w=len(self.s.members), wtimeout=Deadline().millis)
            ).insert_one({"what": self.what})
            check(
                self.look() == self.before,
                f"{self.what}: nobody is disturbed {self.look() if self.look() != self.before else ''}",
            )


def new_member(s, name, extra=()):
    m = Member(f"{s.folder}/{name}", extra)
    m.start()
    m.wait_up()
    return m


def before_the_set(s):
    a = s.members[0].client.admin

    def initiate(members, **more):
        return lambda: a.command("replSetInitiate", {"_id": "rs0", "members": members, **more})

    hosts = [m.host for m in s.members]
    refused("two members with one _id", 93, initiate([{"_id": 0, "host": hosts[0]}, {"_id": 0, "host": hosts[1]}]))
    refused("two members with one host", 93, initiate([{"_id": 0, "host": hosts[0]}, {"_id": 1, "host": hosts[0]}]))
    refused(
        "one member by two names",
        93,
        initiate([{"_id": 0, "host": hosts[0]}, {"_id": 1, "host": hosts[0].replace("127.0.0.1", "localhost")}]),
    )
    refused(
        "a set of another name",
        93,
        lambda: a.command("replSetInitiate", {"_id": "rs1", "members": [{"_id": 0, "host": hosts[0]}]}),
    )
    refused(
        "a member that is not there", 74, initiate([{"_id": 0, "host": hosts[0]}, {"_id": 1, "host": "127.0.0.1:1"}])
    )
    refused("no member that can lead", 93, initiate([{"_id": 0, "host": hosts[0], "priority": 0}]))
    refused("eight voters", 93, initiate([{"_id": i, "host": f"127.0.0.1:{i + 1}"} for i in range(8)]))
    refused(
        "51 members",
        93,
        initiate([{"_id": i, "host": f"127.0.0.1:{i + 1}", "votes": 0, "priority": 0} for i in range(51)]),
    )
    refused("without this member", 93, initiate([{"_id": 1, "host": hosts[1]}]))
    alone = Member(f"{s.folder}/alone")
    alone.start(replica_set=False)
    alone.wait_up()
    refused("a member without --replSet", 74, initiate([{"_id": 0, "host": hosts[0]}, {"_id": 1, "host": alone.host}]))
    refused("replSetInitiate without --replSet", 76, lambda: alone.client.admin.command("replSetInitiate", {}))
    alone.client.test.own.insert_one({})
    alone.stop()
    alone.start()
    alone.wait_up()
    refused(
        "a second member that has data", 74, initiate([{"_id": 0, "host": hosts[0]}, {"_id": 1, "host": alone.host}])
    )
    alone.kill()
    refused("nothing of it has made a set", 94, lambda: a.command("replSetGetStatus"))


def at_once(s):
    """Every member is told to begin the set at the same moment: one set comes of it."""
    answers = {}

    def one(m):
        answers[m.host] = code(lambda: m.client.admin.command("replSetInitiate", s.config()))

    threads = [threading.Thread(target=one, args=(m,)) for m in s.members]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    s.in_place()
    ids = {str(m.client.admin.command("replSetGetConfig")["config"]["settings"]["replicaSetId"]) for m in s.members}
    check(
        len(ids) == 1 and sum(c == 0 for c in answers.values()) == 1 and set(answers.values()) <= {0, 23, 74, 109},
        f"of sets that begin at the same moment one is made: {sorted(answers.values())}",
    )
    s.wait(
        lambda: s.primary().client.admin.command("replSetGetStatus")["votingMembersCount"] == len(s.members),
        "all to vote",
    )


def configurations(s):
    p = s.primary()

    def reconfig(change, **more):
        def run():
            admin = s.primary().client.admin
            c = admin.command("replSetGetConfig")["config"]
            c["version"] += 1
            change(c)
            admin.command("replSetReconfig", c, **more)

        return run

    with Untouched(s, "wrong configurations"):
        refused("initiated twice", 23, lambda: p.client.admin.command("replSetInitiate", s.config()))
        for m in s.members:
            refused("initiated twice, on any member", 23, lambda: m.client.admin.command("replSetInitiate", {}))
        refused("the same _id twice", 93, reconfig(lambda c: c["members"][1].update(_id=c["members"][0]["_id"])))
        refused("the same host twice", 93, reconfig(lambda c: c["members"][1].update(host=c["members"][0]["host"])))
        refused("another name", 103, reconfig(lambda c: c.update(_id="rs1")))
        refused("another replicaSetId", 103, reconfig(lambda c: c["settings"].update(replicaSetId=bson.ObjectId())))
        refused("an older version", 103, reconfig(lambda c: c.update(version=1)))
        refused("another _id for the same host", 103, reconfig(lambda c: c["members"][1].update(_id=9)))
        refused("two voters leave at once", 103, reconfig(lambda c: c.update(members=c["members"][:1])))
        refused(
            "two voters change at once",
            103,
            reconfig(lambda c: [m.update(votes=0, priority=0) for m in c["members"] if m["host"] != p.host]),
        )
        refused(
            "one leaves and one comes",
            103,
            reconfig(lambda c: (c["members"].pop(), c["members"].append({"_id": 7, "host": "127.0.0.1:1"}))),
        )
        refused(
            "a member that is not there", 74, reconfig(lambda c: c["members"].append({"_id": 7, "host": "127.0.0.1:1"}))
        )
        refused("a member without a name", 93, reconfig(lambda c: c["members"].append({"_id": 7, "host": ":"})))
        refused("nobody left", 93, reconfig(lambda c: c.update(members=[])))
        refused("a field of another kind", 93, reconfig(lambda c: c["members"][1].update(host=7)))
        refused("an unknown field", 93, reconfig(lambda c: c["members"][1].update(color="red")))
        refused(
            "on a secondary",
            10107,
            lambda: next(m for m in s.members if m is not p).client.admin.command(
                "replSetReconfig", p.client.admin.command("replSetGetConfig")["config"]
            ),
        )
    # Without a majority nothing is changed either, but by force.
    version = p.client.admin.command("replSetGetConfig")["config"]["version"]
    gone = [m for m in s.members if m is not p]
    for m in gone:
        m.pause()
    got = code(reconfig_of(p, lambda c: c["members"][0].update(tags={"a": "b"})))
    check(got in (189, 10107, 11602), f"a change without a majority: {got}")
    for m in gone:
        m.resume()
    s.wait(
        lambda: all(
            x.client.admin.command("replSetGetConfig")["config"]["version"] in (version, version + 1) for x in s.members
        ),
        "one configuration",
    )
    s.primary()
    s.settled()
    check(
        len({str(x.client.admin.command("replSetGetConfig")["config"]) for x in s.members}) == 1,
        "all have the same configuration afterwards",
    )


def reconfig_of(m, change):
    """On this member, whoever leads."""

    def run():
        c = m.client.admin.command("replSetGetConfig")["config"]
        c["version"] += 1
        change(c)
        m.client.admin.command("replSetReconfig", c)

    return run


def strangers(s, key, other_key):
    def adds(m):
        def change(c):
            c["members"].append({"_id": 7, "host": m.host})

        return lambda: reconfig_of(s.primary(), change)()

    with Untouched(s, "a member of another set"):
        other = ReplicaSet(1, ("--keyFile", key, "--noauth"))
        other.initiate()
        refused("a member of another set of the same name", 74, adds(other.members[0]))
        check(other.members[0].hello()["isWritablePrimary"], "the other set does not notice")
        refused(
            "the other set takes one of ours",
            74,
            lambda: reconfig_of(
                other.members[0], lambda c: c["members"].append({"_id": 7, "host": s.members[1].host})
            )(),
        )
        check(other.members[0].hello()["isWritablePrimary"], "and goes on")
        other.close()
    with Untouched(s, "a member with another key file"):
        m = new_member(s, "otherkey", ("--keyFile", other_key, "--noauth"))
        refused("a member with another key file", 74, adds(m))
        refused(
            "nor does it begin a set with ours",
            74,
            lambda: m.client.admin.command(
                "replSetInitiate",
                {"_id": "rs0", "members": [{"_id": 0, "host": m.host}, {"_id": 1, "host": s.members[0].host}]},
            ),
        )
        m.kill()
        m = new_member(s, "nokey")
        refused("a member without a key file", 74, adds(m))
        m.kill()
    # One of the members comes back with another key: it is as if it were away.
    away = next(m for m in s.members if m is not s.primary())
    term = s.primary().client.admin.command("replSetGetStatus")["term"]
    right = away.extra
    away.kill()
    away.extra = ["--keyFile", other_key, "--noauth"]
    away.start()
    away.wait_up()

    def seen_from_primary():
        members = s.primary().client.admin.command("replSetGetStatus")["members"]
        return next(x for x in members if x["name"] == away.host)

    # Until the next try it is away for the reason of before: nothing listened there.
    s.wait(
        lambda: "key file" in seen_from_primary().get("lastHeartbeatMessage", ""),
        "the reason why the member with the wrong key is not reached",
    )
    check(seen_from_primary()["health"] == 0, "a member that comes back with another key file is not reached")
    s.primary().client.test.after.insert_one({"what": "a wrong key"})
    check(s.primary().client.admin.command("replSetGetStatus")["term"] == term, "it disturbs nobody")
    away.kill()
    away.extra = right
    away.start()
    away.wait_up()
    s.wait(lambda: away.hello()["secondary"], "with the right key it follows")


class Tap:
    """Passes connections on and keeps what the dialler sent."""

    def __init__(self, target):
        self.target, self.recorded = target, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            kept = bytearray()
            self.recorded.append(kept)
            threading.Thread(target=self.pump, args=(near, far, kept), daemon=True).start()
            threading.Thread(target=self.pump, args=(far, near, None), daemon=True).start()

    @staticmethod
    def pump(src, dst, kept):
        try:
            while data := src.recv(65536):
                if kept is not None and len(kept) < 1 << 20:
                    kept += data
                dst.sendall(data)
        except OSError:
            pass
        for x in (src, dst):
            try:
                x.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def member_command():
    body = bson.encode({"_mayflyMember": 1, "$db": "admin"})
    return struct.pack("<iiiii", 21 + len(body), 1, 0, 2013, 0) + b"\0" + body


def throw(port, pieces):
    """Sends them and reads what comes, briefly."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as c:  # clock: who is silent goes on
            c.settimeout(0.02)  # clock: who is silent goes on
            for p in pieces:
                c.sendall(p)
                try:
                    c.recv(65536)
                except TimeoutError:
                    pass
    except OSError:
        pass


def hostile(s):
    # A member's stream as it was sent, kept by somebody on its way.
    tap = Tap(s.members[1].port)
    spare = new_member(s, "spare", s.members[0].extra)
    # The spare joins by way of a tap in front of it, so that a whole life of streams is recorded.
    tap.target = spare.port
    reconfig_of(
        s.primary(),
        lambda c: c["members"].append({"_id": 8, "host": f"127.0.0.1:{tap.port}", "votes": 0, "priority": 0}),
    )()
    s.wait(lambda: spare.hello().get("secondary"), "the spare member to follow")
    s.primary().client.test.get_collection(
        "after", write_concern=WriteConcern(w=4, wtimeout=Deadline().millis)
    ).insert_many([{"x": i} for i in range(50)])
    reconfig_of(s.primary(), lambda c: c.update(members=[m for m in c["members"] if m["_id"] != 8]))()
    spare.kill()
    streams = [bytes(r) for r in tap.recorded if len(r) > 300]
    check(
        len(streams) > 0 and sum(map(len, streams)) > 5000,
        f"{len(streams)} streams of members were recorded, {sum(map(len, streams))} bytes",
    )
    head = member_command()
    with Untouched(s, "replayed and hostile bytes on the member port"):
        done = threading.Event()

        def load():
            while not done.is_set():
                s.primary().client.test.after.insert_one({"load": 1})

        t = threading.Thread(target=load)
        t.start()
        try:
            for i in range(CONNECTIONS):
                target, kind = rnd.choice(s.members).port, i % 6
                stream = rnd.choice(streams)
                body = stream[struct.unpack_from("<i", stream)[0] :]
                if kind == 0:  # as it was
                    throw(target, [stream[: struct.unpack_from("<i", stream)[0]], body])
                elif kind == 1:  # frame by frame, as the dialler did
                    pieces, at = [head], 0
                    while at + 4 <= len(body) and len(pieces) < 8:
                        n = 4 + struct.unpack_from("<I", body, at)[0]
                        pieces.append(body[at : at + n])
                        at += n
                    throw(target, pieces)
                elif kind == 2:  # with some bytes changed
                    changed = bytearray(body)
                    for _ in range(rnd.randint(1, 20)):
                        changed[rnd.randrange(min(len(changed), 400))] = rnd.randrange(256)
                    throw(target, [head, bytes(changed)])
                elif kind == 3:  # nonsense
                    throw(target, [head, rnd.randbytes(rnd.randint(1, 2000))])
                elif kind == 4:  # sizes that are not so
                    throw(
                        target,
                        [
                            head,
                            struct.pack(
                                "<I", rnd.choice([0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 80 << 20, rnd.randrange(1 << 32)])
                            )
                            + rnd.randbytes(rnd.randint(0, 64)),
                        ],
                    )
                else:  # the command again and again, and cut in the middle
                    throw(target, [head + head, head[: rnd.randint(1, len(head))]])
        finally:
            done.set()
            t.join()
        check(all(m.running() for m in s.members), f"{CONNECTIONS} connections of that kind end no member")
    check(len(set(s.hashes("test"))) == 1, "and write nothing")


def writes(s):
    p = s.primary()
    q = next(m for m in s.members if m is not p)
    with Untouched(s, "writes where none may be"):
        for what, f in (
            ("insert", lambda d: d.c.insert_one({})),
            ("update", lambda d: d.c.update_one({}, {"$set": {"a": 1}}, upsert=True)),
            ("delete", lambda d: d.c.delete_one({})),
            ("findAndModify", lambda d: d.c.find_one_and_update({}, {"$set": {"a": 1}})),
            ("create", lambda d: d.create_collection("new")),
            ("createIndexes", lambda d: d.c.create_index("a")),
            ("drop", lambda d: d.after.drop()),
            ("dropDatabase", lambda d: d.client.drop_database("test")),
            ("$out", lambda d: list(d.after.aggregate([{"$out": "new"}]))),
            ("collMod", lambda d: d.command("collMod", "after", validator={})),
            ("renameCollection", lambda d: d.after.rename("new")),
        ):
            refused(f"{what} on a secondary", 10107, lambda: f(q.client.test))
        # Not by the driver, which says on a direct connection that a secondary will do.
        got = Client("127.0.0.1", q.port).command("test", {"find": "after"})
        check(got.get("code") == 13435, f"a read on a secondary that does not say it may be one: {got.get('code')}")
        for m in (p, q):
            oplog = m.client.local["oplog.rs"]
            refused("an insert into the log", 73, lambda: oplog.insert_one({}))
            check(code(lambda: oplog.delete_many({})) in (20, 73), "a delete from the log is refused")
            check(
                code(lambda: oplog.update_many({}, {"$set": {"a": 1}})) in (20, 73), "an update of the log is refused"
            )
            refused("a drop of the log", 20, oplog.drop)
            check(code(lambda: oplog.create_index("a")) in (20, 67, 73), "an index on the log is refused")
            m.client.local.own.insert_one({"_id": m.host})
            check(m.client.local.own.count_documents({}) == 1, "what is written to local is this member's alone")
        check(q.client.local["oplog.rs"].count_documents({"ns": "local.own"}) == 0, "and in no log")
        refused(
            "local to a database", 20, lambda: p.client.admin.command("renameCollection", "local.own", to="test.own")
        )


def concerns(s):
    p = s.primary()
    with Untouched(s, "write concerns that nobody can meet"):
        n = p.client.test.after.count_documents({})
        for w, want in (("no such mode", 79), (len(s.members) + 1, 100), (50, 100), (51, 9), (-1, 9)):
            for what, f in (
                ("insert", lambda d, wc: d.command("insert", "after", documents=[{"w": 1}], writeConcern=wc)),
                (
                    "update",
                    lambda d, wc: d.command(
                        "update", "after", updates=[{"q": {"w": 1}, "u": {"$set": {"x": 1}}}], writeConcern=wc
                    ),
                ),
                (
                    "findAndModify",
                    lambda d, wc: d.command(
                        "findAndModify", "after", query={"w": 1}, update={"$set": {"y": 1}}, writeConcern=wc
                    ),
                ),
                (
                    "delete",
                    lambda d, wc: d.command("delete", "after", deletes=[{"q": {"w": 1}, "limit": 0}], writeConcern=wc),
                ),
                (
                    "createIndexes",
                    lambda d, wc: d.command(
                        "createIndexes", "after", indexes=[{"key": {"w": 1}, "name": "w_1"}], writeConcern=wc
                    ),
                ),
            ):
                try:
                    reply = f(p.client.test, {"w": w, "wtimeout": 2000})
                    got = reply.get("writeConcernError", {}).get("code", 0)
                except PyMongoError as e:
                    details = getattr(e, "details", None) or {}
                    got = details.get("writeConcernError", {}).get("code") or details.get("code", repr(e))
                check(got == want, f"{what} with w: {w!r}: {got}")
            p.client.test.after.drop_index("w_1") if "w_1" in p.client.test.after.index_information() else None
        check(p.client.test.after.count_documents({}) == n, "the writes are done all the same, as MongoDB does them")


def main():
    print(f"seed {SEED}")
    keys = []
    s = None
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"mayfly-keys-{os.getpid()}"
    folder.mkdir()
    for name, text in (("key", "c2VjcmV0IG9mIHRoaXMgc2V0"), ("other", "YW5vdGhlciBzZWNyZXQ0NDQ0")):
        f = folder / name
        f.write_text(text)
        f.chmod(0o600)
        keys.append(str(f))
    try:
        s = ReplicaSet(extra=["--keyFile", keys[0], "--noauth"])
        print("     before the set", flush=True)
        before_the_set(s)
        print("     at once", flush=True)
        at_once(s)
        for part, more in ((configurations, ()), (strangers, keys), (hostile, ()), (writes, ()), (concerns, ())):
            print(f"     {part.__name__}", flush=True)
            part(s, *more)
        check(all(m.stop() == 0 for m in s.members), "every member stops cleanly")
    finally:
        if s:
            s.close()
        for f in folder.iterdir():
            f.unlink()
        folder.rmdir()
    check.end("bad input")


if __name__ == "__main__":
    main()
