#!/usr/bin/env python3
"""The tests that the drivers' authentication specification describes in words: which mechanism is agreed on, what
SASLprep makes of names and passwords, what a login costs in messages, and who is refused.

  tests/drivers/with_access.py single|replicaset3 tests/conformance/auth.py

Its files (auth/, connection-string/) are about URIs: they test a driver without a server. The last line is "N passed,
N failed".
"""

import os, re, sys
from pathlib import Path
from urllib.parse import quote, urlsplit

import pymongo
from pymongo import monitoring
from pymongo.errors import OperationFailure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fault"))
from fault_test import Checks

root = pymongo.MongoClient(os.environ["ROOT_LOGIN"])
base = os.environ["NO_LOGIN"]
AGREE = None
BOTH = ["SCRAM-SHA-1", "SCRAM-SHA-256"]
check = Checks(quiet=True)


class Names(monitoring.CommandListener):
    """The commands of a login and those behind it."""

    def __init__(self):
        self.seen = []

    def started(self, event):
        self.seen.append(event.command_name)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


def login(user, password, mechanism=AGREE, names=None, **options):
    """0, or the code with which the login is refused."""
    uri = base.replace("mongodb://", f"mongodb://{quote(user, safe='')}:{quote(password, safe='')}@")
    uri += "&authSource=admin" + (f"&authMechanism={mechanism}" if mechanism else "")
    more = {"event_listeners": [names]} if names else {}
    with pymongo.MongoClient(uri, **more, **options) as client:
        try:
            who = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
            assert [u["user"] for u in who] == [user], who
            return 0
        except OperationFailure as e:
            return e.code


def make(user, password, mechanisms):
    root.admin.command("createUser", user, pwd=password, roles=["root"], mechanisms=mechanisms)


def negotiation():
    """ "SCRAM-SHA-256 and mechanism negotiation", steps 1 to 3."""
    for user, mechanisms in (("sha1", BOTH[:1]), ("sha256", BOTH[1:]), ("both", BOTH)):
        user = f"spec-{user}"
        make(user, user, mechanisms)
        check(login(user, user) == 0, f"{user} agrees on a mechanism")
        for m in BOTH:
            want = 0 if m in mechanisms else 18
            check(login(user, user, m) == want, f"{user} by {m}: {want}")
        hello = root.admin.command("hello", saslSupportedMechs=f"admin.{user}")["saslSupportedMechs"]
        check(sorted(hello) == mechanisms, f"hello names {mechanisms} of {user}")
    check(login("spec-nobody", "x") == 18, "somebody who does not exist is refused as one with a wrong password")
    check(login("spec-both", "x") == 18, "a wrong password")


def saslprep():
    """Step 4: names are sent as they are, passwords are prepared."""
    make("IX", "IX", BOTH[1:])
    make("\u2168", "\u2163", BOTH[1:])
    for mechanism in (AGREE, "SCRAM-SHA-256"):
        for user, password in (("IX", "IX"), ("IX", "I\u00adX"), ("\u2168", "IV"), ("\u2168", "I\u00adV")):
            check(login(user, password, mechanism) == 0, f"{user!r} with {password!r} by {mechanism}")
        for user, password in (("IX", "IV"), ("\u2168", "IX"), ("I\u00adX", "IX"), ("IX", "ix")):
            check(login(user, password, mechanism) == 18, f"{user!r} with {password!r} by {mechanism} is refused")


def messages():
    """A login that begins in hello and has no empty exchange takes one message more; one that cannot, two."""
    names = Names()
    check(login("spec-sha256", "spec-sha256", names=names) == 0, "a login that begins in hello")
    check(names.seen[:2] == ["saslContinue", "connectionStatus"], f"takes one message more: {names.seen}")
    names = Names()
    check(login("spec-sha1", "spec-sha1", names=names) == 0, "one that begins with the other mechanism")
    sasl = [n for n in names.seen if n.startswith("sasl")]
    check(sasl == ["saslStart", "saslContinue"], f"begins again: {names.seen}")


def recipes():
    """The connection strings of docs/security.md, with the names of these servers in them."""
    root.shop.command("createUser", "app", pwd="p@ss:word", roles=["readWrite"])
    hosts = urlsplit(base).netloc
    on_set = "replicaSet" in base
    page = Path(__file__).resolve().parents[2] / "docs/security.md"
    lines = re.findall(r"^    (mongodb://\S*example\S*)$", page.read_text(), re.M)
    check(len(lines) == 5, f"all of them are looked at: {lines}")
    for line in lines:
        if ("replicaSet" in line) != on_set or "tls=true" not in line:
            continue
        uri = re.sub(r"[\w.,]+\.example", hosts, line).replace("PASSWORD", quote("p@ss:word", safe=""))
        uri = uri.replace("ca.pem", os.environ["TLS_CA_FILE"]).replace("app.pem", os.environ["TLS_CLIENT_FILE"])
        with pymongo.MongoClient(uri) as client:
            done = client.shop.things.replace_one({"_id": 1}, {"x": 1}, upsert=True)
            check(done.acknowledged, line)


for part in (negotiation, saslprep, messages, recipes):
    try:
        part()
    except Exception as e:
        check(False, f"{part.__name__} ended: {e!r}")
check.end("conformance auth")
