#!/usr/bin/env python3
"""A server as an operator has it: unix socket, IPv6, log rotation by command and by signal, its pid file."""

import glob, json, os, shutil, signal, subprocess, sys, tempfile, urllib.parse

import pymongo
from pymongo.errors import OperationFailure

from fault_test import BINARY, Checks, free_port, until

check = Checks()
folder = tempfile.mkdtemp(prefix="mayfly-ops-")
log = f"{folder}/mayfly.log"


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
six = pymongo.MongoClient(f"mongodb://[::1]:{port}/?directConnection=true", serverSelectionTimeoutMS=5000)
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

local = pymongo.MongoClient("mongodb://" + urllib.parse.quote(path, safe=""), serverSelectionTimeoutMS=10000)
local.test.c.insert_one({"_id": 1})
check(local.test.c.find_one() == {"_id": 1}, "a driver over the unix socket")
check(local.admin.command("whatsmyuri")["you"].startswith("anonymous unix socket"), "who came by the unix socket")
check(oct(os.stat(path).st_mode & 0o777) == "0o700", "only its user may connect there")
local.close()
server.send_signal(signal.SIGTERM)
check(server.wait(60) == 0, "clean stop")
check(
    not os.path.exists(path) and not os.path.exists(f"{folder}/pid"), "the socket and the pid file go with the server"
)
shutil.rmtree(folder, ignore_errors=True)
check.end("operations")
