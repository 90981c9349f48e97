"""A mayflyd of a test's own, for those that start it again and log in to it."""

import base64, json, signal, subprocess, tempfile
import urllib.error, urllib.request
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, Deadline, discard, free_port, until


def code(f, *a, **k):
    """The error's code, 0 for none."""
    try:
        f(*a, **k)
        return 0
    except PyMongoError as e:
        return (getattr(e, "details", None) or {}).get("code", repr(e))


class OwnServer:
    """On a free port, with an HTTP endpoint and all its files in a folder of its own. `check`: told whether it stops
    cleanly; `root_password`: of the first user; `client_options`: of every client."""

    check = None
    root_password = None
    client_options = {}

    def __init__(self, *extra, auth=True):
        self.folder = tempfile.mkdtemp(prefix="mayfly-own-")
        self.port, self.http, self.extra = free_port(), free_port(), [*(["--auth"] if auth else []), *extra]
        self.prepare()
        self.start()

    def prepare(self):
        """Before the first start."""

    def start(self):
        with open(f"{self.folder}/out", "ab") as out:
            self.proc = subprocess.Popen(
                [
                    BINARY,
                    *("--port", str(self.port), "--dbpath", f"{self.folder}/data", "--nounixsocket", "--logappend"),
                    *("--logpath", f"{self.folder}/log", "--httpPort", str(self.http), *self.extra),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        answered = until(lambda: self.answers() or self.proc.poll() is not None)
        assert answered and self.proc.poll() is None, f"the server did not start: {self.output()[-3000:]}"

    def answers(self):
        try:
            return self.connect(serverSelectionTimeoutMS=1000).admin.command("ping")  # clock: asked again
        except PyMongoError:
            return None

    def connect(self, user=None, password=None, **more):
        if user:
            login = {
                "username": user,
                "password": self.root_password if password is None else password,
                "authSource": "admin",
            }
            more = login | more
        options = (
            dict(directConnection=True, serverSelectionTimeoutMS=Deadline().millis, retryReads=False)
            | self.client_options
        )
        return pymongo.MongoClient("127.0.0.1", self.port, **options | more)

    def first_user(self):
        self.connect().admin.command("createUser", "root", pwd=self.root_password, roles=["root", "__system"])
        return self.connect("root")

    def ask(self, path, user=None, password=None, body=None, scheme="Basic", host="127.0.0.1"):
        """What the HTTP endpoint answers to a user, or to nobody: the status, and the page or how it wants a login."""
        request = urllib.request.Request(f"http://{host}:{self.http}{path}", body and json.dumps(body).encode())
        if body:
            request.add_header("Content-Type", "application/json")
            request.add_header("Origin", f"http://127.0.0.1:{self.http}")
        if user is not None:
            name = f"{user}:{self.root_password if password is None else password}"
            request.add_header("Authorization", f"{scheme} {base64.b64encode(name.encode()).decode()}")
        try:
            answer = urllib.request.urlopen(request, timeout=Deadline().seconds)
            return answer.status, answer.read(200_000).decode() if path != "/events" else ""
        except urllib.error.HTTPError as e:
            return e.code, e.headers.get("WWW-Authenticate", "")

    def log(self):
        return Path(f"{self.folder}/log").read_text(errors="replace")

    def output(self):
        """What it says where it has no log, too."""
        files = [Path(f"{self.folder}/{f}") for f in ("out", "log")]
        return "".join(f.read_text(errors="replace") for f in files if f.exists())

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        return self.proc.wait(Deadline().seconds)

    def end(self):
        if self.proc.poll() is None:
            self.check(self.stop() == 0, "the server stops cleanly")
        discard(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            return self.end()
        if self.proc.poll() is None:
            self.stop()
