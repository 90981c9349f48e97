#!/usr/bin/env python3
"""Every way in which a start fails: the exit code, what is said, and that nothing is left behind which keeps the next
start away.

MAYFLYD names another binary. Each case is a start that must fail; afterwards the same directory, where it is sound,
must serve.
"""

import json, os, re, signal, socket, stat, subprocess, tempfile, time

import pymongo

from fault_test import BINARY, ROOT, Checks, Deadline, discard, free_port, run_parts, skip
from own_server import OwnServer

check = Checks()
LIMIT = Deadline().seconds  # a start fails or serves within it


class Started(OwnServer):
    check = check


class Place:
    """A directory for one case: data, sockets, pid file, key file."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="mayfly-startup-")
        self.data = os.path.join(self.root, "data")
        self.sockets = os.path.join(self.root, "sockets")
        self.pid = os.path.join(self.root, "pid")
        self.port = free_port()
        self.address = "127.0.0.1"
        os.mkdir(self.data)
        os.mkdir(self.sockets)

    def args(self, *more, port=None):
        return [
            BINARY,
            "--dbpath",
            self.data,
            "--port",
            str(port or self.port),
            "--bind_ip",
            self.address,
            "--unixSocketPrefix",
            self.sockets,
            "--pidfilepath",
            self.pid,
            "--setParameter",
            "ttlMonitorEnabled=true",
            *more,
        ]

    def fails(self, what, code, says, *more, port=None, sound=True):
        """A start that ends with this code and says this; the next one serves, on the same port."""
        started = time.monotonic()
        try:
            p = subprocess.run(self.args(*more, port=port), capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return check(False, f"{what}: it still runs after {LIMIT:.0f} s")
        check(p.returncode == code, f"{what}: exit code {p.returncode}, expected {code}")
        check(says in p.stderr, f"{what}: says {says!r}" + ("" if says in p.stderr else f", not {p.stderr[-500:]!r}"))
        check(
            p.stderr.count("\n") <= 2 and "terminate" not in p.stderr,
            f"{what}: says no more than that ({time.monotonic() - started:.1f} s)",
        )
        check(os.listdir(self.sockets) == [], f"{what}: no socket is left")
        if sound:
            check(not os.path.exists(self.pid), f"{what}: no pid file is left")
            self.serves(what)

    def serves(self, what, *more):
        """A start with nothing wrong, and its end."""
        with subprocess.Popen(self.args(*more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
            try:
                with pymongo.MongoClient(
                    "127.0.0.1", self.port, directConnection=True, serverSelectionTimeoutMS=Deadline().millis
                ) as c:
                    c.admin.command("hello")
                check(os.path.exists(self.pid), f"{what}: the next start serves")
            except pymongo.errors.PyMongoError as e:
                check(False, f"{what}: the next start serves: {e}")
            p.send_signal(signal.SIGTERM)
            check(p.wait(timeout=LIMIT) == 0, f"{what}: and ends in order")
        check(
            os.listdir(self.sockets) == [] and not os.path.exists(self.pid),
            f"{what}: which leaves no socket and no pid file",
        )

    def close(self):
        discard(self.root)


class Case:
    def __enter__(self):
        self.place = Place()
        return self.place

    def __exit__(self, *_):
        self.place.close()


def taken():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen()
    return s


def configuration():
    with Case() as p:
        p.fails("an unknown option", 2, "noSuchOption", "--noSuchOption", "1")
        p.fails("an unknown parameter", 2, "noSuchParameter", "--setParameter", "noSuchParameter=1")
        p.fails("a parameter out of range", 2, "ttlMonitorSleepSecs", "--setParameter", "ttlMonitorSleepSecs=0")
        config = os.path.join(p.root, "mayfly.conf")
        with open(config, "w") as f:
            f.write("net:\n  nothingLikeThis: 1\n")
        p.fails("an unknown key of the configuration file", 2, "nothingLikeThis", "--config", config)
        p.fails("no configuration file", 2, "nowhere.conf", "--config", os.path.join(p.root, "nowhere.conf"))


def documented():
    """Parameters by name, with their rows, of the tables under the headings "Parameters"."""
    rows = {}
    for page in ("operations", "expiry"):
        text = (ROOT / f"docs/{page}.md").read_text().split("\n## Parameters\n")[1].split("\n## ")[0]
        for line in text.splitlines():
            if line.startswith("| `"):
                rows |= dict.fromkeys(re.findall(r"`([A-Za-z0-9]+)`", line.split("|")[1]), line)
    return rows


def as_text(value):
    """As --setParameter takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return json.dumps(value) if isinstance(value, dict) else str(value)


def parameters():
    """Whatever can be set at a start is taken from --setParameter and from the configuration file, by a standalone and
    by a member of a set, and what cannot be is documented so."""
    rows = documented()
    check(len(rows) > 40, f"{len(rows)} parameters are documented")
    for what, role in (("a standalone", []), ("a member", ["--replSet", "rs0"])):
        with Started(*role, auth=False) as s:
            said = s.connect().admin.command("getParameter", {"allParameters": True, "showDetails": True})
            has = {k: v for k, v in said.items() if isinstance(v, dict) and "settableAtStartup" in v}
        check(not rows.keys() - has.keys(), f"{what} has what is documented; missing: {rows.keys() - has.keys()}")
        late = {k for k in rows.keys() & has.keys() if not has[k]["settableAtStartup"]}
        undocumented = {k for k in late if "read only" not in rows[k] and "at run time" not in rows[k]}
        check(not undocumented, f"{what}: what cannot be set at a start is documented so; not: {undocumented}")
        # The audit's own is refused where there is no audit log.
        values = {k: v["value"] for k, v in has.items() if v["settableAtStartup"] and k != "auditFilter"}
        values |= {"transactionLifetimeLimitSeconds": 77, "maxTransactionLockRequestTimeoutMillis": 11}
        values |= {"cursorTimeoutMillis": 77_000, "ttlMonitorSleepSecs": 7, "scramIterationCount": 7000}
        args = [x for k, v in values.items() for x in ("--setParameter", f"{k}={as_text(v)}")]
        with Case() as p:
            config = os.path.join(p.root, "mayfly.conf")
            with open(config, "w") as f:
                f.write("setParameter:\n" + "".join(f"  {k}: {json.dumps(as_text(v))}\n" for k, v in values.items()))
            for way, given in (("--setParameter", args), ("the configuration file", ["--config", config])):
                with Started(*role, *given, auth=False) as s:
                    now = s.connect().admin.command("getParameter", "*")
                wrong = {k: now.get(k) for k, v in values.items() if now.get(k) != v}
                check(not wrong, f"{what} takes {len(values)} parameters from {way}; wrong: {wrong}")


def addresses():
    with Case() as p, taken() as other:
        p.fails("a port that is taken", 48, str(other.getsockname()[1]), port=other.getsockname()[1])
    with Case() as p:
        for address, what in (
            ("127.0.0.1,192.0.2.1", "an address that is not this machine's"),
            ("no.such.host.invalid", "a name that is no address"),
        ):
            p.address = address
            p.fails(what, 48, address.split(",")[-1], sound=False)
            check(not os.path.exists(p.pid), f"{what}: no pid file is left")
        p.address = "127.0.0.1"
        p.serves("an address of this machine's")
    with Case() as p, taken() as other:
        p.fails(
            "an HTTP port that is taken", 48, str(other.getsockname()[1]), "--httpPort", str(other.getsockname()[1])
        )


def directories():
    with Case() as p:
        os.rmdir(p.data)
        with open(p.data, "w") as f:
            f.write("x")
        p.fails("a file in the place of the directory", 100, p.data, sound=False)
    with Case() as p:
        p.serves("an empty directory")
        with subprocess.Popen(p.args(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            with pymongo.MongoClient(
                "127.0.0.1", p.port, directConnection=True, serverSelectionTimeoutMS=Deadline().millis
            ) as c:
                c.admin.command("hello")
            port, sockets = p.port, p.sockets
            p.port, p.sockets = free_port(), os.path.join(p.root, "sockets2")
            os.mkdir(p.sockets)
            p.fails("a directory that another process serves", 100, p.data, sound=False)
            with open(p.pid) as f:
                check(
                    f.read().strip() == str(running.pid),
                    "a directory that another process serves: its pid file is still its own",
                )
            p.port, p.sockets = port, sockets
            running.send_signal(signal.SIGTERM)
            running.wait(timeout=LIMIT)
        p.serves("when the other one has gone")
    with Case() as p:
        p.data = "/proc/mayfly-startup"  # where not even root makes one
        p.fails("a directory that cannot be made", 100, p.data, sound=False)
    if os.geteuid() != 0:
        with Case() as p:
            os.chmod(p.data, 0o500)
            p.fails("a directory that cannot be written", 100, p.data, sound=False)
            os.chmod(p.data, 0o700)
            p.serves("when it can")
    else:
        skip("a directory that cannot be written", "root may write everywhere")
    with Case() as p:
        p.fails(
            "a pid file that cannot be written", 2, "pid file", "--pidfilepath", os.path.join(p.root, "nowhere", "pid")
        )
        p.fails("a log that cannot be written", 2, "nowhere", "--logpath", os.path.join(p.root, "nowhere", "log"))
        p.fails("an audit log that cannot be written", 2, "audit log", "--auditPath", "/proc/nowhere/audit")


def stores():
    with Case() as p:
        p.serves("a store to be damaged")
        current = [os.path.join(d, "CURRENT") for d, _, files in os.walk(p.data) if "CURRENT" in files]
        check(len(current) == 1, "where the store is")
        with open(current[0]) as f:
            sound = f.read()
        with open(current[0], "w") as f:
            f.write("MANIFEST-999999\n")
        p.fails("a damaged store", 100, "data directory", sound=False)
        check(not os.path.exists(p.pid), "a damaged store: no pid file is left")
        with open(current[0], "w") as f:
            f.write(sound)
        p.serves("when it is mended")


def sets():
    with Case() as p:
        key = os.path.join(p.root, "key")
        member = ["--replSet", "rs0"]
        p.fails("no key file", 2, "keyFile", *member, "--keyFile", key)
        with open(key, "w") as f:
            f.write("c2VjcmV0c2VjcmV0")
        os.chmod(key, stat.S_IRUSR | stat.S_IWUSR | stat.S_IROTH)
        p.fails("a key file that others can read", 2, "too open", *member, "--keyFile", key)
        os.chmod(key, 0o600)
        with open(key, "w") as f:
            f.write("a")
        p.fails("a key that is too short", 2, "between 6 and 1024", *member, "--keyFile", key)
        with open(key, "w") as f:
            f.write("not base64!")
        p.fails("a key that is not base64", 2, "base64", *member, "--keyFile", key)
        with taken() as other:
            p.fails("a member whose port is taken", 48, "", *member, port=other.getsockname()[1])
        with taken() as other:
            p.fails(
                "a member whose HTTP port is taken",
                48,
                str(other.getsockname()[1]),
                *member,
                "--httpPort",
                str(other.getsockname()[1]),
            )
        p.fails(
            "a member whose pid file cannot be written",
            2,
            "pid file",
            *member,
            "--pidfilepath",
            os.path.join(p.root, "nowhere", "pid"),
        )


def in_background():
    with Case() as p, taken() as other:
        log = ["--fork", "--logpath", os.path.join(p.root, "log")]
        r = subprocess.run(p.args(*log, port=other.getsockname()[1]), capture_output=True, text=True, timeout=LIMIT)
        check(r.returncode == 1, f"a child whose port is taken: exit code {r.returncode}, expected 1")
        check("see its log" in r.stdout, "a child whose port is taken: says where to look")
        check(
            os.listdir(p.sockets) == [] and not os.path.exists(p.pid),
            "a child whose port is taken: leaves no socket and no pid file",
        )
        with open(os.path.join(p.root, "log")) as f:
            check("Cannot listen" in f.read(), "a child whose port is taken: its log has the reason")


run_parts("startup", [configuration, parameters, addresses, directories, stores, sets, in_background], check)
