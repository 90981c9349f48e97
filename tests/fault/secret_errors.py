"""Messages of errors, and what else quotes a password of a document outside of commands: for secrets_run.py."""

import json
from pathlib import Path

from fault_test import Client, until
from own_server import code
from secret_views import VALUE


def by_errors(s, root, check):
    """Messages of errors that quote a password of a document, or may; the filter of a hold; a validator that is shown
    with what fails it."""
    d, words = root.shop, "shop.words"
    d.words.insert_many([{"_id": n, "password": VALUE} for n in (1, 2)])
    check(code(d.words.create_index, "password", unique=True) == 11000, "an index that cannot be built")
    d.words.delete_one({"_id": 2})
    d.words.create_index("password", unique=True)
    number = [{"$project": {"x": {"$toInt": "$password"}}}]
    copies = [{"$match": {"_id": 1}}, {"$set": {"_id": 9}}, {"$merge": "words"}]
    change = {"findAndModify": "words", "query": {"_id": 9}, "upsert": True}
    for command, expected in (
        ({**change, "update": {"$set": {"password": VALUE}}}, 11000),
        ({**change, "update": {"$set": {"password.x": 1}}, "query": {"_id": 1}}, 28),
        ({"aggregate": "words", "pipeline": number, "cursor": {}}, 241),
        ({"aggregate": "words", "pipeline": copies, "cursor": {}}, 11000),
    ):
        check(code(d.command, command) == expected, f"{command} fails with {expected}")

    def hidden():
        lines = [json.loads(x) for x in s.log().splitlines() if '"id":51803' in x and f'"{words}"' in x]
        return [x["attr"] for x in lines if x["attr"].get("errMsg") == "xxx"]

    check(until(lambda: len(hidden()) >= 4), f"their messages are hidden: {len(hidden())}")
    check(any(x.get("errName") == "DuplicateKey" for x in hidden()), "their codes are not")
    # One that has no secret is shown.
    d.words.insert_one({"_id": 3, "text": "visible-text"})
    check(code(d.command, {"aggregate": "words", "pipeline": [{"$project": {"x": {"$toInt": "$text"}}}], "cursor": {}})
          == 241, "no number")  # fmt: skip
    check(until(lambda: "number 'visible-text'" in s.log()), "another message is shown")
    hold = d.command("ttlHold", "words", filter={"password": VALUE, "a": "visible-filter"}, reason="x")
    d.command("ttlHoldRelease", "words", holdId=hold["holdId"])
    check(Path(s.audit_path).read_text().count("visible-filter") >= 2, "the audit log has the rest of the filter")
    client = {"driver": {"name": "visible-driver", "version": "1"}, "os": {"type": "any", "password": VALUE}}
    check(Client("127.0.0.1", s.port).command("admin", {"hello": 1, "client": client})["ok"] == 1, "a first hello")
    check(until(lambda: "visible-driver" in s.log()), "the log tells of clients")
    d.create_collection("strict", validator={"password": {"$eq": VALUE}}, validationAction="warn")
    d.strict.insert_one({"a": 1})
