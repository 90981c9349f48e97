#!/usr/bin/env python3
"""--testClock in a replica set: the clock moves while all members are on this host, and is refused once one is elsewhere."""
import os, shutil, signal, socket, subprocess, sys, tempfile, threading, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from run import ROOT, Client

BINARY = os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd"))
passed = failed = 0


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAIL {what}")


folder = tempfile.mkdtemp(prefix="mayfly-clock-")
ports, procs, clients = [], [], []
for n in range(2):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        ports.append(s.getsockname()[1])
    procs.append(subprocess.Popen([BINARY, "--port", str(ports[n]), "--dbpath", f"{folder}/{n}", "--nounixsocket", "--httpPort", "0", "--testClock",
                                   "--replSet", "rs0", "--bind_ip_all"], stdout=open(f"{folder}/{n}.log", "ab"), stderr=subprocess.STDOUT))
end = time.monotonic() + 60
while len(clients) < 2:
    try:
        clients.append(Client("127.0.0.1", ports[len(clients)]))
    except OSError:
        if procs[len(clients)].poll() is not None or time.monotonic() > end:
            print(open(f"{folder}/{len(clients)}.log", errors="replace").read()[-5000:])
            sys.exit("the server did not start\n0 passed, 1 failed")
        threading.Event().wait(0.01)  # sleeps: polls until a deadline
client = clients[0]
clock = lambda change: client.command("admin", {"clock": change})
# By name: a configuration mixes no localhost with other hosts.
me = {"_id": 0, "host": f"{socket.gethostname()}:{ports[0]}"}
r = client.command("admin", {"replSetInitiate": {"_id": "rs0", "members": [me]}})
check(r.get("ok") == 1, f"initiate: {r}")
while not client.command("admin", {"hello": 1}).get("isWritablePrimary"):
    if time.monotonic() > end:
        sys.exit("no primary\n0 passed, 1 failed")
    threading.Event().wait(0.01)  # sleeps: polls until a deadline
r = clock({"advanceSeconds": 5})
check(r.get("ok") == 1, f"one member: {r}")
# Another host as far as names go: this one's address instead of its name.
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(("192.0.2.1", 9))  # sends nothing
elsewhere = f"{probe.getsockname()[0]}:{ports[1]}"
config = client.command("admin", {"replSetGetConfig": 1})["config"]
config["version"] += 1
config["members"].append({"_id": 1, "host": elsewhere, "votes": 0, "priority": 0})
r = client.command("admin", {"replSetReconfig": config, "force": True})
check(r.get("ok") == 1, f"reconfig: {r}")
for change in ({"advanceSeconds": 5}, {"freeze": True}, "real"):
    r = clock(change)
    check(r.get("code") == 20 and elsewhere in r["errmsg"], f"{change} with a member elsewhere: {r}")
r = clock(1)
check(r.get("ok") == 1 and r["frozen"] is False, f"reading the clock: {r}")
for p in reversed(procs):
    p.send_signal(signal.SIGTERM)
    check(p.wait(30) == 0, "clean stop")
shutil.rmtree(folder, ignore_errors=True)
print(f"test clock: {passed} passed, {failed} failed")
sys.exit(failed != 0)
