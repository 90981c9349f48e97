#!/usr/bin/env python3
"""The message by which docker/initiate makes the members of docker/compose.yaml a set: whole, and understood by a
server."""

import re, shutil, socket, struct, tempfile

import bson

from fault_test import ROOT, Checks, start, stop

check = Checks()
text = (ROOT / "docker/initiate").read_text()
message = bytes(int(h, 16) for h in re.findall(r"\\x([0-9a-f]{2})", text))
length, _, _, opcode, flags, kind = struct.unpack("<iiiiIB", message[:21])
check((length, opcode, flags, kind) == (len(message), 2013, 0, 0), "one OP_MSG with one section")
command = bson.decode(message[21:])
members = re.findall(r"hostname: (\w+)", (ROOT / "docker/compose.yaml").read_text())
check(
    command
    == {
        "replSetInitiate": {
            "_id": "rs0",
            "members": [{"_id": i, "host": f"{name}:27017"} for i, name in enumerate(members)],
        },
        "$db": "admin",
    },
    f"it names the members of the file: {members}",
)
folder = tempfile.mkdtemp(prefix="mayfly-compose-")
proc, _ = start(folder + "/data", "--replSet", "rs0")
with socket.create_connection(("127.0.0.1", proc.port)) as s:
    s.sendall(message)
    reply = s.recv(1 << 16)
reply = bson.decode(reply[21:])
check(
    reply["ok"] == 0 and reply["codeName"] in ("NodeNotFound", "InvalidReplicaSetConfig"),
    f"a server that is none of them refuses it as a configuration: {reply}",
)
check(stop(proc) == 0, "clean stop")
shutil.rmtree(folder, ignore_errors=True)
check.end("compose")
