#!/usr/bin/env python3
"""A set in which one member runs an earlier version, in the middle of an upgrade: what the primary leaves out of the
log.

Members say in their heartbeats which entries they read. Here a secondary says less than it does (fault_server's
"reads"), as an earlier version would. One such member that meets an entry it does not know stops, and two of three take
the set's majority with them: so it was with the first transaction after a failover to a new version, before the primary
refused it.

The last line says "N passed, N failed".
"""

import pymongo
from bson import Timestamp

from histories import MAJORITY, QUICK
from replica_set import FAULTY, Checks, ReplicaSet
from transaction_ends_run import Transaction, code
from waits import Deadline

MB = 1 << 20
ILLEGAL, TOO_LARGE = 20, 257
# Versions of entries (docs/on-disk-format.md): from before transactions, with them, with their ends, with places of
# rows.
BEFORE, CHUNKS, ENDS, PLACES = 0, 4, 6, 7


def insert(key, size=1):
    return {"insert": "c", "documents": [{"_id": key, "x": "x" * size}]}


def whole(member, key, megabytes=0):
    """One transaction: 0, or the code of what failed."""
    t = Transaction(member)
    failed = code(t.begin(insert(key)))
    for i in range(megabytes):
        failed = failed or code(t.run(insert(f"{key} {i}", MB)))
    return failed or code(t.commit())


def placed(mongo, key):
    """Whether the row of the session that writes now tells where its write is in the log."""
    with mongo.start_session() as session:
        mongo.t.c.insert_one({"_id": key}, session=session)
        row = mongo.config.transactions.find_one({"_id.id": session.session_id["id"]})
    return row["lastWriteOpTime"]["ts"] != Timestamp(0, 0)


def run(check, s, mongo):
    primary = s.primary()
    old = s.others(primary)[0]
    mongo.t.create_collection("c", write_concern=MAJORITY)
    check(whole(primary, "all") == 0, "transactions while every member knows them")
    open_before = Transaction(primary)
    check(code(open_before.begin(insert("open"))) == 0, "a transaction that is open meanwhile")

    old.tell(f"reads {BEFORE}")
    refused = []

    def known():
        refused[:] = [Transaction(primary).begin({"find": "c"})]
        return code(refused[0]) != 0

    s.wait(known, "the primary to hear what the member reads")
    check(code(refused[0]) == ILLEGAL, f"a transaction beside a member that does not know any: {refused[0]}")
    check("errorLabels" not in refused[0], "it is not tried again")
    answer = open_before.commit()
    check(code(answer) == ILLEGAL, f"the commit of one that was open: {answer}")
    check(mongo.t.c.count_documents({"_id": "open"}) == 0, "nothing of it is left")
    mongo.t.c.insert_one({"_id": "plain", "x": "x" * (3 * MB)})
    check(not placed(mongo, "row before"), "a session's row is as earlier versions read it")

    old.tell(f"reads {CHUNKS}")
    s.wait(lambda: whole(primary, "small") == 0, "small transactions, which this member knows")
    check(whole(primary, "large", 18) == TOO_LARGE, "more than one entry takes, which it would not understand")
    check(mongo.t.c.count_documents({"_id": {"$regex": "^large"}}) == 0, "nothing of it is left")

    old.tell(f"reads {ENDS}")
    s.wait(lambda: whole(primary, "large", 18) == 0, "large transactions, which this member knows")
    check(not placed(mongo, "row still"), "a session's row is as this version reads it")
    old.tell(f"reads {PLACES}")
    count = iter(range(1000))
    s.wait(lambda: placed(mongo, f"row {next(count)}"), "rows with their place")
    old.tell("reads all")
    s.settled()
    check(s.same("t"), "all members hold the same")


def main():
    check = Checks()
    s = ReplicaSet(binary=FAULTY)
    try:
        s.initiate()
        s.settled()
        with pymongo.MongoClient(s.uri, **{**QUICK, "socketTimeoutMS": Deadline().millis}) as mongo:
            run(check, s, mongo)
    finally:
        s.close()
    check.end("earlier version")


if __name__ == "__main__":
    main()
