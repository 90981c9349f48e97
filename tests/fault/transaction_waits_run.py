#!/usr/bin/env python3
"""What waits for transactions that are open, and what does not, on a set of one member:

  plain writers  64 of them meet a document that a transaction has locked. They hold no thread: others are served as
                 before, also by workers. When the transaction ends, all of them go on
  definitions    drop, createIndexes, collMod and renameCollection wait for the transactions that have written to the
                 collection, and while they wait they stop no other writer of it
  limits         what waits obeys its maxTimeMS
  memory         what the transactions of one address have staged has a limit, and others still get their share
"""

import socket, sys, threading, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
from fault_test import figure
from waits import Deadline
from topologies import Client, ReplicaSet, until
from transaction_ends_run import OnMember, Transaction, code, increment, value

WRITERS = 64
ROUNDS = 4
EXCEEDED_MEMORY, MAX_TIME = 146, 50
MB = 1 << 20


class Asked(threading.Thread):
    """A command on a connection of its own."""

    def __init__(self, member, command, db="t"):
        super().__init__(daemon=True)
        self.client, self.db, self.command, self.reply, self.at = Client("127.0.0.1", member.port), db, command, None, 0
        self.start()

    def run(self):
        self.reply = self.client.command(self.db, {**self.command, "maxTimeMS": 60000})
        self.at = time.monotonic()
        self.client.sock.close()


class Run(OnMember):
    def threads(self):
        status = Path(f"/proc/{self.member.proc.pid}/status").read_text()
        return int(status.split("Threads:")[1].split()[0])

    def waiting(self, name):
        """Operations of clients that run this command now."""
        return [o for o in self.ask({"currentOp": 1}, "admin")["inprog"] if name in o.get("command", {})]

    def writers(self):
        took = []
        for n in range(1, ROUNDS + 1):
            before, t = self.threads(), Transaction(self.member)
            self.check(code(t.begin(increment(1, 1000))) == 0, "a transaction")
            asked = [Asked(self.member, increment(1)) for _ in range(WRITERS)]
            until("all to wait", lambda: sum(o["waitingForLock"] for o in self.waiting("update")) >= WRITERS * 0.9)
            # Reads and writes beside them, on threads of connections and on workers.
            for i in range(20):
                self.check(self.ask(increment(2 + i)).get("nModified") == 1, "a write beside them")
                sorted_by = {"aggregate": "c", "pipeline": [{"$sort": {"x": -1}}, {"$limit": 1}], "cursor": {}}
                self.check(code(self.ask(sorted_by)) == 0, "a read beside them")
            self.check(not any(a.reply for a in asked), "all still wait")
            more = self.threads() - before
            self.check(more < 8, "none of them holds a thread", f"{more} more threads")
            end = time.monotonic()
            self.check(code(t.commit() if n % 2 else t.run({"abortTransaction": 1}, db="admin")) == 0, "its end")
            for a in asked:
                a.join(Deadline().seconds)
            self.check(all(a.reply and a.reply.get("nModified") == 1 for a in asked), "each writes")
            took.append(max(a.at for a in asked) - end)
            want = 1000 * ((n + 1) // 2) + WRITERS * n
            self.check(value(self.member, 1) == want, "once", (value(self.member, 1), want))
        figure(f"{WRITERS} writers go on behind a transaction, the best of {ROUNDS}", min(took) * 1000)

    def definitions(self):
        index = {"key": {"x": 1}, "name": "x"}
        for name, db, command in (
            ("createIndexes", "t", {"createIndexes": "d", "indexes": [index]}),
            ("collMod", "t", {"collMod": "d", "validator": {"x": {"$gte": 0}}}),
            ("renameCollection", "admin", {"renameCollection": "t.d", "to": "t.e"}),
            ("drop", "t", {"drop": "d"}),
        ):
            self.ask({"drop": "d"})
            self.ask({"drop": "e"})
            self.ask({"insert": "d", "documents": [{"_id": i, "x": 0} for i in range(100)]})
            t = Transaction(self.member)
            write = {"update": "d", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 7}}}]}
            self.check(code(t.begin(write)) == 0, f"a transaction before {name}")
            asked = Asked(self.member, command, db)
            until(f"{name} to run", lambda name=name: self.waiting(name))
            slowest = 0
            for i in range(200):
                began = time.monotonic()
                plain = {"update": "d", "updates": [{"q": {"_id": 2 + i % 98}, "u": {"$inc": {"x": 1}}}]}
                reply = self.ask({**plain, "maxTimeMS": 20000})
                self.check(reply.get("nModified") == 1, f"a writer beside {name}", reply)
                slowest = max(slowest, time.monotonic() - began)
            self.check(asked.reply is None, f"{name} waits", asked.reply)
            again = {"update": "d", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 7}}}]}
            self.check(code(t.run(again)) == 0, f"the transaction goes on beside {name}")
            self.check(code(t.commit()) == 0, f"and commits before {name}")
            asked.join(Deadline().seconds)
            self.check(asked.reply is not None and code(asked.reply) == 0, f"then {name} is done", asked.reply)
            figure(f"the slowest write beside {name}", slowest * 1000)
            where = {"renameCollection": "e", "drop": None}.get(name, "d")
            if where:
                found = self.ask({"find": where, "filter": {"_id": 1}})["cursor"]["firstBatch"]
                self.check(found == [{"_id": 1, "x": 14}], f"with all of it ({name})", found)
            else:
                self.check(self.ask({"count": "d"})["n"] == 0, "and nothing is left of it")

    def limits(self):
        """What waits obeys its maxTimeMS: the transaction it waits for goes on."""
        self.ask({"drop": "l"})
        self.ask({"insert": "l", "documents": [{"_id": 1, "x": 0}]})
        t = Transaction(self.member)
        write = {"update": "l", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}
        self.check(code(t.begin(write)) == 0, "a transaction before those with a limit")
        for db, command in (
            ("t", {"validate": "l"}),
            ("t", {"validate": "l", "full": True}),
            ("t", {"createIndexes": "l", "indexes": [{"key": {"x": 1}, "name": "x"}]}),
            ("t", {"collMod": "l", "validator": {"x": {"$gte": 0}}}),
            ("admin", {"renameCollection": "t.l", "to": "t.m"}),
            ("t", {"drop": "l"}),
            ("t", write),
        ):
            reply = self.ask({**command, "maxTimeMS": 300}, db)
            self.check(code(reply) == MAX_TIME, f"{next(iter(command))} within its time", reply)
        self.check(code(t.commit()) == 0, "and the transaction commits")
        self.check(self.ask({"validate": "l"}).get("valid") is True, "then nothing waits")

    def memory(self):
        system = self.ask({"hostInfo": 1}, "admin")["system"]
        share = min(max(min(system["memSizeMB"], system["memLimitMB"]) // 4, 64), 4096) // 4
        text, full, open_ones = "x" * (15 * MB), None, []
        for n in range(share // 15 + 2):
            if n % 12 == 0:
                open_ones.append(Transaction(self.member))
            insert = {"insert": "c", "documents": [{"_id": f"m{n}", "text": text}]}
            full = open_ones[-1].run(insert, begins=n % 12 == 0)
            if code(full) != 0:
                break
        self.check(code(full) == EXCEEDED_MEMORY and "this client" in full.get("errmsg", ""), "a client's share", full)
        self.check(share * 0.9 < n * 15 < share * 1.1 + 15, "which is a quarter", (n * 15, share))
        self.check(code(open_ones[-1].commit()) == 251, "the one that went too far is gone")
        # Another address has its own, however full this one is.
        other, member = Transaction(self.member), ("127.0.0.1", self.member.port)
        other.client.sock.close()
        other.client.sock = socket.create_connection(member, 60, source_address=("127.0.0.2", 0))
        insert = {"insert": "c", "documents": [{"_id": "o", "text": text}]}
        self.check(code(other.begin(insert)) == 0, "somebody else's")
        self.check(code(other.commit()) == 0, "and its commit")
        for t in open_ones[:-1]:
            self.check(code(t.run({"abortTransaction": 1}, db="admin")) == 0, "an abort")
        again = Transaction(self.member)
        self.check(code(again.begin({"insert": "c", "documents": [{"_id": "a", "text": text}]})) == 0, "room again")
        self.check(code(again.commit()) == 0, "and a commit")
        bytes_now = self.ask({"serverStatus": 1}, "admin")["transactions"]["bytes"]
        self.check(bytes_now == 0, "nothing is counted any more", bytes_now)


def main():
    servers = ReplicaSet(1)
    run = Run(servers.members[0], range(1000))
    return run.end("transaction waits", servers, (run.writers, run.definitions, run.limits, run.memory))


if __name__ == "__main__":
    sys.exit(main())
