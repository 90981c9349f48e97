#!/usr/bin/env python3
"""--testClock in a replica set: the clock moves while all members are on this host, and is refused once one is
elsewhere."""

import socket, tempfile

from fault_test import Checks, discard, initiate, start, stop

check = Checks(quiet=True)
folder = tempfile.mkdtemp(prefix="mayfly-clock-")
procs, clients = zip(*(start(f"{folder}/{n}", "--testClock", "--replSet", "rs0", "--bind_ip_all") for n in range(2)))
ports = [p.port for p in procs]
client = clients[0]
clock = lambda change: client.command("admin", {"clock": change})
# By name: a configuration mixes no localhost with other hosts.
r = initiate(client, f"{socket.gethostname()}:{ports[0]}")
check(r.get("ok") == 1, f"initiate: {r}")
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
    code = stop(p)
    check(code == 0, f"clean stop: {code}")
discard(folder)
check.end("test clock")
