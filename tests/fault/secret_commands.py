"""Commands with a marked secret in each place that can hold one: what secrets_run.py sends, to look for the marks in
everything that the server shows and writes. Each function yields (how it is told of, the database, the command); `k` is
the mark.
"""

from bson.binary import Binary

USER = "credentials.SCRAM-SHA-256.storedKey"
NAMES = ("system.users", "tempusers")


def user(k, n="1"):
    keys = {"iterationCount": 15000, "salt": k, "storedKey": k, "serverKey": k}
    return {"_id": f"x.{n}", "user": n, "db": "x", "roles": [], "credentials": {"SCRAM-SHA-256": keys}, "note": k}


def reads(ref, k):
    """Of the collection `ref`: its name, or its UUID."""
    compared = {"$expr": {"$eq": [f"${USER}", {"$literal": k}]}}
    yield {"find": ref, "filter": {USER: k}}
    yield {"find": ref, "filter": {"x": k}}
    yield {"find": ref, "filter": {"$or": [{"x": {"$in": [1, [k], Binary(k.encode())]}}, compared]}}
    yield {"find": ref, "filter": {}, "projection": {"x": {"$literal": k}}}
    yield {"find": ref, "filter": {}, "projection": {"x": k}}
    yield {"find": ref, "filter": {}, "sort": {"x": k}}
    yield {"find": ref, "filter": {}, "let": {"x": k}, "comment": k}
    yield {"find": ref, "filter": {}, "hint": k}
    yield {"find": ref, "filter": {}, "min": {"_id": k}, "hint": {"_id": 1}}
    yield {"find": ref, "filter": {"$where": k}}
    yield {"find": ref, "filter": {"x": {"$regex": k}}}
    yield {"find": ref, "filter": {}, "readConcern": {"level": k}}
    yield {"find": ref, "filter": {}, "$readPreference": {"mode": k, "tags": [{"x": k}]}}
    # What misses an option's name, or that of a command.
    yield {"find": ref, "Filter": {"x": k}}
    yield {"find": ref, "query": k}
    yield {"findd": ref, "filter": {"x": k}}
    yield {"Find": ref, "filter": {"x": k}}
    yield {"count": ref, "query": {"x": k}}
    yield {"distinct": ref, "key": "x", "query": {"x": k}}
    yield {"distinct": ref, "key": k}
    yield {"aggregate": ref, "pipeline": [{"$match": {"x": k}}], "cursor": {}}
    stages = [{"$match": compared}, {"$addFields": {"y": k}}]
    yield {"aggregate": ref, "pipeline": stages, "cursor": {}, "let": {"z": k}}
    yield {"aggregate": ref, "pipeline": [{"$project": {"x": {"$toInt": k}}}], "cursor": {}}
    yield {"aggregate": ref, "pipeline": [{"$nothing": {"x": k}}], "cursor": {"x": k}}
    yield {"aggregate": ref, "pipeline": {"x": k}, "cursor": {}}
    yield {"planCacheClear": ref, "query": {"x": k}}
    yield {"planCacheSetFilter": ref, "query": {"x": k}, "indexes": [{"x": k}]}
    yield {"planCacheClearFilters": ref, "query": {"x": k}}


def writes(ref, k):
    never = {"_id": "none", USER: k}
    yield {"insert": ref, "documents": [user(k)]}
    yield {"insert": ref, "documents": [{"_id": k}, {"_id": "x.1", "secret": [k, {"x": k}]}], "ordered": False}
    yield {"insert": ref, "documents": [{"x": k}], "writeConcern": {"w": k}}
    yield {"insert": ref, "documents": k}
    yield {"update": ref, "updates": [{"q": never, "u": {"$set": {USER: k}}}]}
    yield {"update": ref, "updates": [{"q": {"x": k}, "u": [{"$set": {"x": k}}], "c": {"x": k}}]}
    yield {"update": ref, "updates": [{"q": never, "u": {"$set": {"x.$[e]": k}}, "arrayFilters": [{"e": k}]}] * 2}
    yield {"update": ref, "updates": [{"q": {"_id": "x.1"}, "u": {"$inc": {USER: 1}}}], "let": {"x": k}}
    yield {"delete": ref, "deletes": [{"q": {"x": k}, "limit": 1}]}
    yield {"delete": ref, "deletes": [{"q": {"$expr": {"$toInt": f"${USER}"}}, "limit": 1, "hint": k}], "comment": k}
    yield {"findAndModify": ref, "query": {"x": k}, "update": {"$set": {USER: k}}, "fields": {"x": k}}
    yield {"findAndModify": ref, "query": {"x": k}, "remove": True, "sort": {"x": k}, "let": {"x": k}}


def definitions(name, k):
    yield {"createIndexes": name, "indexes": [{"key": {"a": 1}, "name": "a", "partialFilterExpression": {"a": k}}]}
    yield {"createIndexes": name, "indexes": [{"key": {"a": k}, "name": "a", "unknown": k}]}
    yield {"dropIndexes": name, "index": k}
    yield {"dropIndexes": name, "index": "a"}
    yield {"collMod": name, "validator": {"never": {"$ne": k}}, "validationAction": "warn"}
    yield {"insert": name, "documents": [{**user(k, "7"), "never": k}]}
    yield {"collMod": name, "validationAction": "error"}
    yield {"insert": name, "documents": [{**user(k, "8"), "never": k}]}
    yield {"collMod": name, "validator": {}}
    yield {"collMod": name, "index": {"name": k, "hidden": True}}
    yield {"create": name, "validator": {"x": k}}
    yield {"create": f"v{name[:4]}", "viewOn": name, "pipeline": [{"$match": {"x": k}}]}
    yield {"find": f"v{name[:4]}", "filter": {"x": 1}}
    yield {"collMod": f"v{name[:4]}", "viewOn": name, "pipeline": [{"$match": {"y": k}}]}
    yield {"drop": f"v{name[:4]}"}
    yield {"listCollections": 1, "filter": {"name": name, "x": k}}
    yield {"profile": 2, "filter": {"ns": f"admin.{name}", "command.filter.x": k}}
    yield {"profile": 2, "filter": "unset"}


def others(name, k, plain="plain"):
    """That name the collection somewhere within."""
    ns = f"admin.{name}"
    match, fails = {"$match": {"x": k}}, [{"$project": {"x": {"$toInt": f"${USER}"}}}]
    yield "admin", {"bulkWrite": 1, "ops": [{"insert": 0, "document": user(k, "2")}], "nsInfo": [{"ns": ns}]}
    delete = [{"delete": 0, "filter": {"x": k}}]
    yield "admin", {"bulkWrite": 1, "ops": delete, "nsInfo": [{"ns": ns, "x": k}], "let": {"x": k}}
    for last in (
        {"$merge": {"into": {"db": "admin", "coll": name}, "let": {"x": k}, "whenMatched": [{"$set": {"x": k}}]}},
        {"$lookup": {"from": name, "as": "a", "let": {"x": k}, "pipeline": [match]}},
        {"$unionWith": {"coll": name, "pipeline": [match]}},
        {"$graphLookup": {"from": name, "startWith": k, "connectFromField": "a", "connectToField": "b", "as": "c"}},
        {"$facet": {"a": [{"$lookup": {"from": name, "as": "a", "pipeline": fails}}]}},
    ):  # fmt: skip
        yield "admin", {"aggregate": plain, "pipeline": [match, last], "cursor": {"batchSize": 0}, "let": {"x": k}}
        yield "admin", {"aggregate": plain, "pipeline": [last], "cursor": {}, "comment": k}
    yield "shop", {"aggregate": plain, "pipeline": [match, {"$out": {"db": "admin", "coll": name}}], "cursor": {}}


def entries(name, uuid, k):
    """Of applyOps; by the collection's UUID it does not matter what its name is said to be."""
    for ns, ui in ((f"admin.{name}", {}), *([("admin.other", {"ui": uuid})] if uuid else [])):
        yield {"op": "i", "ns": ns, "o": user(k, "3"), **ui}
        yield {"op": "i", "ns": ns, "o": {"_id": k, "x": k}, **ui}
        yield {"op": "u", "ns": ns, "o": {"$set": {USER: k, "x": k}}, "o2": {"_id": k}, **ui}
        yield {"op": "u", "ns": ns, "o": {"$v": 2, "diff": {"u": {"x": k}}}, "o2": {"_id": "x.1"}, **ui}
        yield {"op": "d", "ns": ns, "o": {"_id": k, "x": k}, **ui}
        yield {"op": "n", "ns": ns, "o": {"msg": k}, **ui}
        yield {"op": "?", "ns": ns, "o": {"msg": k}, **ui}
    index = {"createIndexes": name, "key": {"a": 1}, "name": "a", "v": 2, "partialFilterExpression": {"a": k}}
    yield {"op": "c", "ns": "admin.$cmd", "o": index}
    yield {"op": "c", "ns": "admin.$cmd", "o": {"collMod": name, "validator": {"x": k}}}
    yield {"op": "c", "ns": "admin.$cmd", "o": {"create": "w", "viewOn": name, "pipeline": [{"$match": {"x": k}}]}}


NUMBER = 918273645546372
WRONG_FIELDS = ("Pwd", "pw", "PWD", "passwrd", "key", "secret", "new", "Password", "p.w.d", "", "credential", "filter")


def of_users(k):
    """Commands for users with a password under wrong names."""
    for field in WRONG_FIELDS:
        for value in (k, {"x": k}, [k], Binary(k.encode()), NUMBER):
            yield {"createUser": "u1", "roles": [], field: value}
            yield {"updateUser": "u1", field: value}
    for name in ("dropUser", "grantRolesToUser", "revokeRolesFromUser", "usersInfo", "createuser", "CreateUser"):
        for field in WRONG_FIELDS:
            yield {name: "u1", "roles": [], field: k}
        yield {name: {"user": "u1", "db": "admin", "secret": k}}
        yield {name: "u1", "roles": [{"role": "read", "db": "admin", "secret": k}]}
    for name in ("creatUser", "changeUserPassword", "addUser", "userAdd", "update_user"):
        yield {name: "u1", "to": k}
    yield {"updateUsr": "u1", "pwd": k}
    yield {"dropAllUsersFromDatabase": 1, "pw": k}
    yield {"usersInfo": 1, "filter": {"$expr": {"$eq": [f"${USER}", k]}}}


def of_logins(k):
    """The same of logins."""
    yield {"SaslStart": 1, "mechanism": "PLAIN", "payload": k}
    yield {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "Payload": k}
    yield {"SASLCONTINUE": 1, "payload": k}
    yield {"hello": 1, "SpeculativeAuthenticate": {"saslStart": 1, "payload": k}}
    yield {"hello": 1, "speculativeauthenticate": k}
    yield {"setParameter": 1, "tlsClusterPasswrd": k}


def explained(command):
    for verbosity in ("queryPlanner", "executionStats", "allPlansExecution", None):
        yield {"explain": command, **({"verbosity": verbosity} if verbosity else {})}


def at_once(place, uuid_of):
    """What names a collection of users, in all ways, and by itself or within others. `uuid_of`: what its UUID is now,
    since $out replaces the collection of restored users."""

    def make(k):
        for ref in (place, uuid_of(place)):
            for commands in (reads, writes):
                for c in commands(ref, k):
                    yield c
                    if commands is reads or next(iter(c)) in ("update", "delete", "findAndModify"):
                        yield from explained(c)
        for db, c in others(place, k):
            yield db, c
            yield from ((db, e) for e in explained(c))
        for e in entries(place, uuid_of(place), k):
            yield {"applyOps": [e]}
            yield {"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"applyOps": [e]}}], "comment": k}
        yield from definitions(place, k)

    return make


def users_at_once(k):
    for c in (*of_users(k), *of_logins(k)):
        yield c
        yield {"explain": c}
        if "hello" not in c:
            yield {"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": c}]}


def long_ones(place):
    """Commands of all lengths at which less of them is shown; the collection is named at the end."""

    def make(k):
        for size in (900, 2_000, 5_000, 20_000, 60_000, 300_000, 6_000_000):
            for pad in ({"x": "p" * size}, {"x": [{"p": 1}] * (size // 20)}):
                lookup = {"$lookup": {"from": place, "as": "a", "pipeline": []}}
                aggregate = {"aggregate": "plain", "let": {"y": k}, "comment": k}
                aggregate |= {"pipeline": [{"$match": {"$or": [pad, {"x": k}]}}, lookup], "cursor": {"batchSize": 0}}
                yield aggregate
                yield {"explain": aggregate}
                yield {"find": place, "let": {"y": k}, "comment": k, "filter": {"$or": [pad, {"x": k}]}, "batchSize": 0}
                entry = {"op": "d", "ns": f"admin.{place}", "o": {"_id": k}}
                yield {"applyOps": [{"op": "n", "ns": "", "o": {**pad, "y": k}}, entry]}
                ops = [{"delete": 0, "filter": {**pad, "y": k}}]
                yield {"bulkWrite": 1, "let": {"y": k}, "ops": ops, "nsInfo": [{"ns": f"admin.{place}"}]}
                yield {"createUser": "u1", "roles": [], "pw": k, "customData": pad}
                yield {"creatUser": "u1", "pw": k, "pad": pad}

    return make
