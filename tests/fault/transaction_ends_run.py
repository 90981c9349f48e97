#!/usr/bin/env python3
"""Transactions that end from outside, or whose outcome is asked for of another member.

Three members on this machine, spoken to one by one, without a driver's retries:

  killed       killOp, killSessions and a lifetime that is over stop a statement: its transaction is gone, and its locks
               are free at once
  first        a conflict at the first statement of a transaction is none: it begins anew by itself
  stepped down a primary that steps down, and leads again, commits nothing of what was open before
  stopped      a shutdown does not wait for clients that keep transactions open
  begins       a transaction of a new primary's first moment goes on: what a primary does as it begins ends none of its
               own (251 in one set of eight, before)
  lifetime     a limit of a second is kept to within a second
  shares       one client cannot take all the transactions that may be open
  asked again  a commit whose primary died at once is answered as committed by the next one, never with 251, from the
               first moment that it takes commands
"""

import signal, socket, sys, threading, time, uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
import bson
from fault_test import figure
from topologies import Client, ReplicaSet, until
from waits import Deadline

NO_SUCH, LIFETIME, INTERRUPTED = 251, 290, 11601
NOT_HERE = {10107, 13435, 11602, 189, 91, 11600, 10058}  # asked at the wrong member, or at the wrong moment
FIRSTS, BEGINNINGS = 60, 12
SHARE = 5000  # docs/limits.md: open transactions of one address


class Transaction:
    """The transactions of one session, one after another, on a connection of their own to a member."""

    def __init__(self, member):
        self.client, self.number = Client("127.0.0.1", member.port), 0
        self.session = bson.Binary(uuid.uuid4().bytes, 4)

    def run(self, command, db="t", begins=False, **more):
        self.number += begins
        start = {"startTransaction": True} if begins else {}
        of = {"lsid": {"id": self.session}, "txnNumber": bson.Int64(self.number), "autocommit": False}
        return self.client.command(db, {**command, **of, **start, **more})

    def begin(self, command, **more):
        return self.run(command, begins=True, **more)

    def commit(self):
        return self.run({"commitTransaction": 1}, db="admin")

    def at(self, member):
        """The same session, of another member."""
        self.client = Client("127.0.0.1", member.port)
        return self


def code(reply):
    errors = reply.get("writeErrors")
    return errors[0]["code"] if errors else 0 if reply.get("ok") == 1 else reply.get("code")


def increment(key, by=1):
    return {"update": "c", "updates": [{"q": {"_id": key}, "u": {"$inc": {"x": by}}}]}


def value(member, key):
    return member.client.command("t", {"find": "c", "filter": {"_id": key}})["cursor"]["firstBatch"][0]["x"]


class Counted:
    """What counts the checks of a run."""

    def __init__(self):
        self.failed = self.passed = 0

    def check(self, good, what, seen=""):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print(f"FAIL {what}: {str(seen)[:500]}")

    def end(self, name, servers, parts):
        """Runs the parts (methods), stops the servers and prints the line that scripts/test reads: the exit code."""
        try:
            for part in parts:
                part()
        finally:
            clean = servers.stop()
        self.check(clean, "a clean stop")
        print(f"{name}: {self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0


class OnMember(Counted):
    """A run against the one member of a set, whose t.c has so many documents."""

    def __init__(self, member, documents):
        super().__init__()
        self.member = member
        self.ask({"insert": "c", "documents": [{"_id": i, "x": 0} for i in documents]})

    def ask(self, command, db="t"):
        return self.member.client.command(db, command)


class Run(Counted):
    def __init__(self, servers):
        super().__init__()
        self.servers = servers

    def primary(self):
        return until("a primary", self.servers.primary)

    def slow_statement(self, member, t, end):
        """What a statement of `t` answers that runs until `end` (given its number) has ended it."""
        replies = []
        long = {
            "$reduce": {"input": {"$range": [0, 2000000]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}
        }
        slow = {"aggregate": "c", "pipeline": [{"$group": {"_id": None, "n": {"$sum": long}}}], "cursor": {}}
        thread = threading.Thread(target=lambda: replies.append(t.run(slow)))
        thread.start()

        def running():
            ops = member.client.command("admin", {"currentOp": 1})["inprog"]
            return [o["opid"] for o in ops if "aggregate" in o.get("command", {}) and o.get("ns", "").startswith("t.")]

        end(until("the statement to run", running)[0])
        thread.join()
        return replies[0]

    def killed(self):
        member = self.primary()
        admin = lambda command: member.client.command("admin", command)
        documents = [{"_id": f"k{i}", "x": 0} for i in range(500)]
        self.check(code(member.client.command("t", {"insert": "c", "documents": documents})) == 0, "documents")
        t = Transaction(member)
        ends = {
            "killOp": (lambda op: admin({"killOp": 1, "op": op}), INTERRUPTED),
            "killSessions": (lambda _: admin({"killSessions": [{"id": t.session}]}), INTERRUPTED),
            "its lifetime": (lambda _: admin({"setParameter": 1, "transactionLifetimeLimitSeconds": 1}), LIFETIME),
        }
        for n, (name, (end, expected)) in enumerate(ends.items(), 1):
            self.check(code(t.begin(increment("k1", 100))) == 0, "a transaction")
            reply = self.slow_statement(member, t, end)
            self.check(code(reply) == expected, f"{name} stops a statement", reply)
            self.check(code(t.commit()) == NO_SUCH, f"{name} ends its transaction")
            plain = member.client.command("t", {**increment("k1"), "maxTimeMS": 10000})
            self.check(plain.get("nModified") == 1 and value(member, "k1") == n, f"{name}: locks are free", plain)
        admin({"setParameter": 1, "transactionLifetimeLimitSeconds": 60})

    def first(self):
        member = self.primary()
        member.client.command("t", {"insert": "c", "documents": [{"_id": "f", "x": 0}]})
        member.client.command("admin", {"setParameter": 1, "maxTransactionLockRequestTimeoutMillis": 20000})
        over, written, codes = threading.Event(), [0], []

        def write():
            client = Client("127.0.0.1", member.port)
            while not over.is_set():
                written[0] += client.command("t", increment("f")).get("nModified", 0)

        def transact(command):
            t = Transaction(member)
            for _ in range(FIRSTS):
                codes.append(code(t.begin(command)) or code(t.commit()))

        modify = {"findAndModify": "c", "query": {"_id": "f"}, "update": {"$inc": {"x": 1}}}
        plain = threading.Thread(target=write)
        plain.start()
        for command in (increment("f"), modify):
            transact(command)
        over.set()
        plain.join()
        member.client.command("admin", {"setParameter": 1, "maxTransactionLockRequestTimeoutMillis": 5})
        self.check(not any(codes), "a first statement begins anew", codes)
        self.check(value(member, "f") == written[0] + 2 * FIRSTS, "and nothing is lost", value(member, "f"))

    def stepped_down(self):
        old = self.primary()
        old.client.command("t", {"insert": "c", "documents": [{"_id": "s", "x": 0}]})
        t, made = Transaction(old), Transaction(old)
        self.check(code(t.begin(increment("s", 100))) == 0, "a transaction before")
        made.begin({"insert": "never", "documents": [{"_id": 1}]})
        old.client.command("admin", {"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 1, "force": True})
        self.check(code(t.run(increment("s"))) in NOT_HERE | {NO_SUCH}, "a statement after")
        new = self.primary()
        until("a write at the new primary", lambda: new.client.command("t", increment("s")).get("nModified") == 1)
        self.check(code(t.at(new).commit()) == NO_SUCH, "another primary does not know it")
        # Back to the first one, which still has its session.
        new.client.command("admin", {"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 10})
        until("the first one to lead again", lambda: self.lead(old))
        for name, one in (("t", t.at(old)), ("made", made.at(old))):
            reply = until("an answer", lambda one=one: (r := one.commit()) and (code(r) not in NOT_HERE and r))
            self.check(code(reply) == NO_SUCH, f"nothing of it is committed later ({name})", reply)
        self.check(value(old, "s") == 1, "its write is nowhere", value(old, "s"))
        names = old.client.command("t", {"listCollections": 1, "nameOnly": True})["cursor"]["firstBatch"]
        self.check("never" not in [n["name"] for n in names], "nor its collection", names)

    def lead(self, member):
        now = self.servers.primary()
        if now not in (member, None):
            now.client.command("admin", {"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 10})
        return now is member

    def begins(self):
        """On a set of one, which leads again at once, with a client that asks without a pause."""
        alone = ReplicaSet(1)
        try:
            member = alone.members[0]
            member.client.command("t", {"create": "first"})
            clients = [Transaction(member) for _ in range(4)]
            for n in range(BEGINNINGS):
                member.client.command("admin", {"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 0, "force": True})
                answers = []
                for i, t in enumerate(clients):
                    insert = {"insert": "first", "documents": [{"n": n, "i": i}]}
                    until("a primary", lambda t=t, insert=insert: code(t.begin(insert)) == 0)
                for _ in range(20):
                    answers += [code(t.run({"find": "first", "filter": {"n": n}, "limit": 1})) for t in clients]
                answers += [code(t.commit()) for t in clients]
                self.check(set(answers) == {0}, f"a transaction of the first moment ({n})", set(answers))
            rows = member.client.command("t", {"count": "first"})["n"]
            self.check(rows == BEGINNINGS * len(clients), "all of them committed", rows)
        finally:
            alone.stop()

    def lifetime(self):
        member = self.primary()
        member.client.command("admin", {"setParameter": 1, "transactionLifetimeLimitSeconds": 1})
        t, late = Transaction(member), []

        def status():
            return member.client.command("admin", {"serverStatus": 1})["transactions"]

        member.client.command("t", {"insert": "c", "documents": [{"_id": "life", "x": 0}]})
        for _ in range(4):
            self.check(code(t.begin(increment("life"))) == 0, "a transaction that lives a second")
            began = time.monotonic()
            until("its end", lambda: status()["currentOpen"] == 0)
            late.append(time.monotonic() - began)
        # That it is not longer than it may be is what tests/golden/replication/9_transactions_ends.test has.
        figure("a transaction that may live a second, the longest", max(late), "s")
        member.client.command("admin", {"setParameter": 1, "transactionLifetimeLimitSeconds": 60})

    def stopped(self):
        member = self.primary()
        member.client.command("t", {"insert": "c", "documents": [{"_id": "d", "x": 0}]})
        t = Transaction(member)
        t.begin(increment("d", 100))
        member.proc.send_signal(signal.SIGTERM)
        ended = until("the member to stop", lambda: member.proc.poll() is not None)
        self.check(ended and member.proc.returncode == 0, "a clean stop", member.proc.returncode)
        member.client.sock.close()
        new = self.primary()
        reply = until("a write", lambda: (r := new.client.command("t", increment("d"))) and r.get("nModified") and r)
        self.check(value(new, "d") == 1, "without the transaction", reply)
        self.servers.restart(member)
        until("it to follow", lambda: self.servers.state(member) in ("primary", "secondary"))

    def asked_again(self):
        old = self.primary()
        t = Transaction(old)
        t.begin({"insert": "c", "documents": [{"_id": f"a{i}"} for i in range(200)]})
        t.run({"create": "with_it"})
        self.check(code(t.commit()) == 0, "a commit")
        self.servers.kill(old)
        others, answers = [m for m in self.servers.members if m is not old], []
        answer = Deadline()
        while not any(c == 0 for c in answers) and answer.holds():
            for m in others:
                try:
                    answers.append(code(t.at(m).commit()))
                except (OSError, ConnectionError):
                    pass
        self.check(set(answers) <= NOT_HERE | {0} and 0 in answers, "asked again", set(answers))
        new = self.primary()
        n = new.client.command("t", {"count": "c", "query": {"_id": {"$regex": "^a"}}})["n"]
        self.check(n == 200, "once", n)
        self.check(new.client.command("t", {"collStats": "with_it"}).get("ok") == 1, "with its collection")
        self.servers.restart(old)
        until("it to follow", lambda: self.servers.state(old) in ("primary", "secondary"))
        self.check(code(t.at(self.primary()).commit()) == 0, "and once more")
        self.check(code(t.run({"abortTransaction": 1}, db="admin")) == 256, "no abort of what is committed")

    def shares(self):
        member = self.primary()

        def begin(client):
            of = {"lsid": {"id": bson.Binary(uuid.uuid4().bytes, 4)}, "txnNumber": bson.Int64(1), "autocommit": False}
            return code(client.command("t", {"find": "c", "limit": 1, "startTransaction": True, **of}))

        client, other = Client("127.0.0.1", member.port), Client("127.0.0.1", member.port)
        other.sock.close()
        other.sock = socket.create_connection(
            ("127.0.0.1", member.port), Deadline().seconds, source_address=("127.0.0.2", 0)
        )
        answers = [begin(client) for _ in range(SHARE + 1)]
        self.check(answers == [0] * SHARE + [146], "the share of an address", (len(answers), set(answers), answers[-1]))
        self.check(begin(other) == 0, "somebody else's")
        member.client.command("admin", {"killAllSessions": []})
        self.check(begin(client) == 0, "with room again")
        member.client.command("admin", {"killAllSessions": []})


def main():
    servers = ReplicaSet(3)
    run = Run(servers)
    parts = (run.killed, run.first, run.begins, run.lifetime, run.shares, run.stepped_down, run.stopped)
    return run.end("transaction ends", servers, (*parts, run.asked_again))


if __name__ == "__main__":
    sys.exit(main())
