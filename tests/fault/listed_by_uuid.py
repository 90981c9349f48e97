"""A cursor of listIndexes by UUID, for access_run.py."""

from pymongo.errors import OperationFailure

UNAUTHORIZED = 13


def listed_by_uuid(server, check):
    """It needs useUUID, and listIndexes on the collection, which only the command itself knows: both as long as it is
    read. `server` has a collection shop.c."""
    server.root.shop.c.create_index("a")
    uuid = next(c["info"]["uuid"] for c in server.root.shop.list_collections(filter={"name": "c"}))
    needs = {"uses": ({"cluster": True}, "useUUID"), "lists": ({"db": "shop", "collection": "c"}, "listIndexes")}
    for name, (resource, action) in needs.items():
        own = [{"resource": resource, "actions": [action]}]
        server.root.admin.command({"createRole": name, "privileges": own, "roles": []})
    client = server.user("lister", list(needs), "admin")
    with client.start_session() as session:

        def run(command):
            try:
                return client.shop.command(command, session=session)["cursor"]
            except OperationFailure as e:
                return e.code

        def more(cursor):
            return run({"getMore": cursor["id"], "collection": "c", "batchSize": 1})

        listing = {"listIndexes": uuid, "cursor": {"batchSize": 0}}
        for revoked in needs:
            cursor = run(listing)
            server.root.admin.command({"createRole": f"beside_{revoked}", "privileges": [], "roles": []})
            check(len(more(cursor)["nextBatch"]) == 1, "listIndexes by UUID goes on when others change")
            server.root.admin.command({"revokeRolesFromUser": "lister", "roles": [revoked]})
            after = more(cursor)
            check(after == UNAUTHORIZED, f"but not without {needs[revoked][1]}: {after}")
            check(run(listing) == UNAUTHORIZED, "as the command itself")
            server.root.admin.command({"grantRolesToUser": "lister", "roles": [revoked]})
    client.close()
