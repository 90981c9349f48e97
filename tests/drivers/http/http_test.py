#!/usr/bin/env python3
"""The HTTP endpoint beside the page: what an action by a button leaves in the audit log, and readiness of a member of a
replica set."""

import http.client, json, os, socket, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fault"))
from fault_test import Checks, Client, Deadline, discard, free_port, start, stop, until, wait_for

check = Checks(quiet=True)


class Server:
    """On a port of the system's choice, with its HTTP port."""

    def __init__(self, folder, *options):
        self.http_port = free_port()
        os.makedirs(folder)
        self.proc, self.client = start(folder + "/db", "--httpPort", str(self.http_port), *options)
        self.port, self.log = self.proc.port, folder + "/db.log"
        if not until(lambda: self.get("/healthz")[0] == 200):
            sys.exit("no answer on the HTTP port\n0 passed, 1 failed")

    def get(self, path, method="GET", headers={}, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=Deadline().seconds)
        try:
            c.request(method, path, body, headers)
            self.address = c.sock.getsockname()
            r = c.getresponse()
            return r.status, r.read().decode()
        except OSError:
            return 0, ""
        finally:
            c.close()

    def stop(self):
        check(stop(self.proc) == 0, "stops cleanly")


folder = tempfile.mkdtemp(prefix="mayfly-http-")
try:
    s = Server(folder + "/one")
    check(s.get("/readyz") == (200, "ready\n"), "a standalone is ready")
    # A page of another site whose name was made to point here (DNS rebinding) reads nothing.
    for path in ("/", "/metrics", "/api/status", "/events", "/readyz"):
        status, text = s.get(path, headers={"Host": f"evil.example:{s.http_port}"})
        check(status == 421 and "--httpHosts" in text, f"{path} for another name: {status} {text[:200]}")
    for host in ("localhost", f"LOCALHOST:{s.http_port}", f"[::1]:{s.http_port}", "10.1.2.3", socket.gethostname()):
        check(s.get("/readyz", headers={"Host": host})[0] == 200, f"answered as {host}")
    with socket.create_connection(("127.0.0.1", s.http_port), Deadline().seconds) as raw:
        raw.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        check(b" 400 " in raw.recv(4096), "HTTP/1.1 without Host")
    with socket.create_connection(("127.0.0.1", s.http_port), Deadline().seconds) as raw:
        raw.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        check(b" 200 " in raw.recv(4096), "HTTP/1.0 without Host")
    named = Server(folder + "/named", "--httpHosts", "db.example,metrics")
    check(
        named.get("/metrics", headers={"Host": "db.example:9"})[0] == 200
        and named.get("/metrics", headers={"Host": "Metrics"})[0] == 200,
        "names given with --httpHosts",
    )
    check(named.get("/metrics", headers={"Host": "evil.example"})[0] == 421, "and no others")
    named.stop()
    s.client.command(
        "app", {"createIndexes": "c", "indexes": [{"key": {"t": 1}, "name": "t_1", "expireAfterSeconds": 60}]}
    )
    own = {
        "Content-Type": "application/json",
        "Origin": f"http://127.0.0.1:{s.http_port}",
        "Host": f"127.0.0.1:{s.http_port}",
    }
    status, text = s.get("/api/action", "POST", own, json.dumps({"action": "pause", "ns": "app.c", "index": "t_1"}))
    asked_from = s.address
    check(status == 200, f"pause by the page: {status} {text}")
    lines = [json.loads(line) for line in open(folder + "/one/db/audit/audit.json")]
    pause = [line for line in lines if line["atype"] == "ttlPause"]
    check(len(pause) == 1, f"one line of the pause: {lines}")
    check(
        pause[0]["remote"] == {"ip": "127.0.0.1", "port": asked_from[1]},
        f"who paused: {pause[0]['remote']}, asked from {asked_from}",
    )
    check(pause[0]["local"] == {"ip": "127.0.0.1", "port": s.http_port}, f"where: {pause[0]['local']}")
    # Whatever ends a rule or a maxTTL leaves a line.
    s.client.command("app", {"setDatabaseExpiry": 1, "maxTTL": 50})
    s.client.command("app", {"create": "d", "expiry": {"maxTTL": 5}})
    s.client.command(
        "app", {"collMod": "c", "index": {"name": "t_1", "expireReads": "exact", "reap": {"maxDocsPerSecond": 5}}}
    )
    s.client.command("app", {"collMod": "c", "onExpire": {"action": "archive", "into": {"db": "app", "coll": "d"}}})
    changed = [
        l["param"] for l in map(json.loads, open(folder + "/one/db/audit/audit.json")) if l["atype"] == "collMod"
    ]
    check(
        changed
        == [
            {
                "ns": "app.c",
                "index": "t_1",
                "old": {"expireReads": None, "reap": None},
                "new": {"expireReads": "exact", "reap": {"maxDocsPerSecond": 5}},
            },
            {
                "ns": "app.c",
                "old": None,
                "new": {"onExpire": {"action": "archive", "into": {"db": "app", "coll": "d"}}},
            },
        ],
        f"what was changed: {changed}",
    )
    s.client.command(
        "app", {"createIndexes": "v", "indexes": [{"key": {"t": 1}, "name": "t_1", "expireAfterSeconds": 9}]}
    )
    s.client.command("app", {"convertToCapped": "v", "size": 4096})
    converted = [
        l["param"]
        for l in map(json.loads, open(folder + "/one/db/audit/audit.json"))
        if l["atype"] == "convertToCapped"
    ]
    check(
        converted == [{"ns": "app.v", "index": "t_1", "old": {"expireAfterSeconds": 9}, "new": None}],
        f"a rule that convertToCapped ends: {converted}",
    )
    s.client.command("app", {"drop": "d"})
    s.client.command("app", {"dropDatabase": 1})
    dropped = [
        (l["atype"], l["param"]["ns"], l["param"]["old"], l["param"]["new"])
        for l in map(json.loads, open(folder + "/one/db/audit/audit.json"))
        if l["atype"].startswith("drop") and "old" in l["param"]
    ]
    check(
        sorted(dropped, key=str)
        == sorted(
            [
                ("dropCollection", "app.d", {"expiry": {"maxTTL": 5}}, None),
                ("dropDatabase", "app", {"maxTTL": 50}, None),
                ("dropCollection", "app.v", {"indexes": [{"index": "t_1", "expireAfterSeconds": 9}]}, None),
                (
                    "dropCollection",
                    "app.c",
                    {
                        "onExpire": {"action": "archive", "into": {"db": "app", "coll": "d"}},
                        "indexes": [{"index": "t_1", "expireAfterSeconds": 60}],
                    },
                    None,
                ),
            ],
            key=str,
        ),
        f"what was dropped: {dropped}",
    )
    # --port 0: what the server says of itself has the port that it found.
    host = s.client.command("admin", {"serverStatus": 1})["host"]
    check(host.endswith(f":{s.port}"), f"host {host} of port {s.port}")
    # A client that goes and the next that comes while nobody else is there: two ticks of one timer woke each other
    # without end.
    time_of = lambda: (
        sum(map(int, open(f"/proc/{s.proc.pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
        / os.sysconf("SC_CLK_TCK")
    )
    s.client.sock.close()
    wait_for(lambda: '"connectionCount":0' in open(s.log).read())
    s.client = Client("127.0.0.1", s.port)
    s.client.command("admin", {"ping": 1})
    used, watched = time_of(), time.monotonic() + 1
    until(lambda: time_of() - used >= 0.5 or time.monotonic() > watched)  # clock: how long it is watched
    check(time_of() - used < 0.5, f"idle with one connection: {time_of() - used:.2f} s of CPU")
    s.stop()

    s = Server(folder + "/member", "--replSet", "rs0")
    status, text = s.get("/readyz")
    check(status == 503 and "STARTUP" in text, f"a member that is not initiated: {status} {text}")
    r = s.client.command(
        "admin", {"replSetInitiate": {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{s.port}"}]}}
    )
    check(r.get("ok") == 1, f"initiate: {r}")
    wait_for(lambda: s.get("/readyz")[0] == 200)
    check(s.get("/readyz") == (200, "ready\n"), "a member that serves is ready")
    s.stop()
finally:
    discard(folder)
check.end("http")
