#!/usr/bin/env python3
"""Bytes that are no TLS, names that are none, crowds of silent clients and of handshakes, and certificates that change
while connections come and go: who is served stays served. The last line says "N passed, N failed".

MAYFLY_SILENT (1000): silent clients. MAYFLY_ROTATIONS (100): of certificates, among them wrong ones.
"""

import json, os, socket, ssl, struct, subprocess, threading, time

import bson

from fault_test import Deadline, figure, free_port, run_parts, until
from tls_server import CA, CLIENT, OWN, PING, Server, answer, certificate, check, closed, code_of, folder, message

SILENT = int(os.environ.get("MAYFLY_SILENT", "1000"))
ROTATIONS = int(os.environ.get("MAYFLY_ROTATIONS", "100"))


def hostile():
    """Bytes that are no TLS, or not well."""
    with Server("--setParameter", "tlsHandshakeTimeoutMillis=1000") as s:
        keeper = s.client()
        keeper.admin.command("ping")
        for what, data in {
            "garbage": os.urandom(4000),
            "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
            "a record of no version": b"\x16\x03\x09\x02\x00\x01" + bytes(600),
            "a hello of garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(2000),
            "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
            "a message of 48 MB": struct.pack("<iiii", 48000000, 1, 0, 2013),
        }.items():
            c = s.connect()
            c.sendall(data)
            check(closed(c), f"{what} ends the connection")
        for what, data in {
            "nothing": b"",
            "one byte of a hello": b"\x16",
            "half a hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        }.items():
            c = s.connect()
            c.sendall(data)
            check(closed(c), f"{what}, and then silence, ends the connection after a while")
        check(s.logged("was not completed in time"), "and the log says why")
        c = s.connect()
        c.sendall(b"\x16\x03\x01")
        c.close()
        with s.secure() as c:
            c.sendall(message(PING))
            answer(c)
            raw = c.detach()
        raw = socket.socket(fileno=raw)
        raw.sendall(b"\x17\x03\x03\x00\x40" + os.urandom(64))
        check(closed(raw), "a record that nobody has sealed ends the connection")
        c = s.secure()
        c.sendall(message(PING))
        answer(c)
        socket.socket(fileno=c.detach()).close()  # without close_notify
        check(s.gets_in(), "an end without close_notify harms nobody")
        with s.secure() as c:
            big = bson.encode({"insert": "big", "$db": "test", "documents": [{"_id": 1, "a": "x" * 15_000_000}]})
            payload = struct.pack("<i", 0) + b"\0" + big
            whole = struct.pack("<iiii", 16 + len(payload), 5, 0, 2013) + payload
            c.sendall(whole[:10])
            for at in range(10, len(whole), 1_000_003):
                c.sendall(whole[at : at + 1_000_003])
            check(b"n\x00\x01\x00\x00\x00" in answer(c), "a large message comes in many records")
            c.sendall(message({"find": "big", "$db": "test"}))
            check(len(answer(c)) > 15_000_000, "and its document comes back")
            c.sendall(b"".join(message(PING, i) for i in range(5000)))
            check(all(len(answer(c)) > 16 for _ in range(5000)), "5,000 requests at once are answered")
            for byte in message(PING):
                c.sendall(bytes([byte]))
            check(len(answer(c)) > 16, "a message in records of one byte is understood")
        with s.secure(ssl.TLSVersion.TLSv1_2) as c:
            c.sendall(message(PING))
            check(len(answer(c)) > 16, "TLS 1.2 answers before renegotiation is tried")
        renegotiated = subprocess.run(
            ["openssl", "s_client", "-connect", f"localhost:{s.port}", "-tls1_2", "-cert", CLIENT, "-key", CLIENT]
            + ["-CAfile", CA],
            input="R\n",
            capture_output=True,
            text=True,
            timeout=Deadline().seconds,
        )
        check(
            "no renegotiation" in (renegotiated.stdout + renegotiated.stderr)
            or "RENEGOTIATING" in (renegotiated.stdout + renegotiated.stderr)
            and renegotiated.returncode != 0,
            "renegotiation is refused",
        )
        check("Compression: NONE" in renegotiated.stdout, "nothing is compressed")
        check(keeper.admin.command("ping")["ok"] == 1, "who was connected stays")
        keeper.close()


def percentiles(client, work):
    """Milliseconds of pings while `work` runs: median and longest; and all of them."""
    took, done = [], threading.Event()

    def measure():
        while not done.is_set():
            begun = time.monotonic()
            client.admin.command("ping")
            took.append((time.monotonic() - begun) * 1000)

    t = threading.Thread(target=measure)
    t.start()
    try:
        work()
    finally:
        done.set()
        t.join()
    took.sort()
    return took[len(took) // 2], took[-1], took


def crowds():
    """Many that are silent, and many full handshakes: others are served."""
    with Server("--setParameter", "tlsMaxHandshakes=200") as s:
        client = s.client()
        client.admin.command("ping")
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)
        crowd = []

        def silent():
            for i in range(SILENT):
                c = s.connect()
                c.sendall(b"" if i % 2 else hello)
                crowd.append(c)
            for _ in range(20):
                with s.secure() as c:
                    c.sendall(message(PING))
                    answer(c)

        median, longest, answers = percentiles(client, silent)
        n = len(answers)
        print(f"     {SILENT} silent clients: another one's ping {median:.2f} ms, longest {longest:.1f} ms of {n}")
        figure(f"another client's longest ping beside {SILENT} silent ones", longest)
        # 20 others get in meanwhile, one after the other: whoever waits for one of them has no more answers than that.
        check(n > 20, f"{SILENT} silent clients, half of them in a hello, disturb nobody: {n} answers")
        check(s.gets_in(), "and others get in beside them")
        for c in crowd:
            c.close()

        # Handshakes that are not finished: the server has answered, the client says nothing more.
        def half_done():
            stuck.clear()
            for _ in range(300):
                context = ssl.create_default_context(cafile=CA)
                context.load_cert_chain(CLIENT)
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                half = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
                try:
                    half.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                c = s.connect()
                c.sendall(outgoing.read())
                stuck.append(c)
            with s.secure() as c:
                c.sendall(message(PING))
                answer(c)

        stuck = []
        median, longest, answers = percentiles(client, half_done)
        n = len(answers)
        print(f"     300 unfinished handshakes: another one's ping {median:.2f} ms, longest {longest:.1f} ms of {n}")
        figure("another client's longest ping beside 300 unfinished handshakes", longest)
        check(n > 20, f"300 unfinished handshakes disturb nobody: {n} answers")
        status = s.status()["transportSecurity"]["handshakes"]
        check(status["evicted"] >= 90 and status["underWay"] <= 200, f"the oldest went for the new ones: {status}")
        check(closed(stuck[0]), "the oldest of them was disconnected")
        for c in stuck:
            c.close()

        def flood():
            threads = [threading.Thread(target=handshakes) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()

        def handshakes():
            for _ in range(200):
                try:
                    s.secure().close()
                except OSError as e:
                    failed.append(repr(e))

        failed = []
        median, longest, answers = percentiles(client, flood)
        n = len(answers)
        print(f"     800 full handshakes: another one's ping {median:.2f} ms, longest {longest:.1f} ms of {n}")
        figure("another client's longest ping beside 800 full handshakes", longest)
        check(n > 40, f"800 full handshakes disturb nobody: {n} answers")
        # A machine that others keep busy may take the ten seconds from one behind the crowd that has just gone.
        check(len(failed) <= 8, f"and they get in: {len(failed)} of 800 were late, {failed[:2]}")
        client.close()


def rotation_under_load():
    """Files that change, now and then to ones that are wrong, while connections come and go."""
    file = f"{folder}/storm.pem"
    names = ("storm-a", "storm-b")
    good = [open(certificate(OWN, "server", n, "localhost", "127.0.0.1")).read() for n in names]
    cut = good[0].index("-----END")
    bad = ["", "nonsense", good[0][:cut], good[0].replace("A", "B", 40), good[0].split("-----BEGIN CERTIFICATE")[0]]

    def put(text):
        with open(file + ".new", "w") as f:
            f.write(text)
        os.chmod(file + ".new", 0o600)
        os.replace(file + ".new", file)

    put(good[0])
    with Server(file=file) as s:
        ends, seen, failed, unexpected = threading.Event(), set(), [], []
        held = s.secure()

        def come_and_go(version):
            while not ends.is_set():
                try:
                    context = ssl.create_default_context(cafile=CA)
                    context.load_cert_chain(CLIENT)
                    context.minimum_version = context.maximum_version = version
                    with context.wrap_socket(s.connect(), server_hostname="localhost") as c:
                        seen.add(dict(x[0] for x in c.getpeercert()["subject"])["commonName"])
                        c.sendall(message(PING))
                        answer(c)
                except Exception as e:  # noqa: BLE001
                    failed.append(repr(e))

        versions = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3] * 2
        threads = [threading.Thread(target=come_and_go, args=(v,)) for v in versions]
        for t in threads:
            t.start()
        with s.client(serverSelectionTimeoutMS=Deadline().millis) as admin:
            for i in range(ROTATIONS):
                wrong = i % 5 == 4
                put(bad[i // 5 % len(bad)] if wrong else good[i % 2])
                got = code_of(admin.admin.command, "rotateCertificates", 1)
                if got != (72 if wrong else 0):
                    unexpected.append((i, got))
        check(until(lambda: seen == set(names)), f"both certificates were shown: {seen}")
        ends.set()
        for t in threads:
            t.join(Deadline().seconds)
        check(not unexpected, f"{ROTATIONS} rotations are answered rightly: {unexpected}")
        check(not failed, f"no connection notices: {len(failed)}, {failed[:2]}")
        held.sendall(message(PING))
        answer(held)
        held.close()
        put(good[1])
        with s.client() as admin:
            check(code_of(admin.admin.command, "rotateCertificates", 1) == 0, "and it goes on")
        with s.secure() as c:
            check(dict(x[0] for x in c.getpeercert()["subject"])["commonName"] == names[1], "with the last one")


def hello_with_name(extension):
    """A ClientHello (TLS 1.2, RFC 5246) with these bytes as the extension server_name (RFC 6066)."""
    extensions = struct.pack(">HH", 0, len(extension)) + extension
    extensions += bytes.fromhex("000a000400020017000d0006000404030401")
    body = b"\x03\x03" + os.urandom(32) + b"\0" + struct.pack(">HHH", 4, 0xC02B, 0xC02F) + b"\1\0"
    body += struct.pack(">H", len(extensions)) + extensions
    handshake = b"\1" + struct.pack(">I", len(body))[1:] + body
    return b"\x16\x03\x01" + struct.pack(">H", len(handshake)) + handshake


def hostile_names():
    """Names in a ClientHello that are none."""

    def name(text, kind=0):
        entry = bytes([kind]) + struct.pack(">H", len(text)) + text
        return struct.pack(">H", len(entry)) + entry

    with Server("--httpPort", str(free_port())) as s:
        for what, extension in (
            ("a name", name(b"localhost")),
            ("an empty one", name(b"")),
            ("one with a NUL", name(b"local\0host")),
            ("255 bytes", name(b"a" * 255)),
            ("256 bytes", name(b"a" * 256)),
            ("15,000 bytes", name(b"a" * 15_000)),
            ("control characters", name(b'\x1b[2J\n{"t":1}\r"')),
            ("no UTF-8", name(b"\xff\xfe\x80")),
            ("another kind of name", name(b"localhost", 7)),
            ("two names", name(b"a")[2:] * 2),
            ("a length that lies", b"\xff\xff" + name(b"a")[2:]),
            ("an entry that lies", b"\0\x06\0\xff\xffabc"),
            ("nothing", b""),
        ):
            with s.connect() as c:
                c.sendall(hello_with_name(extension))
                first = c.recv(1)
                check(first in (b"\x16", b"\x15", b""), f"{what}: a handshake or an alert: {first}")
        check(s.gets_in(), "and who is right gets in")
        lines = s.log().splitlines()
        check(all(x.startswith("{") and json.loads(x) for x in lines if x), "each line of the log is one")
        check(max(map(len, lines)) < 12_000, "and none is long")


run_parts("tls hostile", [hostile, hostile_names, crowds, rotation_under_load], check)
