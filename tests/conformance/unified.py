#!/usr/bin/env python3
"""Runs test files of the MongoDB drivers' unified test format against a Mayfly server through pymongo.

  tests/conformance/unified.py [--uri URI | --topology single|replicaset|replicaset3] [--all] [-v] [FILE_OR_FOLDER …]

Without --uri, and outside of tests/drivers/with_access.py, it starts mayflyd itself (build/release/mayflyd or
$MAYFLYD). Files come from $MAYFLY_CONFORMANCE, by default from where `scripts/test conformance` has put those of
PyMongo's source distribution; without them the run fails.

A test is skipped only when its `runOnRequirements` do not fit the server, or when pymongo has no call for an operation
(counted by operation). Tests that are known to fail stand in known_failures.txt with their reason (`suite/file:
description = reason`, * as wildcard); one that passes although it is listed is an error (unless its reason begins with
"sometimes"). The last line is "N passed, N failed".
"""

import argparse, collections, fnmatch, hashlib, json, os, re, signal, sys, time, traceback
from pathlib import Path

import bson
import gridfs
import pymongo
from bson import json_util
from bson.codec_options import CodecOptions
from pymongo import monitoring
from pymongo.errors import BulkWriteError, ClientBulkWriteException, ConnectionFailure, OperationFailure, PyMongoError
from pymongo.read_preferences import ReadPreference
from pymongo.server_api import ServerApi
from pymongo.write_concern import WriteConcern

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
import failed_parts
from unified_match import UNSET, Matcher, Mismatch
from unified_operations import NoApi, Operations, bulk_details, bulk_model, concerns, plain, snake
from waits import SLOWNESS, Deadline

ROOT = Path(__file__).resolve().parents[2]
SUITES = [
    "crud",
    "retryable-reads",
    "retryable-writes",
    "sessions",
    "causal-consistency",
    "read-write-concern",
    "collection-management",
    "index-management",
    "run-command",
    "versioned-api",
    "gridfs",
    "transactions",
    "transactions-convenient-api",
    "change-streams",
]
SECRET = {
    "authenticate",
    "saslStart",
    "saslContinue",
    "getnonce",
    "createUser",
    "updateUser",
    "copydbgetnonce",
    "copydbsaslstart",
    "copydb",
}
HELLO = {"hello", "ismaster", "isMaster"}
JSON = json_util.JSONOptions(json_mode=json_util.JSONMode.RELAXED, tz_aware=False)
STEP_SECONDS = int(Deadline().seconds)  # a test that takes longer hangs
SELECTION_MILLIS = int(15000 * SLOWNESS)  # some tests ask for a member that there is not
# A driver rests half a second between looks at a server; tests of hundreds of failures cannot.
pymongo.common.MIN_HEARTBEAT_INTERVAL = 0.05


class Skip(Exception):
    pass


def spec_error(e):
    """An error of a bulk write in the format's words."""
    out = {"code": e.get("code"), "message": e.get("errmsg")}
    if e.get("errInfo") is not None:
        out["details"] = e["errInfo"]
    return out


class Listener(monitoring.CommandListener, monitoring.ConnectionPoolListener):
    """Records what a client's tests want to see of commands and connections."""

    def __init__(self, observe, ignore, sensitive):
        self.observe, self.ignore, self.sensitive = set(observe), set(ignore) | {"configureFailPoint"}, sensitive
        self.events = []  # (event type, event)
        self.commands = []  # every command sent, for the lsid checks
        self.checked_out = 0

    def add(self, kind, event):
        if kind in self.observe:
            self.events.append((kind, event))

    def wanted(self, event, body):
        if event.command_name in self.ignore:
            return False
        if not self.sensitive and (event.command_name in SECRET or (event.command_name in HELLO and not body)):
            return False
        return True

    def started(self, event):
        if event.command_name not in self.ignore:
            self.commands.append(event)
        if self.wanted(event, event.command):
            self.add("commandStartedEvent", event)

    def succeeded(self, event):
        if self.wanted(event, event.reply):
            self.add("commandSucceededEvent", event)

    def failed(self, event):
        if self.wanted(event, event.failure):
            self.add("commandFailedEvent", event)

    def pool_created(self, event):
        self.add("poolCreatedEvent", event)

    def pool_ready(self, event):
        self.add("poolReadyEvent", event)

    def pool_cleared(self, event):
        self.add("poolClearedEvent", event)

    def pool_closed(self, event):
        self.add("poolClosedEvent", event)

    def connection_created(self, event):
        self.add("connectionCreatedEvent", event)

    def connection_ready(self, event):
        self.add("connectionReadyEvent", event)

    def connection_closed(self, event):
        self.add("connectionClosedEvent", event)

    def connection_check_out_started(self, event):
        self.add("connectionCheckOutStartedEvent", event)

    def connection_check_out_failed(self, event):
        self.add("connectionCheckOutFailedEvent", event)

    def connection_checked_out(self, event):
        self.checked_out += 1
        self.add("connectionCheckedOutEvent", event)

    def connection_checked_in(self, event):
        self.checked_out -= 1
        self.add("connectionCheckedInEvent", event)


class Entities:
    def __init__(self, uri):
        self.uri, self.map, self.listeners, self.lsids, self.clients = uri, {}, {}, {}, []

    def get(self, name):
        if name not in self.map:
            raise AssertionError(f"no entity {name}")
        return self.map[name]

    def lsid(self, name):
        session = self.map.get(name)
        return session.session_id if session is not None and not session.has_ended else self.lsids[name]

    def put(self, name, value):
        if name in self.map:
            raise AssertionError(f"entity {name} exists")
        self.map[name] = value

    def create(self, spec):
        kind, e = next(iter(spec.items()))
        getattr(self, "create_" + kind, self.unknown(kind))(e)

    @staticmethod
    def unknown(kind):
        def f(_):
            raise NoApi(f"entity {kind}")

        return f

    def create_client(self, e):
        options = dict(e.get("uriOptions", {}))
        for concern in ("readPreferenceTags", "srvMaxHosts"):
            if concern in options:
                raise NoApi(f"uriOptions.{concern}")
        listener = Listener(
            e.get("observeEvents", []),
            e.get("ignoreCommandMonitoringEvents", []),
            e.get("observeSensitiveCommands", False),
        )
        if "serverApi" in e:
            api = e["serverApi"]
            options["server_api"] = ServerApi(
                api["version"], strict=api.get("strict"), deprecation_errors=api.get("deprecationErrors")
            )
        options.setdefault("heartbeatFrequencyMS", 100)
        options.setdefault("serverSelectionTimeoutMS", SELECTION_MILLIS)
        client = pymongo.MongoClient(self.uri, event_listeners=[listener], **options)
        self.clients.append(client)
        self.listeners[e["id"]] = listener
        self.put(e["id"], client)

    def create_database(self, e):
        self.put(
            e["id"], self.get(e["client"]).get_database(e["databaseName"], **concerns(e.get("databaseOptions", {})))
        )

    def create_collection(self, e):
        self.put(
            e["id"],
            self.get(e["database"]).get_collection(e["collectionName"], **concerns(e.get("collectionOptions", {}))),
        )

    def create_session(self, e):
        options = {}
        for k, v in e.get("sessionOptions", {}).items():
            if k == "defaultTransactionOptions":
                options[snake(k)] = pymongo.client_session.TransactionOptions(**concerns(v))
            elif k == "defaultTimeoutMS" or k == "snapshotTime":
                raise NoApi(f"sessionOptions.{k}")
            else:
                options[snake(k)] = v
        session = self.get(e["client"]).start_session(**options)
        self.put(e["id"], session)
        self.lsids[e["id"]] = session.session_id

    def create_bucket(self, e):
        options = {snake(k): v for k, v in e.get("bucketOptions", {}).items()}
        for concern in ("read_concern",):
            if concern in options:
                raise NoApi("bucketOptions.readConcern")
        self.put(e["id"], gridfs.GridFSBucket(self.get(e["database"]), **options))

    def close(self):
        for c in self.clients:
            c.close()


class Runner(Operations):
    """One test of one file."""

    def __init__(self, env, spec, test):
        self.env, self.spec, self.test = env, spec, test
        self.entities = Entities(env.uri)
        self.matcher = Matcher(self.entities)
        self.fail_points = []

    def run_test(self):
        if self.test.get("skipReason"):
            raise Skip(f"skipReason: {self.test['skipReason']}")
        self.env.admin.command("killAllSessions", [])
        try:
            self.initial_data()
            for e in self.spec.get("createEntities", []):
                self.entities.create(e)
            for op in self.test["operations"]:
                self.operation(op)
            for name in self.fail_points:
                self.env.admin.command("configureFailPoint", name, mode="off")
            self.fail_points = []
            for e in self.test.get("expectEvents", []):
                self.check_events(e)
            self.check_outcome()
        finally:
            for name in self.fail_points:
                try:
                    self.env.admin.command("configureFailPoint", name, mode="off")
                except PyMongoError:
                    pass
            self.entities.close()

    def initial_data(self):
        for d in self.spec.get("initialData", []):
            db = self.env.client.get_database(d["databaseName"], write_concern=WriteConcern("majority"))
            coll = db[d["collectionName"]]
            coll.drop()
            if d["documents"]:
                coll.insert_many(d["documents"], ordered=True)
                if d.get("createOptions"):
                    raise AssertionError("createOptions with documents")
            else:
                db.create_collection(d["collectionName"], **d.get("createOptions", {}))

    def check_outcome(self):
        for d in self.test.get("outcome", []):
            coll = self.env.client[d["databaseName"]].get_collection(
                d["collectionName"],
                read_preference=ReadPreference.PRIMARY,
                read_concern=pymongo.read_concern.ReadConcern("local"),
            )
            got = list(coll.find({}, sort=[("_id", 1)]))
            if len(got) != len(d["documents"]):
                raise Mismatch(f"outcome of {d['collectionName']}: expected {d['documents']}, got {got}")
            for i, (w, g) in enumerate(zip(d["documents"], got)):
                self.matcher.match(w, g, f"outcome[{i}]", root=False)

    # --- operations ------------------------------------------------------------------------------------------
    def arguments(self, args):
        out = {}
        for k, v in args.items():
            if k == "session" and isinstance(v, str):
                v = self.entities.get(v)
            out[k] = v
        return out

    def operation(self, op, in_callback=False):
        name, args = op["name"], op.get("arguments", {})
        if op["object"] == "testRunner":
            return self.on_runner(name, args)
        target = self.entities.get(op["object"])
        error = result = None
        try:
            result = (
                self.run(name, target, self.arguments(args))
                if name != "withTransaction"
                else self.with_transaction(target, dict(args))
            )
        except (PyMongoError, gridfs.errors.GridFSError, bson.errors.BSONError, ValueError, TypeError) as e:
            error = e
        if op.get("ignoreResultAndError"):
            # Within the callback of withTransaction the driver has to see it all the same.
            if error is not None and in_callback:
                raise error
            return
        if "expectError" in op:
            if error is None:
                raise Mismatch(f"{name} should have failed with {op['expectError']}, gave {result!r}")
            self.check_error(name, op["expectError"], error)
            if in_callback:
                raise error
            return
        if error is not None:
            raise error
        if "expectResult" in op:
            self.matcher.match(
                op["expectResult"], UNSET if result is None and self.is_unset(op["expectResult"]) else result
            )
        if "saveResultAsEntity" in op:
            self.entities.put(op["saveResultAsEntity"], result)

    @staticmethod
    def is_unset(want):
        return isinstance(want, dict) and "$$unsetOrMatches" in want

    def with_transaction(self, session, args):
        steps = args.pop("callback")

        def callback(_):
            for step in steps:
                self.operation(step, in_callback=True)

        return session.with_transaction(callback, **concerns(args))

    def run(self, name, target, args):
        if name == "endSession":
            for k, v in self.entities.map.items():
                if v is target:
                    self.entities.lsids[k] = target.session_id
        return super().run(name, target, args)

    def check_error(self, name, want, error):
        if isinstance(error, (ValueError, TypeError)) and not isinstance(error, (PyMongoError, bson.errors.BSONError)):
            server = False
        else:
            server = isinstance(error, OperationFailure) or (
                isinstance(error, ClientBulkWriteException)
                and (error.error is None or isinstance(error.error, OperationFailure))
            )
        if isinstance(error, ClientBulkWriteException) and isinstance(error.error, ConnectionFailure):
            server = False
        inner = error
        if isinstance(error, ClientBulkWriteException) and error.error is not None:
            inner = error.error
        if "isClientError" in want and want["isClientError"] == server:
            raise Mismatch(f"{name}: isClientError should be {want['isClientError']}: {error!r}")
        details = getattr(inner, "details", None) or {}
        first = details
        if isinstance(error, BulkWriteError):
            errors = details.get("writeErrors") or [e for e in details.get("writeConcernErrors", [])]
            first = errors[0] if errors else details
        if "errorContains" in want and want["errorContains"].lower() not in str(error).lower():
            raise Mismatch(f"{name}: no {want['errorContains']!r} in {error}")
        if "errorCode" in want and want["errorCode"] != (first.get("code") or getattr(inner, "code", None)):
            raise Mismatch(f"{name}: expected code {want['errorCode']}, got {error!r}")
        if "errorCodeName" in want:
            got = (
                first.get("codeName")
                or details.get("codeName")
                or (details.get("writeConcernError") or {}).get("codeName")
            )
            if want["errorCodeName"] != got:
                raise Mismatch(f"{name}: expected code name {want['errorCodeName']}, got {got}: {error!r}")
        for label in want.get("errorLabelsContain", []):
            if not inner.has_error_label(label):
                raise Mismatch(f"{name}: no label {label}: {error!r}")
        for label in want.get("errorLabelsOmit", []):
            if inner.has_error_label(label):
                raise Mismatch(f"{name}: has label {label}: {error!r}")
        if "errorResponse" in want:
            self.matcher.match(
                want["errorResponse"], first if isinstance(error, BulkWriteError) else details, f"{name} errorResponse"
            )
        if "writeErrors" in want:
            got = {str(e["idx"] if "idx" in e else e["index"]): e for e in error.write_errors}
            if set(got) != set(want["writeErrors"]):
                raise Mismatch(f"{name}: write errors {got}")
            for k, w in want["writeErrors"].items():
                self.matcher.match(w, spec_error(got[k]), f"{name} writeErrors.{k}")
        if "writeConcernErrors" in want:
            got = error.write_concern_errors
            if len(got) != len(want["writeConcernErrors"]):
                raise Mismatch(f"{name}: write concern errors {got}")
            for i, w in enumerate(want["writeConcernErrors"]):
                self.matcher.match(w, spec_error(got[i]), f"{name} writeConcernErrors.{i}")
        if "expectResult" in want:
            if isinstance(error, BulkWriteError):
                got = bulk_details(error.details)
            elif isinstance(error, ClientBulkWriteException):
                got = plain(error.partial_result) if error.partial_result is not None else UNSET
                if got == {"acknowledged": False}:
                    got = UNSET
            else:
                got = UNSET
            self.matcher.match(want["expectResult"], got, f"{name} partial result")

    # --- special operations -----------------------------------------------------------------------------------
    def on_runner(self, name, args):
        if name == "failPoint":
            point = args["failPoint"]
            client = self.entities.get(args["client"])
            session = {"session": self.entities.get(args["session"])} if "session" in args else {}
            client.admin.command(point, read_preference=ReadPreference.PRIMARY, **session)
            self.fail_points.append(point["configureFailPoint"])
        elif name == "targetedFailPoint":
            raise NoApi("targetedFailPoint without a mongos")
        elif name == "createEntities":
            for e in args["entities"]:
                self.entities.create(e)
        elif name in ("assertSessionDirty", "assertSessionNotDirty"):
            session = self.entities.get(args["session"])
            if session._server_session.dirty != (name == "assertSessionDirty"):
                raise Mismatch(name)
        elif name in ("assertSameLsidOnLastTwoCommands", "assertDifferentLsidOnLastTwoCommands"):
            a, b = [e.command["lsid"] for e in self.entities.listeners[args["client"]].commands[-2:]]
            if (a == b) != name.startswith("assertSame"):
                raise Mismatch(f"{name}: {a} {b}")
        elif name == "assertSessionTransactionState":
            number = self.entities.get(args["session"])._transaction.state
            names = ("none", "starting", "in_progress", "committed", "committed", "aborted")  # _TxnState, from 1
            state = names[int(number) - 1]
            if state != args["state"]:
                raise Mismatch(f"transaction state {state}, expected {args['state']}")
        elif name in ("assertSessionPinned", "assertSessionUnpinned"):
            pinned = self.entities.get(args["session"])._pinned_address is not None
            if pinned != (name == "assertSessionPinned"):
                raise Mismatch(name)
        elif name in ("assertCollectionExists", "assertCollectionNotExists"):
            there = args["collectionName"] in self.env.client[args["databaseName"]].list_collection_names()
            if there != (name == "assertCollectionExists"):
                raise Mismatch(f"{name} {args}")
        elif name in ("assertIndexExists", "assertIndexNotExists"):
            coll = self.env.client[args["databaseName"]][args["collectionName"]]
            there = args["indexName"] in [i["name"] for i in coll.list_indexes()]
            if there != (name == "assertIndexExists"):
                raise Mismatch(f"{name} {args}")
        elif name == "assertNumberConnectionsCheckedOut":
            out = self.entities.listeners[args["client"]].checked_out
            if out != args["connections"]:
                raise Mismatch(f"{out} connections checked out, expected {args['connections']}")
        elif name == "assertEventCount":
            kind, body = next(iter(args["event"].items()))
            n = sum(1 for k, e in self.entities.listeners[args["client"]].events if k == kind)
            if n != args["count"]:
                raise Mismatch(f"{n} events {kind}, expected {args['count']}")
        else:
            raise NoApi(f"testRunner.{name}")

    # --- events -------------------------------------------------------------------------------------------------
    def check_events(self, want):
        kind = want.get("eventType", "command")
        prefix = {"command": "command", "cmap": ("pool", "connection"), "sdam": ("server", "topology")}[kind]
        got = [(k, e) for k, e in self.entities.listeners[want["client"]].events if k.startswith(prefix)]
        expected = want["events"]
        seen = [self.describe(k, e) for k, e in got]
        if len(got) < len(expected) or (len(got) > len(expected) and not want.get("ignoreExtraEvents")):
            raise Mismatch(
                f"expected {len(expected)} {kind} events ({[self.describe_wanted(e) for e in expected]}), got {seen}"
            )
        for i, e in enumerate(expected):
            name, body = next(iter(e.items()))
            k, event = got[i]
            if k != name:
                raise Mismatch(f"event {i}: expected {name}, got {k}; all: {seen}")
            for field, w in body.items():
                self.event_field(event, field, w, f"event {i} {k}.{field}")

    @staticmethod
    def describe(kind, event):
        return f"{kind}:{event.command_name}" if hasattr(event, "command_name") else kind

    @staticmethod
    def describe_wanted(e):
        k, body = next(iter(e.items()))
        return f"{k}:{body.get('commandName', next(iter(body.get('command', {'': 0}))))}" if body is not None else k

    def event_field(self, event, field, want, path):
        if field == "command":
            self.matcher.match(want, event.command, path)
        elif field == "reply":
            self.matcher.match(want, event.reply, path)
        elif field == "commandName":
            self.matcher.match(want, event.command_name, path)
        elif field == "databaseName":
            self.matcher.match(want, event.database_name, path)
        elif field == "hasServiceId":
            if (event.service_id is not None) != want:
                raise Mismatch(path)
        elif field == "hasServerConnectionId":
            if (event.server_connection_id is not None) != want:
                raise Mismatch(path)
        elif field in ("reason", "interruptInUseConnections"):
            self.matcher.match(want, getattr(event, snake(field)), path)
        else:
            raise Mismatch(f"{path}: the runner does not know this field")


class Environment:
    """The server under test."""

    def __init__(self, uri):
        self.uri = uri
        self.client = pymongo.MongoClient(
            uri, serverSelectionTimeoutMS=Deadline().millis, uuidRepresentation="standard"
        )
        self.admin = self.client.admin
        hello = self.admin.command("hello")
        self.members = len(hello.get("hosts", []))
        self.topology = (
            "sharded" if hello.get("msg") == "isdbgrid" else "replicaset" if "setName" in hello else "single"
        )
        self.version = self.tuple(self.client.server_info()["version"])
        self.parameters = None
        status = self.admin.command("connectionStatus")
        self.auth = bool(status["authInfo"]["authenticatedUsers"])

    def mechanisms(self):
        return self.admin.command("getParameter", 1, authenticationMechanisms=1)["authenticationMechanisms"]

    @staticmethod
    def tuple(version):
        parts = [int(re.match(r"\d+", p).group()) for p in version.split("-")[0].split(".")]
        return tuple((parts + [0, 0, 0])[:3])

    def fits(self, requirements):
        return not requirements or any(self.fits_one(r) for r in requirements)

    def fits_one(self, r):
        if "minServerVersion" in r and self.version < self.tuple(r["minServerVersion"]):
            return False
        if "maxServerVersion" in r:
            high = self.tuple(r["maxServerVersion"])
            n = len(r["maxServerVersion"].split("."))
            if self.version[:n] > high[:n]:
                return False
        if "topologies" in r and self.topology not in r["topologies"]:
            return False
        if r.get("auth", self.auth) != self.auth or r.get("csfle"):
            return False
        if "authMechanism" in r and not self.auth:
            return False
        if "authMechanism" in r and r["authMechanism"] not in self.mechanisms():
            return False
        if r.get("serverless") == "require":
            return False
        for k, want in r.get("serverParameters", {}).items():
            if self.parameters is None:
                self.parameters = self.admin.command("getParameter", "*")
            if k not in self.parameters or self.parameters[k] != want:
                return False
        return True


def load_known(path, topologies):
    """[(pattern, reason)] of lines "pattern = reason", optionally for one topology: "[single] pattern = reason"."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        m = re.match(r"(?:\[(\w+)\] )?(.*?) = (.*)$", line)
        if m and m.group(1) in (None, *topologies):
            rows.append([m.group(2), m.group(3), 0])
    return rows


def conformance_folder():
    """As scripts/lib/common.sh names it."""
    if os.environ.get("MAYFLY_CONFORMANCE"):
        return Path(os.environ["MAYFLY_CONFORMANCE"])
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    stamp = hashlib.sha256((Path(__file__).parent / "requirements.txt").read_bytes()).hexdigest()[:16]
    return Path(os.environ.get("MAYFLY_TOOLS") or Path(cache) / "mayfly-tools") / f"conformance-{stamp}"


def alarm(*_):
    raise AssertionError(f"took longer than {STEP_SECONDS} s")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--uri")
    p.add_argument("--topology", default="single", choices=["single", "replicaset", "replicaset3"])
    p.add_argument("--all", action="store_true", help="also suites that are not required yet")
    p.add_argument("-v", "--verbose", action="store_true")
    p.add_argument("-k", "--keyword", default="", help="only tests whose description contains this")
    p.add_argument("paths", nargs="*")
    args = p.parse_args()
    folder = conformance_folder()
    if not folder.is_dir():
        print(f"no conformance files at {folder}: scripts/test conformance fetches them\n0 passed, 1 failed")
        return 1
    if args.paths:
        files = [
            f
            for a in args.paths
            for q in [Path(a) if Path(a).exists() else folder / a]
            for f in (sorted(q.rglob("*.json")) if q.is_dir() else [q])
        ]
    else:
        files = [f for s in SUITES for f in sorted((folder / s).rglob("*.json"))]
    server = None
    uri = args.uri or os.environ.get("ROOT_LOGIN")
    if not uri:
        import topologies

        server = topologies.start(args.topology)
        uri = server.uri
    try:
        code = run(files, folder, uri, args)
    finally:
        if server and not server.stop():
            code = 1
            failed_parts.note("*")
            print("the server did not stop cleanly\n0 passed, 1 failed")
    return code


def run(files, folder, uri, args):
    env = Environment(uri)
    known = load_known(Path(__file__).parent / "known_failures.txt", (env.topology, f"{env.topology}{env.members}"))
    passed, failed, expected, wanted = 0, [], collections.Counter(), failed_parts.wanted()
    requirements, no_api, skipped_files = 0, collections.Counter(), []
    signal.signal(signal.SIGALRM, alarm)
    for f in files:
        label = str(f.relative_to(folder)).replace("/unified", "") if f.is_relative_to(folder) else f.name
        raw = json.loads(f.read_text())
        if wanted is not None and label not in wanted:
            continue
        passed_before, failed_before = passed, len(failed)
        if "schemaVersion" not in raw:
            skipped_files.append(label)  # options and connection strings: they test a driver, without a server
            continue
        spec = json_util.loads(f.read_text(), json_options=JSON)
        # These files put in documents that were due years ago and look for them: the reaper would come between.
        reaps = "expireAfterSeconds" not in f.read_text()
        env.admin.command("setParameter", 1, ttlMonitorEnabled=reaps)
        for test in spec["tests"]:
            name = f"{label.removesuffix('.json')}: {test['description']}"
            if args.keyword not in name:
                continue
            if not env.fits(spec.get("runOnRequirements")) or not env.fits(test.get("runOnRequirements")):
                requirements += 1
                continue
            row = next((r for r in known if fnmatch.fnmatchcase(name, r[0].replace("[", "[[]"))), None)
            signal.alarm(STEP_SECONDS)
            begun = time.monotonic()
            try:
                Runner(env, spec, test).run_test()
                signal.alarm(0)
                if row and not row[1].startswith("sometimes"):
                    row[2] += 1
                    failed.append(name)
                    print(f"FAIL {name}\n     passes, but is listed as a known failure: {row[1]}")
                    continue
                passed += 1
                if args.verbose:
                    print(f"ok   {name} ({time.monotonic() - begun:.1f} s)")
            except Skip as e:
                no_api[str(e)] += 1
            except NoApi as e:
                no_api[f"pymongo has no {e}"] += 1
            except Exception as e:
                signal.alarm(0)
                if row:
                    row[2] += 1
                    expected[row[1]] += 1
                    if args.verbose:
                        print(f"known {name}: {type(e).__name__}: {str(e)[:300]}")
                    continue
                failed.append(name)
                text = str(e)
                print(f"FAIL {name}\n     {type(e).__name__}: {text[:700]}", flush=True)
                if args.verbose and not isinstance(e, (Mismatch, PyMongoError)):
                    traceback.print_exc()
            finally:
                signal.alarm(0)
        if len(failed) > failed_before:
            failed_parts.note(label, passed - passed_before, len(failed) - failed_before)
    failed_parts.end()
    print(
        f"{env.topology}, version {'.'.join(map(str, env.version))}: "
        f"{requirements} tests not for this server by runOnRequirements"
    )
    for why, n in sorted(no_api.items()):
        print(f"  {n} skipped: {why}")
    for why, n in sorted(expected.items()):
        print(f"  {n} known to fail: {why}")
    if skipped_files:
        print(f"  files that test a driver alone: {', '.join(skipped_files)}")
    if passed == 0 and not failed and not expected:
        failed.append("nothing")
        print("FAIL no test was run")
    access = " with access control" if env.auth else ""
    servers = f"{env.topology}{env.members if env.members > 1 else ''}{access}"
    print(f"conformance {servers}: {passed} passed, {len(failed)} failed")
    env.client.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
