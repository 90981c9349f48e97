#!/usr/bin/env python3
"""Records what clients read, write and compare-and-set on a few registers while members are killed and the network is
cut, and has the history checked for linearizability by porcupine (linearizability/main.go). MAYFLY_FAULT_ROUNDS (6),
MAYFLY_SEED.

The checker is checked too: the same history with one answer changed must be refused. The last line says "N passed, N
failed".
"""

import hashlib, json, os, random, shutil, subprocess, sys, threading, time
from pathlib import Path

import pymongo
from pymongo.errors import NotPrimaryError, OperationFailure, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from fault_test import SEED, rnd
from partition_run import FAR, KINDS, NEAR, primary_with_its_clients
from proxy import Network
from replica_set import Checks, ReplicaSet

HERE = Path(__file__).resolve().parent
ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "6"))
OPERATIONS = 250  # on a register, until the next one takes its place: histories stay short enough to check
TOOLS = Path(os.environ.get("MAYFLY_TOOLS", Path.home() / ".cache/mayfly-tools"))
NOTHING_WRITTEN = {10107, 13435}  # by what they say


def checker():
    """The Go program, built once a version."""
    folder = HERE / "linearizability"
    digest = hashlib.sha256(b"".join((folder / f).read_bytes() for f in ("main.go", "go.mod", "go.sum"))).hexdigest()[
        :16
    ]
    program = TOOLS / f"linearizability-{digest}"
    if not program.exists():
        if shutil.which("go") is None:
            sys.exit("go is missing: apt-get install golang-go\nlinearizability: 0 passed, 1 failed")
        TOOLS.mkdir(parents=True, exist_ok=True)
        new = f"{program}.{os.getpid()}"  # another run may build it as well
        subprocess.run(["go", "build", "-o", new, "."], cwd=folder, check=True)
        os.replace(new, program)
    return program


class Registers:
    """Which ones are in use, and what was done to them."""

    def __init__(self, count=3):
        self.lock, self.history, self.stop, self.next_value = threading.Lock(), [], False, 0
        self.uses, self.count = [0] * count, count

    def take(self, rnd):
        with self.lock:
            slot = rnd.randrange(self.count)
            self.uses[slot] += 1
            self.next_value += 1
            return f"{slot}-{self.uses[slot] // OPERATIONS}", self.next_value

    def record(self, op):
        with self.lock:
            self.history.append(op)


def client(registers, uri, number):
    rnd = random.Random(f"{SEED} {number}")
    mongo = pymongo.MongoClient(  # clock: what fails is of unknown outcome
        uri,
        retryWrites=False,
        retryReads=False,
        serverSelectionTimeoutMS=3000,
        connectTimeoutMS=3000,
        socketTimeoutMS=3000,
        heartbeatFrequencyMS=500,
    )
    reads = mongo.test.get_collection("registers", read_concern=ReadConcern("linearizable"))
    writes = mongo.test.get_collection("registers", write_concern=WriteConcern("majority"))
    last = {}
    while not registers.stop:
        key, value = registers.take(rnd)
        kind = rnd.choice(("read", "read", "write", "cas"))
        if kind == "cas" and not last.get(key):  # it compares a value that is there
            kind = "read"
        op = {
            "key": key,
            "client": number,
            "kind": kind,
            "value": value,
            "expected": last.get(key, 0),
            "call": time.monotonic_ns(),
            "return": 0,
            "found": 0,
            "done": False,
        }
        try:
            if kind == "read":
                found = reads.find_one({"_id": key})
                op["found"] = last[key] = found["v"] if found else 0
            elif kind == "write":
                writes.update_one({"_id": key}, {"$set": {"v": value}}, upsert=True)
                last[key] = value
            else:
                op["done"] = (
                    writes.update_one({"_id": key, "v": op["expected"]}, {"$set": {"v": value}}).matched_count == 1
                )
                if op["done"]:
                    last[key] = value
            op["return"] = time.monotonic_ns()
        except ServerSelectionTimeoutError:
            continue  # nothing was sent
        except (NotPrimaryError, OperationFailure) as e:
            if kind == "read" or (e.details or {}).get("code") in NOTHING_WRITTEN:
                continue
        except PyMongoError:
            if kind == "read":
                continue
        registers.record(op)
    mongo.close()


def verdict(program, history, path, picture=None):
    path.write_text("".join(json.dumps(op) + "\n" for op in history))
    done = subprocess.run(
        [str(program), str(path), *([str(picture)] if picture else [])], capture_output=True, text=True
    )
    print("     " + done.stdout.strip().replace("\n", "\n     ") + done.stderr, flush=True)
    return done.returncode


def written_over(history, key):
    """(a write, another one that began after it had been answered), by their answers."""
    writes = [op for op in history if op["kind"] == "write" and op["key"] == key and op["return"]]
    writes.sort(key=lambda op: op["return"])
    return [(old, new) for old, new in zip(writes, writes[1:]) if new["call"] > old["return"]]


def main():
    print(f"seed {SEED}")
    check = Checks()

    program = checker()
    rnd = random.Random(SEED)
    net = Network()
    s = ReplicaSet(network=net)
    registers = Registers()
    try:
        s.initiate()
        clients = [
            threading.Thread(target=client, args=(registers, f"{s.uri}&appName={zone}", i))
            for i, zone in enumerate((NEAR, FAR) * 3)
        ]
        for c in clients:
            c.start()

        def go_on(operations, seconds=60):
            wanted = len(registers.history) + operations
            s.wait(lambda: len(registers.history) >= wanted, f"{operations} more operations", seconds)

        # A short run has those in which an old primary could answer with what is no longer true; a long one has the
        # others at random.
        worst = [primary_with_its_clients, "pause", "kill"]
        rest = [k for k in KINDS if k not in worst]
        rnd.shuffle(rest)
        faults = worst + rest
        for r in range(ROUNDS):
            go_on(200)
            fault = faults[r % len(faults)]
            primary = s.primary()
            a, b = rnd.sample([m for m in s.members if m is not primary], 2)
            print(f"     round {r}: {fault if isinstance(fault, str) else fault.__name__}", flush=True)
            if fault == "kill":
                primary.kill()
            elif fault == "pause":
                primary.pause()
            else:
                fault(net, primary.name, a.name, b.name)
            go_on(300)
            net.heal()
            if fault == "kill":
                primary.start()
                primary.wait_up()
            elif fault == "pause":
                primary.resume()
            s.in_place()
        go_on(200)
        registers.stop = True
        for c in clients:
            c.join()
        answered = sum(op["return"] != 0 for op in registers.history)
        check(answered > 500, f"there was load: {answered} operations were answered")
        kept = Path(os.environ.get("MAYFLY_HISTORY", f"{s.folder}/history"))
        check(verdict(program, registers.history, kept, Path(str(kept) + ".html")) == 0, "the history is linearizable")
        # A read of what had been written over before it began must be found out.
        changed = [dict(op) for op in registers.history]
        stale = lambda op: next((old for old, new in over[op["key"]] if new["return"] < op["call"]), None)
        over = {key: written_over(changed, key) for key in {op["key"] for op in changed}}
        op = next(op for op in changed if op["kind"] == "read" and op["found"] and stale(op))
        op["found"] = stale(op)["value"]
        check(verdict(program, changed, Path(f"{s.folder}/changed")) == 1, "a history with one wrong answer is not")
        s.settled()
        check(len(set(s.hashes("test"))) == 1, "all members hold the same")
    finally:
        registers.stop = True
        s.close()
        net.close()
    check.end("linearizability")


if __name__ == "__main__":
    main()
