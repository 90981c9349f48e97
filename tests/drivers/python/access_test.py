"""Logins of PyMongo, over TLS: what with_access.py gives in the environment."""

import os, sys
from pathlib import Path

import pymongo
from pymongo.errors import OperationFailure

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fault"))
from fault_test import Checks

check = Checks(quiet=True)


def code(uri):
    """What a client of this URI is told; 0: it is let in."""
    with pymongo.MongoClient(uri) as client:
        try:
            client.access_python.things.find_one()
            return 0
        except OperationFailure as e:
            return e.code


for line in os.environ["LOGINS"].split("\n"):
    name, uri = line.split(" ")
    with pymongo.MongoClient(uri) as client:
        try:
            who = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
            check(len(who) == 1, f"{name}: {who}")
            things = client.access_python[name]
            things.drop()
            things.insert_many({"_id": i, "v": i % 10} for i in range(300))
            ids = [d["_id"] for d in things.find({"v": {"$lt": 5}}, batch_size=7).sort("_id", -1)]
            check(ids == [i for i in range(299, -1, -1) if i % 10 < 5], f"{name}: a cursor of many batches")
            groups = list(things.aggregate([{"$group": {"_id": "$v", "n": {"$sum": 1}}}], batchSize=3))
            check(sorted(g["n"] for g in groups) == [30] * 10, f"{name}: an aggregation")
            with client.start_session(causal_consistency=True) as session:
                things.update_many({"v": 1}, {"$inc": {"n": 1}}, session=session)
                check(things.count_documents({"n": 1}, session=session) == 30, f"{name}: a session")
            if client.topology_description.has_writable_server() and "replicaSet" in uri:
                with things.watch(max_await_time_ms=100) as stream:
                    things.insert_one({"_id": "seen"})
                    check(next(stream)["documentKey"]["_id"] == "seen", f"{name}: a change stream")
                read = things.with_options(read_preference=pymongo.ReadPreference.SECONDARY)
                with client.start_session(causal_consistency=True) as session:
                    things.insert_one({"_id": "there"}, session=session)
                    check(read.find_one({"_id": "there"}, session=session), f"{name}: a read of a secondary")
            try:
                client.admin.command("createUser", "more", pwd="x", roles=[])
                check(False, f"{name}: may not make users")
            except OperationFailure as e:
                check(e.code == 13, f"{name}: may not make users: {e}")
        except OperationFailure as e:
            check(False, f"{name}: {e}")
check(code(os.environ["WRONG_LOGIN"]) == 18, "a wrong password")
check(code(os.environ["NO_LOGIN"]) == 13, "no login")
check.end("python")
