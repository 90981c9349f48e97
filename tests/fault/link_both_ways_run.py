#!/usr/bin/env python3
"""Links in both directions: what one has brought the other does not take back, and both sides become equal and quiet.

  - documents are deleted while the echo of their insert is on its way: they stay deleted;
  - a document is deleted on one side and changed on the other: the later of both wins, on both sides;
  - a document is deleted and made anew at once: the delete that comes back must not take the new one;
  - a collection is dropped, renamed and changed and made anew at once: no definition comes back;
  - the same while links are killed, and with targets that keep no tombstones;
  - old documents are copied to a target with very many tombstones;
  - a client drops a collection while a link makes an index of it;
  - collections that no transaction takes (capped ones, a view at the target): the others are carried as before.

The last line says "N passed, N failed".
"""

import datetime

from fault_test import random_moment, rnd, run_parts, until, wait_for
from link_run import Pair, check, equal, gentle

ZONE = datetime.timezone.utc
BOTH = ("--versionField", "v", "--include", "app", "--include", "mark")


def date(later=0):
    return datetime.datetime.now(ZONE) + datetime.timedelta(milliseconds=later)


class Both(Pair):
    """Two sides with a link in each direction."""

    def __enter__(self):
        self.there, self.back = self.link(*BOTH, name="there"), self.link(*BOTH, name="back", back=True)
        self.settle()
        return self

    def mark(self, side, link, other):
        """Waits until the link has followed a change that is made now."""
        mark = side.client.mark[link.name]
        n = rnd.randrange(1 << 60)
        wait_for(lambda: gentle(lambda: mark.replace_one({"_id": n}, {"v": date()}, upsert=True)), 300)
        seen = lambda: gentle(lambda: other.client.mark[link.name].find_one({"_id": n}))
        return until(seen, 300)

    def settle(self):
        """Until each link has followed what was made until now, and what the other one made of it."""
        for _ in range(2):
            for side, link, other in ((self.a, self.there, self.b), (self.b, self.back, self.a)):
                if not self.mark(side, link, other):
                    print(f"     {link.status()} {link.said()}"[:2000], flush=True)
                    return False
        return True

    def written(self):
        return [l.counter("written") + l.counter("deleted") for l in (self.there, self.back)]

    def quiet(self, *names):
        """Both are equal, and nothing more is written than marks, of which settle makes two for each side."""
        check(self.settle() and equal(self.a, self.b, "app", *names), "both are equal")
        before = self.written()
        check(self.settle(), "they follow")
        more = [n - m for n, m in zip(self.written(), before)]
        check(max(more) <= 5, f"nothing is written over and over: {more}")


def deleted_at_once():
    """The critic's case: 0 to 100 ms between an insert and its delete."""
    with Both() as p:
        c = p.a.client.app.c
        for i in range(150):
            c.insert_one({"_id": i, "v": date()})
            if i % 3:
                random_moment(0, 0.03)
            c.delete_one({"_id": i})
        p.quiet("c")
        check(c.count_documents({}) == 0, f"none is back: {c.count_documents({})}")


def deleted_and_changed():
    """One side deletes what the other one changes before it knows."""
    with Both() as p:
        a, b = p.a.client.app.c, p.b.client.app.c
        a.insert_many([{"_id": i, "v": date()} for i in range(60)])
        p.settle()
        p.there.kill()
        p.back.kill()
        for i in range(60):
            change = lambda: b.update_one({"_id": i}, {"$set": {"v": date(), "changed": 1}})
            drop = lambda: a.delete_one({"_id": i})
            first, second = (change, drop) if i % 2 else (drop, change)
            first()
            random_moment(0.002, 0.004)
            second()
        # In either order: which link is the first to bring something.
        for l in (p.back, p.there):
            l.start()
            random_moment(0, 0.5)
        p.quiet("c")
        left = sorted(d["_id"] for d in a.find())
        check(left == list(range(0, 60, 2)), f"the later of both has won: {left}")


def made_anew():
    with Both() as p:
        a, b = p.a.client.app.c, p.b.client.app.c
        for i in range(100):
            a.insert_one({"_id": 1, "v": date(), "n": i})
            if i % 2:
                random_moment(0, 0.01)
            a.delete_one({"_id": 1})
            # A date of its own: what is as old as a delete loses.
            random_moment(0.002, 0.003)
            a.insert_one({"_id": f"n{i}", "v": date()})
            a.delete_one({"_id": f"n{i}"})
            random_moment(0.002, 0.003)
            a.insert_one({"_id": f"n{i}", "v": date(), "again": 1})
        p.quiet("c")
        check(b.count_documents({"again": 1}) == 100, f"what was made anew stays: {b.count_documents({})}")


def definitions_stay():
    with Both() as p:
        a, b = p.a.client.app, p.b.client.app
        for i in range(10):
            a.create_collection("c", validator={"n": {"$gte": 0}})
            a.command("collMod", "c", validator={"n": {"$gte": i}})
            a.command("collMod", "c", validationLevel="moderate" if i % 2 else "strict")
            a.c.create_index("n", name="n_1")
            a.c.insert_one({"_id": i, "n": i, "v": date()})
            if i % 2:
                random_moment(0, 0.05)
            if i < 9:
                a.c.drop() if i % 3 else a.c.rename("d", dropTarget=True)
        p.quiet("c", "d")
        names = lambda db: {n for n in db.list_collection_names()}
        check(names(a) == names(b) == {"c", "d"}, f"collections: {names(a)} {names(b)}")
        check(a.c.options() == b.c.options() and a.c.options()["validator"] == {"n": {"$gte": 9}}, "options are equal")
        check(a.c.count_documents({}) == 1, "nothing came back to a new collection")
        last = lambda: [s.client.local["oplog.rs"].count_documents({"op": "c", "ns": "app.$cmd"}) for s in (p.a, p.b)]
        before = last()
        p.settle()
        check(last() == before, "no definition goes round")


def killed():
    """Random changes on both sides of few documents, links killed meanwhile."""
    with Both() as p:
        for round in range(4):
            for n in range(120):
                side, i = rnd.choice((p.a, p.b)), rnd.randrange(20)
                c = side.client.app.c
                if rnd.random() < 0.4:
                    c.delete_one({"_id": i})
                else:
                    c.replace_one({"_id": i}, {"v": date(), "n": n, "round": round}, upsert=True)
                # Not in the same millisecond: of two such changes each side keeps its own.
                random_moment(0.002, 0.004)
            victim = rnd.choice((p.there, p.back))
            victim.kill()
            victim.start()
        p.quiet("c")


def without_tombstones():
    """A target that keeps none: an echo of a document is left out, since it cannot be compared."""
    with Pair() as p:
        for side in (p.a, p.b):
            side.run("admin", {"setParameter": 1, "metadataPurgeIntervalSecs": 0})
        p.__class__ = Both
        with p:
            c = p.a.client.app.c
            for i in range(60):
                c.insert_one({"_id": i, "v": date()})
                c.delete_one({"_id": i})
            p.quiet("c")
            check(c.count_documents({}) == 0, "none is back")
            check("tombstones" in p.there.said(), "the output says what is missing")


def no_date():
    """What has no date is counted and named, with the time."""
    with Both() as p:
        p.a.client.app.c.insert_many([{"_id": "none"}, {"_id": "text", "v": "x"}])
        p.settle()
        rows = list(p.b.client.mayflyLink.refused.find())
        check({r["_id"]["id"] for r in rows} == {"none", "text"}, f"they are named: {rows}")
        check(all(isinstance(r.get("at"), datetime.datetime) for r in rows), f"with the time: {rows}")
        check(p.there.counter("refused") == 2, "and counted")


def outside_of_transactions():
    """Both before the links begin, to be copied, and among other changes later."""
    with Pair() as p:
        a, b = p.a.client.app, p.b.client.app
        a.create_collection("capped", capped=True, size=1 << 20)
        a.capped.insert_many([{"_id": i, "v": date(), "n": i} for i in range(300)])
        a.c.insert_many([{"_id": i, "v": date()} for i in range(300)])
        a.taken.insert_one({"_id": 0, "v": date()})
        b.create_collection("taken", viewOn="c", pipeline=[])
        p.__class__ = Both
        with p:
            for i in range(300, 320):
                a.c.insert_one({"_id": i, "v": date()})
                a.capped.insert_one({"_id": i, "v": date(), "n": i})
                a.taken.insert_one({"_id": i, "v": date()})
            check(p.settle(), "both links go on")
            random_moment(0.002, 0.003)
            a.capped.update_one({"_id": 1}, {"$set": {"v": date(), "n": -1}})
            b.capped.update_one({"_id": 2}, {"$set": {"v": date(), "n": -2}})
            b.capped.insert_one({"_id": "of b", "v": date()})
            p.quiet("c", "capped")
            check(b.capped.count_documents({}) == 321, f"capped documents arrive: {b.capped.count_documents({})}")
            check(a.capped.find_one({"_id": 2})["n"] == b.capped.find_one({"_id": 2})["n"] == -2, "and changes of them")
            rows = {str(r["_id"]["ns"]) for r in p.b.client.mayflyLink.refused.find()}
            check(rows and all("taken" in r for r in rows), f"only what a view stands for is refused: {rows}")
            check(not [l for l in (p.there, p.back) if l.proc.poll() is not None], "neither link has ended")


PARTS = [deleted_at_once, deleted_and_changed, made_anew, definitions_stay, killed, without_tombstones, no_date]
def old_documents():
    """A transaction looks at new tombstones only: of all there may be so many that it would not live long enough."""
    with Pair() as p:
        a, b = p.a.client.app, p.b.client.app
        oldest = datetime.datetime(2000, 1, 2, tzinfo=ZONE)
        b.c.insert_many([{"_id": i, "v": oldest} for i in range(5)])
        b.c.delete_many({"_id": {"$lt": 3}})
        p.b.run("app", {"profile": 2})
        a.c.insert_many([{"_id": i, "v": oldest} for i in range(50)])
        p.__class__ = Both
        with p:
            check(until(lambda: b.c.count_documents({}) == 47, 300), f"documents arrive: {p.there.status()}")
            check(b.c.find_one({"_id": 1}) is None, "but for those that were deleted")
            rows = list(b.system.profile.find({"command.pipeline.$tombstones": {"$exists": True}}))
        looks = [r["command"] for r in rows]
        since = lambda inside: [
            c["pipeline"][0]["$tombstones"]["since"] for c in looks if ("autocommit" in c) == inside
        ]
        check(since(False) and min(since(False)) <= oldest, f"all are looked at outside: {since(False)}")
        recent = date(-3_600_000)
        check(
            since(True) and min(since(True)) > recent, f"and new ones in transactions: {since(True)}"
        )  # clock: both are dates of the server


def during_a_definition():
    """What a client of the target does with a collection, while the link makes an index of it, goes back."""
    with Both(target=("--setParameter", "enableTestCommands=1")) as p:
        a, b = p.a.client.app, p.b.client.app
        a.c.insert_many([{"_id": i, "v": date(), "n": list(range(i, i + 100))} for i in range(3000)])
        p.settle()
        p.b.run("admin", {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": MARKED})
        a.c.create_index("n")
        # Between the mark and the index.
        marked = lambda: "definition" in (p.b.client.mayflyLink.links.find_one({"_id": "there"}) or {})
        check(until(marked, 60), "the link says what it begins")
        b.c.create_index("own")
        b.c.drop()
        p.quiet("c")
        check(a.c.count_documents({}) == b.c.count_documents({}) == 0, f"dropped: {a.c.count_documents({})}")


# The link waits before it makes the index; a client does not.
MARKED = {"failCommands": ["createIndexes"], "blockConnection": True, "blockTimeMS": 3000, "appName": "mayfly-link"}
PARTS += [outside_of_transactions, old_documents, during_a_definition]

if __name__ == "__main__":
    run_parts("link_both_ways", PARTS, check)
