"""A part of access_run.py: whose the results of a bulkWrite are."""

import bson
from bson.int64 import Int64

UNAUTHORIZED = 13


def of_bulk_write(server, name, beside, check, log_in, password):
    """The results of a bulkWrite, whose operations come beside its body, as drivers send them, or in it."""
    server.user(name, ["readWrite"]).close()
    client = log_in(server.proc.port, name, password, "shop")
    ops = [{"insert": 0, "document": {}}, {"update": 1, "filter": {}, "updateMods": {"$set": {"x": 1}}, "upsert": True}]
    arrays = {"nsInfo": [{"ns": "shop.c"}, {"ns": "shop.d"}], "ops": ops + [{"delete": 1, "filter": {}}] * 5}
    body = {"bulkWrite": 1, "cursor": {"batchSize": 1}, "$db": "admin", **({} if beside else arrays)}
    client.send(bson.encode(body), **(arrays if beside else {}))
    reply = client.reply()
    check(reply["ok"] == 1 and reply["nInserted"] == 1 and reply["cursor"]["id"], f"a bulkWrite: {reply}")

    def more():
        get_more = {"getMore": Int64(reply["cursor"]["id"]), "collection": "$cmd.bulkWrite", "batchSize": 1}
        return client.command("admin", get_more).get("code", 0)

    what = f"results of a bulkWrite{' with sequences' if beside else ''}"
    check(more() == 0, f"{what}: are read")
    server.root.shop.command({"createUser": f"{name}x", "pwd": password, "roles": []})
    check(more() == 0, f"{what}: also when others change")
    can = [{"resource": {"db": "shop", "collection": c}, "actions": a} for c, a in (
        ("c", ["insert"]), ("d", ["insert", "update", "remove"]))]  # fmt: skip
    server.root.shop.command({"createRole": f"{name}r", "privileges": can, "roles": []})
    server.root.shop.command({"updateUser": name, "roles": [f"{name}r"]})
    check(more() == 0, f"{what}: and with a role that just allows it")
    server.root.shop.command({"updateRole": f"{name}r", "privileges": can[:1]})
    check(more() == UNAUTHORIZED, f"{what}: but not with one that does not")
    server.root.shop.command({"updateUser": name, "roles": ["readWrite"]})
    check(more() == 43, f"{what}: they are gone for good")
    client.sock.close()
