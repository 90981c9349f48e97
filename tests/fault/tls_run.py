#!/usr/bin/env python3
"""TLS: who gets in and who does not, logins by certificate, files that are wrong and files that change, the HTTP
endpoint, sets and modes. What hostile clients bring about is in tls_hostile_run.py.

The last line says "N passed, N failed". With the names of parts (functions) as arguments only those run.
"""

import base64, http.client, json, os, shutil, socket, ssl, subprocess, tempfile
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, Deadline, free_port, run_parts
from replica_set import Member, ReplicaSet
from tls_server import CA, CLIENT, FOREIGN, OWN, PING, SERVER, Server, answer, certificate, check, closed, code_of
from tls_server import folder, message


def certificates():
    """Whose certificate is taken, and whose is not."""
    foreign = certificate(FOREIGN, "client", "app")
    old = certificate(OWN, "client", "old", UNTIL="20200201000000Z")
    revoked = certificate(OWN, "client", "revoked")
    certificate(OWN, "revoke", "revoked")
    own_word = f"{folder}/own-word.pem"  # nobody's signature but its own, and the subject of one that gets in
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", own_word + ".key"]
    made += ["-out", own_word, "-subj", "/O=Mayfly/OU=clients/CN=app", "-addext", "extendedKeyUsage=clientAuth"]
    subprocess.run(["openssl", "req", "-x509", "-days", "30", *made], check=True, capture_output=True)
    with open(own_word, "a") as f:
        f.write(open(own_word + ".key").read())
    with Server("--tlsCRLFile", f"{OWN}/crl.pem") as s:
        check(s.gets_in(), "a client with a certificate gets in")
        check(s.logged("CN=app,OU=clients,O=Mayfly"), "and the log names its subject as RFC 2253 has it")
        check(not s.gets_in(None), "one without a certificate does not")
        check(s.logged("peer did not return a certificate"), "and the log says why")
        check(not s.gets_in(foreign), "one whose certificate is by another authority does not")
        check(not s.gets_in(own_word), "nor one that has signed its own, with the subject of a good one")
        check(s.logged("self-signed certificate"), "and the log says why")
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


def chain(taken_back):
    """A folder with an authority `top`, one below it, `middle`, and its certificate `leaf`; and what each authority has
    taken back: at most the one that is named."""
    where = Path(tempfile.mkdtemp(dir=folder))
    openssl = lambda *a: subprocess.run(["openssl", *a], check=True, capture_output=True, cwd=where)
    extensions = "[ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n"
    extensions += "[leaf]\nextendedKeyUsage=clientAuth,serverAuth\nsubjectAltName=DNS:localhost\n"
    (where / "extensions").write_text(extensions)
    (where / "request").write_text("[req]\ndistinguished_name=name\n[name]\n")
    for name, by in (("top", None), ("middle", "top"), ("leaf", "middle")):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]
        openssl("req", "-new", "-config", "request", *key, "-out", f"{name}.csr", "-subj", f"/O=Mayfly/CN={name}")
        signed = ["-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial"] if by else ["-signkey", f"{name}.key"]
        kind = ["-extfile", "extensions", "-extensions", "leaf" if name == "leaf" else "ca"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem", "-days", "30", *kind)
        if not by:
            continue
        lists = f"[ca]\ndefault_ca=own\n[own]\ndatabase={where}/{by}.index\ndefault_md=sha256\n"
        (where / f"{by}.lists").write_text(lists + f"default_crl_days=30\ncrlnumber={where}/{by}.number\n")
        (where / f"{by}.index").touch()
        (where / f"{by}.number").write_text("01\n")
        ca = ["ca", "-config", f"{by}.lists", "-cert", f"{by}.pem", "-keyfile", f"{by}.key"]
        if taken_back == name:
            openssl(*ca, "-revoke", f"{name}.pem")
        openssl(*ca, "-gencrl", "-out", f"{by}.crl")
    text = lambda *names: "".join((where / n).read_text() for n in names)
    (where / "file.pem").touch(mode=0o600)
    (where / "file.pem").write_text(text("leaf.pem", "middle.pem", "leaf.key"))
    (where / "both.crl").write_text(text("top.crl", "middle.crl"))
    return where


def authorities_between():
    """An authority that was taken back takes along whom it has signed."""
    for taken_back in (None, "leaf", "middle"):
        where = chain(taken_back)
        for lists in ("both.crl", "middle.crl"):
            options = dict(file=where / "file.pem", ca=where / "top.pem")
            with Server("--tlsCRLFile", where / lists, **options) as s:
                got_in = s.gets_in(str(where / "file.pem"), tlsCAFile=str(where / "top.pem"))
                expected = taken_back is None or (taken_back == "middle" and lists == "middle.crl")
                check(got_in == expected, f"taken back: {taken_back}, known from {lists}: gets in: {got_in}")
                check(expected or s.logged("certificate revoked"), "and the log says why")


def modes():
    """Plain and TLS on one port, protocols, parameters."""
    with Server(mode="disabled") as s:
        check(s.gets_in(tls=False) and not s.gets_in(), "disabled: plain alone")
        check(s.logged("server is started without SSL support"), "and the log says so")
        with s.client(tls=False) as c:
            security = c.admin.command("serverStatus")["security"]
            check(not any(k.startswith("SSL") for k in security), f"and there is no certificate to tell of: {security}")
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
                timeout=Deadline().seconds,
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
        audited = [json.loads(line) for line in open(f"{s.data}/audit/audit.json")]
        of_app = [{"user": subject, "db": "$external"}]
        out = [e["param"]["reason"] for e in audited if e["atype"] == "logout" and e["users"] == of_app]
        check("Implicit logout because the user was dropped" in out, f"which the audit log has: {out}")
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


def certificate_ends():
    """A certificate that expires while its connections live: it logs in nobody any more."""
    brief, lasting, port = certificate(OWN, "client", "brief", DAYS="10"), certificate(OWN, "client", "x"), free_port()
    subject = "CN=brief,OU=clients,O=Mayfly"
    by_certificate = dict(authMechanism="MONGODB-X509", authSource="$external", maxPoolSize=1)
    options = ["--auth", "--tlsAllowConnectionsWithoutCertificates", "--testClock", "--httpPort", str(port)]
    with Server(*options) as s:
        assert s.logged('"msg":"HTTP endpoint"'), "it comes after the port of the drivers"
        with s.client(None) as first:
            first.admin.command("createUser", "root", pwd="secret", roles=["root"])
        root = s.client(None, username="root", password="secret")
        for name in (subject, "CN=x,OU=clients,O=Mayfly"):
            root["$external"].command("createUser", name, roles=[{"role": "clusterMonitor", "db": "admin"}])
        before, late = s.client(brief, **by_certificate), s.client(brief, maxPoolSize=1)
        check(before.admin.command("serverStatus")["ok"] == 1, "a login by certificate")
        late.admin.command("ping")
        context = ssl.create_default_context(cafile=CA)
        context.load_cert_chain(brief)
        http_connection = http.client.HTTPSConnection("localhost", port, timeout=Deadline().seconds, context=context)

        def again():
            http_connection.request("GET", "/metrics")
            answer = http_connection.getresponse()
            answer.read()
            return answer.status

        def audited():
            events = [json.loads(line) for line in open(f"{s.data}/audit/audit.json")]
            return [e["result"] for e in events if e["atype"] == "authenticate" and e["param"]["user"] == subject]

        check([again(), again()] == [200, 200], "and one to the HTTP endpoint")
        check(audited() == [0, 0], f"both are audited: {audited()}")
        root.admin.command("clock", {"advanceSeconds": 11 * 86_400})
        check([again(), again()] == [401, 401], "after the certificate's end: no more requests to the endpoint")
        check(audited() == [0, 0, 18], f"which is audited once: {audited()}")
        x509 = {"authenticate": 1, "mechanism": "MONGODB-X509"}
        check(code_of(late["$external"].command, x509) == 18, "and no new login on an old connection")
        check(s.logged("has expired since this connection began"), "the log says why")
        check(before.admin.command("serverStatus")["ok"] == 1, "a login from before lasts as long as its connection")
        with s.client(lasting, **by_certificate) as c:
            check(c.admin.command("serverStatus")["ok"] == 1, "another certificate is still good")
        http_connection.close()
        for c in (before, late, root):
            c.close()


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
            timeout=Deadline().seconds,
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
    says([readable, "are too open"], *with_file(readable))
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
        "localhost",
        port,
        tls=True,
        tlsCAFile=CA,
        tlsCertificateKeyFile=CLIENT,
        serverSelectionTimeoutMS=Deadline().millis,
    ) as c:
        check(c.admin.command("ping")["ok"] == 1, "the server asks for the password and starts")
    os.kill(pid, 15)
    check(os.waitpid(pid, 0)[1] == 0, "and ends in order")
    check("geheim" not in open(log).read(), "the log does not have what was typed")


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
    port = free_port()

    def shown_by_http(certificate):
        """Whose certificate a new connection to the endpoint sees; None: it is refused."""
        context = ssl.create_default_context(cafile=CA)
        context.load_cert_chain(certificate)
        try:
            raw = socket.create_connection(("127.0.0.1", port), timeout=Deadline().seconds)
            with context.wrap_socket(raw, server_hostname="localhost") as c:
                c.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return dict(x[0] for x in c.getpeercert()["subject"])["commonName"] if c.recv(1) else None
        except OSError:
            return None

    with Server("--tlsCRLFile", crl, "--httpPort", str(port), file=file, ca=ca) as s:
        assert s.logged('"msg":"HTTP endpoint"'), "it comes after the port of the drivers"
        unlucky = f"{OWN}/unlucky.pem"
        check(shown_by_http(unlucky) == "server", "the HTTP endpoint has the same certificate")
        context = ssl.create_default_context(cafile=CA)
        context.load_cert_chain(unlucky)
        kept = http.client.HTTPSConnection("localhost", port, timeout=Deadline().seconds, context=context)
        kept.request("GET", "/healthz")
        check(kept.getresponse().read() is not None, "and serves a connection")
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
        check(shown_by_http(CLIENT) == "second", "the HTTP endpoint shows the new certificate, too")
        check(shown_by_http(unlucky) is None, "and refuses who was taken back")
        kept.request("GET", "/healthz")
        check(kept.getresponse().status == 200, "while a connection that exists goes on")
        kept.close()
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
            c = http.client.HTTPSConnection("localhost", port, timeout=Deadline().seconds, context=context)
        else:
            c = http.client.HTTPConnection("localhost", port, timeout=Deadline().seconds)
        try:
            c.request("GET", path)
            return c.getresponse().status
        except OSError:
            return None
        finally:
            c.close()

    def acts(port, tls, *origins):
        """The status of an action that says where its page is from."""
        if tls:
            c = http.client.HTTPSConnection(
                "localhost", port, timeout=Deadline().seconds, context=ssl.create_default_context(cafile=CA)
            )
        else:
            c = http.client.HTTPConnection("localhost", port, timeout=Deadline().seconds)
        try:
            body = json.dumps({"action": "rateLimit", "value": 1000}).encode()
            c.putrequest("POST", "/api/action")
            for origin in origins:
                c.putheader("Origin", origin)
            c.putheader("Content-Type", "application/json")
            c.putheader("Content-Length", str(len(body)))
            c.endheaders(body)
            return c.getresponse().status
        finally:
            c.close()

    def origins(port):
        """Issue 29: only the page itself acts, and its scheme is a part of where it is from."""
        for tls in (False, True):
            own, other = ("https", "http") if tls else ("http", "https")
            here = f"{own}://localhost:{port}"
            check(acts(port, tls, here) == 200, f"the page by {own} may act")
            foreign = (
                f"{other}://localhost:{port}", f"{own}://localhost:{port + 1}", f"{own}://127.0.0.1:{port}",
                f"{own}://localhost", f"{own}://evil.example:{port}", f"{here}/", f"{here}.evil.example", "null", "",
            )  # fmt: skip
            got = [acts(port, tls, o) for o in foreign]
            check(got == [403] * len(foreign), f"others may not act by {own}: {got}")
            check(acts(port, tls) == 403, "nor who does not say")
            got = [acts(port, tls, here, foreign[4]), acts(port, tls, foreign[4], here)]
            check(got == [403, 403], f"nor who says two things: {got}")

    foreign = certificate(FOREIGN, "client", "scraper")
    for mode, plain, secure in (("requireTLS", 400, 200), ("preferTLS", 200, 200), ("disabled", 200, None)):
        port = free_port()
        with Server("--httpPort", str(port), mode=mode) as s:
            assert s.logged('"msg":"HTTP endpoint"'), "it comes after the port of the drivers"
            check(get(port, tls=False) == plain, f"HTTP with {mode}: {plain}")
            check(get(port) == secure, f"HTTPS with {mode}: {secure}")
            if mode == "preferTLS":
                origins(port)
            if mode == "requireTLS":
                check(get(port, "/metrics") == 200 and get(port, "/") == 200, "metrics and the page by HTTPS")
                check(get(port, certificate=CLIENT) == 200, "with a certificate of the client, too")
                check(get(port, certificate=foreign) is None, "but a foreign one is refused")
                with socket.create_connection(("127.0.0.1", port), timeout=Deadline().seconds) as c:
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
        c = http.client.HTTPSConnection("localhost", port, timeout=Deadline().seconds, context=context)
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
        c = http.client.HTTPSConnection("localhost", port, timeout=Deadline().seconds, context=context)

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
        s.primary().client.test.kept.with_options(
            write_concern=pymongo.WriteConcern(w=3, wtimeout=Deadline().millis)
        ).insert_many([{"_id": i, "text": "x" * 1000} for i in range(2000)])
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
            pymongo.MongoClient(  # clock: it is to fail
                "127.0.0.1", s.members[0].port, directConnection=True, serverSelectionTimeoutMS=2000
            ).admin.command("ping")
            check(False, "a plain client does not get in any more")
        except PyMongoError:
            check(True, "a plain client does not get in any more")
    finally:
        s.close()


run_parts(
    "tls",
    [certificates, authorities_between, modes, x509_logins, certificate_ends, wrong_files, asked_password, resumption]
    + [rotation, endpoint, http_certificates, sets, rolling],
    check,
)
