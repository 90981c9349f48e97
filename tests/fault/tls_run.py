#!/usr/bin/env python3
"""TLS: who gets in and who does not, what hostile and silent clients bring about, files that change, sets and modes.

The certificates are made by scripts/certificates in the run. The last line says "N passed, N failed". With the names of
parts (functions) as arguments only those run. MAYFLY_SILENT (1000): silent clients. MAYFLY_ROTATIONS (100): of
certificates while connections come and go.

long file: one part for each thing, all with the same server and certificates.
"""

import base64, http.client, json, os, shutil, socket, ssl, struct, subprocess, tempfile, threading, time

import bson, pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, ROOT, Checks, free_port, launch, run_parts, stop, until
from replica_set import Member, ReplicaSet

SILENT = int(os.environ.get("MAYFLY_SILENT", "1000"))
ROTATIONS = int(os.environ.get("MAYFLY_ROTATIONS", "100"))
check = Checks()
folder = tempfile.mkdtemp(prefix="mayfly-tls-")
OWN, FOREIGN = f"{folder}/own", f"{folder}/foreign"
CA = f"{OWN}/ca.pem"


def certificate(authority, kind, name, *more, **environment):
    """The PEM file of a new certificate by this authority."""
    made = subprocess.run(
        [ROOT / "scripts/certificates", authority, kind, name, *more],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.strip()


SERVER = certificate(OWN, "server", "server", "localhost", "127.0.0.1")
CLIENT = certificate(OWN, "client", "app", "readWrite.shop")
started = 0


class Server:
    """A standalone with TLS, until the end of a `with`."""

    def __init__(self, *options, mode="requireTLS", file=SERVER, ca=CA):
        global started
        started += 1
        self.data = f"{folder}/data{started}"
        files = [] if mode == "disabled" else ["--tlsCertificateKeyFile", file, *(["--tlsCAFile", ca] if ca else [])]
        self.proc, self.port = launch(
            BINARY, ["--dbpath", self.data, "--tlsMode", mode, *files, *options], self.data + ".log"
        )
        assert self.port, self.log()[-3000:]

    def log(self):
        return open(self.data + ".log", errors="replace").read()

    def logged(self, text, seconds=20):
        """Whether the log says so, soon."""
        return until(lambda: text in self.log(), seconds)

    def client(self, certificate=CLIENT, tls=True, **options):
        more = dict(tls=True, tlsCAFile=CA) if tls else {}
        if tls and certificate:
            more["tlsCertificateKeyFile"] = certificate
        more |= options
        return pymongo.MongoClient("localhost", self.port, serverSelectionTimeoutMS=3000, directConnection=True, **more)

    def gets_in(self, *args, **options):
        with self.client(*args, **options) as c:
            try:
                return c.admin.command("ping")["ok"] == 1
            except PyMongoError:
                return False

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def secure(self, version=None, certificate=CLIENT, **options):
        """A TLS connection by Python's own ssl."""
        context = ssl.create_default_context(cafile=CA)
        if certificate:
            context.load_cert_chain(certificate)
        if version:
            context.minimum_version = context.maximum_version = version
        for name, value in options.items():
            setattr(context, name, value)
        return context.wrap_socket(self.connect(), server_hostname="localhost")

    def status(self):
        with self.client() as c:
            return c.admin.command("serverStatus")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            check(stop(self.proc) == 0, "the server ends in order")


def message(body, request=1):
    payload = struct.pack("<i", 0) + b"\0" + bson.encode(body)
    return struct.pack("<iiii", 16 + len(payload), request, 0, 2013) + payload


PING = {"ping": 1, "$db": "admin"}


def exactly(s, size):
    have = b""
    while len(have) < size:
        more = s.recv(size - len(have))
        if not more:
            raise ConnectionError(f"ended after {len(have)} of {size} bytes")
        have += more
    return have


def answer(s):
    head = exactly(s, 4)
    return head + exactly(s, struct.unpack("<i", head)[0] - 4)


def closed(s, seconds=30):
    """Whether the server ends this connection, whatever it says before."""
    s.settimeout(seconds)
    try:
        while s.recv(65536):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def certificates():
    """Whose certificate is taken, and whose is not."""
    foreign = certificate(FOREIGN, "client", "app")
    old = certificate(OWN, "client", "old", UNTIL="20200201000000Z")
    revoked = certificate(OWN, "client", "revoked")
    certificate(OWN, "revoke", "revoked")
    with Server("--tlsCRLFile", f"{OWN}/crl.pem") as s:
        check(s.gets_in(), "a client with a certificate gets in")
        check(s.logged("CN=app,OU=clients,O=Mayfly"), "and the log names its subject as RFC 2253 has it")
        check(not s.gets_in(None), "one without a certificate does not")
        check(s.logged("peer did not return a certificate"), "and the log says why")
        check(not s.gets_in(foreign), "one whose certificate is by another authority does not")
        check(not s.gets_in(old), "one whose certificate has expired does not")
        check(s.logged("certificate has expired"), "and the log says why")
        check(not s.gets_in(revoked), "one whose certificate was taken back does not")
        check(s.logged("certificate revoked"), "and the log says why")
        check(not s.gets_in(tls=False), "a plain client does not")
        check(s.logged("only allow SSL connections"), "and the log says why")
        with s.client(None, tlsCAFile=f"{FOREIGN}/ca.pem") as c:
            try:
                c.admin.command("ping")
                refused = False
            except PyMongoError as e:
                refused = "certificate verify failed" in str(e)
        check(refused, "a client that trusts another authority does not trust this server")
        security = s.status()["security"]
        check(
            security["SSLServerSubjectName"] == "CN=server,OU=members,O=Mayfly"
            and security["SSLServerHasCertificateAuthority"]
            and security["SSLServerCertificateExpirationDate"].year > 2026,
            "serverStatus.security tells of the server's certificate",
        )
    with Server("--tlsAllowConnectionsWithoutCertificates") as s:
        check(s.gets_in(None) and s.gets_in(), "clients need none where that is allowed")
        check(not s.gets_in(foreign), "but one that is shown must be good")
    with Server("--tlsAllowInvalidCertificates") as s:
        check(s.gets_in(foreign) and s.gets_in(old), "invalid certificates pass where that is allowed")
        check(s.logged("SSL peer certificate validation failed"), "with a warning")
        check('"peerSubject":"CN' not in s.log(), "and give nobody a name")
    with Server("--tlsClusterCAFile", f"{FOREIGN}/ca.pem") as s:
        check(s.gets_in(foreign) and not s.gets_in(), "clusterCAFile says whose clients get in")


def modes():
    """Plain and TLS on one port, protocols, parameters."""
    with Server(mode="disabled") as s:
        check(s.gets_in(tls=False) and not s.gets_in(), "disabled: plain alone")
        check(s.logged("server is started without SSL support"), "and the log says so")
        with s.client(tls=False) as c:
            check(c.admin.command("serverStatus")["security"] == {}, "and there is no certificate to tell of")
            try:
                c.admin.command("rotateCertificates", 1)
                check(False, "rotateCertificates needs TLS")
            except PyMongoError as e:
                check(e.code == 20, "rotateCertificates needs TLS")
    with Server(mode="allowTLS") as s:
        check(s.gets_in(tls=False) and s.gets_in(), "allowTLS: plain and TLS on the same port")
        plain = s.client(tls=False)
        plain.admin.command("ping")

        def change(mode):
            try:
                return plain.admin.command("setParameter", 1, tlsMode=mode)["was"]
            except PyMongoError as e:
                return e.code

        check(change("requireTLS") == 2 and change("disabled") == 2, "no step is left out, none goes back")
        check(change("nonsense") == 2, "a mode that there is not is refused")
        check(change("preferTLS") == "allowTLS" and s.gets_in(tls=False) and s.gets_in(), "preferTLS: both")
        check(change("requireTLS") == "preferTLS", "requireTLS by setParameter")
        check(plain.admin.command("ping")["ok"] == 1, "plain connections that exist go on")
        check(not s.gets_in(tls=False) and s.gets_in(), "new ones must use TLS")
        plain.close()
    with Server() as s:
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            with s.secure(version) as c:
                c.sendall(message(PING))
                check(len(answer(c)) > 16 and c.version() == name, f"{name} is spoken")
        for old in ("-tls1_1", "-tls1"):
            done = subprocess.run(
                ["openssl", "s_client", "-connect", f"localhost:{s.port}", old, "-cipher", "ALL:@SECLEVEL=0"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
            )
            check("alert protocol version" in done.stderr, f"TLS before 1.2 is not spoken ({old})")
        before = s.status()["transportSecurity"]
        check(before["1.2"] > 0 and before["1.3"] > 0 and before["1.1"] == 0, "transportSecurity counts versions")
    with Server("--tlsDisabledProtocols", "TLS1_0,TLS1_1,TLS1_2") as s:
        try:
            s.secure(ssl.TLSVersion.TLSv1_2)
            check(False, "TLS 1.2 can be switched off")
        except (ssl.SSLError, OSError):
            check(True, "TLS 1.2 can be switched off")
        check(s.gets_in(), "and 1.3 stays")
    with Server("--setParameter", "opensslCipherConfig=ECDHE-ECDSA-AES128-GCM-SHA256") as s:
        with s.secure(ssl.TLSVersion.TLSv1_2) as c:
            check(c.cipher()[0] == "ECDHE-ECDSA-AES128-GCM-SHA256", "opensslCipherConfig says which ciphers there are")


def code_of(f, *args, **options):
    try:
        f(*args, **options)
        return 0
    except PyMongoError as e:
        return getattr(e, "code", None) or str(e)


def x509_logins():
    """MONGODB-X509: the subject of a certificate is a user of $external."""
    subject = "CN=user,OU=clients,O=Mayfly"
    own = certificate(OWN, "client", "user")
    stranger = certificate(OWN, "client", "stranger")
    foreign = certificate(FOREIGN, "client", "user")
    by_certificate = dict(authMechanism="MONGODB-X509", authSource="$external")
    with Server("--auth", "--tlsAllowConnectionsWithoutCertificates") as s:
        with s.client(None) as first:
            first.admin.command("createUser", "root", pwd="secret", roles=["root"])
        root = s.client(None, username="root", password="secret")
        check(root.admin.command("ping")["ok"] == 1, "a password over TLS")
        made = code_of(root["$external"].command, "createUser", subject, pwd="x", roles=[])
        check(made == 2, f"a user of $external has no password: {made}")
        root["$external"].command("createUser", subject, roles=[{"role": "readWrite", "db": "shop"}])
        app = s.client(own, maxPoolSize=1, **by_certificate)
        app.shop.things.insert_one({"_id": 1})
        who = app.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        check(who == [{"user": subject, "db": "$external"}], f"a certificate logs in: {who}")
        check(code_of(app.other.things.insert_one, {}) == 13, "with the roles of its user, and no more")
        with s.client(own) as c:
            check(code_of(c.shop.things.find_one) == 13, "a certificate alone, without a login, does nothing")
        for what, file, options in (
            ("of nobody's", stranger, {}),
            ("for another name", own, {"username": "CN=root"}),
            ("that there is none of", None, {}),
        ):
            with s.client(file, **by_certificate, **options) as c:
                refused = code_of(c.shop.things.find_one)
                check(refused == 18, f"a certificate {what}: {refused}")
        with s.client(own) as c:
            wrong = code_of(c.admin.command, "authenticate", 1, mechanism="MONGODB-X509")
            check(wrong == 17, f"another database than $external: {wrong}")
            hello = {"hello": 1, "speculativeAuthenticate": {"authenticate": 1, "mechanism": "MONGODB-X509"}}
            said = c.admin.command(
                hello | {"speculativeAuthenticate": hello["speculativeAuthenticate"] | {"db": "$external"}}
            )
            check(said.get("speculativeAuthenticate") == {"dbname": "$external", "user": subject}, "within the hello")
        root["$external"].command("revokeRolesFromUser", subject, roles=[{"role": "readWrite", "db": "shop"}])
        check(code_of(app.shop.things.find_one) == 13, "what is taken from the user holds at once")
        root["$external"].command("dropUser", subject)
        check(code_of(app.shop.things.find_one) == 13, "as does its end")
        check(s.logged('"mechanism":"MONGODB-X509"'), "the log tells of these logins")
        for c in (app, root):
            c.close()
    with Server("--auth", "--tlsAllowInvalidCertificates") as s:
        with s.client() as first:
            first.admin.command("createUser", "root", pwd="secret", roles=["root"])
        with s.client(username="root", password="secret") as root:
            root["$external"].command("createUser", subject, roles=[{"role": "readWrite", "db": "shop"}])
        with s.client(foreign, **by_certificate) as c:
            check(code_of(c.shop.things.find_one) == 18, "a certificate that nobody has verified names nobody")
    with Server("--auth", mode="disabled") as s:
        with s.client(tls=False) as c:
            check(code_of(c["$external"].command, "authenticate", 1, mechanism="MONGODB-X509") == 18, "not without TLS")


def wrong_files():
    """Starts that cannot work say which file is wrong and why."""
    locked = certificate(OWN, "server", "locked", "localhost", PASSWORD="geheim")
    old = certificate(OWN, "server", "oldserver", "localhost", UNTIL="20200201000000Z")
    text = open(SERVER).read()
    only = f"{folder}/only.pem"
    open(only, "w").write(text[: text.index("-----BEGIN PRIVATE")])
    other = f"{folder}/other.pem"
    open(other, "w").write(
        open(CLIENT).read().split("-----BEGIN PRIVATE")[0] + text[text.index("-----BEGIN PRIVATE") :]
    )
    readable = f"{folder}/readable.pem"
    open(readable, "w").write(text)
    os.chmod(readable, 0o644)
    for p in (only, other):
        os.chmod(p, 0o600)
    empty = f"{folder}/empty.pem"
    open(empty, "w").close()

    def says(expected, *options, stdin=subprocess.DEVNULL):
        done = subprocess.run(
            [BINARY, "--dbpath", f"{folder}/never", "--port", str(free_port()), "--httpPort", "0", "--nounixsocket"]
            + list(options),
            capture_output=True,
            text=True,
            timeout=60,
            stdin=stdin,
            start_new_session=True,  # no terminal
        )
        out = done.stdout + done.stderr
        check(done.returncode == 2 and all(e in out for e in expected), f"{expected[-1]}")
        if done.returncode != 2 or not all(e in out for e in expected):
            print(out[-1500:])
        check("geheim" not in out, "without showing a password")

    def with_file(path, *more):
        return ("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", path, "--tlsCAFile", CA, *more)

    says(["need tlsCertificateKeyFile"], "--tlsMode", "requireTLS")
    says(["chain of trust"], "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", SERVER)
    says(["need to enable TLS"], "--tlsCertificateKeyFile", SERVER)
    says(["nowhere.pem", "cannot read it: No such file"], *with_file(f"{folder}/nowhere.pem"))
    says(["empty.pem", "it is empty"], *with_file(empty))
    says([only, "it has no private key"], *with_file(only))
    says([other, "its private key is not that of"], *with_file(other))
    says([readable, "others can read it"], *with_file(readable))
    says([old, "its certificate has expired on 2020-02-01"], *with_file(old))
    says([locked, "encrypted, and there is no password"], *with_file(locked))
    says([locked, "the password does not open"], *with_file(locked, "--tlsCertificateKeyFilePassword", "geheim1"))
    says([locked, "there is no terminal"], *with_file(locked, "--tlsCertificateKeyFilePassword"))
    says([empty, "it is empty"], *with_file(SERVER, "--tlsCRLFile", empty))
    says(["no cipher in 'NONSENSE'"], *with_file(SERVER, "--setParameter", "opensslCipherConfig=NONSENSE"))
    says(["tlsDisabledProtocols leaves nothing"], *with_file(SERVER, "--tlsDisabledProtocols", "TLS1_2,TLS1_3"))
    says(["FIPS mode is a matter of"], *with_file(SERVER, "--tlsFIPSMode"))

    with Server("--tlsCertificateKeyFilePassword", "geheim", file=locked) as s:
        check(s.gets_in(), "an encrypted key and its password")
        shown = open(f"/proc/{s.proc.pid}/cmdline").read()
        check("geheim" not in shown and "xxxxxx" in shown, "ps does not show the password")
        with s.client() as c:
            options = c.admin.command("getCmdLineOpts")
        check(
            "geheim" not in str(options)
            and options["parsed"]["net"]["tls"]["certificateKeyFilePassword"] == "<password>",
            "nor does getCmdLineOpts",
        )
        check("geheim" not in s.log(), "nor the log")


def asked_password():
    """The password is asked for at the terminal."""
    import pty

    locked = certificate(OWN, "server", "asked", "localhost", PASSWORD="geheim")
    log = f"{folder}/asked.log"
    port = free_port()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(
            BINARY,
            [BINARY, "--dbpath", f"{folder}/asked-data", "--port", str(port), "--httpPort", "0", "--nounixsocket"]
            + ["--logpath", log, "--tlsMode", "requireTLS", "--tlsCAFile", CA, "--tlsCertificateKeyFile", locked]
            + ["--tlsCertificateKeyFilePassword"],
        )
    said = b""
    while b"password" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"geheim\n")
    with pymongo.MongoClient(
        "localhost", port, tls=True, tlsCAFile=CA, tlsCertificateKeyFile=CLIENT, serverSelectionTimeoutMS=30000
    ) as c:
        check(c.admin.command("ping")["ok"] == 1, "the server asks for the password and starts")
    os.kill(pid, 15)
    check(os.waitpid(pid, 0)[1] == 0, "and ends in order")
    check("geheim" not in open(log).read(), "the log does not have what was typed")


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
            timeout=60,
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


def percentiles(client, work, seconds=None):
    """Milliseconds of pings while `work` runs: median and longest."""
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
    return took[len(took) // 2], took[-1], len(took)


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

        median, longest, n = percentiles(client, silent)
        print(f"     {SILENT} silent clients: another one's ping {median:.2f} ms, longest {longest:.1f} ms of {n}")
        check(longest < 1000, f"{SILENT} silent clients, half of them in a hello, disturb nobody")
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
        median, longest, n = percentiles(client, half_done)
        print(f"     300 unfinished handshakes: another one's ping {median:.2f} ms, longest {longest:.1f} ms of {n}")
        check(longest < 1000, "300 unfinished handshakes disturb nobody")
        status = s.status()["transportSecurity"]["handshakes"]
        check(status["evicted"] >= 90 and status["underWay"] <= 200, f"the oldest went for the new ones: {status}")
        check(closed(stuck[0], 5), "the oldest of them was disconnected")
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
                with s.secure():
                    pass

        median, longest, n = percentiles(client, flood)
        print(f"     800 full handshakes: another one's ping {median:.2f} ms, longest {longest:.1f} ms of {n}")
        check(longest < 1000, "800 full handshakes disturb nobody")
        client.close()


def rotation():
    """New files, read on request; connections that exist go on."""
    file, ca, crl = f"{folder}/rotating.pem", f"{folder}/rotating-ca.pem", f"{folder}/rotating-crl.pem"

    def put(source, target):
        with open(target + ".new", "w") as f:
            f.write(open(source).read())
        os.chmod(target + ".new", 0o600)
        os.replace(target + ".new", target)

    put(SERVER, file)
    put(CA, ca)
    certificate(OWN, "client", "unlucky")
    certificate(OWN, "client", "scapegoat")
    certificate(OWN, "revoke", "scapegoat")
    put(f"{OWN}/crl.pem", crl)
    with Server("--tlsCRLFile", crl, file=file, ca=ca) as s:
        old = s.client(f"{OWN}/unlucky.pem", maxPoolSize=1)
        old.admin.command("ping")
        session = s.secure(ssl.TLSVersion.TLSv1_2, certificate=f"{OWN}/unlucky.pem")
        second = certificate(OWN, "server", "second", "localhost", "127.0.0.1")
        put(second, file)
        certificate(OWN, "revoke", "unlucky")
        put(f"{OWN}/crl.pem", crl)
        admin = s.client()
        reply = admin.admin.command("rotateCertificates", 1, message="new ones")
        check(reply["ok"] == 1 and s.logged("Successfully rotated"), "rotateCertificates reads the files again")
        check(old.admin.command("ping")["ok"] == 1, "a connection that exists goes on")
        with s.secure() as c:
            subject = dict(x[0] for x in c.getpeercert()["subject"])
            check(subject["commonName"] == "second", "a new one sees the new certificate")
        check(not s.gets_in(f"{OWN}/unlucky.pem"), "who was taken back meanwhile does not get in any more")
        context = session.context
        try:
            with context.wrap_socket(s.connect(), server_hostname="localhost", session=session.session) as c:
                c.sendall(message(PING))
                answer(c)
            check(False, "a ticket from before is worth nothing")
        except OSError:
            check(True, "a ticket from before is worth nothing")
        session.close()
        open(file, "w").write("nonsense")
        try:
            admin.admin.command("rotateCertificates", 1)
            check(False, "a file that cannot be read is refused")
        except PyMongoError as e:
            check(e.code == 72 and file in str(e), "a file that cannot be read is refused by name")
        check(s.gets_in(), "and everything stays as it was")
        admin.close(), old.close()
    soon = certificate(OWN, "server", "soon", "localhost", DAYS="10")
    with Server(file=soon) as s:
        check(s.logged("soon.pem expires in "), "a certificate that will soon expire is warned of")


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
        ends, seen, failed, wanted = threading.Event(), set(), [], 0
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
        with s.client() as admin:
            for i in range(ROTATIONS):
                wrong = i % 5 == 4
                put(bad[i // 5 % len(bad)] if wrong else good[i % 2])
                got = code_of(admin.admin.command, "rotateCertificates", 1)
                wanted += got == (72 if wrong else 0)
        check(until(lambda: seen == set(names)), f"both certificates were shown: {seen}")
        ends.set()
        for t in threads:
            t.join(60)
        check(wanted == ROTATIONS, f"{wanted} of {ROTATIONS} rotations were answered rightly")
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


def resumption():
    """Tickets save the long part of a handshake."""
    with Server() as s:
        with s.secure(ssl.TLSVersion.TLSv1_2) as first:
            first.sendall(message(PING))
            answer(first)
            with first.context.wrap_socket(s.connect(), server_hostname="localhost", session=first.session) as again:
                again.sendall(message(PING))
                answer(again)
                check(again.session_reused, "a client with a ticket of this server resumes its session")
        check(s.status()["transportSecurity"]["handshakes"]["resumed"] >= 1, "and it is counted")


def endpoint():
    """The HTTP endpoint has the same modes."""

    def get(port, path="/healthz", tls=True, certificate=None):
        if tls:
            context = ssl.create_default_context(cafile=CA)
            if certificate:
                context.load_cert_chain(certificate)
            c = http.client.HTTPSConnection("localhost", port, timeout=30, context=context)
        else:
            c = http.client.HTTPConnection("localhost", port, timeout=30)
        try:
            c.request("GET", path)
            return c.getresponse().status
        except OSError:
            return None
        finally:
            c.close()

    foreign = certificate(FOREIGN, "client", "scraper")
    for mode, plain, secure in (("requireTLS", 400, 200), ("preferTLS", 200, 200), ("disabled", 200, None)):
        port = free_port()
        with Server("--httpPort", str(port), mode=mode) as s:
            assert s.logged('"msg":"HTTP endpoint"'), "it comes after the port of the drivers"
            check(get(port, tls=False) == plain, f"HTTP with {mode}: {plain}")
            check(get(port) == secure, f"HTTPS with {mode}: {secure}")
            if mode == "requireTLS":
                check(get(port, "/metrics") == 200 and get(port, "/") == 200, "metrics and the page by HTTPS")
                check(get(port, certificate=CLIENT) == 200, "with a certificate of the client, too")
                check(get(port, certificate=foreign) is None, "but a foreign one is refused")
                with socket.create_connection(("127.0.0.1", port), timeout=30) as c:
                    c.sendall(b"\x16\x03\x01\x02\x00\x01" + os.urandom(600))
                    check(closed(c), "a hello of garbage ends the connection")
                check(get(port) == 200, "and the endpoint goes on")


def http_certificates():
    """The HTTP endpoint with access control: a user of $external by the certificate of the connection."""
    subject, user = "CN=scraper,OU=clients,O=Mayfly", certificate(OWN, "client", "scraper")
    stranger, granting = certificate(OWN, "client", "nobody"), certificate(OWN, "client", "see", "clusterMonitor.admin")
    foreign, port = certificate(FOREIGN, "client", "scraper"), free_port()

    def ask(file, *paths, authorization=None):
        """The status of each answer, by one connection."""
        context = ssl.create_default_context(cafile=CA)
        if file:
            context.load_cert_chain(file)
        c = http.client.HTTPSConnection("localhost", port, timeout=30, context=context)
        got = []
        try:
            for path in paths:
                c.request("GET", path, headers={"Authorization": authorization} if authorization else {})
                answer = c.getresponse()
                answer.read()
                got.append(answer.status)
        except OSError:
            return None
        finally:
            c.close()
        return got

    both = ("/metrics", "/api/forecast")
    with Server("--auth", "--tlsAllowConnectionsWithoutCertificates", "--httpPort", str(port)) as s:
        assert s.logged('"msg":"HTTP endpoint"'), "it comes after the port of the drivers"
        with s.client(None) as first:
            first.admin.command("createUser", "root", pwd="secret", roles=["root"])
        root = s.client(None, username="root", password="secret")
        check(ask(user, *both) == [401, 401], "the certificate of no user")
        root["$external"].command("createUser", subject, roles=[{"role": "clusterMonitor", "db": "admin"}])
        check(ask(user, *both, *both) == [200] * 4, "of a user who may see both")
        check(ask(granting, *both) == [200, 200], "one that grants its roles by itself")
        check(ask(stranger, *both) == [401, 401], "another one of the same authority")
        check(ask(None, *both) == [401, 401] and ask(None, "/healthz") == [200], "none at all")
        check(ask(foreign, "/metrics") is None, "one of another authority")
        wrong = "Basic " + base64.b64encode(b"root:wrong").decode()
        right = "Basic " + base64.b64encode(b"root:secret").decode()
        check(ask(user, "/metrics", authorization=wrong) == [401], "a name counts before the certificate")
        check(ask(stranger, "/metrics", authorization=right) == [200], "also where the certificate is nobody's")
        check(ask(SERVER, "/metrics") in ([401], None), "a member's certificate is no user's")
        # On an open connection: what is taken from the user holds with the next request.
        context = ssl.create_default_context(cafile=CA)
        context.load_cert_chain(user)
        c = http.client.HTTPSConnection("localhost", port, timeout=30, context=context)

        def again():
            c.request("GET", "/metrics")
            answer = c.getresponse()
            answer.read()
            return answer.status

        check(again() == 200, "an open connection")
        root["$external"].command("revokeRolesFromUser", subject, roles=[{"role": "clusterMonitor", "db": "admin"}])
        check(again() == 403, "once the role is gone")
        root["$external"].command("dropUser", subject)
        check(again() == 401, "and the user")
        root["$external"].command("createUser", subject, roles=[{"role": "clusterMonitor", "db": "admin"}],
                                  authenticationRestrictions=[{"clientSource": ["10.0.0.1"]}])  # fmt: skip
        check(again() == 401, "one who may not come from here")
        c.close()
        root.close()
        with open(s.data + "/audit/audit.json") as f:
            events = [json.loads(line) for line in f]
        results = [e["result"] for e in events if e["param"].get("user") == subject and e["atype"] == "authenticate"]
        check(0 in results and 18 in results, f"the audit log has them: {results}")
        check(len(results) < 12, f"one for a connection, not for a request: {results}")


class TlsMember(Member):
    """A member of a set that is talked to by TLS."""

    def __init__(self, place, extra):
        super().__init__(place, extra)
        self.connect(True)

    def connect(self, tls):
        self.client.close()
        more = dict(tls=True, tlsCAFile=CA, tlsCertificateKeyFile=CLIENT) if tls else {}
        self.client = self.new_client(**more)


def key_file():
    path = f"{folder}/key"
    with open(path, "w") as f:
        f.write("0123456789abcdefghijklmnopqrstuvwxyz")
    os.chmod(path, 0o600)
    return path


def options_of(mode, file):
    return ["--tlsMode", mode, "--tlsCertificateKeyFile", file, "--tlsCAFile", CA, "--keyFile", key_file(), "--noauth"]


def make_set(mode, tls=True, count=3):
    s = ReplicaSet(0)
    for i in range(count):
        file = certificate(OWN, "server", f"m{i}", "localhost", "127.0.0.1")
        m = TlsMember(f"{s.folder}/{i}", options_of(mode, file) if mode else ["--keyFile", key_file(), "--noauth"])
        m.file = file
        m.connect(tls)
        m.start()
        m.wait_up()
        s.members.append(m)
    s.initiate()
    s.all_vote()
    return s


def encrypted_links(m):
    """Connections between members with TLS that this one has let in: by how many lines of its log."""
    return open(f"{m.folder}/log", errors="replace").read().count("OU=members")


def sets():
    """Three members with TLS; one whose certificate is wrong; a copy of the data."""
    s = make_set("requireTLS")
    try:
        s.primary().client.test.kept.with_options(write_concern=pymongo.WriteConcern(w=3, wtimeout=60000)).insert_many(
            [{"_id": i, "text": "x" * 1000} for i in range(2000)]
        )
        check(s.same(), "three members with TLS hold the same")
        check(all(encrypted_links(m) > 0 for m in s.members), "their connections are encrypted, with certificates")
        old = s.primary()
        old.kill()
        s.members.remove(old)
        s.wait(lambda: s.primary() is not old, "another primary")
        s.primary().client.test.kept.insert_one({"_id": "after"})
        old.start()
        old.wait_up()
        s.members.append(old)
        check(s.same(), "one that was killed comes back")
        # A copy of everything: the member comes back with an empty directory.
        away = s.others(s.primary())[0]
        away.kill()
        shutil.rmtree(f"{away.folder}/data")
        away.start()
        away.wait_up()
        check(s.same(), "one that has lost its data gets a copy by TLS")
        # Certificates that the others must not accept.
        for what, file, reason in (
            ("for another name", certificate(OWN, "server", "elsewhere", "elsewhere.example"), "mismatch"),
            ("by another authority", certificate(FOREIGN, "server", "stranger", "127.0.0.1"), "certificate"),
        ):
            m = s.others(s.primary())[0]
            m.stop()
            before, m.extra = m.extra, options_of("requireTLS", file)
            m.start()
            primary_log = f"{s.primary().folder}/log"

            def told():
                return (
                    "TLS handshake failed" in open(primary_log, errors="replace").read()
                    and reason in open(primary_log, errors="replace").read()
                )

            s.wait(told, f"the primary to refuse a certificate {what}")
            check(True, f"a member whose certificate is {what} is refused, and the log says why")
            m.stop()
            m.extra = before
            m.start()
            m.wait_up()
        check(s.same(), "with its own certificate it is taken back")
    finally:
        s.close()


def rolling():
    """A set goes from plain to requireTLS without a stop."""
    s = make_set("", tls=False)
    try:
        written = 0

        def write():
            nonlocal written
            s.wait(lambda: s.primary().client.test.kept.insert_one({"n": written}).acknowledged, "a write")
            written += 1

        write()
        for i, m in enumerate(s.members):  # one after the other
            m.stop()
            m.extra = options_of("allowTLS", certificate(OWN, "server", f"r{i}", "localhost", "127.0.0.1"))
            m.start()
            m.wait_up()
            write()
        s.in_place()
        check(all(encrypted_links(m) == 0 for m in s.members), "allowTLS: members still talk plain")
        for mode in ("preferTLS", "requireTLS"):
            for m in s.members:
                m.client.admin.command("setParameter", 1, tlsMode=mode)
                write()
            s.settled()
            s.wait(lambda: all(encrypted_links(m) > 0 for m in s.members), "encrypted links")
            check(True, f"{mode}: members talk by TLS")
        for m in s.members:
            m.connect(True)
        check(s.same(), "all members hold the same")
        check(s.primary().client.test.kept.count_documents({}) == written, f"all {written} writes are there")
        try:
            pymongo.MongoClient(
                "127.0.0.1", s.members[0].port, directConnection=True, serverSelectionTimeoutMS=2000
            ).admin.command("ping")
            check(False, "a plain client does not get in any more")
        except PyMongoError:
            check(True, "a plain client does not get in any more")
    finally:
        s.close()


if __name__ == "__main__":
    run_parts(
        "tls",
        [
            certificates,
            modes,
            x509_logins,
            wrong_files,
            asked_password,
            hostile,
            resumption,
            rotation,
            rotation_under_load,
            hostile_names,
            crowds,
            endpoint,
            http_certificates,
            sets,
            rolling,
        ],
        check,
    )
