#!/usr/bin/env python3
"""The oplog for those who read it: after thousands of random changes of every kind, an applier that knows nothing but
the public descriptions of `local.oplog.rs` (v2 entries, `$v: 2` diffs, applyOps) makes the same documents of it, byte
for byte and field by field in the same order; and so does another server that gets the entries by `applyOps`, as
restoring tools send them. Changes of large definitions have entries, too. MAYFLY_SEED,
MAYFLY_OPLOG_CHANGES (4000). The last line says "N passed, N failed".
"""

import datetime, os

import bson
from bson.codec_options import CodecOptions
from bson.son import SON
import pymongo
from pymongo.errors import PyMongoError

from fault_test import SEED, rnd
from replica_set import Checks, Member, ReplicaSet

CHANGES = int(os.environ.get("MAYFLY_OPLOG_CHANGES", "4000"))
check = Checks()
ORDERED = CodecOptions(document_class=SON)
FIELDS = ["a", "b", "c", "d.x", "d.y", "d.z.q", "e.0", "e.2", "e.1.k", "f"]


def value(depth=0):
    kinds = [
        lambda: rnd.randrange(-5, 5),
        lambda: bson.Int64(rnd.randrange(1 << 40)),
        lambda: rnd.random(),
        lambda: "x" * rnd.randrange(30),
        lambda: None,
        lambda: bson.ObjectId(),
        lambda: datetime.datetime(2030, 1, 1) + datetime.timedelta(seconds=rnd.randrange(10**6)),
        lambda: rnd.random() < 0.5,
    ]
    if depth < 3:
        kinds += [
            lambda: [value(depth + 1) for _ in range(rnd.randrange(6))],
            lambda: SON((k, value(depth + 1)) for k in rnd.sample("kxyzq", rnd.randrange(4))),
        ] * 2
    return rnd.choice(kinds)()


def document(key):
    return SON([("_id", key), *((k, value()) for k in rnd.sample("abcdefgh", rnd.randrange(1, 7)))])


def update():
    f = lambda: rnd.choice(FIELDS)
    return rnd.choice(
        [
            lambda: {"$set": {f(): value()}},
            lambda: {"$set": {"a": value(), "d.x": value(), "new": value()}},
            lambda: {"$unset": {f(): 1}},
            lambda: {"$inc": {"a": 1}},
            lambda: {"$push": {"e": value()}},
            lambda: {
                "$push": {
                    "e": {"$each": [value(), value()], "$slice": rnd.choice([-3, 3]), "$position": rnd.randrange(3)}
                }
            },
            lambda: {"$pop": {"e": rnd.choice([1, -1])}},
            lambda: {"$pull": {"e": {"$gt": 0}}},
            lambda: {"$addToSet": {"e": rnd.randrange(3)}},
            lambda: {"$rename": {"b": "g"}},
            lambda: {"$rename": {"g": "a"}},
            lambda: {"$currentDate": {"now": True}},
            lambda: {"$set": {"e": [value() for _ in range(rnd.randrange(8))]}},
            lambda: [{"$set": {"p": {"$add": [1, 2]}, "d": {"$literal": value()}}}],
            lambda: [{"$unset": ["c", "d.x"]}],
            lambda: [{"$replaceWith": {"$mergeObjects": [{"z": 1}, "$$ROOT"]}}],
        ]
    )()


def change(db):
    c = db[rnd.choice(["one", "two"])]
    key = rnd.randrange(150)
    rnd.choice(
        [
            lambda: c.insert_one(document(key)),
            lambda: c.insert_many([document(rnd.randrange(150)) for _ in range(4)], ordered=False),
            *[lambda: c.update_one({"_id": key}, update(), upsert=rnd.random() < 0.2)] * 8,
            lambda: c.update_many({"_id": {"$gt": rnd.randrange(150), "$lt": rnd.randrange(150)}}, update()),
            lambda: c.replace_one({"_id": key}, document(key), upsert=True),
            lambda: c.find_one_and_update({"_id": key}, update()),
            lambda: c.find_one_and_delete({"_id": key}),
            lambda: c.delete_one({"_id": key}),
            lambda: c.delete_many({"_id": {"$in": [key, key + 1]}}),
            lambda: c.bulk_write(
                [
                    pymongo.InsertOne(document(rnd.randrange(150))),
                    pymongo.UpdateOne({"_id": key}, update()),
                    pymongo.DeleteOne({"_id": key + 2}),
                ],
                ordered=False,
            ),
            lambda: db.command("insert", "own", documents=[{"_id": bson.ObjectId()}], expireAfterSeconds=1),
        ]
    )()


# --- the applier, by the descriptions ---------------------------------------------------------------------------------
def apply_diff(doc, diff):
    for k in diff.get("d", {}):
        doc.pop(k, None)
    for k, v in diff.get("u", {}).items():
        doc[k] = v
    for k, v in diff.get("i", {}).items():
        doc.pop(k, None)
        doc[k] = v
    for k, v in diff.items():
        if k[0] == "s":
            (apply_array if v.get("a") else apply_diff)(doc[k[1:]], v)


def apply_array(a, diff):
    if "l" in diff:
        del a[diff["l"] :]
    for k, v in diff.items():
        if k in ("a", "l"):
            continue
        i = int(k[1:])
        while len(a) <= i:
            a.append(None)
        if k[0] == "u":
            a[i] = v
        else:
            (apply_array if v.get("a") else apply_diff)(a[i], v)


class Applier:
    def __init__(self):
        self.colls, self.kinds = {}, {}

    def entry(self, e):
        op = e["op"]
        self.kinds[op] = self.kinds.get(op, 0) + 1
        if op == "n":
            return
        if op == "c":
            return self.command(e)
        coll = self.colls.setdefault(e["ns"], {})
        if op == "i":
            coll[key_of(e["o"])] = e["o"]
        elif op == "d":
            del coll[key_of(e["o"])]
        elif op == "u":
            if e["o"].get("$v") == 2:
                assert set(e["o"]) == {"$v", "diff"}, e
                apply_diff(coll[key_of(e["o2"])], e["o"]["diff"])
                self.kinds["diff"] = self.kinds.get("diff", 0) + 1
            else:
                coll[key_of(e["o2"])] = e["o"]
                self.kinds["whole"] = self.kinds.get("whole", 0) + 1
        else:
            raise AssertionError(e)

    def command(self, e):
        name = next(iter(e["o"]))
        self.kinds[name] = self.kinds.get(name, 0) + 1
        db = e["ns"].split(".")[0]
        if name == "applyOps":
            for part in e["o"]["applyOps"]:
                self.entry(part)
        elif name == "drop":
            self.colls.pop(f"{db}.{e['o']['drop']}", None)
        elif name == "renameCollection":
            self.colls[e["o"]["to"]] = self.colls.pop(e["o"]["renameCollection"], {})
        elif name == "dropDatabase":
            for ns in [ns for ns in self.colls if ns.split(".")[0] == db]:
                del self.colls[ns]
        elif name not in (
            "create",
            "createIndexes",
            "startIndexBuild",
            "commitIndexBuild",
            "abortIndexBuild",
            "dropIndexes",
            "collMod",
        ):
            raise AssertionError(f"an entry no reader knows: {e}")


def key_of(d):
    return bson.encode({"": d["_id"]})


def shape(e):
    """What every entry of MongoDB's has."""
    assert (
        isinstance(e["ts"], bson.Timestamp)
        and isinstance(e["t"], bson.Int64)
        and e["v"] == 2
        and isinstance(e["wall"], datetime.datetime)
    ), e
    assert e["op"] in ("i", "u", "d", "c", "n") and isinstance(e["ns"], str) and isinstance(e["o"], dict), e
    if e["op"] in "iud":
        assert e["ui"].subtype == 4 and len(e["ui"]) == 16, e
    if e["op"] in "iu":
        assert list(e["o2"]) == ["_id"], e
    if e["op"] == "d":
        assert list(e["o"]) == ["_id"], e
    assert ("lsid" in e) == ("txnNumber" in e), e


def large_definitions(db):
    """Entries of changes of large definitions, and their events, are documents: what was before is left out, with a
    sign, where both have no room in one."""
    described = lambda c, size: {"$jsonSchema": {"description": c * size}}
    modify = [{"$match": {"operationType": "modify", "ns.coll": "large"}}]
    with db.watch(modify, show_expanded_events=True) as stream:
        db.create_collection("large", validator=described("a", 9 << 20))
        db.large.create_index("x")
        db.command("collMod", "large", validator=described("b", 9 << 20))
        db.command("collMod", "large", validator=described("c", 6 << 20))
        db.command("collMod", "large", index={"name": "x_1", "hidden": True})
        events = [stream.next() for _ in range(3)]
    entries = list(db.client.local["oplog.rs"].find({"o.collMod": "large"}))
    check(len(entries) == 3, f"an entry each: {len(entries)}")
    check(max(len(bson.encode(e)) for e in entries) <= 16 << 20, "of the size of a document")
    old = [e["o2"]["collectionOptions_old"] for e in entries]
    check(old[0] == {"$truncated": True}, f"the first says that it is cut: {str(old[0])[:200]}")
    validators = [o.get("validator") for o in old[1:]]
    check(validators == [described("b", 9 << 20), described("c", 6 << 20)], "the others are whole")
    check(entries[0]["o"]["validator"] == described("b", 9 << 20), "what is new is whole")
    check([e["stateBeforeChange"]["collectionOptions"] for e in events] == old, "as the events are")


CHANGES_OF_OPTIONS = (
    ("capped", {"cappedSize": 8192, "cappedMax": 7}),
    ("capped", {"cappedMax": 0}),
    ("plain", {"validator": {"a": 2}, "validationLevel": "moderate"}),
    ("plain", {"validationAction": "warn"}),
    ("plain", {"validator": {}}),
    ("plain", {"expiry": {"field": "ttl", "onUpdate": "preserve", "recoverSeconds": 5}}),
    ("plain", {"expiry": {"field": None, "onUpdate": "reset", "recoverSeconds": 0}}),
    ("plain", {"changeStreamPreAndPostImages": {"enabled": True}}),
    ("plain", {"changeStreamPreAndPostImages": {"enabled": False}}),
    ("plain", {"index": {"name": "k_1", "prepareUnique": True}}),
    ("plain", {"index": {"name": "k_1", "unique": True}}),
    ("clustered", {"expireAfterSeconds": "off"}),
    ("clustered", {"expireAfterSeconds": 77}),
    ("clustered", {"expireReads": "exact"}),
    ("clustered", {"expireReads": "lazy"}),
    # Of an index that is as it shall be: an entry that can be applied all the same.
    ("plain", {"index": {"name": "k_1", "hidden": False}}),
)


def changes_of_options(client):
    """An entry of collMod and its event have the fields of the command, and applyOps does the same with them."""

    def make(db):
        db.create_collection("capped", capped=True, size=4096)
        db.create_collection("plain", validator={"a": 1})
        db.plain.create_index("k", name="k_1")
        key = {"key": {"_id": 1}, "unique": True}
        db.command("create", "clustered", clusteredIndex=key, expireAfterSeconds=60)

    def state(db):
        options = {n: db[n].options() for n in ("capped", "plain", "clustered")}
        return options, db.plain.index_information()

    one, two = client.modify_one, client.modify_two
    make(one)
    make(two)
    with one.watch([{"$match": {"operationType": "modify"}}], show_expanded_events=True) as stream:
        for name, change in CHANGES_OF_OPTIONS:
            one.command("collMod", name, **change)
            event = stream.next()
            entry = client.local["oplog.rs"].find({"ns": "modify_one.$cmd"}).sort("$natural", -1).next()
            # A new validator says how it is applied, too.
            given = {k: v for k, v in change.items() if k not in entry["o"] or entry["o"][k] != v}
            check(not given and entry["o"]["collMod"] == name, f"the entry of {change}: {entry['o']}")
            more = entry["o"].keys() - change.keys() - {"collMod", "validationLevel", "validationAction"}
            check(not more, f"and nothing else: {entry['o']}")
            described = {k: v for k, v in entry["o"].items() if k != "collMod"}
            check(event["ns"]["coll"] == name and event["operationDescription"] == described, f"its event: {event}")
            client.admin.command("applyOps", [{"op": "c", "ns": "modify_two.$cmd", "o": entry["o"]}])
            check(state(one) == state(two), f"applied: {state(one)} {state(two)}")
    # As earlier versions wrote them: all options of the collection.
    old = {"collMod": "capped", "capped": True, "size": 12288, "max": 9}
    client.admin.command("applyOps", [{"op": "c", "ns": "modify_two.$cmd", "o": old}])
    check(two.capped.options() == {"capped": True, "size": 12288, "max": 9}, f"an older entry: {two.capped.options()}")
    client.drop_database("modify_one")
    client.drop_database("modify_two")


def main():
    print(f"seed {SEED}")
    s = ReplicaSet(1)
    other = Member(f"{s.folder}/other")
    try:
        s.members[0].client.admin.command("replSetInitiate", {})
        s.wait(lambda: s.members[0].hello()["isWritablePrimary"], "it to lead")
        client = pymongo.MongoClient(
            "127.0.0.1", s.members[0].port, directConnection=True
        )  # retries: sessions and statement ids in the entries
        db = client.test
        large_definitions(client.large)
        changes_of_options(client)
        for i in range(CHANGES):
            try:
                change(db)
            except PyMongoError:
                pass  # duplicate keys, operators that do not fit
            if i == CHANGES // 3:
                db.two.create_index("a")
                db.two.rename("three")
            if i == CHANGES // 2:
                db.three.drop()
                db.command("collMod", "one", validator={})
        db.gone.insert_one({})
        client.drop_database("test2")
        client.other.c.insert_one({})
        client.drop_database("other")
        s.wait(
            lambda: db.own.count_documents({}) == 0 and not list(db.own.find({}, {"_id": 1})), "deadlines to pass", 20
        )
        s.wait(
            lambda: (
                db.command("aggregate", "own", pipeline=[{"$count": "n"}], cursor={}, includeExpired=True)["cursor"][
                    "firstBatch"
                ]
                == []
            ),
            "the reaper",
            20,
        )
        log = list(client.local.get_collection("oplog.rs", codec_options=ORDERED).find())
        applier = Applier()
        for e in log:
            shape(e)
            applier.entry(e)
        check(all(a["ts"] < b["ts"] for a, b in zip(log, log[1:])), f"{len(log)} entries, their times go up")
        check(
            {"i", "u", "d", "c", "n", "diff", "whole", "applyOps"} <= set(applier.kinds),
            f"of every kind: {applier.kinds}",
        )

        def compare(what, get):
            for name in db.list_collection_names():
                real = {key_of(d): bson.encode(d) for d in db.get_collection(name, codec_options=ORDERED).find()}
                made = get(name)
                wrong = [k for k in real.keys() | made.keys() if real.get(k) != made.get(k)]
                check(
                    not wrong and (real or name in ("own",)),
                    f"{what}: {name}, {len(real)} documents"
                    + (
                        f", {len(wrong)} differ: {bson.decode(real.get(wrong[0], bson.encode({})))} and "
                        f"{bson.decode(made.get(wrong[0], bson.encode({})))}"
                        if wrong
                        else ""
                    ),
                )

        compare(
            "an applier by the descriptions makes the same",
            lambda name: {k: bson.encode(d) for k, d in applier.colls.get(f"test.{name}", {}).items()},
        )
        # As mongorestore --oplogReplay sends them: entry by entry, without what is the log's own.
        other.start(replica_set=False)
        other.wait_up()
        failed = []
        for e in client.local.get_collection("oplog.rs", codec_options=ORDERED).find({"op": {"$ne": "n"}}):
            if e["ns"].startswith(("config.", "admin.system")):
                continue
            ops = e["o"]["applyOps"] if "applyOps" in e["o"] else [e]
            ops = [SON((k, v) for k, v in op.items() if k in ("op", "ns", "o", "o2")) for op in ops]
            try:
                reply = other.client.admin.command(SON([("applyOps", ops)]))
                if not all(reply.get("results", [True])):
                    failed.append((ops, reply))
            except PyMongoError as x:
                failed.append((ops, x))
        check(not failed, f"another server takes every entry by applyOps {failed[:1] or ''}")
        compare(
            "another server makes the same of it",
            lambda name: {
                key_of(d): bson.encode(d) for d in other.client.test.get_collection(name, codec_options=ORDERED).find()
            },
        )
        client.close()
    finally:
        if other.running():
            other.kill()
        s.close()
    check.end("oplog")


if __name__ == "__main__":
    main()
