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


data = tempfile.mkdtemp(prefix="mayfly-clock-") + "/data"
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
proc = subprocess.Popen([BINARY, "--port", str(port), "--dbpath", data, "--nounixsocket", "--httpPort", "0", "--testClock", "--replSet", "rs0"],
                        stdout=open(data + ".log", "ab"), stderr=subprocess.STDOUT)
end, client = time.monotonic() + 60, None
while client is None:
    try:
        client = Client("127.0.0.1", port)
    except OSError:
        if proc.poll() is not None or time.monotonic() > end:
            print(open(data + ".log", errors="replace").read()[-5000:])
            sys.exit("the server did not start\n0 passed, 1 failed")
        threading.Event().wait(0.01)
clock = lambda change: client.command("admin", {"clock": change})
me = {"_id": 0, "host": f"127.0.0.1:{port}"}
r = client.command("admin", {"replSetInitiate": {"_id": "rs0", "members": [me]}})
check(r.get("ok") == 1, f"initiate: {r}")
while not client.command("admin", {"hello": 1}).get("isWritablePrimary"):
    if time.monotonic() > end:
        sys.exit("no primary\n0 passed, 1 failed")
    threading.Event().wait(0.01)
r = clock({"advanceSeconds": 5})
check(r.get("ok") == 1, f"one member: {r}")
config = client.command("admin", {"replSetGetConfig": 1})["config"]
config["version"] += 1
config["members"].append({"_id": 1, "host": "elsewhere.example:27017", "votes": 0, "priority": 0})
r = client.command("admin", {"replSetReconfig": config, "force": True})
check(r.get("ok") == 1, f"reconfig: {r}")
for change in ({"advanceSeconds": 5}, {"freeze": True}, "real"):
    r = clock(change)
    check(r.get("code") == 20 and "elsewhere.example" in r["errmsg"], f"{change} with a member elsewhere: {r}")
r = clock(1)
check(r.get("ok") == 1 and r["frozen"] is False, f"reading the clock: {r}")
proc.send_signal(signal.SIGTERM)
check(proc.wait(30) == 0, "clean stop")
shutil.rmtree(os.path.dirname(data), ignore_errors=True)
print(f"test clock: {passed} passed, {failed} failed")
sys.exit(failed != 0)
