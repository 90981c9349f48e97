#!/usr/bin/env python3
"""Transactions of several clients while primaries die: all or nothing, everywhere, and once.

Three members on this machine. Clients move money between accounts, each transfer a transaction of two updates and one
entry in a journal, by the driver's with_transaction. Now and then the primary is killed (kill -9) in the midst of
commits and started again once another one leads. At every moment a snapshot must show the same sum; in the end each
transfer that was acknowledged is in the journal once, every account is what the journal says, and all members are
equal. Clients go on until the last primary has been killed.
"""

import os, random, sys, threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
import pymongo
from fault_test import SEED, Checks, Deadline, random_moment
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern
from topologies import ReplicaSet, until

CLIENTS = int(os.environ.get("MAYFLY_TXN_CLIENTS", "6"))
TRANSFERS = int(os.environ.get("MAYFLY_TXN_TRANSFERS", "60"))
KILLS = int(os.environ.get("MAYFLY_TXN_KILLS", "3"))
ACCOUNTS, START = 10, 1000


class Bank:
    def __init__(self, uri):
        self.client = pymongo.MongoClient(uri, serverSelectionTimeoutMS=Deadline().millis, heartbeatFrequencyMS=500)
        self.db = self.client.bank
        self.tried, self.done, self.problems, self.sums = [], [], [], 0
        self.killed, self.over = threading.Event(), threading.Event()

    def fill(self):
        self.db.create_collection("journal")
        self.db.accounts.insert_many([{"_id": i, "sum": START} for i in range(ACCOUNTS)])

    def transfer(self, number, dice):
        source, target = dice.sample(range(ACCOUNTS), 2)
        amount = dice.randint(1, 50)

        def callback(session):
            self.db.accounts.update_one({"_id": source}, {"$inc": {"sum": -amount}}, session=session)
            self.db.accounts.update_one({"_id": target}, {"$inc": {"sum": amount}}, session=session)
            entry = {"_id": number, "from": source, "to": target, "amount": amount}
            self.db.journal.insert_one(entry, session=session)

        with self.client.start_session() as session:
            session.with_transaction(
                callback, read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority")
            )
        self.done.append(number)

    def move(self, who):
        dice, i = random.Random(f"{SEED} {who}"), 0
        while i < TRANSFERS or not self.killed.is_set():
            self.tried.append(f"{who}-{i}")
            try:
                self.transfer(f"{who}-{i}", dice)
            except pymongo.errors.PyMongoError as e:
                # with_transaction gives up after two minutes: nobody knows then, and the sums must be right anyway.
                self.problems.append(f"transfer {who}-{i}: {e}")
            i += 1

    def watch(self):
        while not self.over.is_set():
            try:
                with self.client.start_session() as session, session.start_transaction():
                    accounts = list(self.db.accounts.find({}, session=session))
                    journal = list(self.db.journal.find({}, session=session))
            except pymongo.errors.PyMongoError:
                continue  # the primary has just died
            self.compare(accounts, journal, "in a snapshot")
            self.sums += 1

    def compare(self, accounts, journal, where):
        sums = {a["_id"]: a["sum"] for a in accounts}
        expected = dict.fromkeys(range(ACCOUNTS), START)
        for e in journal:
            expected[e["from"]] -= e["amount"]
            expected[e["to"]] += e["amount"]
        if sums != expected:
            self.problems.append(f"{where}: accounts {sums}, the journal says {expected}")


def kill_primaries(servers, bank):
    """Kills a primary among transfers, and starts it again once another one leads; as often as asked for."""
    for _ in range(KILLS):
        wanted = len(bank.done) + 2 * CLIENTS
        until("transfers by this primary", lambda: len(bank.done) >= wanted)
        random_moment(0, 0.5)
        dead = until("a primary", servers.primary)
        servers.kill(dead)
        until("another primary", servers.primary)
        servers.restart(dead)
        until("the restarted member to follow", lambda: servers.state(dead) in ("primary", "secondary"))


def equal_members(servers):
    hashes = []
    for member in servers.members:
        options = {"directConnection": True, "readPreference": "secondaryPreferred"}
        direct = pymongo.MongoClient("127.0.0.1", member.port, **options)
        hashes.append(direct.bank.command("dbHash")["md5"])
        direct.close()
    return len(set(hashes)) == 1


def main():
    print(f"seed {SEED}")
    check = Checks()
    servers = ReplicaSet(3)
    try:
        bank = Bank(servers.uri)
        bank.fill()
        movers = [threading.Thread(target=bank.move, args=(i,), daemon=True) for i in range(CLIENTS)]
        watcher = threading.Thread(target=bank.watch, daemon=True)
        for t in [*movers, watcher]:
            t.start()
        kill_primaries(servers, bank)
        bank.killed.set()
        for t in movers:
            t.join()
        bank.over.set()
        watcher.join()
        journal = list(bank.db.journal.find({}))
        bank.compare(list(bank.db.accounts.find({})), journal, "in the end")
        until("all members to be equal", lambda: equal_members(servers))
        in_journal = {e["_id"] for e in journal}
        check(set(bank.done) <= in_journal, "every acknowledged transfer is there")
        check(sorted(bank.done) == sorted(bank.tried), f"every transfer was acknowledged: {len(bank.done)}")
        check(in_journal <= set(bank.tried), f"nothing else is there: {len(in_journal)}")
        check(bank.sums > 0, "sums were seen")
        check(not bank.problems, f"all sums are right {bank.problems[:3]}")
        bank.client.close()
    finally:
        clean = servers.stop()
    check(clean, "a clean stop")
    print(f"transactions: {len(bank.done)} transfers, {bank.sums} sums looked at, {KILLS} primaries killed")
    check.end("transactions")


if __name__ == "__main__":
    main()
