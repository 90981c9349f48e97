#!/usr/bin/env python3
"""Random writes, updates, touches, rule changes and clock moves against a model of a few dozen lines; all reads are
compared.

  tests/model/expiry_model.py [--steps 10000] [--seed N] [--binary build/release/mayflyd] [--replica-set]

On a replica set (of one member) some of the steps are transactions (expiry_transactions.py). The seed is printed; the
same seed takes the same steps. After a difference it tells the step, what was done last, and both answers.
"""

import argparse, os, random, sys
from pathlib import Path

from bson.int64 import Int64

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
from run import ROOT, Server
from expiry_transactions import Transactions
from said import Said
import bson, topologies

ARGS = argparse.ArgumentParser()
ARGS.add_argument("--steps", type=int, default=10_000)
ARGS.add_argument("--seed", type=int, default=os.environ.get("MAYFLY_SEED"))
ARGS.add_argument("--replica-set", action="store_true")
ARGS.add_argument("--binary", default=os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd")))

START = 1_893_456_000_000  # 2030-01-01
NEVER = None


class Doc:
    def __init__(self, body, deadline):
        self.body, self.deadline = body, deadline


class Model:
    """What the collections hold. p: plain, a unique index, an exact TTL index; k: expiry.field, maxTTL, onUpdate
    preserve; r: recoverSeconds; t: clustered, expires by its _id, a date, and by a lazy TTL index; a: what expires goes
    to o, which has a maxTTL. Documents that are hidden stay here as long as they may come back."""

    def __init__(self):
        self.now, self.monitor, self.seconds, self.database_max = START, True, 20, 0
        self.data = {"p": {}, "k": {}, "r": {}, "t": {}, "a": {}, "o": {}}
        self.max = {"p": 0, "k": 50, "r": 0, "t": 0, "a": 0, "o": 300}
        self.recover = {"p": 0, "k": 0, "r": 20, "t": 0, "a": 0, "o": 0}
        self.holds = {}  # id: (collection, value of a)
        self.paused = {"p": False, "t": False}  # the TTL index of p, all of t

    def held(self, c, d):
        return any(h == (c, d.body["a"]) for h in self.holds.values())

    def past(self, d):
        return d.deadline is not None and d.deadline <= self.now

    def due(self, c, i, d):
        """By a TTL index or the clustered collection's own rule; of t in passes only, so never while the model
        looks."""
        if c == "p":
            return "at" in d.body and d.body["at"] + self.seconds * 1000 <= self.now
        if c == "t":
            return self.instant(i) + 60_000 <= self.now or ("at" in d.body and d.body["at"] + 30_000 <= self.now)
        return False

    @staticmethod
    def instant(i):
        """The _id of t that stands for i."""
        return START + i * 600_000

    def hidden(self, c, i, d):
        if self.held(c, d):
            return False
        return self.past(d) or (c == "p" and self.monitor and not self.paused["p"] and self.due(c, i, d))

    def visible(self, c):
        return {i: d for i, d in sorted(self.data[c].items()) if not self.hidden(c, i, d)}

    def gone(self, c, i):
        """Removed for being past a deadline."""
        d = self.data[c].pop(i)
        if c == "a":
            self.data["o"].pop(i, None)
            self.data["o"][i] = Doc(d.body, self.resolve("o", None, d.body))

    def settle(self):
        """The reaper has removed what it may."""
        if not self.monitor:
            return
        for c, docs in self.data.items():
            for i, d in list(docs.items()):
                if self.held(c, d):
                    continue
                own = d.deadline is not None and d.deadline + self.recover[c] * 1000 <= self.now
                if (own and not (c == "t" and self.paused["t"])) or (self.due(c, i, d) and not self.paused.get(c)):
                    self.gone(c, i)

    def resolve(self, c, said, body, before=None, whole=False):
        """said: None, ("after", s), ("at", ms), ("never",), ("preserve",). The table B.1 and rules C3-C9."""
        if c == "k":
            v = body.get("ttl", "missing")
            untouched = before is not None and not whole and before.body.get("ttl", "missing") == v
            if said is None and v != "missing" and not untouched:
                said = ("never",) if v in (None, -1, 0) else ("after", v)
            if said is None and before is not None:
                said = ("preserve",)
        if said == ("preserve",):
            if before is not None:
                return before.deadline
            said = None
        cap = self.max[c] or self.database_max
        at = None
        if said and said[0] == "after" and said[1] > 0:
            at = self.now + said[1] * 1000
        elif said and said[0] == "at":
            at = said[1]
        if cap and (at is None or at > self.now + cap * 1000):
            at = self.now + cap * 1000
        return at

    def conflict(self, c, i, body):
        """Whether a visible document is in the way. If none is, hidden ones go; else nothing changes."""
        in_the_way = []
        for j, d in self.data[c].items():
            if j == i or (c == "p" and "u" in body and d.body.get("u") == body["u"]):
                if self.hidden(c, j, d):
                    in_the_way.append(j)
                elif j != i:
                    return True
        for j in in_the_way:
            self.gone(c, j)
        return False


class Run(Transactions, Said):
    def __init__(self, server, seed, transactions=False):
        self.transactions = transactions
        self.client, self.rng, self.m = server.client, random.Random(seed), Model()
        self.last = ""
        self.admin({"clock": {"freeze": True}})
        self.admin({"clock": {"set": bson.DatetimeMS(START)}})
        self.ok({"create": "p"})
        self.ok(
            {
                "createIndexes": "p",
                "indexes": [
                    {"key": {"u": 1}, "name": "u", "unique": True, "sparse": True},
                    {"key": {"a": 1}, "name": "a"},
                    {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 20, "expireReads": "exact"},
                ],
            }
        )
        self.ok({"create": "k", "expiry": {"field": "ttl", "maxTTL": 50, "onUpdate": "preserve"}})
        self.ok({"create": "r", "expiry": {"recoverSeconds": 20}})
        self.ok({"create": "t", "clusteredIndex": {"key": {"_id": 1}, "unique": True}, "expireAfterSeconds": 60})
        self.ok({"create": "o", "expiry": {"maxTTL": 300}})
        self.ok({"create": "a", "onExpire": {"action": "archive", "into": {"db": "model", "coll": "o"}}})
        for c in "krtao":
            self.ok({"createIndexes": c, "indexes": [{"key": {"a": 1}, "name": "a"}]})
        self.ok({"createIndexes": "t", "indexes": [{"key": {"at": -1}, "name": "at", "expireAfterSeconds": 30}]})

    def send(self, cmd, db="model"):
        self.last = f"{cmd}"
        if not self.inside:
            return self.client.command(db, cmd)
        r = self.client.command(db, self.in_transaction(cmd))
        self.broken = self.broken or r["ok"] != 1 or "writeErrors" in r or r.get("nErrors", 0) > 0
        return r

    # --- what a step can be ---

    def said(self):
        r = self.rng.random()
        if r < 0.4 or self.plain:
            return None, {}
        if r < 0.7:
            n = self.rng.choice([0, 1, 5, 10, 30, 200])
            return (("after", n) if n else None), {"expireAfterSeconds": n}
        t = self.m.now + self.rng.randint(-5, 40) * 1000
        return ("at", t), {"expireAt": bson.DatetimeMS(t)}

    def body(self, c, i=None):
        b = {} if i is None else {"_id": i}
        b["a"] = self.rng.randrange(5)
        if c == "p" and self.rng.random() < 0.6:
            b["u"] = self.rng.randrange(40)
        if c in "pt" and self.rng.random() < 0.4:
            b["at"] = self.m.now + self.rng.randint(-30, 30) * 1000
        if c == "k" and self.rng.random() < 0.6:
            b["ttl"] = self.rng.choice([0, -1, None, 5, 20, 100])
        return b

    def wire(self, b, c="p"):
        return {k: bson.DatetimeMS(v) if k == "at" else self.id(c, v) if k == "_id" else v for k, v in b.items()}

    def id(self, c, i):
        return bson.DatetimeMS(Model.instant(i)) if c == "t" else i

    def number(self, c, value):
        return (ms(value) - START) // 600_000 if c == "t" else value

    def insert(self, c):
        m, i = self.m, self.rng.randrange(30)
        b, (said, fields) = self.body(c, i), self.said()
        r = self.send({"insert": c, "documents": [self.wire(b, c)], **fields})
        there = i in m.visible(c)
        if there or m.conflict(c, i, b):
            return self.same(
                "insert over a living document", (0, 11000), (r["n"], r.get("writeErrors", [{}])[0].get("code"))
            )
        self.same("insert", 1, r["n"])
        if i in m.data[c]:
            m.gone(c, i)
        m.data[c][i] = Doc(b, m.resolve(c, said, b))

    def insert_many(self, c):
        m = self.m
        b = [self.body(c, i) for i in self.rng.sample(range(30), 5)]
        for d in b:
            d.pop("u", None)
        said, fields = self.said()
        want = 0
        r = self.send({"insert": c, "documents": [self.wire(d, c) for d in b], "ordered": False, **fields})
        for d in b:
            if d["_id"] not in m.visible(c):
                if d["_id"] in m.data[c]:
                    m.gone(c, d["_id"])
                m.data[c][d["_id"]] = Doc(d, m.resolve(c, said, d))
                want += 1
        self.same("insert of several", want, r["n"])

    def update(self, c):
        m, i = self.m, self.rng.randrange(30)
        b, (said, fields) = self.body(c), self.said()
        whole = self.rng.random() < 0.3
        if self.rng.random() < 0.2:
            said, fields = ("preserve",), {"preserveExpiry": True}
        new = dict(b, _id=i)
        u = self.wire(b) if whole else {"$set": self.wire(b)}
        if not whole and said and said[0] != "preserve" and self.rng.random() < 0.5:
            u["$expire"] = {"afterSeconds": said[1]} if said[0] == "after" else {"at": bson.DatetimeMS(said[1])}
            fields = {}
        upsert = self.rng.random() < 0.3
        # by _id, the short way; by another condition, the long one
        q = {"_id": self.id(c, i)} if self.rng.random() < 0.6 else {"_id": self.id(c, i), "a": {"$gte": 0}}
        how = self.rng.random()
        if how < 0.6:
            r = self.send({"update": c, "updates": [{"q": q, "u": u, "upsert": upsert, **fields}]})
            n, code = r["n"], r.get("writeErrors", [{}])[0].get("code")
        elif how < 0.8:
            r = self.send({"findAndModify": c, "query": q, "update": u, "upsert": upsert, **fields})
            n, code = r.get("lastErrorObject", {}).get("n", 0), r.get("code")
        else:
            r = self.send(
                {
                    "bulkWrite": 1,
                    "nsInfo": [{"ns": f"model.{c}"}],
                    "ops": [{"update": 0, "filter": q, "updateMods": u, "upsert": upsert, **fields}],
                },
                "admin",
            )
            row = r["cursor"]["firstBatch"][0]
            n, code = row["n"], row.get("code")
        before = m.visible(c).get(i)
        if before is not None and not whole:
            new = {**before.body, **b}
        if before is None and not upsert:
            self.same("update of nothing", 0, n)
            return self.met(c, i, q)
        if m.conflict(c, i, new):
            return self.same("update into a unique key", 11000, code)
        self.same("update", (1, None), (n, code))
        if before is None and i in m.data[c]:
            m.gone(c, i)
        changed = before is None or new != before.body
        if not changed and not whole and said is None:
            return
        m.data[c][i] = Doc(new, m.resolve(c, said, new, before, whole))

    def update_many(self, c):
        m = self.m
        a, (said, fields) = self.rng.randrange(5), self.said()
        n = self.rng.randrange(5)
        r = self.ok({"update": c, "updates": [{"q": {"a": a}, "u": {"$set": {"n": n}}, "multi": True, **fields}]})
        want = 0
        for i, d in m.visible(c).items():
            if d.body["a"] != a:
                continue
            want += 1
            if d.body.get("n") == n and said is None:
                continue
            m.data[c][i] = Doc({**d.body, "n": n}, m.resolve(c, said, {**d.body, "n": n}, d))
        self.same("update of several", want, r["n"])

    def remove(self, c):
        m, i = self.m, self.rng.randrange(30)
        q = {"_id": self.id(c, i)}
        there = i in m.visible(c)
        if self.rng.random() < 0.7:
            self.same("delete", int(there), self.ok({"delete": c, "deletes": [{"q": q, "limit": 1}]})["n"])
        else:
            r = self.ok({"findAndModify": c, "query": q, "remove": True})
            self.same("findAndModify remove", there, r.get("value") is not None)
        if there:
            del m.data[c][i]
        else:
            self.met(c, i, q)

    def met(self, c, i, q):
        """A write may remove what it meets past its deadline, or leave it to the reaper. Either is right, but a hold
        may show it again, and of a it goes somewhere."""
        if i in self.m.data[c] and not self.rows({"find": c, "filter": {"_id": self.id(c, i)}, "includeExpired": True}):
            assert self.m.recover[c] == 0, "what may be recovered was removed"
            self.m.gone(c, i)

    def merge(self, c):
        """All of p that can be seen into r."""
        m = self.m
        mode = self.rng.choice(["replace", "merge", "keepExisting"])
        self.ok(
            {
                "aggregate": "p",
                "pipeline": [{"$project": {"a": 1}}, {"$merge": {"into": "r", "on": "_id", "whenMatched": mode}}],
                "cursor": {},
            }
        )
        for i, d in m.visible("p").items():
            b, before = {"_id": i, "a": d.body["a"]}, m.visible("r").get(i)
            if before is None:
                m.data["r"].pop(i, None)
                m.data["r"][i] = Doc(b, m.resolve("r", None, b))
            elif mode != "keepExisting":
                b = b if mode == "replace" else {**before.body, **b}
                m.data["r"][i] = Doc(b, m.resolve("r", None, b, before, True))

    def hold(self, c):
        self.advance(seconds=0)  # what is due is gone before, or it is left to chance whether it is shown again
        m = self.m
        if m.holds and self.rng.random() < 0.6:
            held = self.rng.choice(list(m.holds))
            self.ok({"ttlHoldRelease": m.holds[held][0], "holdId": held})
            del m.holds[held]
        elif len(m.holds) < 2:
            a = self.rng.randrange(5)
            m.holds[self.ok({"ttlHold": c, "filter": {"a": a}})["holdId"]] = (c, a)
        self.advance(seconds=0)

    def pause(self, c):
        self.advance(seconds=0)
        m, c = self.m, self.rng.choice("pt")
        self.ok({"ttlResume" if m.paused[c] else "ttlPause": c, **({"index": "at"} if c == "p" else {})})
        m.paused[c] = not m.paused[c]
        self.advance(seconds=0)

    def out(self, c):
        """o over itself: rules, holds and index stay, deadlines begin anew."""
        m = self.m
        self.ok({"aggregate": "o", "pipeline": [{"$out": "o"}], "cursor": {}})
        m.data["o"] = {i: Doc(d.body, m.resolve("o", None, d.body)) for i, d in m.visible("o").items()}

    def touch(self, c):
        m = self.m
        said, fields = self.said()
        if not fields:
            cmd, said, when = {"persist": c}, ("never",), "always"
        else:
            when = self.rng.choice(["always", "nx", "xx", "gt", "lt"])
            cmd = {"touch": c, **fields, "when": when}
            said = said or ("never",)
        a = self.rng.randrange(5)
        r = self.ok({**cmd, "q": {"a": a}, "multi": True})
        n = modified = 0
        inf = 1 << 62
        for i, d in m.visible(c).items():
            if d.body["a"] != a:
                continue
            n += 1
            new = m.resolve(c, said, d.body, d)
            have, want = inf if d.deadline is None else d.deadline, inf if new is None else new
            allowed = {
                "always": True,
                "nx": d.deadline is None,
                "xx": d.deadline is not None,
                "gt": want > have,
                "lt": want < have,
            }[when]
            if allowed and new != d.deadline:
                modified += 1
                d.deadline = new
        self.same("touch", (n, modified), (r["n"], r["nModified"]))

    def recover(self):
        m, a = self.m, self.rng.randrange(5)
        r = self.ok({"ttlRecover": "r", "q": {"a": a}, "expireAfterSeconds": 15})
        n = 0
        for d in m.data["r"].values():
            if m.past(d) and not m.held("r", d) and m.now < d.deadline + 20_000 and d.body["a"] == a:
                n += 1
                d.deadline = m.resolve("r", ("after", 15), d.body, d)
        self.same("recover", (n, n), (r["n"], r["nRecovered"]))

    def advance(self, c=None, seconds=None):
        ms = self.rng.choice([0, 1, 999, 1000, 3000, 10_000]) if seconds is None else seconds * 1000
        if ms:
            # What is due already goes at this moment, whether the reaper has found it by itself or not: an archived
            # document's deadline is counted from it.
            self.advance(seconds=0)
        self.m.now += ms
        self.admin({"clock": {"advanceMillis": Int64(ms)}})
        self.m.settle()

    def rule(self):
        self.advance(seconds=0)
        what = self.rng.randrange(3)
        if what == 0:
            self.m.seconds = self.rng.choice([0, 5, 20, 60])
            self.ok({"collMod": "p", "index": {"name": "at", "expireAfterSeconds": self.m.seconds}})
        elif what == 1:
            self.m.monitor = not self.m.monitor
            self.admin({"setParameter": 1, "ttlMonitorEnabled": self.m.monitor})
        else:
            self.m.database_max = self.rng.choice([0, 0, 40])
            self.ok({"setDatabaseExpiry": 1, "maxTTL": self.m.database_max})
        self.advance(seconds=0)

    # --- what is compared ---

    def rows(self, cmd):
        return self.ok(cmd)["cursor"]["firstBatch"]

    def shown(self, c):
        """The documents that reads show: of the model, and as they are."""
        v = self.m.visible(c)
        full = {
            i: ({**d.body, "at": bson.DatetimeMS(d.body["at"])} if "at" in d.body else d.body) for i, d in v.items()
        }
        return v, full

    def compare(self, c, everything):
        v, full = self.shown(c)
        reads = [self.read_all, self.read_counts, self.read_index, self.read_ids, self.read_pipeline]
        for f in reads if everything else [self.rng.choice(reads)]:
            f(c, v, full)

    def read_all(self, c, v, full):
        got = self.rows({"find": c, "batchSize": 1000, "projection": {"deadline": {"$meta": "expireAt"}}})
        self.same(
            "deadlines",
            {i: d.deadline for i, d in v.items()},
            {self.number(c, d["_id"]): ms(d.get("deadline")) for d in got},
        )
        got = [{**d, "_id": self.number(c, d["_id"])} for d in got]
        self.same(
            "documents",
            {i: norm(d) for i, d in full.items()},
            {d["_id"]: norm({k: x for k, x in d.items() if k != "deadline"}) for d in got},
        )
        self.same(
            "order by time",
            sorted((d.deadline or -1) for d in v.values()),
            [
                ms(d.get("t")) or -1
                for d in self.rows(
                    {
                        "find": c,
                        "batchSize": 1000,
                        "sort": {"x": {"$meta": "expireAt"}},
                        "projection": {"t": {"$meta": "expireAt"}},
                    }
                )
            ],
        )

    def read_counts(self, c, v, full):
        self.same("count", len(v), self.ok({"count": c})["n"])
        self.same("collStats", len(v), self.ok({"collStats": c})["count"])
        a = self.rng.randrange(5)
        want = [i for i, d in v.items() if d.body["a"] == a]
        self.same("count by index", len(want), self.ok({"count": c, "query": {"a": a}})["n"])
        self.same("count by range", len(v), self.ok({"count": c, "query": {"a": {"$gte": 0}}})["n"])

    def read_index(self, c, v, full):
        order = sorted(d.body["a"] for d in v.values())
        self.same(
            "covered",
            order,
            [
                d["a"]
                for d in self.rows(
                    {
                        "find": c,
                        "filter": {"a": {"$gte": 0}},
                        "hint": "a",
                        "sort": {"a": 1},
                        "projection": {"_id": 0, "a": 1},
                        "batchSize": 1000,
                    }
                )
            ],
        )
        self.same(
            "backwards, some",
            order[::-1][:3],
            [
                d["a"]
                for d in self.rows(
                    {"find": c, "filter": {"a": {"$gte": 0}}, "hint": "a", "sort": {"a": -1}, "limit": 3}
                )
            ],
        )
        self.same("distinct", sorted(set(order)), sorted(self.ok({"distinct": c, "key": "a"})["values"]))
        if c == "p":
            u = sorted(d.body["u"] for d in v.values() if "u" in d.body)
            self.same(
                "unique",
                u,
                [
                    d["u"]
                    for d in self.rows({"find": c, "filter": {"u": {"$gte": 0}}, "sort": {"u": 1}, "batchSize": 1000})
                ],
            )

    def read_ids(self, c, v, full):
        for i in self.rng.sample(range(30), 3):
            self.same(
                f"_id {i}",
                [norm(full[i])] if i in full else [],
                [
                    norm({**d, "_id": self.number(c, d["_id"])})
                    for d in self.rows({"find": c, "filter": {"_id": self.id(c, i)}})
                ],
            )
        got = self.rows({"find": c, "filter": {"_id": {"$gte": self.id(c, 10), "$lt": self.id(c, 20)}}})
        self.same("range of _id", [i for i in full if 10 <= i < 20], [self.number(c, d["_id"]) for d in got])

    def read_pipeline(self, c, v, full):
        got = self.rows({"aggregate": c, "pipeline": [{"$group": {"_id": "$a", "n": {"$sum": 1}}}], "cursor": {}})
        want = {}
        for d in v.values():
            want[d.body["a"]] = want.get(d.body["a"], 0) + 1
        self.same("$group", want, {d["_id"]: d["n"] for d in got})
        other = "r" if c != "r" else "k"
        got = self.rows(
            {
                "aggregate": other,
                "pipeline": [
                    {"$limit": 1},
                    {"$lookup": {"from": c, "localField": "nothing", "foreignField": "nothing", "as": "x"}},
                    {"$project": {"n": {"$size": "$x"}}},
                ],
                "cursor": {},
            }
        )
        if got:
            self.same("$lookup", len(v), got[0]["n"])

    def step(self, n):
        c = self.rng.choice("pppkkrrtaao")
        op = self.rng.choices(
            [
                self.insert,
                self.insert_many,
                self.update,
                self.update_many,
                self.remove,
                self.touch,
                self.advance,
                lambda _: self.recover(),
                lambda _: self.rule(),
                self.merge,
                self.hold,
                self.pause,
                self.out,
                self.transaction,
            ],
            [24, 4, 24, 4, 8, 10, 16, 5, 3, 2, 2, 1, 1, 12 if self.transactions else 0],
        )[0]
        op(c)
        done = self.last
        if c in "to":  # what is due in t shows until the reaper has been there, what is archived in o from then on
            self.advance(seconds=0)
        try:
            self.compare(c, n % 25 == 0)
        except AssertionError as e:
            name = getattr(op, "__name__", "")
            raise AssertionError(
                f"{c} after {name} {done}, holds {list(self.m.holds.values())}, paused {self.m.paused}\n{e}"
            ) from None
        if n % 500 == 0:
            for c in self.m.data:
                r = self.ok({"validate": c})
                assert r["valid"], f"validate {c}: {r}"


def ms(v):
    return None if v is None else int(v.timestamp() * 1000) if hasattr(v, "timestamp") else int(v)


def norm(d):
    return {k: ms(v) if k == "at" else v for k, v in sorted(d.items())}


def main():
    args = ARGS.parse_args()
    seed = args.seed if args.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}, {args.steps} steps", flush=True)
    if args.replica_set:
        topologies.BINARY = args.binary
        server = topologies.ReplicaSet(1).members[0]
    else:
        server = Server(args.binary)
    failed = 0
    run = Run(server, seed, args.replica_set)
    n = 0
    try:
        for n in range(1, args.steps + 1):
            run.step(n)
    except AssertionError as e:
        failed = 1
        print(
            f"FAIL at step {n} of seed {seed}: now {run.m.now - START} ms, monitor {run.m.monitor}, "
            f"seconds {run.m.seconds}, "
            f"database {run.m.database_max}\n{e}"
        )
    if not server.stop():
        failed = 1
    if args.replica_set:
        print(f"transactions: {run.ends}")
    print(f"expiry model: {1 - failed} passed, {failed} failed")
    sys.exit(failed)


if __name__ == "__main__":
    main()
