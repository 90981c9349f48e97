"""Views that read users, and pipelines that read the log of a set: what secrets_run.py asks of them, and what it may be
told.
"""

from pymongo.errors import OperationFailure

from audit_server import PASSWORD

KEY = "canary-6ae1f-stored-key"
VALUE = "canary-6ae1f-value"
USER = {"_id": "x.z", "user": "z", "db": "x", "roles": [], "credentials": {
    "SCRAM-SHA-256": {"iterationCount": 15000, **{k: KEY for k in ("salt", "storedKey", "serverKey")}}}}  # fmt: skip
NO_NUMBER = {"$toInt": "$credentials.SCRAM-SHA-256.storedKey"}


def error_of(f, *a, **k):
    """What the client is told; empty without an error."""
    try:
        f(*a, **k)
        return ""
    except OperationFailure as e:
        return str(e.details)


def by_views(root, check):
    """Errors of views on users quote nothing, also where plans compete, which read before there is a cursor."""
    db = root.admin
    db.tempusers.create_index("user")
    db.tempusers.insert_many([{**USER, "_id": f"x.{i}", "user": str(i)} for i in range(5)])
    db.create_collection("rows", viewOn="tempusers", pipeline=[{"$match": {"db": "shop"}}])
    db.create_collection("fails", viewOn="tempusers", pipeline=[{"$match": {"$expr": NO_NUMBER}}])
    one_plan, two_plans = {}, {"_id": {"$gt": ""}, "user": {"$gt": ""}}
    plans = db.command("explain", {"find": "tempusers", "filter": two_plans})["queryPlanner"]
    check(len(plans["rejectedPlans"]) == 1, f"there are two: {plans}")
    for asked in (one_plan, two_plans):
        for view, more in (("rows", {"$expr": NO_NUMBER}), ("fails", {})):
            match = {**asked, **more}
            for command in (
                {"find": view, "filter": match}, {"count": view, "query": match},
                {"distinct": view, "key": "x", "query": match},
                {"aggregate": view, "pipeline": [{"$match": match}], "cursor": {}},
                {"aggregate": "plain", "pipeline": [{"$unionWith": {"coll": view, "pipeline": [{"$match": match}]}}],
                 "cursor": {}},
                {"explain": {"find": view, "filter": match}, "verbosity": "executionStats"},
            ):  # fmt: skip
                said = error_of(db.command, command)
                # What the other one leaves out is not looked at, so there is no error.
                check("parse" not in said and (view == "rows" or "is not shown" in said), f"{command}: {said}")


def by_stages(s, root, check):
    """A view's own stage reads users: who may read nothing but the view is not told what they have."""
    db = root.admin
    of_z, number = [{"$match": {"_id": "x.z"}}], {"$toInt": "$l.credentials.SCRAM-SHA-256.storedKey"}
    ends = [{"$unwind": "$l"}, {"$project": {"x": number}}]
    joins = [{"$lookup": {"from": "system.users", "as": "l", "pipeline": of_z}}, *ends]
    link = {"from": "system.users", "as": "l", "startWith": "x.z", "connectFromField": "_id", "connectToField": "_id"}
    views = {
        "unites": [{"$unionWith": {"coll": "system.users", "pipeline": of_z}}, {"$project": {"x": NO_NUMBER}}],
        "joins": joins,
        "links": [{"$graphLookup": link}, *ends],
        "splits": [{"$facet": {"f": joins}}],
    }
    for view, pipeline in views.items():
        db.create_collection(view, viewOn="plain", pipeline=pipeline)
    db.create_collection("above", viewOn="joins", pipeline=[])
    names = [*views, "above"]
    see = [{"resource": {"db": "admin", "collection": v}, "actions": ["find"]} for v in names]
    db.command("createRole", "sees", privileges=see, roles=[])
    db.command("createUser", "reader", pwd=PASSWORD, roles=["sees"])
    reader = s.connect("reader")
    match = {"q": {"$ne": "canary-of-a-filter"}}
    for view in names:
        opened = reader.admin.command("aggregate", view, pipeline=[], cursor={"batchSize": 0})
        for command in (
            {"find": view, "filter": match}, {"distinct": view, "key": "x", "query": match},
            {"aggregate": view, "pipeline": [{"$match": match}], "cursor": {}},
            {"explain": {"find": view, "filter": match}, "verbosity": "executionStats"},
            {"getMore": opened["cursor"]["id"], "collection": view},
        ):  # fmt: skip
            said = error_of(reader.admin.command, command)
            check(KEY not in said and "is not shown" in said, f"{command}: {said}")
    profile = str(list(db.system.profile.find({"ns": {"$in": [f"admin.{v}" for v in names]}})))
    check("errCode" in profile and "canary-of-a-filter" not in profile, "nor does the profile have their commands")


def by_log(s, client, check):
    """The log as a second collection: its reader may be told, and what the server shows has nothing of it."""
    client.admin.tempusers.insert_one(USER)
    of_z = [{"$match": {"o._id": "x.z"}}, {"$project": {"x": {"$toInt": "$o.credentials.SCRAM-SHA-256.storedKey"}}}]
    unite = [{"$documents": [{}]}, {"$unionWith": {"coll": "oplog.rs", "pipeline": of_z}}]
    join = [{"$documents": [{}]}, {"$lookup": {"from": "oplog.rs", "as": "l", "pipeline": of_z}}]
    for pipeline in (unite, join):
        opened = client.local.command("aggregate", 1, pipeline=pipeline, cursor={"batchSize": 0})
        for command in (
            {"aggregate": 1, "pipeline": pipeline, "cursor": {}},
            {"explain": {"aggregate": 1, "pipeline": pipeline, "cursor": {}}, "verbosity": "executionStats"},
            {"getMore": opened["cursor"]["id"], "collection": "$cmd.aggregate"},
        ):
            said = error_of(client.local.command, command)
            check(KEY in said, f"its client may read the log, and is told: {command}: {said}")
    shown = {"the log": s.log(), "getLog": str(client.admin.command("getLog", "global"))}
    for place, text in shown.items():
        at = text.find(KEY)
        check(at < 0, f"nothing in {place}: {text[max(0, at - 300) :][:500] if at >= 0 else ''}")
