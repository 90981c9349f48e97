#!/usr/bin/env python3
"""mayfly-link and definitions: every option that collMod changes, while the link follows and after its history was
lost; a large event directly before a rename; time series, whose buckets the link leaves out; what had expired by an
index that is another one by now; how far behind a link is while nothing goes through; a second copy; each filter by
itself; a link into an archive.

The last line says "N passed, N failed".
"""

import datetime, json, re, shlex, signal, subprocess, urllib.error, urllib.request

import bson

import link_run
from fault_test import Deadline, discard, rnd, run_parts
from link_attacks_run import trim
from link_run import NEVER, Pair, check, equal, eventually, now, pass_days


def options(side, name):
    """As listCollections has them, without an order; numbers of one type."""
    there = side.run("app", {"listCollections": 1, "filter": {"name": name}})["cursor"]["firstBatch"]
    return {k: int(v) if isinstance(v, int) and not isinstance(v, bool) else v for k, v in there[0]["options"].items()}


def indexes(side, name):
    return {i["name"]: i for i in side.run("app", {"listIndexes": name})["cursor"]["firstBatch"]}


def define(a):
    """Collections of each kind at the source, with documents."""
    a.run("app", {"create": "plain", "validator": {"n": {"$type": "number"}}, "expiry": {"field": "life"}})
    a.run("app", {"create": "bare"})
    a.run("app", {"create": "late"})
    a.run("app", {"create": "cap", "capped": True, "size": 8192, "max": 20})
    a.run("app", {"create": "cl", "clusteredIndex": {"key": {"_id": 1}, "unique": True}, "expireAfterSeconds": 86400})
    a.run("app", {"create": "images", "changeStreamPreAndPostImages": {"enabled": True}})
    a.run("app", {"create": "kept", "onExpire": {"action": "archive", "into": {"db": "app", "coll": "late"}}})
    a.run("app", {"create": "view", "viewOn": "plain", "pipeline": [{"$match": {"n": 1}}]})
    keys = [("u", {"unique": False}), ("t", {"expireAfterSeconds": 5000, "reap": {"maxDocsPerSecond": 7}})]
    for field, more in keys:
        a.run("app", {"createIndexes": "plain", "indexes": [{"key": {field: 1}, "name": f"{field}_1", **more}]})
    for name in ("plain", "bare", "cap", "images", "kept"):
        a.client.app[name].insert_many([{"_id": i, "n": i, "u": i} for i in range(10)])
    a.client.app.cl.insert_many([{"_id": now() + datetime.timedelta(seconds=i)} for i in range(10)])


NAMES = ["plain", "bare", "cap", "cl", "images", "kept", "view"]


def change(a, times):
    """Every option of them, to and fro."""
    there = times % 2 == 0
    mod = lambda name, **more: a.run("app", {"collMod": name, **more})
    mod("plain", validator={"n": {"$gte": -times}} if there else {}, validationLevel="moderate" if there else "strict")
    mod("plain", expiry={"field": None} if there else {"field": "life"})
    mod("plain", expiry={"onUpdate": "preserve" if there else "reset", "recoverSeconds": 60 if there else 0})
    mod("bare", validator={"n": {"$gte": -1}}, validationAction="warn" if there else "error")
    mod("cap", cappedSize=16384 if there else 8192, cappedMax=50 if there else 20)
    mod("cap", cappedMax=0 if there else 20)
    mod("cl", expireAfterSeconds="off" if there else 70000)
    mod("cl", expireReads="exact" if there else "lazy")
    mod("images", changeStreamPreAndPostImages={"enabled": not there})
    archive = {"action": "archive", "into": {"db": "app", "coll": "late"}}
    mod("kept", onExpire={"action": "delete"} if there else archive)
    mod("view", viewOn="bare" if there else "plain", pipeline=[{"$match": {"n": 2 if there else 1}}])
    mod("plain", index={"name": "t_1", "expireAfterSeconds": 6000 + times, "hidden": there})
    # The same again changes nothing.
    mod("plain", index={"name": "t_1", "hidden": there})
    mod("plain", index={"name": "t_1", "expireReads": "exact" if there else "lazy"})
    mod("plain", index={"name": "t_1", "reap": {} if there else {"maxDocsPerSecond": 7}})
    if times == 0:
        mod("plain", index={"name": "u_1", "prepareUnique": True})
        mod("plain", index={"name": "u_1", "unique": True})


def same(a, b, when):
    for name in NAMES:
        check(options(a, name) == options(b, name), f"{when}: {name}: {options(a, name)} {options(b, name)}")
    check(indexes(a, "plain") == indexes(b, "plain"), f"{when}: {indexes(a, 'plain')} {indexes(b, 'plain')}")
    check(equal(a, b, "app", "plain", "bare", "cap", "cl", "images", "kept"), f"{when}: documents")
    refused = list(b.client.mayflyLink.refused.find())
    check(not refused, f"{when}: nothing was refused: {refused[:2]}")


def followed():
    with Pair() as p:
        a, b = p.a, p.b
        link = p.link()
        link.follows()
        define(a)
        check(link.follows(), "it follows")
        same(a, b, "made")
        for times in range(4):
            change(a, times)
            a.client.app.plain.update_many({}, {"$inc": {"n": 1}})
            check(link.follows(), "it follows")
            same(a, b, f"changed, {times}")
        # What says nothing new.
        a.run("app", {"collMod": "cap"})
        check(link.follows(), "it follows")
        same(a, b, "changed in nothing")


def lost():
    """What changed while the log does not tell of it: options, and collections that are of another kind by now."""
    with Pair(extra=["--oplogSize", "8"]) as p:
        a, b = p.a, p.b
        define(a)
        a.client.app.becomes.insert_many([{"_id": i} for i in range(10)])
        a.run("app", {"create": "was", "viewOn": "plain", "pipeline": []})
        a.run("app", {"create": "words", "collation": {"locale": "simple"}})
        a.run("app", {"create": "limited", "expiry": {"field": "life"}})
        b.run("app", {"create": "limited", "expiry": {"maxTTL": 3600}})
        link = p.link()
        check(link.follows(), "it copies")
        same(a, b, "copied")
        for times in range(2):
            link.kill()
            change(a, times)
            if times == 0:
                a.client.app.becomes.drop()
                a.run("app", {"create": "becomes", "capped": True, "size": 4096})
                a.client.app.becomes.insert_many([{"_id": i} for i in (3, 1, 2)])
                a.client.app.was.drop()
                a.client.app.was.insert_one({"_id": 1})
                a.run("app", {"collMod": "limited", "expiry": {"onUpdate": "preserve"}})
            last = a.client.local["oplog.rs"].find().sort("$natural", -1).limit(1).next()["ts"]
            check(trim(a, last), "the log is trimmed")
            begun = b.client.mayflyLink.links.find_one()["counters"]["copiesBegun"]
            link.start()
            check(eventually(lambda: link.counter("copiesBegun") > begun and link.state() == "following"), "again")
            check(link.follows(), "it follows")
            same(a, b, f"after lost history, {times}")
        check(options(b, "becomes").get("capped") is True, "a collection that is capped by now")
        check([d["_id"] for d in b.client.app.becomes.find()] == [3, 1, 2], "has what it has at the source")
        check(options(b, "was") == {} and equal(a, b, "app", "was"), "a view that is a collection by now")
        wanted = {"field": "life", "maxTTL": 3600, "onUpdate": "preserve"}
        check(options(b, "limited")["expiry"] == wanted, f"a limit of the target stays: {options(b, 'limited')}")


def large_rename():
    """A change above 16 MB directly before a rename: when the rename's position could not be saved, the change is not
    written again under the old name."""
    with Pair(target=["--setParameter", "enableTestCommands=1"]) as p:
        a, b = p.a, p.b
        large = lambda c: c * (16 * 1024 * 1024 - 300)
        a.client.app.old.insert_many([{"_id": i} for i in range(100)])
        a.client.app.old.insert_one({"_id": "large", "s": large("a")})
        link = p.link()
        check(link.follows(), "it copies and follows")
        tell = lambda **more: b.run("admin", {"configureFailPoint": "failCommand", **more})
        for round, (name, new) in enumerate((("old", "new"), ("new", "old"))):
            # Refused: what comes behind the rename at the target.
            tell(mode="alwaysOn", data={"failCommands": ["delete"], "errorCode": 91, "appName": "mayfly-link link"})
            a.client.app[name].insert_one({"_id": f"before {round}"})
            a.client.app[name].update_one({"_id": "large"}, {"$set": {"s": large("bc"[round])}})
            a.client.admin.command({"renameCollection": f"app.{name}", "to": f"app.{new}"})
            a.client.app[new].insert_one({"_id": f"behind {round}"})
            check(eventually(lambda: new in b.client.app.list_collection_names()), "it is renamed at the target")
            check(eventually(lambda: link.state() == "waiting"), "and not noted")
            link.kill()
            # By now the event is a small one, which is not sent in parts.
            a.client.app[new].update_one({"_id": "large"}, {"$set": {"s": "small"}})
            tell(mode="off")
            link.start()
            check(link.follows(), "it goes on")
            check(equal(a, b, "app", new), "nothing is lost")
            check(name not in b.client.app.list_collection_names(), "and the old name is gone")
            check(link.counter("copiesBegun") == 1, "without another copy")
            a.client.app[new].update_one({"_id": "large"}, {"$set": {"s": large("d")}})
            check(link.follows(), "it follows")


def series():
    """Time series while the link copies and follows: buckets that are filled, sealed, changed, expired and dropped come
    past in the source's log, and nothing of them goes to the target."""
    with Pair(extra=["--testClock"]) as p:
        a, b = p.a, p.b
        base = now()
        point = lambda i, m: {"t": base + datetime.timedelta(seconds=i), "m": m, "v": rnd.random()}
        kept = {"timeseries": {"timeField": "t", "metaField": "m"}, "expireAfterSeconds": 3600}
        a.run("app", {"create": "before", **kept})
        a.client.app.before.insert_many([point(i, i % 5) for i in range(3000)])
        link = p.link()
        check(link.follows(), "it copies and follows")
        a.run("app", {"create": "after", **kept})
        for name in ("before", "after"):
            a.client.app[name].insert_many([point(i, i % 5) for i in range(3000, 6000)])
            a.client.app[name].create_index([("m", 1), ("t", 1)])
            a.client.app[name].delete_many({"m": 3})
            a.run("app", {"collMod": name, "expireAfterSeconds": 7200})
        a.client.app.plain.insert_many([{"_id": i} for i in range(100)])
        check(link.follows(), "it follows")
        # Sealed, by the time that passes, and at last expired.
        for hours in (1, 2, 400):
            a.run("admin", {"clock": {"advanceSeconds": hours * 3600}})
            a.client.app.plain.insert_one({"_id": f"{hours} hours"})
            check(link.follows(), f"it follows, {hours} hours later")
        check(eventually(lambda: a.client.app.before.count_documents({}) == 0), "the points expire")
        a.client.app.after.drop()
        a.client.app.before.insert_one(point(400 * 3600, 1))
        check(link.follows(), "it follows")
        names = [n for d in b.client.list_database_names() for n in b.client[d].list_collection_names() if d == "app"]
        check(names == ["plain"], f"nothing of them is at the target: {names}")
        check(equal(a, b, "app", "plain"), "and all else is")
        check(link.status().get("notCarried") == ["app.before"], f"what is not carried: {link.status()}")
        refused = list(b.client.mayflyLink.refused.find())
        check(not refused and link.counter("copiesBegun") == 1, f"nothing was refused: {refused[:2]} {link.status()}")


def late_rules():
    """What has expired goes at the target by the date and the lifetime of then, whatever became of the TTL index while
    the link was away: dropped, with a shorter and with a longer lifetime. A document that was written since stays."""
    with Pair(extra=["--testClock"]) as p:
        a, b = p.a, p.b
        b.run("admin", {"setParameter": 1, "ttlMonitorEnabled": False})
        due, names = now() + NEVER, ("dropped", "shorter", "longer")
        for name in names:
            a.client.app[name].create_index("at", expireAfterSeconds=20, name="at_1")
            a.client.app[name].insert_many([{"_id": i, "at": [due + NEVER, due] if i == 1 else due} for i in range(4)])
        link = p.link()
        check(link.follows(), "it copies and follows")
        link.kill()
        later = due + datetime.timedelta(seconds=10)
        for name in names:
            b.client.app[name].update_one({"_id": 0}, {"$set": {"at": later}})
        pass_days(a, 2)
        check(not any(a.client.app[n].count_documents({}) for n in names), "all have expired at the source")
        a.client.app.dropped.drop_index("at_1")
        for name, seconds in (("shorter", 1), ("longer", 86400)):
            a.run("app", {"collMod": name, "index": {"name": "at_1", "expireAfterSeconds": seconds}})
        link.start()
        check(link.follows(), "it goes on")
        for name in names:
            there = [d["_id"] for d in b.client.app[name].find()]
            check(there == [0], f"{name}: only what was written since stays: {there}")
        check(link.counter("refused") == 0, "and nothing is refused")


def fetch(link, path):
    """Status code and text of an address of a link."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{link.http}{path}", timeout=Deadline().seconds) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except OSError as e:
        return 0, str(e)


def behind():
    """A lag grows while nothing goes through: the target stands still, the source stands still, the link is paused."""
    with Pair() as p:
        a, b = p.a, p.b
        link = p.link()
        check(link.follows(), "it copies and follows")
        check(fetch(link, "/healthz") == (200, "ok\n"), "it is well")
        lag = lambda: link.status().get("lagMillis", 0)
        metric = lambda name, value: re.search(
            rf'^mayfly_link_{name}{{link="link"}} {value}', fetch(link, "/metrics")[1], re.M
        )
        for side, why in ((b, "reached the target"), (a, "source has not answered")):
            proc = side.set.members[0].proc
            if side is b:
                a.client.app.c.insert_many([{"_id": i} for i in range(1000)])
            proc.send_signal(signal.SIGSTOP)
            if side is b:
                # The first of the changes may be written already.
                a.client.app.c.insert_many([{"_id": i} for i in range(1000, 2000)])
            check(eventually(lambda: link.status().get("stalled")), f"it says that it is stalled: {link.status()}")
            status, (code, text) = link.status(), fetch(link, "/healthz")
            check(why in status["stalled"], f"and why: {status['stalled']}")
            check(status["state"] in ("stalled", "waiting"), f"its state says so: {status['state']}")
            check(code == 503 and why in text, f"/healthz says so: {code} {text}")
            seen = lag()
            check(seen > 10000, f"the lag is that long: {seen}")  # clock: at least, since it is stalled
            check(eventually(lambda: lag() > seen), "and grows")
            check(metric("stalled", 1) and not metric("lag_seconds", r"0\."), "metrics say so")
            proc.send_signal(signal.SIGCONT)
            check(link.follows() and eventually(lambda: link.state() == "following"), "it goes on")
            check(eventually(lambda: lag() < 5000), f"and is not behind: {lag()}")
            check(eventually(lambda: fetch(link, "/healthz")[0] == 200), "and well")
        tell = lambda what: subprocess.run(
            [link_run.LINK, what, "--name", "link", "--target", b.uri],
            capture_output=True,
            text=True,
            timeout=Deadline().seconds,
        )
        tell("pause")
        check(eventually(lambda: link.state() == "paused"), "it pauses")
        a.client.app.c.insert_many([{"_id": i} for i in range(2000, 3000)])
        check(eventually(lambda: lag() > 2000), f"a paused link falls behind: {lag()}")
        noted = lambda: json.loads(tell("status").stdout)["lagMillis"]
        check(eventually(lambda: noted() > 2000), "the target knows that")
        shown = lambda: b.run("admin", {"ttlStatus": 1})["links"][0]
        check(eventually(lambda: shown()["paused"] and shown()["lagMillis"] > 2000), f"and shows it: {shown()}")
        check(fetch(link, "/healthz")[0] == 200 and "stalled" not in link.status(), "it is well nevertheless")
        tell("resume")
        check(link.follows() and equal(a, b, "app", "c"), "it goes on, and both are equal")


def second_copy():
    """Copied again: what expired at the source and was kept stays, and an index that the source has no more goes."""
    with Pair(extra=["--testClock"]) as p:
        a, b = p.a, p.b
        b.run("admin", {"setParameter": 1, "ttlMonitorEnabled": False})
        a.client.app.c.create_index("at", expireAfterSeconds=5, name="at_1")
        a.client.app.c.create_index("t", expireAfterSeconds=5, name="gone_1")
        a.client.app.c.insert_many([{"_id": i, "at": now() + NEVER} for i in range(5)] + [{"_id": "stays"}])
        link = p.link("--filterExpiration")
        check(link.follows(), "it copies and follows")
        pass_days(a, 2)
        check(a.client.app.c.count_documents({}) == 1 and link.follows(), "five expire at the source")
        check(b.client.app.c.count_documents({}) == 6, "and stay at the target")
        link.kill()
        a.client.app.c.drop_index("gone_1")
        link.options = ("--filterExpiration", "--exclude", "other", "--newSelection")
        link.start()
        check(eventually(lambda: link.counter("copiesBegun") >= 2 and link.state() == "following"), "it copies again")
        there = [d["_id"] for d in b.client.app.c.find()]
        check(len(there) == 6 and link.counter("deleted") == 0, f"what was kept is kept: {there}")
        check(set(indexes(b, "c")) == {"_id_", "at_1"}, f"an index that is gone goes: {list(indexes(b, 'c'))}")


def filters_alone():
    """EXPIRY C17: each of the filters by itself."""
    with Pair(extra=["--testClock"]) as p:
        a, b = p.a, p.b
        b.run("admin", {"setParameter": 1, "ttlMonitorEnabled": False})
        wanted = {
            "Expiration": ({"own", "indexed", "stays"}, False),
            "Deletion": ({"deleted", "stays"}, True),
            "BypassExpiry": ({"stays"}, False),
        }
        links = {}
        for name in wanted:
            db = a.client[name]
            db.c.create_index("at", expireAfterSeconds=5)
            db.c.insert_many([{"_id": "deleted"}, {"_id": "stays"}, {"_id": "indexed", "at": now() + NEVER}])
            a.run(name, {"insert": "c", "documents": [{"_id": "own"}], "expireAt": now() + NEVER})
            db.dropped.insert_one({"_id": 1})
            links[name] = p.link("--include", name, "--include", "mark", f"--filter{name}", name=name)
            check(links[name].follows(), f"{name}: it copies and follows")
            own = b.documents(name, "c")[bson.encode({"": "own"})]
            check((own[1] is None) == (name == "BypassExpiry"), f"{name}: the deadline is sent, or not: {own}")
        for name in wanted:
            a.client[name].c.delete_one({"_id": "deleted"})
            a.client[name].dropped.drop()
        pass_days(a, 2)
        for name, (ids, dropped) in wanted.items():
            check(a.client[name].c.count_documents({}) == 1 and links[name].follows(), f"{name}: two expire")
            there = {d["_id"] for d in b.client[name].c.find()}
            check(there == ids, f"{name}: {there}")
            check(("dropped" in b.client[name].list_collection_names()) == dropped, f"{name}: a drop is sent, or not")
        check("TTL indexes" in links["BypassExpiry"].said(), "the warning names what removes data all the same")


def archive():
    """The page's link into an archive: what is due or deleted at the source stays, also once it is due there."""
    with Pair(extra=["--testClock"], target=["--testClock"]) as p:
        a, b = p.a, p.b
        page = (link_run.ROOT / "docs/between-clusters.md").read_text()
        words = shlex.split(next(l for l in page.splitlines() if l.startswith("mayfly-link --name archive")))
        for option in ("--name", "--source", "--target"):
            at = words.index(option)
            del words[at : at + 2]
        a.client.app.c.create_index("at", expireAfterSeconds=5)
        clustered = {"key": {"_id": 1}, "unique": True}
        a.run("app", {"create": "dated", "clusteredIndex": clustered, "expireAfterSeconds": 5})
        due = now() + NEVER
        a.client.app.c.insert_many([{"_id": i, "keep": True, "at": due} for i in range(3)])
        a.run("app", {"insert": "c", "documents": [{"_id": "own", "keep": True}], "expireAt": due})
        a.client.app.dated.insert_one({"_id": due, "keep": True})
        link = p.link(*words[1:], name="archive")
        there = lambda: [b.client.app[name].count_documents({}) for name in ("c", "dated")]
        check(eventually(lambda: there() == [4, 1]), f"it copies: {there()}")
        a.client.app.c.delete_one({"_id": 0})
        pass_days(a, 2)
        pass_days(b, 2)
        a.client.app.c.insert_one({"_id": "last", "keep": True})
        check(eventually(lambda: b.client.app.c.count_documents({"_id": "last"})), "it follows")
        check(a.client.app.c.count_documents({}) == 1 and there() == [5, 1], f"all is kept: {there()}")


PARTS = [followed, lost, large_rename, series, late_rules, behind, second_copy, filters_alone, archive]

if __name__ == "__main__":
    try:
        run_parts("link_definitions", PARTS, check)
    finally:
        discard(link_run.folder)
