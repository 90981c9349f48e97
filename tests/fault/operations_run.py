#!/usr/bin/env python3
"""A server as an operator has it: unix socket, IPv6, log rotation by command and by signal, its pid file; devices in
the place of the files that it would rename and remove."""

import glob, json, os, re, signal, socket, stat, subprocess, sys, tempfile, urllib.parse

import pymongo
from pymongo.errors import OperationFailure

from fault_test import BINARY, Checks, Deadline, discard, free_port, until

check = Checks()
folder = tempfile.mkdtemp(prefix="mayfly-ops-")
log = f"{folder}/mayfly.log"


def take(number):
    """The port, or None while somebody else has it."""
    try:
        return socket.create_server(("127.0.0.1", number))
    except OSError:
        return None


def lines(file):
    return [json.loads(line) for line in open(file)]


port = free_port()
server = subprocess.Popen(
    [
        BINARY,
        "--port",
        str(port),
        "--dbpath",
        f"{folder}/data",
        "--httpPort",
        "0",
        "--logpath",
        log,
        "--bind_ip",
        "127.0.0.1,::1",
        "--ipv6",
        "--pidfilepath",
        f"{folder}/pid",
        "--unixSocketPrefix",
        folder,
    ]
)
path = f"{folder}/mongodb-{port}.sock"
if not until(lambda: os.path.exists(log) and "Waiting for connections" in open(log).read()):
    sys.exit("the server did not start\n0 passed, 1 failed")
admin = pymongo.MongoClient("127.0.0.1", port, directConnection=True).admin
check(open(f"{folder}/pid").read().strip() == str(server.pid), "the pid file")
# It said true, because assertions are on.
if "build/release/" in BINARY:
    check(admin.command("buildInfo")["debug"] is False, "the release is no debug build")
six = pymongo.MongoClient(f"mongodb://[::1]:{port}/?directConnection=true", serverSelectionTimeoutMS=Deadline().millis)
check(six.admin.command("whatsmyuri")["you"].startswith("[::1]:"), "IPv6: the address of the client")
six.close()

before = lines(log)
check(any(e["msg"] == "Waiting for connections" for e in before), "the log is JSON, a line an entry")
r = admin.command("logRotate", 1)
check(r["ok"] == 1, f"logRotate: {r}")
old = glob.glob(log + ".*")
check(len(old) == 1 and lines(old[0])[: len(before)] == before, f"what was written is in the renamed file: {old}")
check(os.path.exists(log) and "Waiting for connections" not in open(log).read(), "a new file goes on")
admin.command("setParameter", 1, logLevel=1)
check(until(lambda: os.path.getsize(log) > 0), "and is written to")
server.send_signal(signal.SIGUSR1)
check(until(lambda: len(glob.glob(log + ".*")) == 2), "SIGUSR1 rotates too")
check(admin.command("logRotate", "server")["ok"] == 1, "logRotate: 'server'")
try:
    admin.command("logRotate", "nothing")
    check(False, "logRotate of what is not there is an error")
except OperationFailure as e:
    check(e.code in (2, 9, 14), f"logRotate of what is not there: {e}")

local = pymongo.MongoClient(
    "mongodb://" + urllib.parse.quote(path, safe=""), serverSelectionTimeoutMS=Deadline().millis
)
local.test.c.insert_one({"_id": 1})
check(local.test.c.find_one() == {"_id": 1}, "a driver over the unix socket")
check(local.admin.command("whatsmyuri")["you"].startswith("anonymous unix socket"), "who came by the unix socket")
check(oct(os.stat(path).st_mode & 0o777) == "0o700", "only its user may connect there")
local.close()
server.send_signal(signal.SIGTERM)
check(server.wait(Deadline().seconds) == 0, "clean stop")
check(
    not os.path.exists(path) and not os.path.exists(f"{folder}/pid"), "the socket and the pid file go with the server"
)


def devices():
    """A log, an audit log and a pid file that are a device (as /dev/null is one) stay what they are."""
    names = [f"{folder}/{name}" for name in ("log-device", "audit-device", "pid-device")]
    try:
        for name in names:
            os.mknod(name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            os.chmod(name, 0o666)
            open(name, "w").close()
    except OSError as e:
        print(f"     (no devices may be made here: {e})")
        return
    at = free_port()
    options = ["--port", str(at), "--dbpath", f"{folder}/data", "--httpPort", "0", "--nounixsocket"]
    options += ["--logpath", names[0], "--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", names[1]]
    proc = subprocess.Popen([BINARY, *options, "--pidfilepath", names[2]])
    client = pymongo.MongoClient("127.0.0.1", at, directConnection=True, serverSelectionTimeoutMS=Deadline().millis)
    check(client.admin.command("logRotate", 1)["ok"] == 1, "logRotate of devices")
    check(client.admin.command("ping")["ok"] == 1, "and the server goes on")
    client.close()
    proc.send_signal(signal.SIGTERM)
    check(proc.wait(Deadline().seconds) == 0, "clean stop with devices")
    kept = [os.path.exists(n) and os.stat(n).st_mode == stat.S_IFCHR | 0o666 for n in names]
    check(all(kept), f"the devices are where they were, with their mode: {kept}")
    check(not glob.glob(f"{folder}/*-device.*"), "and nothing was renamed")


def harness():
    """What tools that start servers for tests look for in the output: mongodb-memory-server read "address already in
    use" of the HTTP endpoint as the end of the server, and waited for a primary that did not say it was one."""
    said = subprocess.run([BINARY, "--version"], capture_output=True, text=True, timeout=Deadline().seconds).stdout
    check(re.match(r"db version v8\.\d+\.\d+$", said.splitlines()[0]), f"--version begins as mongod's: {said!r}")
    procs, logs, ports = [], [], []
    # Whoever has it may let it go just then: any server that another test starts. One that stays will do.
    taken = until(lambda: take(28017), 30)
    for i in range(2):
        logs.append(open(f"{folder}/harness-{i}.log", "w+"))
        ports.append(free_port())
        options = ["--port", str(ports[i]), "--dbpath", f"{folder}/harness-{i}", "--replSet", "rs", "--nounixsocket"]
        options += ["--storageEngine", "wiredTiger", "--bind_ip", "127.0.0.1", "--noauth", "--noscripting"]
        options += ["--setParameter", "periodicNoopIntervalSecs=7"]
        options += ["--setParameter", 'logComponentVerbosity={"network": {"verbosity": 1}}']
        procs.append(subprocess.Popen([BINARY, *options], stdout=logs[i]))

    def text(i):
        return open(logs[i].name).read()

    check(until(lambda: all("Waiting for connections" in text(i) for i in range(2))), "both servers start")
    check(until(lambda: all("another process has this port" in text(i) for i in range(2))), "without an HTTP endpoint")
    check(not any("already in use" in text(i).lower() for i in range(2)), "which is not said in the system's words")
    check("The storage engine wiredTiger was asked for" in text(0), "a warning of the engine")
    members = [{"_id": i, "host": f"127.0.0.1:{ports[i]}"} for i in range(2)]
    client = pymongo.MongoClient(
        "127.0.0.1", ports[0], directConnection=True, serverSelectionTimeoutMS=Deadline().millis
    )
    verbosity = client.admin.command("getParameter", 1, logComponentVerbosity=1)["logComponentVerbosity"]
    check(verbosity["network"]["verbosity"] == 1, f"a document as parameter, at start-up: {verbosity['network']}")
    seconds = client.admin.command("getParameter", 1, periodicNoopIntervalSecs=1)["periodicNoopIntervalSecs"]
    check(seconds == 7, f"how long an idle primary is silent: {seconds}")
    client.admin.command("replSetInitiate", {"_id": "rs", "members": members})
    done = "Transition to primary complete; database writes are now permitted"
    check(until(lambda: any(done in text(i) for i in range(2))), "the primary says that it is one")
    primary = next(i for i in range(2) if done in text(i))
    first = pymongo.MongoClient("127.0.0.1", ports[primary], directConnection=True)
    check(first.test.c.insert_one({"_id": 1}).acknowledged, "and then writes are permitted")
    for c in (client, first):
        c.close()
    for proc in procs:
        proc.send_signal(signal.SIGTERM)
    check([proc.wait(Deadline().seconds) for proc in procs] == [0, 0], "clean stop of both")
    if taken:
        taken.close()


devices()
harness()
discard(folder)
check.end("operations")
