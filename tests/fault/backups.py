"""What the runs about backups share: servers, folders of backups, load beside them, and comparisons.

MAYFLY_BACKUP names another mayfly-backup.
"""

import json, os, signal, subprocess, tempfile, threading
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, ROOT, Checks, Deadline, discard, free_port, rnd, run_parts, until

TOOL = os.environ.get("MAYFLY_BACKUP", str(ROOT / "build/release/mayfly-backup"))
check = Checks(quiet=True)
HOUR = 3600
work = os.path.realpath(tempfile.mkdtemp(prefix="mayfly-backup-"))
started = []


class Server:
    """A mayflyd on a data directory of its own or one that is there."""

    def __init__(self, data=None, *extra):
        self.data = data or tempfile.mkdtemp(prefix="data-", dir=work)
        self.extra = list(extra)
        self.start()
        started.append(self)

    def start(self, port=None):
        self.port = port or free_port()
        self.out = open(self.data.rstrip("/") + ".log", "ab")
        self.proc = subprocess.Popen(
            [BINARY, "--dbpath", self.data, "--port", str(self.port), "--nounixsocket"]
            + ([] if "--httpPort" in self.extra else ["--httpPort", "0"])
            + self.extra,
            stdout=self.out,
            stderr=subprocess.STDOUT,
        )
        self.client = pymongo.MongoClient(  # clock: asked again until it answers
            "127.0.0.1", self.port, directConnection=True, serverSelectionTimeoutMS=500, tz_aware=True
        )
        if not until(self.answers, 30):
            raise AssertionError(f"the server did not start: {self.log()[-2000:]}")

    def answers(self):
        try:
            return self.client.admin.command("ping")
        except PyMongoError:
            return self.proc.poll() is not None

    def log(self):
        return Path(self.data.rstrip("/") + ".log").read_text(errors="replace")

    def backup(self, path, **more):
        return self.client.admin.command("backup", 1, path=path, **more)

    def stop(self, sig=signal.SIGTERM):
        self.client.close()
        if self.proc.poll() is None:
            self.proc.send_signal(sig)
        return self.proc.wait(Deadline().seconds)


def folder():
    return f"{tempfile.mkdtemp(prefix='backups-', dir=work)}/b"


def offline(path, data, *options):
    """mayflyd --backup: (exit code, what was said)."""
    words = [BINARY, "--backup", path, "--dbpath", data, *options]
    r = subprocess.run(words, capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def restore(path, *options, data=None):
    """(exit code, what was said, the data directory)."""
    data = data or f"{tempfile.mkdtemp(prefix='restored-', dir=work)}/data"
    r = subprocess.run([BINARY, "--restore", path, "--dbpath", data, *options], capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr, data


def tool(*words):
    r = subprocess.run([TOOL, *words], capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def listing(path):
    """What `list --json` says: a document a line. libmongoc may warn besides, where a killed process has left it no
    shared memory."""
    r = subprocess.run([TOOL, "list", "--path", path, "--json"], stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in r.stdout.splitlines()]


def hashes(client):
    names = [n for n in client.list_database_names() if n not in ("admin", "config", "local")]
    return {n: client[n].command("dbHash")["md5"] for n in sorted(names)}


def fill(client, documents=4000, size=800, db="app"):
    """Documents with indexes, a unique one among them, and some with deadlines far away."""
    c = client[db].docs
    c.create_index("n", unique=True)
    c.create_index([("tag", 1), ("n", -1)])
    for first in range(0, documents, 1000):
        c.insert_many(
            [
                {"_id": i, "n": i, "tag": i % 7, "pad": rnd.randbytes(size)}
                for i in range(first, min(first + 1000, documents))
            ]
        )
    client[db].command(
        "insert", "later", documents=[{"_id": i} for i in range(100)], expireAfterSeconds=86400
    )


class Load(threading.Thread):
    """Transfers between accounts, each within one document, and inserts: the sum of every document is 0 at any
    moment."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.c, self.ended, self.acknowledged, self.errors = client.load.docs, threading.Event(), 0, []

    def run(self):
        n = 0
        while not self.ended.is_set():
            try:
                self.c.insert_one({"_id": n, "a": 0, "b": 0})
                self.acknowledged = n
                k, by = rnd.randrange(n + 1), rnd.randrange(100)
                self.c.update_one({"_id": k}, {"$inc": {"a": by, "b": -by}})
            except PyMongoError as e:
                if not self.ended.is_set():
                    self.errors.append(repr(e))
                return
            n += 1

    def __exit__(self, *_):
        self.ended.set()
        self.join()

    def __enter__(self):
        self.start()
        return self


def becomes(condition):
    """Until it holds; a member that takes over a copy of the data starts again, and answers nothing meanwhile."""

    def holds():
        try:
            return condition()
        except PyMongoError:
            return None

    return until(holds)


def whole(client, least):
    """What Load wrote is a state that there was: all of up to some moment, and nothing half."""
    docs = list(client.load.docs.find().sort("_id", 1))
    ids = [d["_id"] for d in docs]
    check(ids == list(range(len(ids))), f"inserts without a gap: {len(ids)}")
    check(all(d["a"] + d["b"] == 0 for d in docs), "no update in half")
    check(len(ids) > least, f"at least what was acknowledged before: {len(ids)} > {least}")
    v = client.load.command("validate", "docs", full=True)
    check(v["valid"], f"validate: {str(v)[:500]}")


def run_backup_parts(name, parts):
    """As run_parts; servers and files of the parts go."""
    try:
        run_parts(name, parts, check)
    finally:
        for server in started:
            if server.proc.poll() is None:
                server.proc.kill()
                server.proc.wait()
        discard(work)
