"""pytest: an application's expiry logic, tested without waiting. Needs a server started with --testClock."""

import os
from datetime import datetime, timedelta, timezone

import pytest
from pymongo import MongoClient

START = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


class Clock:
    """The server's clock, moved by hand. When advance() returns, everything due by then is gone."""

    def __init__(self, client):
        self.admin = client.admin
        self.now = START
        self.admin.command({"clock": {"freeze": True, "set": START}})

    def advance(self, seconds):
        self.now += timedelta(seconds=seconds)
        self.admin.command({"clock": {"advanceSeconds": seconds}})

    def back_to_real(self):
        self.admin.command({"clock": "real"})


@pytest.fixture
def client():
    with MongoClient(os.environ["MONGODB_URI"]) as c:
        yield c


@pytest.fixture
def clock(client):
    c = Clock(client)
    yield c
    c.back_to_real()


@pytest.fixture
def tokens(client, clock):
    coll = client.pytest_example.tokens
    coll.drop()
    coll.create_index("issued", expireAfterSeconds=3600, partialFilterExpression={"used": False})
    return coll


def test_an_unused_token_lives_an_hour(tokens, clock):
    tokens.insert_one({"_id": "t1", "issued": clock.now, "used": False})
    clock.advance(3599)
    assert tokens.count_documents({}) == 1
    clock.advance(1)
    assert tokens.count_documents({}) == 0


def test_a_used_token_stays(tokens, clock):
    tokens.insert_one({"_id": "t2", "issued": clock.now, "used": False})
    tokens.update_one({"_id": "t2"}, {"$set": {"used": True}})
    clock.advance(7 * 24 * 3600)
    assert tokens.find_one()["_id"] == "t2"


def test_why_a_document_stays(tokens, clock, client):
    tokens.insert_one({"_id": "t3", "issued": "yesterday", "used": False})
    why = client.pytest_example.command("ttlExplain", "tokens", q={"_id": "t3"})
    assert why["deadline"] is None
    assert why["candidates"][0]["reason"] == "string"
