#!/usr/bin/env python3
"""run_set.py BINARY COUNT PORT [mayflyd flags…]: COUNT members of the replica set rs0 on this machine, from PORT on;
initiates them once.

Data: ./mayfly-data-PORT of each, or DIR-PORT with --dbpath DIR. Ends them all on Ctrl-C. Needs no packages: it speaks
the little of the protocol that it uses.
"""

import os, signal, socket, struct, subprocess, sys, time


def bson(doc):
    out = b""
    for name, v in doc.items():
        key = name.encode() + b"\0"
        if isinstance(v, bool):
            out += b"\x08" + key + bytes([v])
        elif isinstance(v, int):
            out += b"\x10" + key + struct.pack("<i", v)
        elif isinstance(v, str):
            out += b"\x02" + key + struct.pack("<i", len(v.encode()) + 1) + v.encode() + b"\0"
        elif isinstance(v, list):
            out += b"\x04" + key + bson({str(i): x for i, x in enumerate(v)})
        else:
            out += b"\x03" + key + bson(v)
    return struct.pack("<i", len(out) + 5) + out + b"\0"


def command(port, doc):
    """The raw reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        body = struct.pack("<I", 0) + b"\0" + bson({**doc, "$db": "admin"})
        s.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body)
        reply = b""
        while len(reply) < 4 or len(reply) < struct.unpack("<i", reply[:4])[0]:
            part = s.recv(65536)
            if not part:
                raise ConnectionError("the member closed the connection")
            reply += part
        return reply


def succeeded(reply):
    return b"\x01ok\0" + struct.pack("<d", 1.0) in reply


binary, count, port, flags = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
ports = [port + i for i in range(count)]
data, rest = "./mayfly-data", []
while flags:
    flag = flags.pop(0)
    if flag.startswith("--dbpath="):
        data = flag[len("--dbpath=") :]
    elif flag == "--dbpath" and flags:
        data = flags.pop(0)
    else:
        rest.append(flag)
members = [
    subprocess.Popen(
        [
            binary,
            "--replSet",
            "rs0",
            "--port",
            str(p),
            "--dbpath",
            f"{data}-{p}",
            "--logpath",
            f"./mayfly-{p}.log",
            "--logappend",
            "--httpPort",
            str(p + 1000),
            *rest,
        ]
    )
    for p in ports
]


def stop(*_):
    for m in members:
        if m.poll() is None:
            m.send_signal(signal.SIGTERM)
    for m in members:
        m.wait()
    sys.exit(0)


signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
deadline = time.monotonic() + 30
for p, m in zip(ports, members):
    while True:
        try:
            command(p, {"ping": 1})
            break
        except OSError:
            if m.poll() is not None or time.monotonic() > deadline:
                print(f"the member on port {p} did not start: see ./mayfly-{p}.log", file=sys.stderr)
                stop()
            time.sleep(0.05)
config = {"_id": "rs0", "members": [{"_id": i, "host": f"127.0.0.1:{p}"} for i, p in enumerate(ports)]}
reply = command(port, {"replSetInitiate": config})
if not succeeded(reply) and b"already initialized" not in reply:
    print("the set could not be initiated:", reply[21:], file=sys.stderr)
    stop()
print(
    "the set is up; connect with\n      mongosh \"mongodb://"
    + ",".join(f"127.0.0.1:{p}" for p in ports)
    + "/?replicaSet=rs0\"\nCtrl-C stops it.",
    flush=True,
)
while all(m.poll() is None for m in members):
    time.sleep(0.5)
print("a member ended", file=sys.stderr)
stop()
