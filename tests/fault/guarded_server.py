"""A mayflyd with access control and an administrator, for tests of what users may do."""

import tempfile

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from fault_test import start, stop

PASSWORD = "only of this test"


class GuardedServer:
    """Until the end of a `with`: `root` is the administrator's client, `check` is told how the server ends."""

    def __init__(self, check, *options):
        self.check, self.options = check, options

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.proc, first = start(self.folder.name + "/data", "--auth", *self.options)
        made = first.command("admin", {"createUser": "root", "pwd": PASSWORD, "roles": ["root"]})
        assert made["ok"] == 1, made
        first.sock.close()
        self.root = self.client("root", "admin")
        return self

    def client(self, user=None, db=None):
        """A new one: somebody's, or nobody's."""
        login = {"username": user, "password": PASSWORD, "authSource": db} if user else {}
        return pymongo.MongoClient("127.0.0.1", self.proc.port, directConnection=True, retryReads=False, **login)

    def user(self, name, roles, db="shop"):
        """The client of a new user."""
        self.root[db].command({"createUser": name, "pwd": PASSWORD, "roles": roles})
        return self.client(name, db)

    def __exit__(self, *error):
        self.root.close()
        ended = stop(self.proc)
        self.check(ended == 0, f"the server ends well: {ended}")
        self.folder.cleanup()


def code(db, command):
    """The error's code, 0 for none, what has happened to the connection otherwise."""
    try:
        db.command(command)
        return 0
    except OperationFailure as e:
        return e.code
    except PyMongoError as e:
        return repr(e)
