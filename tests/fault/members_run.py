#!/usr/bin/env python3
"""Settings and commands for members, on three real processes: the configuration, step-down, step-up, freezing,
priorities, votes, hidden and delayed members, tags, an emptied data directory (also in a set of two), a member that was
removed while it was away, members that are stopped while they start. The last line says "N passed, N failed".
"""

import shutil, sys, time

import pymongo
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure
from pymongo.read_preferences import Nearest, Secondary
from pymongo.write_concern import WriteConcern

from fault_test import Deadline, figure
from replica_set import Checks, Member, ReplicaSet, code

ONLY = sys.argv[1:]  # names of parts; none: all
check = Checks()


def reconfig(s, change):
    """As rs.reconfig() from whoever leads; the configuration as it was before."""
    for _ in range(20):
        admin = s.primary().client.admin
        config = admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        change(config)
        try:
            admin.command("replSetReconfig", config)
            return
        except OperationFailure as e:
            if e.code not in (109, 189, 10107):
                raise
    raise AssertionError("no reconfiguration within 20 attempts")


def settings(s, **values):
    reconfig(s, lambda c: c["settings"].update(values))
    s.wait(
        lambda: all(
            m.client.admin.command("replSetGetConfig")["config"]["settings"].items() >= values.items()
            for m in s.members
        ),
        "all to know",
    )


def member_is(s, member, **values):
    def change(c):
        next(m for m in c["members"] if m["host"] == member.host).update(values)

    reconfig(s, change)


def failover(s):
    """Seconds from the end of the primary until another one leads."""
    dead = s.primary()
    dead.kill()
    began = time.monotonic()
    s.wait(lambda: any(m.hello()["isWritablePrimary"] for m in s.others(dead)), "another primary")
    took = time.monotonic() - began
    dead.start()
    dead.wait_up()
    s.wait(lambda: dead.hello()["secondary"], "the old primary to follow")
    return took


def health(primary, member):
    return next(
        m["health"] for m in primary.client.admin.command("replSetGetStatus")["members"] if m["name"] == member.host
    )


def timings(s):
    given = s.primary().client.admin.command("replSetGetConfig")["config"]["settings"]
    check(
        (given["electionTimeoutMillis"], given["heartbeatIntervalMillis"], given["heartbeatTimeoutSecs"])
        == (1000, 250, 10),
        f"the settings that hold are shown: {given}",
    )
    version = s.primary().client.admin.command("replSetGetConfig")["config"]["version"]
    for name, value in (
        ("electionTimeoutMillis", 100),
        ("electionTimeoutMillis", "x"),
        ("catchUpTimeoutMillis", 0),
        ("catchUpTakeoverDelayMillis", 1),
        ("heartbeatIntervalMillis", 10000),
        ("heartbeatTimeoutSecs", 0),
        ("noSuchSetting", 1),
    ):
        check(code(lambda: settings(s, **{name: value})) == 93, f"{name}: {value!r} is refused")
    check(
        s.primary().client.admin.command("replSetGetConfig")["config"]["version"] == version,
        "what is refused changes nothing",
    )
    settings(s, chainingAllowed=False, catchUpTimeoutMillis=-1, catchUpTakeoverDelayMillis=30000)
    settings(s, electionTimeoutMillis=4000)
    # When the members must be done is what tests/unit/replication has, on a clock that it moves.
    figure("without a primary, electionTimeoutMillis 4000", failover(s), "s")
    settings(s, electionTimeoutMillis=300)
    figure("without a primary, electionTimeoutMillis 300", failover(s), "s")
    settings(s, electionTimeoutMillis=10000, heartbeatIntervalMillis=2000)
    primary, without = s.primary(), 0
    w3 = primary.client.test.get_collection("w3", write_concern=WriteConcern(w=3, wtimeout=Deadline().millis))
    heard = lambda: [m.get("lastHeartbeat") for m in primary.client.admin.command("replSetGetStatus")["members"]]
    for _ in range(20):
        before = heard()
        w3.insert_one({})
        without += heard() == before
    check(without > 0, f"w: 3 does not wait for heartbeats: {without} of 20 writes were done between two of them")
    settings(s, heartbeatIntervalMillis=100, heartbeatTimeoutSecs=1)
    primary = s.primary()
    away = s.others(primary)[0]
    away.pause()
    began = time.monotonic()
    s.wait(lambda: health(primary, away) == 0, "the silent member to be noticed")
    figure("until a silent member is noticed, heartbeatTimeoutSecs 1", time.monotonic() - began, "s")
    away.resume()
    s.wait(lambda: health(primary, away) == 1, "the member to be heard of again", 30)
    settings(s, electionTimeoutMillis=1000, heartbeatIntervalMillis=250, heartbeatTimeoutSecs=10)


def leaders(s):
    p = s.primary()
    p.client.admin.command("replSetStepDown", 30)
    q = s.primary()
    check(q is not p, "a primary that steps down is followed by another one")
    check(code(lambda: p.client.admin.command("replSetStepUp", 1)) == 125, "it does not lead again within its period")
    check(code(lambda: p.client.admin.command("replSetStepDown", 30)) == 10107, "a secondary cannot step down")
    check(code(lambda: q.client.admin.command("replSetFreeze", 30)) == 95, "a primary cannot be frozen")
    check(
        code(lambda: q.client.admin.command("replSetStepDown", 5, secondaryCatchUpPeriodSecs=6)) == 2,
        "the period is longer than the time to catch up",
    )
    p.client.admin.command("replSetFreeze", 0)
    p.client.admin.command("replSetStepUp", 1)
    check(
        p.hello()["isWritablePrimary"] and s.primary() is p,
        "replSetStepUp makes a secondary the primary, when it returns",
    )
    check(code(lambda: p.client.admin.command("replSetStepUp", 1)) == 0, "on the primary it does nothing")
    for m in s.others(p):
        m.client.admin.command("replSetFreeze", 60)
    s.wait(
        lambda: code(lambda: p.client.admin.command("replSetStepDown", 10, secondaryCatchUpPeriodSecs=0)) == 262,
        "nobody who could follow",
    )
    check(p.hello()["isWritablePrimary"], "it steps down only when somebody can follow")
    code(lambda: p.client.admin.command("replSetStepDown", 60, force=True, secondaryCatchUpPeriodSecs=0))
    s.wait(lambda: not any(m.hello()["isWritablePrimary"] for m in s.members), "no primary")
    check(True, "with force it steps down all the same")
    q = s.others(p)[0]
    q.client.admin.command("replSetFreeze", 0)
    check(s.primary() is q, "the one that is not frozen any more leads")
    for m in s.members:
        code(lambda: m.client.admin.command("replSetFreeze", 0))


def kinds(s):
    a, b, c = s.members
    member_is(s, a, priority=5)
    s.wait(lambda: a.hello()["isWritablePrimary"], "the member of highest priority to lead")
    check(True, "leadership goes to the highest priority")
    member_is(s, c, priority=0, hidden=True, tags={"dc": "west"})
    s.wait(lambda: c.hello().get("hidden") is True, "the member to know that it is hidden")
    s.wait(
        lambda: not any(c.host in m.hello()["hosts"] + m.hello().get("passives", []) for m in s.members),
        "nobody to name the hidden member",
    )
    check(True, "a hidden member is named to nobody")
    check(c.hello().get("passive") is True and c.hello()["secondary"], "it follows")
    check(code(lambda: c.client.admin.command("replSetStepUp", 1)) == 125, "priority 0 never leads")
    seen = pymongo.MongoClient(s.uri, serverSelectionTimeoutMS=Deadline().millis)
    seen.admin.command("ping")
    s.wait(
        lambda: (c.port not in [n[1] for n in seen.nodes]) and len(seen.nodes) == 2,
        "the driver to drop the hidden member",
    )
    seen.close()
    member_is(s, c, hidden=False)
    s.wait(lambda: c.host in b.hello().get("passives", []), "the member to be a passive one")
    check(c.host not in b.hello()["hosts"], "priority 0 is a passive member")
    # Its vote still counts: two of three are left.
    b.kill()
    a.client.test.kinds.insert_one({"_id": "with a passive voter"})
    check(True, "a member of priority 0 counts in majorities")
    b.start()
    b.wait_up()
    s.wait(lambda: b.hello()["secondary"], "it to follow")
    member_is(s, c, votes=0)
    s.wait(
        lambda: (
            [a.client.admin.command("replSetGetStatus")[n] for n in ("votingMembersCount", "majorityVoteCount")]
            == [2, 2]
        ),
        "two to vote",
    )
    check(True, "votes 0 counts in no majority")
    s.wait(
        lambda: (
            next(m for m in a.client.admin.command("replSetGetStatus")["members"] if m["name"] == c.host)["stateStr"]
            == "SECONDARY"
        ),
        "it follows",
    )
    b.kill()
    s.wait(lambda: not a.hello()["isWritablePrimary"], "the primary without a majority to step down")
    check(True, "without a majority of the voters nobody leads")
    b.start()
    b.wait_up()
    s.wait(lambda: a.hello()["isWritablePrimary"], "the primary to be back")
    member_is(s, c, votes=1)
    member_is(s, c, priority=1)
    member_is(s, a, priority=1)

    def tagged(config):
        for m, dc in zip(config["members"], ("east", "east", "west")):
            m["tags"] = {"dc": dc}
        config["settings"]["getLastErrorModes"] = {"both": {"dc": 2}}

    reconfig(s, tagged)
    driver = pymongo.MongoClient(s.uri, serverSelectionTimeoutMS=Deadline().millis)
    driver.test.get_collection("tags", write_concern=WriteConcern(w="both", wtimeout=Deadline().millis)).insert_one(
        {"_id": 1}
    )
    check(
        c.client.test.tags.find_one({"_id": 1}) is not None,
        "a write concern of tags waits for the member that has the tag",
    )
    check(
        code(lambda: driver.test.get_collection("tags", write_concern=WriteConcern(w="none")).insert_one({})) == 79,
        "an unknown mode is refused",
    )
    check(
        code(lambda: driver.test.get_collection("tags", write_concern=WriteConcern(w=4)).insert_one({})) == 100,
        "more members than there are, too",
    )
    me = {driver.admin.command("hello", read_preference=Nearest(tag_sets=[{"dc": "west"}]))["me"] for _ in range(10)}
    check(me == {c.host}, f"a read preference with tags goes to {me}")
    c.pause()
    r = a.client.test if a.hello()["isWritablePrimary"] else b.client.test
    check(
        code(lambda: r.get_collection("tags", write_concern=WriteConcern(w="both", wtimeout=500)).insert_one({})) == 64,
        "the reply says what was not reached in time",
    )
    c.resume()
    driver.close()


def delayed(s):
    c = s.members[2]
    if s.primary() is c:
        c.client.admin.command("replSetStepDown", 30)
    member_is(s, c, priority=0, secondaryDelaySecs=3600)
    began = time.monotonic()
    s.primary().client.test.get_collection("late", write_concern=WriteConcern(w="majority")).insert_one({"_id": 1})
    check(c.client.test.late.find_one({"_id": 1}) is None, "a delayed member is behind")
    member_is(s, c, secondaryDelaySecs=3)
    s.wait(lambda: c.client.test.late.find_one({"_id": 1}), "the write to be there in the end")
    took = time.monotonic() - began
    check(took >= 3, f"secondaryDelaySecs 3: {took:.1f} s")  # clock: at least, which a slow machine cannot miss
    member_is(s, c, secondaryDelaySecs=3600)
    s.wait(
        lambda: c.client.admin.command("replSetGetConfig")["config"]["members"][2]["secondaryDelaySecs"] == 3600,
        "it knows of its delay at once",
    )
    p = s.primary()
    p.client.test.late.insert_many([{"_id": 10 + i} for i in range(1000)])
    c.kill()
    c.start()
    c.wait_up()
    s.wait(lambda: c.hello()["secondary"], "a delayed member that starts to follow", 20)
    p.client.admin.command("replSetStepDown", 30)
    q = s.primary()
    s.wait(lambda: c.hello().get("primary") == q.host, "a delayed member to know who leads", 20)
    check(
        c.client.test.late.count_documents({}) == 1,
        "a restart does not shorten the delay, and a delayed member knows who leads",
    )
    q.client.test.late.insert_one({"_id": "a vote"})
    check(True, "a delayed member acknowledges what it has in its log")
    member_is(s, c, secondaryDelaySecs=0, priority=1)
    s.wait(lambda: c.client.test.late.count_documents({}) == 1002, "everything when the delay is taken away", 20)
    check(True, "a delay that is taken away ends at once")
    for m in s.members:
        code(lambda: m.client.admin.command("replSetFreeze", 0))


def stopped(s):
    """stopReplProducer and rsSyncApplyStop, with which drivers' tests make write concerns time out."""
    p = s.primary()
    behind = s.others(p)
    for name, m in zip(("stopReplProducer", "rsSyncApplyStop"), behind):
        m.client.admin.command("configureFailPoint", name, mode="alwaysOn")
    rows = p.client.test.get_collection("stopped", write_concern=WriteConcern(w=3, wtimeout=100))
    check(code(lambda: rows.insert_one({"_id": 1})) == 64, "w: 3 times out while secondaries have stopped applying")
    check(
        all(
            m.client.test.get_collection("stopped", read_preference=Nearest()).count_documents({}) == 0 for m in behind
        ),
        "they do not show the write",
    )
    check(p.client.test.stopped.count_documents({}) == 1, "the primary does")
    check(
        code(lambda: behind[0].client.admin.command("configureFailPoint", "stopReplProducer", mode={"times": 1})) == 2,
        "it is on or off",
    )
    for name, m in zip(("stopReplProducer", "rsSyncApplyStop"), behind):
        m.client.admin.command("configureFailPoint", name, mode="off")
    check(
        p.client.test.get_collection("stopped", write_concern=WriteConcern(w=3, wtimeout=Deadline().millis))
        .insert_one({"_id": 2})
        .acknowledged,
        "then it holds",
    )


def emptied(s):
    """A node is its directory: an emptied one comes back under another id, as a learner, and votes when it has
    everything."""
    s.primary().client.test.emptied.insert_many([{"_id": i} for i in range(2000)])
    for which in ("a secondary", "the primary"):
        victim = s.primary() if which == "the primary" else s.others(s.primary())[0]
        victim.kill()
        shutil.rmtree(f"{victim.folder}/data")
        began = time.monotonic()
        victim.start()
        victim.wait_up()
        s.wait(lambda: victim.hello()["secondary"], "the emptied member to follow", 60)
        s.settled()
        check(
            victim.client.test.emptied.count_documents({}) == 2000,
            f"{which} that was emptied is back with everything after {time.monotonic() - began:.1f} s",
        )
        check(len(set(s.hashes("test"))) == 1, "and holds the same as the others")
        check(
            len(s.primary().client.admin.command("replSetGetConfig")["config"]["members"]) == 3,
            "under its old place in the configuration",
        )
        # It votes again: with it and one other there is a majority.
        gone = s.others(victim, s.primary())[0] if s.primary() is not victim else s.others(victim)[0]
        wait_votes(s)
        gone.kill()
        s.wait(
            lambda: s.primary(10).client.test.emptied.insert_one({"gone": which}).acknowledged,
            "a write with the vote of the one that was emptied",
            30,
        )
        check(True, "its vote counts")
        gone.start()
        gone.wait_up()
        s.wait(lambda: gone.hello()["secondary"], "all back")
        s.primary().client.test.emptied.delete_many({"gone": which})
    # A node with data of its own is no replacement.
    victim = s.others(s.primary())[0]
    victim.stop()
    shutil.move(f"{victim.folder}/data", f"{victim.folder}/kept")
    stranger = Member(f"{victim.folder}/stranger")
    stranger.port = victim.port
    stranger.client.close()
    stranger.client = victim.client
    stranger.start(replica_set=False)
    stranger.wait_up()
    stranger.client.test.own.insert_one({})
    stranger.stop()
    stranger.start()
    stranger.wait_up()
    s.wait(
        lambda: "is not empty: it is not taken in" in open(f"{s.primary().folder}/log", errors="replace").read(),
        "the primary to say that a stranger is there",
    )
    check(
        stranger.client.admin.command("hello").get("setName") is None, "a node that has data of its own is not taken in"
    )
    stranger.kill()
    shutil.move(f"{victim.folder}/kept", f"{victim.folder}/data")
    victim.start()
    victim.wait_up()
    s.wait(lambda: victim.hello()["secondary"], "the right directory to be taken back")
    s.settled()
    check(len(set(s.hashes("test"))) == 1, "the right directory follows again")


def removed(s):
    """Who is removed while it is away hears of it from the others when it is back."""
    gone = s.others(s.primary())[0]
    gone.kill()
    reconfig(s, lambda c: c.update(members=[m for m in c["members"] if m["host"] != gone.host]))
    s.primary().client.test.removed.insert_one({"_id": "without it"})
    gone.start()
    gone.wait_up()
    s.wait(lambda: code(lambda: gone.client.admin.command("replSetGetStatus")) == 93, "the removed member to know", 20)
    h = gone.hello()
    check(
        not h["isWritablePrimary"] and not h["secondary"] and h.get("isreplicaset") is True and "setName" not in h,
        "a member that was removed while it was away is in no set",
    )
    check(code(lambda: gone.client.test.removed.find_one()) == 13436, "and is not read from")
    check('"newState":"REMOVED"' in open(f"{gone.folder}/log", errors="replace").read(), "its state is REMOVED")
    for m in (gone, gone):
        m.kill()
        m.start()
        m.wait_up()
        s.wait(
            lambda: code(lambda: gone.client.admin.command("replSetGetStatus")) == 93,
            "the removed member to know after a restart",
            20,
        )
    check(s.primary().client.admin.command("replSetGetStatus")["votingMembersCount"] == 2, "it disturbs nobody")
    number = s.members.index(gone)
    reconfig(s, lambda c: c["members"].append({"_id": number, "host": gone.host}))
    s.wait(lambda: gone.hello()["secondary"], "the member to follow again", 30)
    wait_votes(s)
    s.settled()
    check(
        gone.client.test.removed.find_one({"_id": "without it"}) is not None, "it can be added again with what it has"
    )


def both_vote(s):
    """And know it: one that dies before has left the other without a vote."""
    s.wait(
        lambda: all(m.client.admin.command("replSetGetStatus")["votingMembersCount"] == 2 for m in s.members),
        "both to vote",
    )


def two():
    """Two members: whatever was acknowledged both have, so the one that is left takes an emptied one in by itself."""
    s = ReplicaSet(2)
    try:
        s.initiate()
        both_vote(s)
        for which in ("secondary", "primary", "secondary"):
            p = s.primary()
            p.client.test.two.insert_many([{"n": i} for i in range(200)])
            count = p.client.test.two.count_documents({})
            victim = p if which == "primary" else s.others(p)[0]
            victim.kill()
            shutil.rmtree(f"{victim.folder}/kept", ignore_errors=True)
            shutil.move(f"{victim.folder}/data", f"{victim.folder}/kept")
            victim.start()
            victim.wait_up()
            s.wait(
                lambda: victim.hello()["secondary"] or victim.hello()["isWritablePrimary"],
                f"the emptied {which} of two to be back",
                60,
            )
            both_vote(s)
            s.settled()
            check(
                victim.client.test.two.count_documents({}) == count,
                f"an emptied {which} of two members comes back by itself, with everything",
            )
            check(len(set(s.hashes("test"))) == 1, "both hold the same")
        # The old directory turns up again: it has no place any more, and takes none.
        other = s.others(victim)[0]
        s.wait(
            lambda: (
                other.client.test.two.insert_one({"n": -1}).acknowledged
                if other.hello()["isWritablePrimary"]
                else victim.client.test.two.insert_one({"n": -1}).acknowledged
            ),
            "a write",
        )
        victim.kill()
        shutil.move(f"{victim.folder}/data", f"{victim.folder}/now")
        shutil.move(f"{victim.folder}/kept", f"{victim.folder}/data")
        victim.start()
        victim.wait_up()
        s.wait(
            lambda: code(lambda: victim.client.admin.command("replSetGetStatus")) == 93,
            "the old directory to hear that it is out",
            30,
        )
        s.wait(lambda: not other.hello()["isWritablePrimary"], "the primary to miss the vote of the right one", 20)
        check(True, "a directory that was replaced does not vote when it turns up again")
        victim.kill()
        shutil.move(f"{victim.folder}/data", f"{victim.folder}/kept")
        shutil.move(f"{victim.folder}/now", f"{victim.folder}/data")
        victim.start()
        victim.wait_up()
        s.wait(
            lambda: s.primary(2).client.test.two.insert_one({"n": -2}).acknowledged,
            "the set to go on with the right one",
        )
        s.settled()
        check(len(set(s.hashes("test"))) == 1, "with the right one the set goes on")
        check(all(m.stop() == 0 for m in s.members), "both stop cleanly")
    finally:
        s.close()


def young():
    """A member that is told to end while its first configuration arrives ends in order: what its engine had announced
    was still looked at when the engine was gone."""
    s = ReplicaSet(9)
    try:
        first, *rest = s.members
        first.client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": first.host}]})
        s.wait(lambda: first.hello()["isWritablePrimary"], "a primary")
        codes = []
        for i, m in enumerate(rest):
            config = first.client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["members"] = config["members"][:1] + [{"_id": i + 1, "host": m.host, "votes": 0, "priority": 0}]
            said = m.lines()
            first.client.admin.command("replSetReconfig", config)
            # Each a step further: by what it has said since, or when it has joined.
            s.wait(lambda: m.lines() - said >= i or m.hello()["secondary"], f"member {i} to come so far")
            codes.append(m.stop())
        check(codes == [0] * len(rest), f"members end in order while they join: {codes}")
        check(first.stop() == 0, "and the primary")
    finally:
        s.close()


def newest(member):
    return next(member.client.local["oplog.rs"].find().sort("$natural", -1).limit(1))["ts"]


def times(s):
    """What clients bring as $clusterTime moves no member's time, and a session that goes from the primary to a
    secondary still reads what it wrote."""
    ahead = Timestamp(int(time.time()) + 200 * 86400, 1)
    said = {"clusterTime": ahead, "signature": {"hash": b"\0" * 20, "keyId": 0}}
    for m in s.members:
        with (
            pymongo.MongoClient("127.0.0.1", m.port, directConnection=True, timeoutMS=Deadline().millis) as client,
            client.start_session() as session,
        ):
            session.advance_cluster_time(said)
            client.admin.command("ping", session=session)
            session.advance_operation_time(ahead)
            coll = client.test.get_collection("times", read_preference=Secondary())
            check(
                code(lambda: coll.find_one({}, session=session)) == 72,
                "a time that nobody has issued is refused, not waited for",
            )
    s.primary().client.test.times.insert_one({"_id": "one"})
    now = time.time() + 60
    check(newest(s.primary()).time < now, "a write has the primary's time")  # clock: a date, half a year from the other
    with pymongo.MongoClient(s.uri, readConcernLevel="majority", w="majority") as client:
        coll = client.test.get_collection("times", read_preference=Secondary())
        missed = 0
        with client.start_session(causal_consistency=True) as session:
            for i in range(300):
                client.test.times.insert_one({"_id": i}, session=session)
                missed += coll.find_one({"_id": i}, session=session) is None
        check(missed == 0, f"300 writes are read on secondaries at once by the session that made them: {missed} missed")
    for m in s.members:
        m.stop()
    for m in s.members:
        m.start()
    for m in s.members:
        m.wait_up()
    s.in_place()
    s.primary().client.test.times.insert_one({"_id": "two"})
    now = time.time() + 60
    check(newest(s.primary()).time < now, "and after a restart of all")  # clock: a date, half a year from the other


def wait_votes(s):
    """A member that is taken in votes once it has everything."""
    s.wait(lambda: s.primary().client.admin.command("replSetGetStatus")["votingMembersCount"] == 3, "all three to vote")


def main():
    s = ReplicaSet(extra=("--setParameter", "enableTestCommands=1"))
    try:
        s.initiate()
        for part in (timings, leaders, kinds, delayed, stopped, emptied, removed, times):
            if ONLY and part.__name__ not in ONLY:
                continue
            print(f"     {part.__name__}", flush=True)
            part(s)
        s.settled()
        check(len(set(s.hashes("test"))) == 1, "all members hold the same")
        check(all(m.stop() == 0 for m in s.members), "every member stops cleanly")
    finally:
        s.close()
    if not ONLY or "two" in ONLY:
        print("     two", flush=True)
        two()
    if not ONLY or "young" in ONLY:
        print("     young", flush=True)
        young()
    check.end("members of a set")


if __name__ == "__main__":
    main()
