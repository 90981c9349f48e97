#!/usr/bin/env python3
"""What is seen of transactions from outside: while a command of one runs, in the log, in /metrics, after a step down.

What one connection can see is in golden/replication/9_seen_transactions.test.
"""

import json, sys, threading, urllib.request, uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
from bson.binary import Binary
from bson.int64 import Int64
from fault_test import Checks, Deadline, initiate, until
from topologies import BINARY, TEST_COMMANDS, Client, Server, free_port

# Work on one document that lasts longer than any test: until it is killed.
SUM = {"$reduce": {"input": {"$range": [0, 1000000]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}
LONG = {"$map": {"input": {"$range": [0, 1000]}, "in": SUM}}


class Member:
    def __init__(self):
        self.web = free_port()
        port = free_port()
        self.server = Server(
            BINARY, (*TEST_COMMANDS, "--replSet", "rs0", "--port", str(port), "--httpPort", str(self.web))
        )
        self.client = self.server.client
        initiate(self.client, f"127.0.0.1:{port}")
        # What a primary does as it begins ends transactions; behind its first write that is over.
        self.client.command("test", {"insert": "begun", "documents": [{"_id": 1}]})

    def admin(self, command):
        return self.client.command("admin", command)

    def status(self):
        return self.admin({"serverStatus": 1, "none": 1, "transactions": 1})["transactions"]

    def operations(self):
        pipeline = [{"$currentOp": {}}, {"$match": {"transaction": {"$exists": True}}}]
        return self.admin({"aggregate": 1, "pipeline": pipeline, "cursor": {}})["cursor"]["firstBatch"]

    def lines(self):
        lines = [json.loads(line) for line in self.admin({"getLog": "global"})["log"]]
        return [line for line in lines if line["msg"] == "transaction"]

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web}/metrics", timeout=Deadline().seconds) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[-1])
        return None


class Session:
    """Commands of one session, on a connection of its own."""

    def __init__(self, member):
        self.client = Client("127.0.0.1", member.server.port)
        self.id, self.number, self.first = {"id": Binary(uuid.uuid4().bytes, 4)}, 0, True

    def begin(self):
        self.number, self.first = self.number + 1, True

    def __call__(self, command, db="test"):
        whole = {**command, "lsid": self.id, "txnNumber": Int64(self.number), "autocommit": False}
        if self.first:
            whole["startTransaction"] = True
        self.first = False
        return self.client.command(db, whole)

    def end(self, how="commitTransaction"):
        return self({how: 1}, "admin")


def active(check, member):
    """A command of a transaction that runs is an operation with `transaction`; killed, it ends that."""
    busy = Session(member)
    busy.begin()
    busy({"insert": "c", "documents": [{"_id": 1}]})
    before = member.status()
    answers = []
    pipeline = [{"$project": {"x": LONG}}]
    thread = threading.Thread(
        target=lambda: answers.append(busy({"aggregate": "c", "pipeline": pipeline, "cursor": {}}))
    )
    thread.start()
    op = until(lambda: next((o for o in member.operations() if o["type"] == "op"), None))
    check(op and op["active"] and op["transaction"]["parameters"]["txnNumber"] == 1, "an active one is an operation")
    check(op and op["transaction"]["documentsChanged"] == 1, "with what it has written")
    check(member.status()["currentActive"] == 1, "serverStatus counts it as active")
    member.admin({"killOp": 1, "op": op["opid"]})
    thread.join()
    check(answers[0].get("code") == 11601, f"killOp interrupts its command: {answers[0].get('code')}")
    after = member.status()
    check(after["abortedBy"]["error"] == before["abortedBy"]["error"] + 1, "which aborts it")
    check(after["currentOpen"] == 0 and not member.operations(), "and nothing of it is left")


def log(check, member):
    """One line for a whole transaction that was slow, none for others."""
    member.admin({"profile": 0, "slowms": 10000})
    quick = Session(member)
    quick.begin()
    quick({"insert": "c", "documents": [{"_id": 2}]})
    check(quick.end().get("ok") == 1, "a quick one is committed")
    count = len(member.lines())
    member.admin({"profile": 0, "slowms": 0})
    slow = Session(member)
    slow.begin()
    slow({"insert": "c", "documents": [{"_id": 3}]})
    slow({"update": "d", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}, "upsert": True}]})
    slow.end()
    slow.begin()
    slow({"find": "c"})
    slow.end("abortTransaction")
    member.admin({"profile": 0, "slowms": 10000})
    lines = until(lambda: len(member.lines()) >= count + 2 and member.lines()[count:])
    check(lines and len(lines) == 2, "each slow one has one line, a quick one none")
    attr = lines[0]["attr"]
    check(lines[0]["c"] == "TXN" and lines[0]["id"] == 51802, "with MongoDB's component and id")
    check(attr["parameters"]["txnNumber"] == 1 and "lsid" in attr["parameters"], "whose it was")
    check(attr["terminationCause"] == "committed" and attr["commands"] == 2, "how it ended")
    check(attr["ninserted"] >= 1 and attr["locks"]["collections"] == ["test.c", "test.d"], "what it wrote and locked")
    check(attr["timeActiveMicros"] > 0 and "timeInactiveMicros" in attr and "durationMillis" in attr, "its times")
    second = lines[1]["attr"]
    check((second["terminationCause"], second["abortedBy"]) == ("aborted", "client"), "an abort, and whose")


def metrics(check, member):
    """The same figures for Prometheus."""
    one = Session(member)
    committed = member.metric("mayfly_transactions_committed_total")
    one.begin()
    one({"insert": "c", "documents": [{"_id": 4}]})
    check(member.metric('mayfly_transactions_open{state="inactive"}') == 1, "/metrics has the open ones")
    check(member.metric("mayfly_transactions_bytes") > 0, "and their memory")
    check(member.metric("mayfly_transactions_oldest_open_seconds") > 0, "and their age")
    one.end()
    check(member.metric("mayfly_transactions_committed_total") == committed + 1, "the committed")
    for reason in ("client", "conflict", "error", "lifetime", "session", "newer", "stepDown", "shutdown"):
        check(
            member.metric(f'mayfly_transactions_aborted_total{{reason="{reason}"}}') is not None, f"aborted: {reason}"
        )


def step_down(check, member):
    """A primary that steps down aborts what is open, and says so."""
    one = Session(member)
    one.begin()
    one({"insert": "c", "documents": [{"_id": 5}]})
    member.admin({"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 0, "force": True})
    until(lambda: member.status()["currentOpen"] == 0)
    check(member.status()["abortedBy"]["stepDown"] == 1, "stepping down is a reason of its own")


def main():
    check = Checks()
    member = Member()
    try:
        for part in (active, log, metrics, step_down):
            part(check, member)
    finally:
        check(member.server.stop(), "a clean stop")
    check.end("what is seen of transactions")


if __name__ == "__main__":
    main()
