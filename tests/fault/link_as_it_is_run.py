#!/usr/bin/env python3
"""What a source has comes to the target as it is: changed options, collections that others take the place of, documents
that no validator would take today, empty timestamps. Found by somebody who used the link as a stranger.

The last line says "N passed, N failed".
"""

import datetime

import bson

from fault_test import run_parts, until
from link_run import LinkProcess, Pair, check, equal

EMPTY = bson.Timestamp(0, 0)


def same(a, b, *names):
    """Options and indexes, too."""
    for n in names:
        one, other = a.client.app[n], b.client.app[n]
        check(one.options() == other.options(), f"{n}: {one.options()} {other.options()}")
        check(one.index_information() == other.index_information(), f"{n}: indexes {other.index_information()}")
    check(equal(a, b, "app", *names), f"documents of {names}")


def nothing_refused(b, link):
    rows = list(b.client.mayflyLink.refused.find())
    check(not rows and link.counter("refused") == 0, f"nothing is refused: {rows[:3]}")


def changed_options():
    with Pair() as p:
        a, b = p.a, p.b
        db = a.client.app
        db.create_collection("val", validator={"a": {"$exists": True}})
        db.create_collection("cap", capped=True, size=4096)
        db.uniq.create_index("k", name="k_1")
        db.uniq.insert_many([{"_id": i, "k": i} for i in range(5)])
        link = p.link()
        link.follows()
        db.command("collMod", "val", validator={})
        db.val.insert_one({"_id": 1})
        db.command("collMod", "cap", cappedSize=8192, cappedMax=7)
        db.cap.insert_many([{"_id": i} for i in range(3)])
        db.command("collMod", "uniq", index={"name": "k_1", "prepareUnique": True})
        db.command("collMod", "uniq", index={"name": "k_1", "unique": True})
        check(link.follows(), "it follows")
        same(a, b, "val", "cap", "uniq")
        check(b.client.app.uniq.index_information()["k_1"].get("unique"), "an index becomes unique")
        nothing_refused(b, link)


def replaced():
    """$out and convertToCapped make a temporary collection, which then takes the place of the other one."""
    for options in ((), ("--include", "app.val", "--include", "app.exp", "--include", "app.cap")):
        with Pair() as p:
            a, b = p.a, p.b
            db = a.client.app
            db.create_collection("val", validator={"x": {"$exists": True}})
            db.val.create_index("z", name="z_1")
            db.val.insert_many([{"_id": i, "x": i} for i in range(50)])
            db.create_collection("exp", expiry={"field": "ttl"})
            db.exp.insert_one({"_id": "old"})
            db.cap.insert_many([{"_id": i} for i in range(5)])
            db.src.insert_many([{"_id": i, "x": i} for i in range(100, 120)])
            # With the marks of follows().
            link = p.link(*options, *(("--include", "mark") if options else ()))
            link.follows()
            for into in ("val", "exp"):
                list(db.src.aggregate([{"$out": into}]))
            db.command("convertToCapped", "cap", size=100000)
            db.exp.insert_one({"_id": 2, "ttl": 500})
            check(link.follows(), "it follows")
            same(a, b, "val", "exp", "cap")
            check(b.client.app.exp.options().get("expiry") == {"field": "ttl"}, "expiry.field is kept")
            names = [n for n in b.client.app.list_collection_names() if n.startswith("tmp")]
            check(not names, f"and nothing temporary is left: {names}")
            nothing_refused(b, link)


def as_it_is():
    with Pair() as p:
        a, b = p.a, p.b
        db = a.client.app
        stamp = lambda n: {"_id": n, "t": EMPTY}
        insert = lambda c, d: db.command("insert", c, documents=[d], bypassEmptyTsReplacement=True)
        db.old.insert_one({"_id": "older than the validator"})
        db.command("collMod", "old", validator={"a": {"$exists": True}})
        insert("ts", stamp("copied"))
        link = p.link()
        link.follows()
        insert("ts", stamp("followed"))
        insert("ts", {"_id": "changed"})
        change = {"q": {"_id": "changed"}, "u": stamp("changed")}
        db.command("update", "ts", updates=[change], bypassEmptyTsReplacement=True)
        db.command("insert", "old", documents=[{"_id": "bypassed"}], bypassDocumentValidation=True)
        check(link.follows(), "it follows")
        same(a, b, "ts", "old")
        check([d["t"] for d in b.client.app.ts.find()] == [EMPTY] * 3, "an empty timestamp stays empty")
        nothing_refused(b, link)


def refused():
    """A row of what is refused has its time, and the output has no words of the client library."""
    with Pair() as p:
        b = p.b
        b.client.app.u.create_index("k", unique=True, name="k_1")
        b.client.app.u.insert_one({"_id": "the target's", "k": 1})
        link = p.link()
        p.a.client.app.u.insert_many([{"_id": 1, "k": 1}, {"_id": 2, "k": 2}])
        link.follows()
        row = b.client.mayflyLink.refused.find_one({"_id.id": 1})
        check(row and isinstance(row.get("at"), datetime.datetime), f"a row has its time: {row}")
        check(row and "$currentDate" not in row, "and no operator as a field")
        check("abortTransaction" not in link.said(), link.said()[-500:])


def ended(link):
    """What it said, once it has ended with an error."""
    check(until(lambda: link.proc.poll() is not None, 60) and link.proc.poll() != 0, "it ends")
    return link.said()


def another_source():
    """A link's name belongs to one source, whose data it would otherwise remove."""
    with Pair() as p, Pair() as other:
        p.a.client.app.c.insert_many([{"_id": i} for i in range(10)])
        other.a.client.app.d.insert_one({"_id": 1})
        first = p.link()
        check(first.follows(), "the first source is copied")
        first.stop()
        p.links.append(LinkProcess(other.a, p.b))
        check("has another source" in ended(p.links[-1]), "another one is refused by name")
        check(p.b.client.app.c.count_documents({}) == 10, "and nothing is removed")
        # As if the set had moved there: it goes on from where it was.
        p.links.append(LinkProcess(other.a, p.b, "--sourceMoved"))
        check(p.links[-1].follows(), "where it is said to be the same set, the link goes on")


def another_selection():
    """What was left out before would be missing for ever."""
    with Pair() as p:
        p.a.client.app.c.insert_many([{"_id": i} for i in range(10)])
        p.a.client.more.d.insert_many([{"_id": i} for i in range(10)])
        first = p.link("--include", "app", "--include", "mark")
        check(first.follows(), "one database is copied")
        first.stop()
        wider = p.link("--include", "app", "--include", "mark", "--include", "more")
        check("another --include" in ended(wider), "with another one it is refused")
        again = p.link("--include", "mark", "--include", "more", "--include", "app", "--newSelection")
        check(again.follows() and p.b.client.more.d.count_documents({}) == 10, "and with the option it is copied")
        begun = again.counter("copiesBegun")
        again.kill()
        again.start()
        check(again.follows() and again.counter("copiesBegun") == begun, "once")


PARTS = [changed_options, replaced, as_it_is, refused, another_source, another_selection]

if __name__ == "__main__":
    run_parts("link_as_it_is", PARTS, check)
