#!/usr/bin/env python3
"""kill -9 in the middle of pauses, holds, guard decisions and changes of rules: what was acknowledged is there
afterwards, what was in flight is there whole or not at all, and the rules act (or rest) accordingly.

MAYFLY_TTL_KILL_ROUNDS (12) rounds on one data directory; MAYFLY_SEED replays the random choices.
"""

import json, os, tempfile, threading, time
from datetime import datetime, timedelta, timezone

from bson import ObjectId

from fault_test import (
    SEED,
    Checks,
    Client,
    Deadline,
    UntilGone,
    discard,
    kill,
    random_moment,
    rnd,
    start,
    stop,
    wait_for_load,
)

ROUNDS = int(os.environ.get("MAYFLY_TTL_KILL_ROUNDS", "12"))
GUARDED = ("--setParameter", "ttlGuardMinDocs=1", "--setParameter", "ttlGuardAction=hold")
check = Checks(quiet=True)
RULES = ["a", "b", "c"]
PAST = datetime.now(timezone.utc) - timedelta(days=1)


def must(c, doc):
    r = c.command("k", doc)
    if r.get("ok") != 1:
        raise AssertionError(f"{doc}: {r}")
    return r


class Changer(UntilGone):
    """One change after the other on one rule; what was acknowledged and what was in flight."""

    def __init__(self, port, rule, model, seed):
        super().__init__(port, seed)
        self.rule, self.model, self.error = rule, model, None

    def run(self):
        try:
            super().run()
        except AssertionError as e:
            self.error = str(e)

    def step(self, c):
        m, kind = self.model, self.rnd.choice(["pause", "resume", "seconds", "hold", "release"])
        if kind in ("pause", "resume"):
            m["unsure_paused"] = {True, False}
            must(c, {"ttlPause" if kind == "pause" else "ttlResume": "s", "index": self.rule})
            m["paused"], m["unsure_paused"] = kind == "pause", None
        elif kind == "seconds":
            n = self.rnd.randrange(10**9, 2 * 10**9)
            m["unsure_seconds"] = {m["seconds"], n}
            must(c, {"collMod": "s", "index": {"name": self.rule, "expireAfterSeconds": n}})
            m["seconds"], m["unsure_seconds"] = n, None
        elif kind == "hold":
            m["hold_in_flight"] = True
            m["holds"].add(str(must(c, {"ttlHold": "s", "filter": {"rule": self.rule}, "reason": self.rule})["holdId"]))
            m["hold_in_flight"] = False
        elif m["holds"]:
            h = self.rnd.choice(sorted(m["holds"]))
            m["holds"].discard(h)
            m["release_in_flight"] = h
            must(c, {"ttlHoldRelease": "s", "holdId": ObjectId(h)})
            m["release_in_flight"] = None
        self.acknowledged += 1


data = tempfile.mkdtemp(prefix="mayfly-ttl-kill-") + "/data"
proc, client = start(data, *GUARDED)
must(client, {"insert": "s", "documents": [{"_id": i, "a": PAST, "b": PAST, "c": PAST} for i in range(50)]})
must(
    client, {"createIndexes": "s", "indexes": [{"key": {r: 1}, "name": r, "expireAfterSeconds": 10**9} for r in RULES]}
)
models = {
    r: {
        "paused": False,
        "unsure_paused": None,
        "seconds": 10**9,
        "unsure_seconds": None,
        "holds": set(),
        "hold_in_flight": False,
        "release_in_flight": None,
    }
    for r in RULES
}
acknowledged = audited = 0
for round_no in range(ROUNDS):
    threads = [Changer(proc.port, r, models[r], rnd.randrange(1 << 30)) for r in RULES]
    for t in threads:
        t.start()
    wait_for_load(threads)
    random_moment(0, 0.25)
    # Sometimes it hits a rule that the guard has to look at.
    guard = f"g{round_no}"
    made = []

    def make_rule():
        try:
            k = Client("127.0.0.1", proc.port)
            k.command("k", {"insert": guard, "documents": [{"t": PAST} for _ in range(20)]})
            made.append(
                k.command(
                    "k", {"createIndexes": guard, "indexes": [{"key": {"t": 1}, "name": "t", "expireAfterSeconds": 0}]}
                )
            )
        except (ConnectionError, OSError):
            pass

    maker = threading.Thread(target=make_rule)
    maker.start()
    random_moment(0, 0.03)
    kill(proc)
    maker.join()
    for t in threads:
        t.join()
        check(t.error is None, f"round {round_no}: {t.error}")
        acknowledged += t.acknowledged
    proc, client = start(data, *GUARDED)
    status = must(client, {"ttlStatus": 1})
    states = {(r["ns"], r["index"]): r for r in status["rules"]}
    seconds = {
        i["name"]: i.get("expireAfterSeconds") for i in must(client, {"listIndexes": "s"})["cursor"]["firstBatch"]
    }
    for r in RULES:
        m = models[r]
        # Not by the rule's state: the guard may hold it, when the kill came while it looked at a change.
        paused = any(p.get("ns") == "k.s" and p.get("index") == r for p in status["pauses"])
        check(
            states[("k.s", r)]["state"] in ("paused", "held")
            if paused
            else states[("k.s", r)]["state"] in ("active", "held"),
            f"round {round_no}: rule {r} is {states[('k.s', r)]['state']}",
        )
        check(
            paused in (m["unsure_paused"] or {m["paused"]}),
            f"round {round_no}: rule {r} is {'' if paused else 'not '}paused",
        )
        check(
            seconds[r] in (m["unsure_seconds"] or {m["seconds"]}),
            f"round {round_no}: rule {r} has {seconds[r]} seconds",
        )
        there = {str(h["holdId"]) for h in status["holds"] if h["reason"] == r}
        extra, lost = there - m["holds"], m["holds"] - there
        extra.discard(m["release_in_flight"])
        check(
            not lost and len(extra) <= m["hold_in_flight"],
            f"round {round_no}: holds of {r}: {len(lost)} lost, {len(extra)} unknown",
        )
        m["paused"], m["seconds"], m["holds"] = paused, seconds[r], there
        m["unsure_paused"] = m["unsure_seconds"] = m["release_in_flight"] = None
        m["hold_in_flight"] = False
    # The rule that the guard looked at: not there, or held with every document in place. Never at work. A build that
    # the kill interrupted goes on first.
    if any(ns == f"k.{guard}" for ns, _ in states):
        state = states[(f"k.{guard}", "t")]["state"]
        built = Deadline()
        while state == "building" and built.holds():
            state = next((r["state"] for r in must(client, {"ttlStatus": guard})["rules"] if r["index"] == "t"), "gone")
        check(state == "held", f"round {round_no}: the guarded rule is {state}")
        check(client.command("k", {"count": guard})["n"] == 20, f"round {round_no}: a held rule has removed documents")
    else:
        check(not made or made[0].get("ok") != 1, f"round {round_no}: an acknowledged index is gone")
    check(client.command("k", {"count": "s"})["n"] == 50, f"round {round_no}: documents are gone")
    check(client.command("k", {"validate": "s", "full": True}).get("valid") is True, f"round {round_no}: validate")
# Every line of the audit log is whole, and everything acknowledged is in it.
with open(data + "/audit/audit.json") as f:
    lines = [json.loads(line) for line in f]
check(len(lines) >= acknowledged // 3, f"{len(lines)} audit lines for {acknowledged} changes")
asked = [l for l in lines if "isSystemUser" not in l["remote"]]
check(len(asked) >= acknowledged // 3, f"{len(asked)} of clients")
check(all(l["remote"].get("ip") == "127.0.0.1" and l["atype"] for l in asked), "audit lines say who and what")
check(stop(proc) == 0, "clean stop")
discard(os.path.dirname(data))
print(f"ttl controls: {ROUNDS} rounds, {acknowledged} acknowledged changes, {len(lines)} audit lines, seed {SEED}")
check.end("ttl_controls")
