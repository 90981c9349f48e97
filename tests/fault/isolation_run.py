#!/usr/bin/env python3
"""Whether transactions are snapshot isolation, looked at by a checker that others wrote (adya, after Jepsen's Elle).

Clients run random transactions on lists, ranges of a unique index and registers (histories.py) against a set of three,
while primaries lose power, are suspended, step down, and the network is cut; others read in snapshot sessions on
secondaries. The checker gets every history. MAYFLY_FAULT_ROUNDS (5), MAYFLY_SEED; MAYFLY_HISTORY names a folder that
keeps the histories.

The checker is checked first, on a set of one: without a fault it finds nothing, and with each fault that is seeded into
the server (fault_server's "break") it does. One fault shows only where another member has led meanwhile. The last line
says "N passed, N failed".
"""

import os, random, shutil, subprocess, sys, tempfile
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from fault_test import SEED, Deadline, discard
from histories import MAJORITY, QUICK, Clients, History, Lists, Registers, Rows, read_all
from moments import Moments
from partition_run import FAR, KINDS, NEAR
from proxy import Network
from replica_set import FAULTY, Checks, ReplicaSet
from transaction_ends_run import Transaction, code

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "5"))
TOOLS = Path(os.environ.get("MAYFLY_TOOLS", Path.home() / ".cache/mayfly-tools"))
CHECKER = "0.1.0"
# Each session sees what it has seen and written before, besides snapshot isolation.
LEVEL = "strong-session-snapshot-isolation"
LIFETIME = 10  # seconds, of transactions whose clients were cut off


def checker():
    """The Rust program, built once a version."""
    folder = TOOLS / f"adya-{CHECKER}"
    program = folder / "bin/adya"
    if not program.exists():
        if shutil.which("cargo") is None:
            sys.exit("cargo is missing: apt-get install cargo-web\nisolation: 0 passed, 1 failed")
        options = ("--quiet", "--locked", "--no-default-features", "--root", str(folder))
        subprocess.run(["cargo", "install", "adya", "--version", CHECKER, *options], check=True)
    return program


def verdict(w, name, folder):
    """What the checker says of a workload's history: its status (0: it is isolated so; 1: it is not), and its words."""
    path = folder / f"{name}-{type(w).__name__.lower()}.jsonl"
    w.history.save(path)
    # A transaction that reads a register before it writes it follows the one that it has read.
    options = ["--wfr-keys"] if w.model == "rw-register" else []
    command = [str(checker()), "check", "-m", w.model, "-c", LEVEL, *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=Deadline(300).seconds)
    return done.returncode, done.stdout + done.stderr


def found(words):
    """The kinds of what was found."""
    return next((line.removeprefix("Found ") for line in words.splitlines() if line.startswith("Found ")), "nothing")


def make(mongo, name):
    workloads = [kind(mongo[name]) for kind in (Lists, Rows, Registers)]
    for w in workloads:
        w.fill()
    return workloads


# What is broken, and the workloads whose histories must show it.
SEEDED = {
    "none": (),
    "conflicts": (Lists, Registers),
    "own writes": (Lists, Rows, Registers),
    "snapshots": (Lists, Rows),
    "account": (Lists, Registers),
}


def look_for(s, fault, mongo, folder):
    """Works until the checker finds what is broken in each workload that must show it, in vain after some rounds: by
    workload its status and its words."""
    name = fault.replace(" ", "_")
    workloads = make(mongo, f"seeded_{name}")
    s.members[0].tell(f"break {fault}")
    clients = Clients([s.uri], workloads, 6)
    try:
        for part in range(1, 7):
            s.wait(lambda: min(w.history.ok for w in workloads) >= 250 * part, "250 transactions of each kind")
            verdicts = {type(w): verdict(w, name, folder) for w in workloads}
            if all(verdicts[kind][0] == 1 for kind in SEEDED[fault]):
                break
    finally:
        clients.finish()
    return verdicts, clients.unexpected


def seeded(check, folder):
    """The checker finds what was broken on purpose, and nothing else."""
    s = ReplicaSet(1, binary=FAULTY)
    try:
        s.initiate()
        with pymongo.MongoClient(s.uri, **QUICK) as mongo:
            for fault, shown in SEEDED.items():
                verdicts, unexpected = look_for(s, fault, mongo, folder)
                check(not unexpected, f"clients with {fault} broken: {unexpected[:3]}")
                for kind, (status, words) in verdicts.items():
                    if fault == "none":
                        check(
                            status == 0, f"nothing is broken, and the checker finds in {kind.__name__}: {found(words)}"
                        )
                    elif kind in shown:
                        check(
                            status == 1, f"{fault} are broken, and the checker finds in {kind.__name__}: {found(words)}"
                        )
    finally:
        s.close()


def lead(s, member):
    member.client.admin.command("replSetStepUp", 1)
    s.wait(lambda: s.primary() is member, "the primary that was asked for")


class Reigns:
    """One transaction after another over lists of two keys, each of a client of its own, and their history."""

    model = "list-append"

    def __init__(self, name):
        self.name, self.history = name, History()

    def transact(self, member, steps, read_concern=None):
        """Does the steps as one transaction and commits it: 0, or the code of what failed."""
        process, t, done = self.history.process(), Transaction(member), []
        self.history.note(process, "invoke", steps)
        failed = 0
        for i, (kind, key, value) in enumerate(steps):
            if kind == "r":
                command = {"find": "lists", "filter": {"_id": key}}
                if i == 0 and read_concern:
                    command["readConcern"] = read_concern
            else:
                command = {"update": "lists", "updates": [{"q": {"_id": key}, "u": {"$push": {"v": value}}}]}
            answer = t.run(command, db=self.name, begins=i == 0)
            failed = code(answer)
            if failed:
                break
            done.append([kind, key, answer["cursor"]["firstBatch"][0]["v"] if kind == "r" else value])
        failed = failed or code(t.commit())
        self.history.note(process, "fail" if failed else "ok", steps if failed else done)
        return failed


def earlier_reign(check, folder):
    """A transaction that reads at a time from before this member led again, and writes what another one has changed
    since: a conflict, unless the account of what locks have protected is not begun anew. Then the checker finds in this
    one history that a change was lost."""
    s = ReplicaSet(binary=FAULTY)
    both = lambda key, value: [["r", key, None], ["append", key, value]]
    try:
        s.initiate()
        s.settled()
        a = s.primary()
        b = next(m for m in s.members if m is not a)
        for fault in ("none", "reigns"):
            name = f"reign_{fault}"
            with pymongo.MongoClient(s.uri, **QUICK) as mongo:
                lists = mongo[name].get_collection("lists", write_concern=MAJORITY)
                lists.insert_many([{"_id": 0, "v": []}, {"_id": 1, "v": []}])
                w = Reigns(name)
                check(w.transact(a, both(1, 1)) == 0, "an account is kept")
                a.tell(f"break {fault}")
                find = {"find": "lists", "readConcern": {"level": "snapshot"}}
                before = a.client[name].command(find)["cursor"]["atClusterTime"]
                lead(s, b)
                check(w.transact(b, both(0, 1)) == 0, "another one changes the document")
                s.settled()
                lead(s, a)
                check(w.transact(a, both(1, 2)) == 0, "an account is kept once more")
                failed = w.transact(a, both(0, 2), {"level": "snapshot", "atClusterTime": before})
                a.tell("break none")
                check(w.transact(a, [["r", 0, None], ["r", 1, None]]) == 0, "the last word on both")
                status, words = verdict(w, name, folder)
                if fault == "none":
                    check(failed == 112, f"what another one has changed is a conflict: {failed}")
                    check(status == 0, f"nothing is broken, and the checker finds {found(words)}")
                else:
                    check(failed == 0, f"without its account a member does not see that it was late: {failed}")
                    check(status == 1, f"reigns are broken, and the checker finds {found(words)}")
    finally:
        s.close()


def limit(member):
    member.client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=LIFETIME)


def restart(member):
    member.start()
    member.wait_up()
    limit(member)


def disturb(fault, s, net, dice, go_on):
    """One fault, while clients go on."""
    primary = s.primary()
    a, b = dice.sample([m for m in s.members if m is not primary], 2)
    if fault == "power":
        primary.tell("power")
        primary.proc.wait(Deadline().seconds)
    elif fault == "disk full":
        primary.tell("free 20000")
    elif fault == "pause":
        primary.pause()
    elif fault == "step down":
        try:
            primary.client.admin.command("replSetStepDown", 2, force=True)
        except PyMongoError:
            pass  # it says so by closing connections
    else:
        fault(net, primary.name, a.name, b.name)
    go_on(60)
    net.heal()
    if fault == "power":
        restart(primary)
    elif fault == "pause":
        primary.resume()
    elif fault == "disk full":
        primary.tell("free none")
        if primary.proc.poll() is not None:  # it may stop, as it may with any disk that has failed
            restart(primary)
    s.in_place()


def faults(check, folder):
    net = Network()
    s = ReplicaSet(network=net, binary=FAULTY)
    dice = random.Random(SEED)
    clients = None
    try:
        s.initiate()
        for m in s.members:
            limit(m)
        with pymongo.MongoClient(s.uri, **QUICK) as mongo:
            workloads = make(mongo, "isolation")
            s.settled()
            uris = [f"{s.uri}&appName={zone}" for zone in (NEAR, FAR)]
            clients = Clients(uris, workloads, 8, readers=2)

            def go_on(count):
                wanted = [w.history.ok + count for w in workloads]
                s.wait(
                    lambda: all(w.history.ok >= n for w, n in zip(workloads, wanted)), f"{count} more of each kind", 90
                )

            kinds = ["power", "pause", "step down", "disk full", *KINDS]
            dice.shuffle(kinds)
            for r in range(ROUNDS):
                go_on(60)
                fault = kinds[r % len(kinds)]
                print(f"     round {r}: {fault if isinstance(fault, str) else fault.__name__}", flush=True)
                disturb(fault, s, net, dice, go_on)
            go_on(60)
            clients.finish()
            check(not clients.unexpected, f"clients went on: {clients.unexpected[:3]}")
            for w in workloads:
                read_all(mongo, w)
                history, name = w.history, type(w).__name__
                counts = ", ".join(f"{history.count(kind)} {kind}" for kind in ("ok", "fail", "info"))
                status, words = verdict(w, "faults", folder)
                if status != 0:
                    print(words[:4000], flush=True)
                check(status == 0, f"{name} are isolated by snapshots: {counts}")
                check(not history.problems, f"unique numbers of {name}: {history.problems[:3]}")
        s.settled()
        check(s.same("isolation"), "all members hold the same")
        same_moments(check, s)
    finally:
        if clients is not None:
            clients.finish()
        s.close()
        net.close()


def same_moments(check, s):
    """A member named its snapshots by the time before the newest records that they had: another one showed less at the
    same time, about once in 600 looks."""
    s.primary().client.moments.create_collection("moments")
    s.settled()
    moments = Moments(s, "moments", 6000)
    moments.run()
    check(not moments.differ, f"members show the same at {moments.compared} times: {moments.differ[:3]}")


def main():
    print(f"seed {SEED}")
    check = Checks()
    kept = os.environ.get("MAYFLY_HISTORY")
    folder = Path(kept or tempfile.mkdtemp(prefix="mayfly-histories-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        seeded(check, folder)
        earlier_reign(check, folder)
        faults(check, folder)
    finally:
        if not kept:
            discard(folder)
    check.end("isolation")


if __name__ == "__main__":
    main()
