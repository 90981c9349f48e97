#!/usr/bin/env python3
"""kill -9 in the middle of what changes more than documents: index builds, $out, $merge, renames, drops, collMod,
compact, capped collections. Each kind is hit in the middle at least once.

After each kill the directory opens, what was answered is there, what was not is there as a whole or not at all, and
every collection validates. MAYFLY_KILL_ROUNDS (30) kills; MAYFLY_SEED replays the random choices.
"""

import os, tempfile, threading, time

from fault_test import SEED, Checks, Client, discard, kill, random_moment, rnd, start, stop, until, wait_for

ROUNDS = int(os.environ.get("MAYFLY_KILL_ROUNDS", "30"))
N = 3000
check = Checks(quiet=True)
data = tempfile.mkdtemp(prefix="mayfly-catalog-") + "/db"


def ids(c, db, coll):
    reply = c.command(db, {"find": coll, "projection": {"_id": 1}, "batchSize": 100_000, "singleBatch": True})
    return {d["_id"] for d in reply["cursor"]["firstBatch"]}


def collections(c, db):
    return {
        d["name"]: d
        for d in c.command(db, {"listCollections": 1, "cursor": {"batchSize": 10_000}})["cursor"]["firstBatch"]
    }


def fill(c, db, coll, n=N, **fields):
    assert (
        c.command(
            db, {"insert": coll, "documents": [{"_id": i, "v": i, "pad": "x" * 200, **fields} for i in range(n)]}
        )["n"]
        == n
    )


class Case:
    """One kind of operation: prepare, the command that is killed, and what must hold. `answered`: whether its reply
    came. A case without one command runs many, and counts the answers."""

    answers = 0

    def prepare(self, c):
        pass

    def command(self):
        pass

    def verify(self, c, answered):
        pass


class IndexBuild(Case):
    def prepare(self, c):
        fill(c, "k", "a")

    def command(self):
        return "k", {
            "createIndexes": "a",
            "indexes": [{"key": {"v": 1}, "name": "v"}, {"key": {"pad": 1, "v": -1}, "name": "pv"}],
        }

    def verify(self, c, answered):
        def names():
            return {i["name"] for i in c.command("k", {"listIndexes": "a"})["cursor"]["firstBatch"]}

        if answered:
            check(names() == {"_id_", "v", "pv"}, f"an index that was answered is gone: {names()}")
        check(ids(c, "k", "a") == set(range(N)), "documents under an index build")
        # Both or none of one command, when a build that goes on has ended.
        wait_for(
            lambda: (
                not any(
                    o.get("msg", "").startswith("Index Build")
                    for o in c.command("admin", {"currentOp": 1, "$all": True})["inprog"]
                )
            )
        )
        check(names() in ({"_id_"}, {"_id_", "v", "pv"}), f"half of the indexes: {names()}")
        if "v" in names():
            n = len(
                c.command("k", {"find": "a", "filter": {"v": {"$gte": 0}}, "hint": "v", "batchSize": 100_000})[
                    "cursor"
                ]["firstBatch"]
            )
            check(n == N, f"the index has {n} entries of {N}")


class Out(Case):
    def prepare(self, c):
        fill(c, "k", "from")
        fill(c, "k", "to", n=100, old=True)
        c.command("k", {"createIndexes": "to", "indexes": [{"key": {"v": 1}, "name": "v"}]})

    def command(self):
        return "k", {"aggregate": "from", "pipeline": [{"$out": "to"}], "cursor": {}}

    def verify(self, c, answered):
        there = ids(c, "k", "to")
        check(
            there == set(range(N)) if answered else there in (set(range(100)), set(range(N))),
            f"$out left {len(there)} documents",
        )
        check(
            until(lambda: not [n for n in collections(c, "k") if n.startswith("tmp.")]),
            "a temporary collection of $out stays",
        )
        check(len(c.command("k", {"listIndexes": "to"})["cursor"]["firstBatch"]) == 2, "the target's index is gone")


class Merge(Case):
    def prepare(self, c):
        fill(c, "k", "from", new=1)
        fill(c, "k", "into", n=1500, old=1)

    def command(self):
        return "k", {"aggregate": "from", "pipeline": [{"$merge": {"into": "into"}}], "cursor": {}}

    def verify(self, c, answered):
        docs = c.command("k", {"find": "into", "batchSize": 100_000, "singleBatch": True})["cursor"]["firstBatch"]
        merged = {d["_id"] for d in docs if "new" in d}
        check(set(range(1500)) <= {d["_id"] for d in docs}, "$merge lost documents")
        check(all(("old" in d) == (d["_id"] < 1500) for d in docs), "$merge mixed documents up")
        check(not answered or merged == set(range(N)), "an answered $merge is not all there")


class RenameAcross(Case):
    def prepare(self, c):
        c.command("other", {"dropDatabase": 1})
        fill(c, "k", "moving")

    def command(self):
        return "admin", {"renameCollection": "k.moving", "to": "other.moved"}

    def verify(self, c, answered):
        source, target = ids(c, "k", "moving"), ids(c, "other", "moved")
        whole = set(range(N))
        check(
            target == whole if answered else whole in (source, target),
            f"a rename left {len(source)} and {len(target)} documents",
        )
        check(not answered or "moving" not in collections(c, "k"), "the source of an answered rename is there")
        left = [n for n in collections(c, "other") if n.startswith("tmp")]
        check(not left, f"temporary collections of a rename stay: {left}")


class RenameOver(Case):
    def prepare(self, c):
        fill(c, "k", "new", new=1)
        fill(c, "k", "name", n=50)

    def command(self):
        return "admin", {"renameCollection": "k.new", "to": "k.name", "dropTarget": True}

    def verify(self, c, answered):
        source, target = ids(c, "k", "new"), ids(c, "k", "name")
        before, after = (set(range(N)), set(range(50))), (set(), set(range(N)))
        check(
            (source, target) in ((after,) if answered else (before, after)),
            f"a rename over left {len(source)} and {len(target)} documents",
        )


class DropDatabase(Case):
    def prepare(self, c):
        for i in range(20):
            fill(c, "gone", f"c{i}", n=100)

    def command(self):
        return "gone", {"dropDatabase": 1}

    def verify(self, c, answered):
        left = collections(c, "gone")
        check(not answered or not left, f"{len(left)} collections of a dropped database")
        for name in left:
            check(ids(c, "gone", name) == set(range(100)), "a collection that was not dropped yet is whole")
        check(c.command("gone", {"dropDatabase": 1})["ok"] == 1 and not collections(c, "gone"), "dropDatabase again")


class Catalog(Case):
    """Collections made, changed and dropped one after another; `done` is what was answered."""

    def command(self):
        return None

    def run(self, c):
        self.done, self.maybe = {}, {}
        for i in range(100_000):
            name = f"n{i % 40}"
            kind = rnd.choice(["create", "drop", "collMod"])
            self.maybe = {name: kind}
            if kind == "create":
                r = c.command("many", {"create": name, "validator": {"v": {"$gt": i}}})
                if r["ok"] == 1:
                    self.done[name] = i
            elif kind == "drop":
                if c.command("many", {"drop": name})["ok"] == 1:
                    self.done[name] = None
            elif self.done.get(name) is not None:
                if c.command("many", {"collMod": name, "validator": {"v": {"$gt": -i}}})["ok"] == 1:
                    self.done[name] = -i
            self.maybe = {}
            self.answers += 1

    def prepare(self, c):
        c.command("many", {"dropDatabase": 1})

    def verify(self, c, answered):
        there = collections(c, "many")
        for name, value in self.done.items():
            if name in self.maybe:
                continue
            found = there[name]["options"]["validator"]["v"]["$gt"] if name in there else None
            check(found == value, f"collection {name}: {found}, answered was {value}")


class Capped(Case):
    def prepare(self, c):
        c.command("k", {"drop": "cap"})
        c.command("k", {"create": "cap", "capped": True, "size": 100_000, "max": 500})

    def run(self, c):
        self.last = -1
        for i in range(0, 10_000_000, 50):
            if (
                c.command(
                    "k", {"insert": "cap", "documents": [{"_id": i + j, "pad": "x" * 100} for j in range(50)]}
                ).get("n")
                == 50
            ):
                self.last = i + 49
                self.answers += 1

    def command(self):
        return None

    def verify(self, c, answered):
        there = [d["_id"] for d in c.command("k", {"find": "cap", "batchSize": 10_000})["cursor"]["firstBatch"]]
        check(len(there) <= 500, f"a capped collection of 500 has {len(there)}")
        check(
            there == list(range(there[0], there[0] + len(there))) if there else self.last < 0,
            "a hole in a capped collection",
        )
        check(
            not there or there[-1] >= self.last,
            f"the last of a capped collection: {there[-1:]}, answered was {self.last}",
        )


class Compact(Case):
    def prepare(self, c):
        fill(c, "k", "thin")
        c.command("k", {"delete": "thin", "deletes": [{"q": {"_id": {"$lt": N // 2}}, "limit": 0}]})

    def command(self):
        return "k", {"compact": "thin"}

    def verify(self, c, answered):
        check(ids(c, "k", "thin") == set(range(N // 2, N)), "documents under compact")


CASES = [IndexBuild, Out, RenameAcross, Merge, Compact, DropDatabase, Catalog, Capped, RenameOver]
TRIES = 6
proc, client = start(data)


def prepared(kind):
    case = kind()
    client.command("k", {"dropDatabase": 1})
    case.prepare(client)
    return case


def killed(case, most):
    """Kills the server while the case runs, and starts it again: the reply that came before that. `most`: seconds."""
    global proc, client
    sent, answer = threading.Event(), []

    def run():
        try:
            c = Client("127.0.0.1", proc.port)
            c.command("admin", {"ping": 1})
            sent.set()
            if case.command() is None:
                case.run(c)
            else:
                answer.append(c.command(*case.command()))
        except (ConnectionError, OSError):
            pass

    t = threading.Thread(target=run, daemon=True)
    t.start()
    wait_for(lambda: sent.is_set() and (case.command() is not None or case.answers > 0))
    random_moment(0, most)
    kill(proc)
    t.join()
    proc, client = start(data)
    return answer


def look(case, answer, name):
    check(not answer or answer[0].get("ok") == 1, f"{name}: {str(answer)[:500]}")
    try:
        case.verify(client, bool(answer))
    except Exception as e:
        check(False, f"{name}: {e!r}")
    for db in ("k", "other", "many"):
        for coll in collections(client, db):
            v = client.command(db, {"validate": coll, "full": True})
            check(v.get("valid") is True, f"{name}: validate {db}.{coll}: {str(v)[:1000]}")


takes, in_the_middle = {}, {}
# Each kind once at least.
for round_no in range(max(ROUNDS, len(CASES))):
    kind = CASES[round_no % len(CASES)]
    name = f"round {round_no}, {kind.__name__}"
    if kind not in takes:
        case, takes[kind] = prepared(kind), 0.2
        if case.command() is not None:
            began = time.monotonic()
            answer = [client.command(*case.command())]
            takes[kind] = time.monotonic() - began
            look(case, answer, f"{name}, without a kill")
    # Somewhere within what one of its kind takes when nobody kills it. When the answer came before the kill, the next
    # one comes earlier.
    span = takes[kind]
    for _ in range(TRIES):
        case = prepared(kind)
        answer = killed(case, span)
        look(case, answer, name)
        in_the_middle[kind] = in_the_middle.get(kind, 0) + (not answer)
        if not answer:
            break
        span /= 2
missed = [kind for kind in CASES if not in_the_middle[kind]]
if missed:
    print("no kill came in the middle of", ", ".join(f"{k.__name__} ({1000 * takes[k]:.0f} ms)" for k in missed))
# What is over in a moment can be missed each time.
check(len(missed) <= len(CASES) // 2, "kills come in the middle of changes")
check(stop(proc) == 0, "clean stop")
discard(os.path.dirname(data))
print(
    f"kill -9 among {len(CASES)} kinds of changes: {sum(in_the_middle.values())} kills in the middle of one, "
    f"seed {SEED}"
)
check.end("catalog kill")
