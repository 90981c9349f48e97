"""A replica set of real processes on this machine, for fault tests."""

import os, signal, subprocess, tempfile

import pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, ROOT, Checks, Deadline, discard, free_port, until, wait_for

FAULTY = os.environ.get(
    "MAYFLY_FAULT_SERVER", str(ROOT / "build/release/tests/fault_server")
)  # disks and clocks that can be made to fail


def code(f):
    """The error's code, 0 for none."""
    try:
        f()
        return 0
    except PyMongoError as e:
        return (getattr(e, "details", None) or {}).get("code", repr(e))


class Member:
    def __init__(self, folder, extra=(), network=None, name=None):
        self.port, self.folder, self.extra, self.proc = free_port(), folder, list(extra), None
        self.name, self.stdin, self.binary = name, None, BINARY
        self.reached = network.add(name, self.port) if network else self.port  # by the others, and by drivers
        self.client, self.patient_client = self.new_client(), None

    def new_client(self, **more):
        """To this member alone; it says what failed instead of trying again."""
        options = dict(  # clock: who is down is asked again
            directConnection=True,
            serverSelectionTimeoutMS=3000,
            connectTimeoutMS=3000,
            socketTimeoutMS=20000,
            readPreference="secondaryPreferred",
            retryWrites=False,
            retryReads=False,
        )
        return pymongo.MongoClient("127.0.0.1", self.port, **options | more)

    @property
    def patient(self):
        """For what is asked once of a member that is up; `client` is for what is asked again until it is so."""
        if self.patient_client is None:
            millis = Deadline().millis
            self.patient_client = self.new_client(
                serverSelectionTimeoutMS=millis, connectTimeoutMS=millis, socketTimeoutMS=millis
            )
        return self.patient_client

    @property
    def host(self):
        return f"127.0.0.1:{self.reached}"

    def start(self, replica_set=True):
        os.makedirs(self.folder, exist_ok=True)
        log = open(f"{self.folder}/log", "ab")
        self.proc = subprocess.Popen(
            [
                self.binary,
                *(["--replSet", "rs0"] if replica_set else []),
                "--port",
                str(self.port),
                "--dbpath",
                f"{self.folder}/data",
                "--nounixsocket",
                *self.extra,
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=self.stdin,
        )
        log.close()

    def wait_up(self, seconds=30):
        last = None

        def hello():
            nonlocal last
            try:
                return self.client.admin.command("hello")
            except PyMongoError as e:
                last = e
                if self.proc.poll() is not None:
                    raise AssertionError(f"member {self.port} ended with {self.proc.returncode}:\n" + self.tail())

        answer = until(hello, seconds)
        if answer is None:
            raise last
        return answer

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        return self.proc.wait(Deadline().seconds)

    def tell(self, line, wait=False):
        """fault_server alone. wait: until it has done so, and says it."""
        said = f"done: {line}\n".encode()
        before = self.count(said) if wait else 0
        self.proc.stdin.write(line.encode() + b"\n")
        self.proc.stdin.flush()
        if wait:
            wait_for(lambda: self.count(said) > before)

    def count(self, text):
        """How often its log has these bytes."""
        with open(f"{self.folder}/log", "rb") as log:
            return log.read().count(text)

    def lines(self):
        """How many there are in its log."""
        return self.count(b"\n")

    def running(self):
        return self.proc is not None and self.proc.poll() is None

    def pause(self):
        self.proc.send_signal(signal.SIGSTOP)

    def resume(self):
        self.proc.send_signal(signal.SIGCONT)

    def hello(self):
        return self.client.admin.command("hello")

    def tail(self):
        """The end of the log, without who came and went."""
        return "".join([l for l in open(f"{self.folder}/log", errors="replace") if '"NETWORK"' not in l][-40:])[-4000:]


class ReplicaSet:
    def __init__(self, count=3, extra=(), network=None, binary=BINARY):
        self.folder = tempfile.mkdtemp(prefix="mayfly-set-")
        self.members = [Member(f"{self.folder}/{i}", extra, network, f"m{i}") for i in range(count)]
        for m in self.members:
            m.binary = binary
            m.stdin = subprocess.PIPE if binary != BINARY else None
            m.start()
        for m in self.members:
            m.wait_up()

    def config(self):
        return {"_id": "rs0", "members": [{"_id": i, "host": m.host} for i, m in enumerate(self.members)]}

    def initiate(self):
        self.members[0].patient.admin.command("replSetInitiate", self.config())
        self.in_place()

    def add(self, member):
        """As rs.add() does, from whoever leads."""

        def try_it():
            primary = self.primary().client.admin
            config = primary.command("replSetGetConfig")["config"]
            if any(m["host"] == member.host for m in config["members"]):
                return True
            config["version"] += 1
            config["members"].append({"_id": len(config["members"]), "host": member.host})
            primary.command("replSetReconfig", config)
            return True

        self.wait(try_it, "the reconfiguration", 60)

    def join(self, name, extra=()):
        """A new member with its data in a folder of this name: started and added."""
        m = Member(f"{self.folder}/{name}", extra)
        m.start()
        m.wait_up()
        self.members.append(m)
        self.add(m)
        return m

    def others(self, *not_these):
        return [m for m in self.members if m not in not_these]

    def in_place(self, seconds=60):
        """Waits until every member is primary or secondary."""
        self.wait(
            lambda: all(m.hello().get("isWritablePrimary") or m.hello().get("secondary") for m in self.members),
            "every member in its place",
            seconds,
        )

    def all_vote(self, count=None, seconds=60):
        """Waits until so many members vote; all of them unless `count` says otherwise."""
        self.wait(
            lambda: (
                self.primary().client.admin.command("replSetGetStatus")["votingMembersCount"]
                == (count or len(self.members))
            ),
            "all to vote",
            seconds,
        )

    @property
    def uri(self):
        return "mongodb://" + ",".join(m.host for m in self.members) + "/?replicaSet=rs0"

    def wait(self, condition, what, seconds=60):
        """Waits until the condition holds, whatever it raises meanwhile, or a Deadline has come."""
        last, deadline = None, Deadline(seconds)

        def holds():
            nonlocal last
            try:
                return condition()
            except PyMongoError as e:
                last = e

        if deadline.until(holds):
            return
        raise AssertionError(
            f"not within {deadline.took():.0f} s: {what} ({last})\n" + "\n".join(m.tail()[-1500:] for m in self.members)
        )

    def primary(self, seconds=60):
        found = []

        def look():
            found[:] = []
            for m in self.members:
                try:
                    if m.running() and m.hello().get("isWritablePrimary"):
                        found.append(m)
                except PyMongoError:
                    pass
            return len(found) == 1

        self.wait(look, "one primary", seconds)
        return found[0]

    def settled(self, seconds=90):
        """Waits until every member has applied the same."""

        def same():
            return (
                len({str(m.client.admin.command("replSetGetStatus")["optimes"]["appliedOpTime"]) for m in self.members})
                == 1
            )

        self.wait(same, "the same optime everywhere", seconds)

    def hashes(self, db):
        return [m.patient[db].command("dbHash")["md5"] for m in self.members]

    def same(self, db="test"):
        """Whether all members hold the same. What no majority had may still be on its way between one member's hash and
        the next one's: asked again, until a deadline."""

        def equal():
            self.settled()
            return len(set(self.hashes(db))) == 1

        try:
            self.wait(equal, "the same on all members")
            return True
        except AssertionError as e:
            print(e, flush=True)
            return False

    def close(self):
        """Nothing of it is left, whatever has happened."""
        for m in self.members:
            if m.running():
                m.resume()
                m.kill()
        discard(self.folder)
