#!/usr/bin/env python3
"""kill -9 under load at random points: everything acknowledged is there afterwards, indexes agree.

MAYFLY_KILL_ROUNDS (30) rounds on one data directory that grows; MAYFLY_SEED replays the random choices.
"""

import os, tempfile, time

from fault_test import SEED, Checks, UntilGone, discard, kill, random_moment, rnd, start, stop, wait_for_load

ROUNDS = int(os.environ.get("MAYFLY_KILL_ROUNDS", "30"))
check = Checks(quiet=True)


class Writer(UntilGone):
    """Writes documents of its own and remembers what was acknowledged; what was in flight at the kill may be either."""

    def __init__(self, port, n, model, seed):
        super().__init__(port, seed)
        self.n, self.model = n, model

    def step(self, c):
        r, m = self.rnd, self.model
        wc = {"writeConcern": {"w": 1, "j": r.random() < 0.1}}
        kind = r.random()
        if kind < 0.5 or not m["recent"]:
            batch = [f"{self.n}-{m['next'] + i}" for i in range(r.choice([1, 1, 5, 100]))]
            m["next"] += len(batch)
            for b in batch:
                m["unsure"][b] = {None, 0}
            docs = [{"_id": b, "v": 0, "w": self.n, "t": [b, "x"], "u": b} for b in batch]
            reply = c.command("kill", {"insert": "docs", "documents": docs, **wc})
            if reply["ok"] == 1 and reply["n"] == len(batch):
                for b in batch:
                    m["known"][b] = 0
                    del m["unsure"][b]
                self.acknowledged += 1
            m["recent"] = m["recent"][-300:] + batch[-3:]
        else:
            b = r.choice(m["recent"])
            if b not in m["known"]:
                return
            old = m["known"].pop(b)
            if kind < 0.85:
                m["unsure"][b] = {old, old + 1}
                change = {"$inc": {"v": 1}, "$set": {"t": [b, str(old)]}}
                reply = c.command("kill", {"update": "docs", "updates": [{"q": {"_id": b}, "u": change}], **wc})
                if reply["ok"] == 1 and reply["n"] == 1:
                    m["known"][b] = old + 1
                    del m["unsure"][b]
                    self.acknowledged += 1
            else:
                m["unsure"][b] = {old, None}
                reply = c.command("kill", {"delete": "docs", "deletes": [{"q": {"_id": b}, "limit": 1}], **wc})
                if reply["ok"] == 1 and reply["n"] == 1:
                    m["gone"].add(b)
                    del m["unsure"][b]
                    self.acknowledged += 1


class Builder(UntilGone):
    """Builds an index and drops it, so that a kill always hits one of both."""

    def step(self, c):
        built = c.command("kill", {"createIndexes": "docs", "indexes": [{"key": {"v": 1}, "name": "v_later"}]})
        dropped = c.command("kill", {"dropIndexes": "docs", "index": "v_later"})
        self.acknowledged += built["ok"] == dropped["ok"] == 1


def read_all(c):
    out, reply = {}, c.command("kill", {"find": "docs", "batchSize": 100000})
    while True:
        cur = reply["cursor"]
        for d in cur.get("firstBatch", cur.get("nextBatch")):
            out[d["_id"]] = d["v"]
        if not cur["id"]:
            return out
        reply = c.command("kill", {"getMore": cur["id"], "collection": "docs", "batchSize": 100000})


data = tempfile.mkdtemp(prefix="mayfly-kill-") + "/data"
models = [{"known": {}, "unsure": {}, "gone": set(), "next": 0, "recent": []} for _ in range(4)]
proc, client = start(data)
client.command(
    "kill",
    {
        "createIndexes": "docs",
        "indexes": [
            {"key": {"w": 1, "v": -1}, "name": "wv"},
            {"key": {"t": 1}, "name": "t"},
            {"key": {"u": 1}, "name": "u", "unique": True},
        ],
    },
)
acknowledged, in_the_middle, slowest = 0, 0, 0.0
for round_no in range(ROUNDS):
    writers = [Writer(proc.port, n, models[n], rnd.randrange(1 << 30)) for n in range(len(models))]
    builders = [Builder(proc.port)] if round_no % 4 == 1 else []
    for w in writers + builders:
        w.start()
    wait_for_load(writers + builders)
    random_moment(0, 0.35)
    kill(proc)
    for w in writers + builders:
        w.join()
        acknowledged += w.acknowledged
    in_the_middle += any(m["unsure"] for m in models)
    began = time.monotonic()
    proc, client = start(data)
    slowest = max(slowest, time.monotonic() - began)
    there = read_all(client)
    lost = wrong = back = 0
    for m in models:
        for b, v in m["known"].items():
            lost += b not in there
            wrong += b in there and there[b] != v
        back += sum(b in there for b in m["gone"])
        for b, may in m["unsure"].items():
            wrong += there.get(b) not in may
            if b in there:
                m["known"][b] = there[b]
        m["unsure"].clear()
        m["gone"].clear()
    check(lost == wrong == back == 0, f"round {round_no}: {lost} lost, {wrong} wrong, {back} came back after a delete")
    check(
        client.command("kill", {"count": "docs"})["n"] == len(there),
        f"round {round_no}: count differs from the documents",
    )
    if round_no % 5 == 4 or round_no == ROUNDS - 1:
        v = client.command("kill", {"validate": "docs", "full": True})
        check(v.get("valid") is True, f"round {round_no}: validate: {str(v)[:2000]}")
check(in_the_middle > 0, "no kill came in the middle of a command")
check(stop(proc) == 0, "clean stop")
discard(os.path.dirname(data))
print(
    f"kill -9: {ROUNDS} rounds, {acknowledged} acknowledged commands, {in_the_middle} kills in the middle of one, "
    f"slowest reopening {slowest * 1000:.0f} ms, seed {SEED}"
)
check.end("kill")
