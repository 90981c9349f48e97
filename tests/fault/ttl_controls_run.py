#!/usr/bin/env python3
"""kill -9 in the middle of pauses, holds, guard decisions and changes of rules: what was acknowledged is there afterwards, what was
in flight is there whole or not at all, and the rules act (or rest) accordingly.

MAYFLY_TTL_KILL_ROUNDS (12) rounds on one data directory; MAYFLY_SEED replays the random choices.
"""
import json, os, random, shutil, signal, socket, subprocess, sys, tempfile, threading, time
from datetime import datetime, timedelta, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from run import ROOT, Client

BINARY = os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd"))
ROUNDS = int(os.environ.get("MAYFLY_TTL_KILL_ROUNDS", "12"))
SEED = int(os.environ.get("MAYFLY_SEED", random.randrange(1 << 30)))
rnd = random.Random(SEED)
passed = failed = 0
RULES = ["a", "b", "c"]
PAST = datetime.now(timezone.utc) - timedelta(days=1)


def check(ok, what):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"FAIL {what} (seed {SEED})")


def start(data, port):
    began = time.monotonic()
    proc = subprocess.Popen([BINARY, "--port", str(port), "--dbpath", data, "--nounixsocket", "--httpPort", "0",
                             "--setParameter", "ttlGuardMinDocs=1", "--setParameter", "ttlGuardAction=hold"],
                            stdout=open(data + ".log", "ab"), stderr=subprocess.STDOUT)
    while True:
        try:
            return proc, Client("127.0.0.1", port)
        except OSError:
            if proc.poll() is not None or time.monotonic() - began > 60:
                print(open(data + ".log", errors="replace").read()[-5000:])
                sys.exit("the server did not start\n0 passed, 1 failed")
            threading.Event().wait(0.005)  # sleeps: polls until a deadline


def must(c, doc):
    r = c.command("k", doc)
    if r.get("ok") != 1:
        raise AssertionError(f"{doc}: {r}")
    return r


class Changer(threading.Thread):
    """One change after the other on one rule; what was acknowledged and what was in flight."""

    def __init__(self, port, rule, model, seed):
        super().__init__()
        self.port, self.rule, self.model, self.rnd = port, rule, model, random.Random(seed)
        self.error, self.acknowledged = None, 0

    def run(self):
        try:
            c = Client("127.0.0.1", self.port)
            while True:
                self.step(c)
        except (ConnectionError, OSError):
            pass
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
            from bson import ObjectId
            must(c, {"ttlHoldRelease": "s", "holdId": ObjectId(h)})
            m["release_in_flight"] = None
        self.acknowledged += 1


data = tempfile.mkdtemp(prefix="mayfly-ttl-kill-") + "/data"
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
proc, client = start(data, port)
must(client, {"insert": "s", "documents": [{"_id": i, "a": PAST, "b": PAST, "c": PAST} for i in range(50)]})
must(client, {"createIndexes": "s", "indexes": [{"key": {r: 1}, "name": r, "expireAfterSeconds": 10**9} for r in RULES]})
models = {r: {"paused": False, "unsure_paused": None, "seconds": 10**9, "unsure_seconds": None, "holds": set(), "hold_in_flight": False,
              "release_in_flight": None} for r in RULES}
acknowledged = audited = 0
for round_no in range(ROUNDS):
    threads = [Changer(port, r, models[r], rnd.randrange(1 << 30)) for r in RULES]
    for t in threads:
        t.start()
    threading.Event().wait(rnd.uniform(0.02, 0.25))  # sleeps: a random moment, for that is the test
    # Sometimes it hits a rule that the guard has to look at.
    guard = f"g{round_no}"
    made = []

    def make_rule():
        try:
            k = Client("127.0.0.1", port)
            k.command("k", {"insert": guard, "documents": [{"t": PAST} for _ in range(20)]})
            made.append(k.command("k", {"createIndexes": guard, "indexes": [{"key": {"t": 1}, "name": "t", "expireAfterSeconds": 0}]}))
        except (ConnectionError, OSError):
            pass

    maker = threading.Thread(target=make_rule)
    maker.start()
    threading.Event().wait(rnd.uniform(0, 0.03))  # sleeps: a random moment
    proc.send_signal(signal.SIGKILL)
    proc.wait()
    maker.join()
    for t in threads:
        t.join()
        check(t.error is None, f"round {round_no}: {t.error}")
        acknowledged += t.acknowledged
    proc, client = start(data, port)
    status = must(client, {"ttlStatus": 1})
    states = {(r["ns"], r["index"]): r for r in status["rules"]}
    seconds = {i["name"]: i.get("expireAfterSeconds") for i in must(client, {"listIndexes": "s"})["cursor"]["firstBatch"]}
    for r in RULES:
        m = models[r]
        # Not by the rule's state: the guard may hold it, when the kill came while it looked at a change.
        paused = any(p.get("ns") == "k.s" and p.get("index") == r for p in status["pauses"])
        check(states[("k.s", r)]["state"] in ("paused", "held") if paused else states[("k.s", r)]["state"] in ("active", "held"),
              f"round {round_no}: rule {r} is {states[('k.s', r)]['state']}")
        check(paused in (m["unsure_paused"] or {m["paused"]}), f"round {round_no}: rule {r} is {'' if paused else 'not '}paused")
        check(seconds[r] in (m["unsure_seconds"] or {m["seconds"]}), f"round {round_no}: rule {r} has {seconds[r]} seconds")
        there = {str(h["holdId"]) for h in status["holds"] if h["reason"] == r}
        extra, lost = there - m["holds"], m["holds"] - there
        extra.discard(m["release_in_flight"])
        check(not lost and len(extra) <= m["hold_in_flight"], f"round {round_no}: holds of {r}: {len(lost)} lost, {len(extra)} unknown")
        m["paused"], m["seconds"], m["holds"] = paused, seconds[r], there
        m["unsure_paused"] = m["unsure_seconds"] = m["release_in_flight"] = None
        m["hold_in_flight"] = False
    # The rule that the guard looked at: not there, or held with every document in place. Never at work.
    if any(ns == f"k.{guard}" for ns, _ in states):
        check(states[(f"k.{guard}", "t")]["state"] == "held", f"round {round_no}: the guarded rule is {states[(f'k.{guard}', 't')]['state']}")
        check(client.command("k", {"count": guard})["n"] == 20, f"round {round_no}: a held rule has removed documents")
    else:
        check(not made or made[0].get("ok") != 1, f"round {round_no}: an acknowledged index is gone")
    check(client.command("k", {"count": "s"})["n"] == 50, f"round {round_no}: documents are gone")
    check(client.command("k", {"validate": "s", "full": True}).get("valid") is True, f"round {round_no}: validate")
# Every line of the audit log is whole, and everything acknowledged is in it.
with open(data + "/audit/audit.json") as f:
    lines = [json.loads(line) for line in f]
check(len(lines) >= acknowledged // 3, f"{len(lines)} audit lines for {acknowledged} changes")
check(all(l["remote"].get("ip") == "127.0.0.1" and l["atype"] for l in lines), "audit lines say who and what")
proc.send_signal(signal.SIGTERM)
check(proc.wait(30) == 0, "clean stop")
shutil.rmtree(os.path.dirname(data), ignore_errors=True)
print(f"ttl controls: {ROUNDS} rounds, {acknowledged} acknowledged changes, {len(lines)} audit lines, seed {SEED}")
print(f"ttl_controls: {passed} passed, {failed} failed")
sys.exit(failed != 0)
