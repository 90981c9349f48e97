"""Libraries as their users use them: MongoEngine, Beanie (on asyncio), Celery with its results and its queue here,
Flask-Session."""

import asyncio, datetime, os, sys, time, warnings
from pathlib import Path

from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import DuplicateKeyError

from parts import run_all

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden"))
from waits import Deadline

warnings.simplefilter("ignore")
URI = os.environ["MONGODB_URI"]
client = MongoClient(URI)
tests = []


def test(f):
    tests.append(f)
    return f


def on_database(name):
    base, _, options = URI.partition("/?")
    return base.rstrip("/") + "/" + name + ("?" + options if options else "")


@test
def mongoengine():
    import mongoengine as me

    me.connect("py_mongoengine", host=URI)

    class Tag(me.EmbeddedDocument):
        name = me.StringField()

    class Author(me.Document):
        name = me.StringField(unique=True)

    class Post(me.Document):
        title = me.StringField()
        score = me.IntField()
        tags = me.EmbeddedDocumentListField(Tag)
        author = me.ReferenceField(Author, reverse_delete_rule=me.CASCADE)
        body = me.FileField()
        made = me.DateTimeField(default=datetime.datetime.now)
        meta = {"indexes": ["title", ("author", "-score"), {"fields": ["made"], "expireAfterSeconds": 3600}]}

    class Log(me.Document):
        text = me.StringField()
        meta = {"max_documents": 3, "max_size": 100_000}

    client.drop_database("py_mongoengine")
    ann, bob = Author(name="ann").save(), Author(name="bob").save()
    try:
        Author(name="ann").save()
        raise AssertionError("a second ann")
    except me.NotUniqueError:
        pass
    for i in range(12):
        Post(title=f"t{i}", score=i, tags=[Tag(name=f"x{i % 3}")], author=ann if i % 2 else bob).save()
    assert Post.objects(tags__name="x1", score__gte=4).count() == 3
    assert Post.objects(me.Q(score__lt=2) | me.Q(title__icontains="T11")).count() == 3
    assert Post.objects(score=5).update_one(inc__score=100, push__tags=Tag(name="new")) == 1
    assert Post.objects(title="t5").modify(new=True, set__title="t5b").score == 105
    assert Post.objects(title="up").upsert_one(set__score=1).score == 1
    assert Post.objects.distinct("tags.name") == ["new", "x0", "x1", "x2"]
    post = Post.objects.get(title="t0")
    post.body.put(b"x" * 600_000)
    post.save()
    assert len(Post.objects.get(id=post.id).body.read()) == 600_000
    assert Post.compare_indexes() == {"missing": [], "extra": []}
    ann.delete()
    assert Post.objects(author=ann).count() == 0
    for i in range(5):
        Log(text=str(i)).save()
    assert [x.text for x in Log.objects] == ["2", "3", "4"]
    me.disconnect()


@test
def beanie():
    asyncio.run(beanie_on_asyncio())


async def beanie_on_asyncio():
    from typing import Annotated, Optional

    from beanie import BulkWriter, Document, Indexed, Link, View, init_beanie
    from beanie.operators import Inc, Set
    from pymongo import IndexModel

    class House(Document):
        name: Annotated[str, Indexed(unique=True)]

    class Product(Document):
        name: str
        price: Annotated[float, Indexed()]
        kind: str
        house: Optional[Link[House]] = None
        at: datetime.datetime = datetime.datetime(2030, 1, 1)

        class Settings:
            name = "products"
            indexes = [IndexModel("at", name="ttl", expireAfterSeconds=3600)]

    class OfKind(View):
        total: float

        class Settings:
            source = Product
            pipeline = [{"$group": {"_id": "$kind", "total": {"$sum": "$price"}}}]

    async with AsyncMongoClient(URI) as asynchronous:
        await asynchronous.drop_database("py_beanie")
        for _ in range(2):  # again: the indexes are compared with those that are there
            await init_beanie(
                database=asynchronous.py_beanie,
                document_models=[House, Product, OfKind],
                recreate_views=True,
                allow_index_dropping=True,
            )
        house = await House(name="h").insert()
        try:
            await House(name="h").insert()
            raise AssertionError("a second house")
        except DuplicateKeyError:
            pass
        await Product.insert_many([Product(name=f"p{i}", price=i, kind=f"k{i % 2}", house=house) for i in range(10)])
        # Links are joined through the fields of a DBRef.
        found = await Product.find_one(Product.name == "p3", fetch_links=True)
        assert found.house.name == "h"
        assert len(await Product.find(Product.house.name == "h", fetch_links=True).to_list()) == 10
        await Product.find(Product.kind == "k1").update(Inc({Product.price: 10}))
        assert await Product.find(Product.price >= 11).count() == 5
        async with BulkWriter() as bulk:
            await Product.find_one(Product.name == "p2").update(Set({Product.price: 100}), bulk_writer=bulk)
            await Product.find_one(Product.name == "p4").delete(bulk_writer=bulk)
        assert await Product.find_one(Product.name == "p4") is None
        assert await Product.distinct("kind") == ["k0", "k1"]
        assert {v.total for v in await OfKind.find().to_list()} == {0 + 100 + 6 + 8, 11 + 13 + 15 + 17 + 19}


@test
def celery():
    from celery import Celery, chain, group
    from celery.contrib.testing.worker import start_worker

    client.drop_database("py_celery")
    app = Celery("tests", broker=on_database("py_celery"), backend=on_database("py_celery"))
    app.conf.update(
        result_expires=3600, mongodb_backend_settings={"database": "py_celery"}, worker_hijack_root_logger=False
    )

    @app.task(name="add")
    def add(a, b):
        return a + b

    @app.task(name="fails", throws=(ValueError,))
    def fails():
        raise ValueError("on purpose")

    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="error"):
        assert add.delay(2, 3).get(timeout=Deadline().seconds) == 5
        assert group(add.s(i, i) for i in range(4))().get(timeout=Deadline().seconds) == [0, 2, 4, 6]
        assert chain(add.s(1, 2), add.s(3))().get(timeout=Deadline().seconds) == 6
        try:
            fails.delay().get(timeout=Deadline().seconds)
            raise AssertionError("no error")
        except ValueError:
            pass
    app.backend.cleanup()


@test
def flask_session():
    from flask import Flask, session
    from flask_session import Session

    client.drop_database("py_sessions")
    app = Flask("tests")
    app.config.update(
        SESSION_TYPE="mongodb",
        SESSION_MONGODB=client,
        SESSION_MONGODB_DB="py_sessions",
        PERMANENT_SESSION_LIFETIME=datetime.timedelta(hours=1),
    )
    Session(app)

    @app.get("/")
    def count():
        session["n"] = session.get("n", 0) + 1
        return str(session["n"])

    browser = app.test_client()
    assert [browser.get("/").text for _ in range(3)] == ["1", "2", "3"]
    assert any(i.get("expireAfterSeconds") == 0 for i in client.py_sessions.sessions.index_information().values())
    # What is past its deadline is gone: a new session begins.
    client.py_sessions.sessions.update_many({}, {"$set": {"expiration": datetime.datetime(2020, 1, 1)}})
    end = time.monotonic() + 60
    while client.py_sessions.sessions.count_documents({}) > 0:
        assert time.monotonic() < end, "the session did not expire"  # clock: a deadline that only a hang misses
    assert browser.get("/").text == "1"


run_all("libraries", tests)
