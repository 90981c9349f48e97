#!/usr/bin/env python3
"""What TLS costs the server: CPU of find by _id at 64 connections with TLS 1.3 beside plain, taking turns on one
server; full handshakes a second of one core, with ECDSA; memory of a connection that is idle.

    bench/tls.py [BINARY] [--rounds N]
    bench/tls.py [BINARY] --instructions    of a find, counted by callgrind, which no other load changes

The client is a process of its own; what is shown is the CPU time of the server's process, from /proc.
"""

import os, selectors, shutil, socket, ssl, struct, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/fault"), str(ROOT / "tests/golden")]
from run import launch

import bson, pymongo
from counted import Counted
from fault_test import Client
from threads import threads_cpu

rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 5
binary = next((a for a in sys.argv[1:] if "/" in a), str(ROOT / "build/release/mayflyd"))
CONNECTIONS, FINDS, HANDSHAKES, IDLE = 64, 60_000, 2_000, 1_000


def message(body):
    payload = struct.pack("<i", 0) + b"\0" + bson.encode(body)
    return struct.pack("<iiii", 16 + len(payload), 1, 0, 2013) + payload


def resident(pid):
    return int(open(f"/proc/{pid}/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


folder = tempfile.mkdtemp(prefix="mayfly-bench-tls-")
make = lambda *a: subprocess.run([ROOT / "scripts/certificates", f"{folder}/c", *a], check=True, capture_output=True)
make("server", "server", "localhost")
options = ["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", f"{folder}/c/server.pem"]
options += ["--tlsCAFile", f"{folder}/c/ca.pem", "--tlsAllowConnectionsWithoutCertificates"]
context = ssl.create_default_context(cafile=f"{folder}/c/ca.pem")
context.minimum_version = ssl.TLSVersion.TLSv1_3


def instructions():
    server = Counted(binary, *options, "--setParameter", "tlsHandshakeTimeoutMillis=120000")
    secured = Client("127.0.0.1", server.port)
    secured.sock = context.wrap_socket(secured.sock, server_hostname="localhost")
    find = lambda i: {"find": "c", "filter": {"_id": i % 1000}, "limit": 1, "singleBatch": True}
    secured.command("shop", {"insert": "c", "documents": [{"_id": i, "text": "x" * 200} for i in range(1000)]})
    plain, tls = (server.count(client, find, 2000)[0] for client in (server.nobody, secured))
    print(f"instructions of a find by _id: plain {plain:,.0f}, TLS 1.3 {tls:,.0f}: +{tls / plain - 1:.0%}", flush=True)
    server.end()


if "--instructions" in sys.argv:
    instructions()
    shutil.rmtree(folder)
    sys.exit()
proc, port = launch(
    binary, ["--dbpath", f"{folder}/data", *options, "--ioThreads", "1", "--quiet"], f"{folder}/log"
)


def connect(tls):
    s = socket.create_connection(("127.0.0.1", port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(s, server_hostname="localhost") if tls else s


def finds(tls):
    """Microseconds of server CPU per find."""
    requests = [
        message({"find": "c", "filter": {"_id": i}, "limit": 1, "singleBatch": True, "$db": "test"})
        for i in range(1000)
    ]
    links = [connect(tls) for _ in range(CONNECTIONS)]
    chooser = selectors.EpollSelector()
    for s in links:
        chooser.register(s, selectors.EVENT_READ)
    for round_ in range(2):  # the first warms up
        count, before = (FINDS if round_ else 3000), threads_cpu(proc.pid)
        sent = done = 0
        for s in links:
            s.sendall(requests[sent % 1000])
            sent += 1
        while done < count:
            for key, _ in chooser.select():
                s = key.fileobj
                reply = s.recv(65536)
                size = struct.unpack_from("<i", reply)[0]
                while len(reply) < size:
                    reply += s.recv(65536)
                done += 1
                if sent < count:
                    s.sendall(requests[sent % 1000])
                    sent += 1
    used = threads_cpu(proc.pid) - before
    for s in links:
        s.close()
    return used / FINDS * 1e6


def handshakes():
    """Full handshakes per second of server CPU."""
    before = threads_cpu(proc.pid)
    for _ in range(HANDSHAKES):
        connect(True).close()
    return HANDSHAKES / (threads_cpu(proc.pid) - before)


def idle(tls):
    """Bytes of a connection that has said something and nothing more."""
    ping = message({"ping": 1, "$db": "admin"})
    before, links = resident(proc.pid), []
    for _ in range(IDLE):
        s = connect(tls)
        s.sendall(ping)
        s.recv(65536)
        links.append(s)
    after = resident(proc.pid)
    for s in links:
        s.close()
    return (after - before) / IDLE


try:
    with pymongo.MongoClient("127.0.0.1", port) as c:
        c.test.c.insert_many([{"_id": i, "text": "x" * 200} for i in range(1000)])
    plain, tls = [], []
    for _ in range(rounds):
        plain.append(finds(False))
        tls.append(finds(True))
    middle = lambda x: sorted(x)[len(x) // 2]
    p, t = middle(plain), middle(tls)
    more = (t / p - 1) * 100
    print(f"find by _id, {CONNECTIONS} connections: plain {p:.2f} us, TLS 1.3 {t:.2f} us of server CPU: +{more:.0f} %")
    a_second = middle([handshakes() for _ in range(rounds)])
    print(f"full handshakes (TLS 1.3, ECDSA P-256): {a_second:.0f} a second of server CPU")
    plain, tls = idle(False) / 1024, idle(True) / 1024
    print(f"an idle connection: plain {plain:.1f} KiB, TLS {tls:.1f} KiB of resident memory")
finally:
    proc.terminate()
    proc.wait()
    shutil.rmtree(folder, ignore_errors=True)
