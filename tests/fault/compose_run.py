#!/usr/bin/env python3
"""What the container image of docker/ rests on: settings and the first user by environment variables, a set that is
made by its members' options, and what docker/secure makes for TLS and members. There is no container: the server is
started with what the files say. The last line says "N passed, N failed".
"""

import os, re, signal, subprocess, tempfile, time
from pathlib import Path

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from fault_test import BINARY, ROOT, Checks, Deadline, discard, figure, free_port, run_parts, until

check = Checks()
PASSWORD = "canary-of-compose-4711"
COMPOSE = (ROOT / "docker/compose.yaml").read_text()
SECURE = (ROOT / "docker/compose.secure.yaml").read_text()


class Server:
    """A mayflyd that takes its settings from variables alone, as the image starts it, and some flags."""

    def __init__(self, variables=(), flags=(), folder=None, port=None, environment=True):
        self.folder = folder or tempfile.mkdtemp(prefix="mayfly-compose-")
        self.port, self.variables = port or free_port(), dict(variables)
        self.flags = ["--environment"] * environment + ["--bind_ip", "127.0.0.1", "--port", str(self.port), *flags]
        self.start()

    def start(self):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAYFLY", "MONGO"))}
        with open(f"{self.folder}/log", "ab") as log:
            self.proc = subprocess.Popen(
                [BINARY, *self.flags, "--dbpath", f"{self.folder}/data", "--nounixsocket", "--httpPort", "0"],
                stdout=log, stderr=subprocess.STDOUT, env=inherited | self.variables,
            )  # fmt: skip

    def client(self, user=None, password=PASSWORD, **more):
        login = dict(username=user, password=password, authSource="admin") if user else {}
        return pymongo.MongoClient(
            "127.0.0.1", self.port, directConnection=True, serverSelectionTimeoutMS=Deadline().millis, **login, **more
        )

    def up(self, **more):
        """Waits until it answers; False when it has ended."""
        deadline = Deadline()
        while self.proc.poll() is None and deadline.holds():
            try:
                with self.client(**more) as c:
                    return c.admin.command("ping")["ok"] == 1
            except PyMongoError:
                pass
        return False

    def log(self):
        return Path(f"{self.folder}/log").read_text(errors="replace")

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        return self.proc.wait(Deadline().seconds)

    def ended(self):
        """How it ended by itself, and its last words."""
        try:
            return self.proc.wait(Deadline().seconds), self.log()[-2000:]
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            return None, "it runs"

    def end(self):
        if self.proc.poll() is None:
            check(self.stop() == 0, "the server stops cleanly")
        discard(self.folder)


def code(client, command="ping"):
    """0, or the error's code."""
    try:
        client.admin.command(command)
        return 0
    except OperationFailure as e:
        return e.code


def members():
    return re.findall(r"hostname: (\w+)", COMPOSE)


def own_secrets(servers):
    """Each server gets its own certificate and key, read only, and none the authority's private key (issue 29)."""
    services = yaml_services(SECURE)
    maker = services.pop("secrets")
    check("authority:/made/authority" in maker, "the authority is where certificates are made")
    check(services.keys() == servers, f"the servers: {services.keys()}")
    for name, text in services.items():
        volumes = re.findall(r'"([\w-]+):(/[\w/]+)(:ro)?"', text)
        check(volumes == [(f"secrets-{name}", "/secrets", ":ro")], f"{name} gets its own, read only: {volumes}")
        check(f"/secrets/{name}.pem" in text and f"secrets-{name}:/made/{name}" in maker, f"which is made: {name}")
    check("authority" not in COMPOSE, "nor does the other file give it away")


def yaml_services(text):
    """The text of each service."""
    parts = re.split(r"^  (\w+):\n", re.search(r"^services:\n(.*?)^\w", text, re.S | re.M)[1], flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2]))


def files():
    """The files fit together, and name what the image has."""
    image = (ROOT / "docker/Dockerfile").read_text()
    named = re.search(r'"--initialMembers", "([^"]*)"', COMPOSE)[1]
    check(named == ",".join(f"{m}:27017" for m in members()), f"the members are those that have services: {named}")
    made = set(" ".join(re.findall(r"mayfly-secure /made (?:alone )?([\w ]+)", SECURE)).split())
    check(made == {"mayfly", *members()}, f"every server gets what it needs: {made}")
    own_secrets(made)
    for file in re.findall(r"COPY ((?:scripts|docker)/\w+) /usr/local", image):
        check((ROOT / file).exists(), f"{file} is there")
    bases = re.findall(r"^FROM (\S+)", image, re.M)
    pinned = re.search(r"^ARG DEBIAN=debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}$", image, re.M)
    check(pinned and set(bases) == {"${DEBIAN}"}, f"it is built on one image, whatever a tag names later: {bases}")
    check('ENTRYPOINT ["mayflyd", "--environment"]' in image, "the image takes settings from the environment")
    help_ = subprocess.run([BINARY, "--help"], capture_output=True, text=True).stdout
    for variable in set(re.findall(r"MAYFLYD_(\w+)", SECURE)):
        flags = {
            re.sub(r"([a-z])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3_\2\4", f).upper()
            for f in re.findall(r"--(\w+)", help_)
        }
        check(variable in flags, f"MAYFLYD_{variable} is a flag")


def root_user():
    """The first start makes the user; a later one finds it, whatever the variables say then."""
    s = Server(
        {"MONGO_INITDB_ROOT_USERNAME": "boss", "MONGO_INITDB_ROOT_PASSWORD": PASSWORD, "MONGO_INITDB_DATABASE": "shop"}
    )
    try:
        check(s.up(), "it starts")
        check(code(s.client(), "listDatabases") == 13, "nobody gets in without a login")
        check(code(s.client("boss")) == 0, "the user is there at once")
        check(code(s.client("boss", "wrong")) == 18, "with its password alone")
        boss = s.client("boss")
        roles = boss.admin.command("usersInfo", "boss")["users"][0]["roles"]
        check(roles == [{"role": "root", "db": "admin"}], f"it is root: {roles}")
        try:
            s.client().admin.command("createUser", "more", pwd="x", roles=[])
            check(False, "the localhost exception is closed")
        except OperationFailure as e:
            check(e.code == 13, "the localhost exception is closed")
        events = Path(f"{s.folder}/data/audit/audit.json").read_text()
        check('"createUser"' in events and '"boss"' in events, "the audit log has it")
        shown = Path(f"/proc/{s.proc.pid}/environ").read_bytes().decode(errors="replace")
        check(PASSWORD not in shown and "MONGO_INITDB_ROOT_USERNAME" in shown, "the system shows no password")
        parsed = str(boss.admin.command("getCmdLineOpts"))
        check(PASSWORD not in parsed + s.log() + events, "nor do the log and getCmdLineOpts")
        boss.admin.command("updateUser", "boss", pwd="changed")
        check(s.stop() == 0, "it stops")
        s.variables["MONGO_INITDB_ROOT_PASSWORD"] = "another"
        s.start()
        check(s.up(), "it starts again")
        check(code(s.client("boss", "changed")) == 0 and code(s.client("boss", "another")) == 18, "with what was made")
        check(s.log().count('"id":9000134') == 1, "it was made once")
        found = subprocess.run(["grep", "-rlaF", PASSWORD, s.folder], capture_output=True, text=True).stdout
        check(found == "", f"the password is in no file: {found}")
    finally:
        s.end()


def by_files():
    """Secrets in files, as containers mount them; and the same by flags, without variables."""
    folder = tempfile.mkdtemp(prefix="mayfly-compose-")
    Path(folder, "name").write_text("boss\n")
    password = Path(folder, "password")
    password.write_text(PASSWORD + "\r\n")
    variables = {
        f"MONGO_INITDB_ROOT_{v}_FILE": f"{folder}/{f}" for v, f in (("USERNAME", "name"), ("PASSWORD", "password"))
    }
    # Docker's secrets are 0444 unless the service says otherwise; a name is no secret.
    root = os.geteuid() == 0
    for mode, owner in ((0o444, 0), (0o644, 0), (0o440, 12345)):
        password.chmod(mode)
        if root:
            os.chown(password, owner, 12345)
        s = Server(variables)
        status, text = s.ended()
        check(status == 2 and "MONGO_INITDB_ROOT_PASSWORD_FILE" in text and "chmod 600" in text, f"{mode:o}: {text}")
        s.end()
    # As Kubernetes mounts them: root's, and of a group of the server's (0440, fsGroup).
    if root:
        os.chown(password, 0, os.getegid())
    password.chmod(0o440 if root else 0o400)
    s = Server(variables)
    try:
        check(s.up() and code(s.client("boss")) == 0, "names and passwords in files")
    finally:
        s.end()
    s = Server(
        flags=["--initialRootUser", "boss", "--initialRootPasswordFile", f"{folder}/password"], environment=False
    )
    try:
        check(s.up() and code(s.client("boss")) == 0, "by flags")
        check(code(s.client(), "listDatabases") == 13, "which ask for logins, too")
    finally:
        s.end()
    s = Server(variables, ["--transitionToAuth", "--keyFile", key(folder), "--replSet", "rs0"])
    try:
        check(s.up(), "with --transitionToAuth clients need no login")
        check(code(s.client(), "replSetInitiate") == 0, "nobody has made the set, so this client does")
        check(until(lambda: made(s)), "the user of a set of one member")
        check(code(s.client("boss")) == 0 and code(s.client(), "listDatabases") == 0, "and may log in")
    finally:
        s.end()
        discard(folder)


def key(folder):
    path = Path(folder, "key")
    path.write_text("0123456789abcdefghijklmnopqrstuvwxyz")
    path.chmod(0o600)
    return str(path)


def made(server, **more):
    try:
        with server.client("boss", **more) as c:
            return c.admin.command("ping")["ok"] == 1
    except PyMongoError:
        return False


def refusals():
    """What cannot be meant ends the start, with a reason; nothing is made."""
    user, password = {"MONGO_INITDB_ROOT_USERNAME": "boss"}, {"MONGO_INITDB_ROOT_PASSWORD": PASSWORD}
    nowhere = {"MONGO_INITDB_ROOT_PASSWORD_FILE": "/nowhere/password"}
    for variables, flags, words in (
        (user, [], "the password is missing"),
        (password, [], "the name is missing"),
        (user | password | nowhere, [], "both MONGO_INITDB_ROOT_PASSWORD and MONGO_INITDB_ROOT_PASSWORD_FILE"),
        (user | nowhere, [], "/nowhere/password: cannot read it"),
        (user | {"MONGO_INITDB_ROOT_PASSWORD_FILE": "/dev/null"}, [], "/dev/null is empty"),
        (user | password, ["--noauth"], "access control is switched off"),
        (user | password, ["--replSet", "rs0"], "--keyFile is required"),
        ({"MONGO_INITDB_ROOT_USER": "boss"}, [], "Unrecognized variable MONGO_INITDB_ROOT_USER"),
        ({"MAYFLYD_TLS_MODUS": "requireTLS"}, [], "did you mean 'MAYFLYD_TLS_MODE'?"),
        ({"MAYFLYD_MAX_CONNS": "many"}, [], "MAYFLYD_MAX_CONNS: the argument ('many')"),
        ({"MAYFLYD_TLS_MODE": "requireTLS"}, [], "need tlsCertificateKeyFile"),
        ({"MAYFLYD_FORK": "perhaps"}, [], "must be true or false"),
        ({"MAYFLYD_SHARDSVR": "true"}, [], "this server is not a member of a sharded cluster"),
        ({}, ["--initialMembers", "a:27017"], "it needs --replSet"),
        ({}, ["--initialRootUser", "boss"], "go together"),
        ({"MONGO_INITDB_ROOT_USERNAME": "a\\0b" * 600} | password, [], "Cannot make the first user"),
    ):
        s = Server(variables, flags)
        status, text = s.ended()
        check(
            status == 2 and words in text,
            f"{list(variables) + flags}: {words}" + ("" if words in text else f", not {status}: {text}"),
        )
        s.end()


def settings():
    """Any flag by its variable; a flag wins, and without --environment nothing is read."""
    variables = {"MAYFLYD_MAX_CONNS": "77", "MAYFLYD_SLOWMS": "5", "MAYFLYD_QUIET": "true", "MAYFLYD_JOURNAL": ""}
    variables |= {"MAYFLYD_SET_PARAMETER": "cursorTimeoutMillis=12345 ttlMonitorEnabled=false"}
    s = Server(variables, ["--slowms", "7"])
    try:
        check(s.up(), "it starts")
        admin = s.client().admin
        parsed = admin.command("getCmdLineOpts")["parsed"]
        check(parsed["net"]["maxIncomingConnections"] == 77 and parsed["systemLog"]["quiet"] is True, f"{parsed}")
        check(parsed["operationProfiling"]["slowOpThresholdMs"] == 7, "a flag wins")
        parameters = admin.command("getParameter", 1, cursorTimeoutMillis=1, ttlMonitorEnabled=1)
        check((parameters["cursorTimeoutMillis"], parameters["ttlMonitorEnabled"]) == (12345, False), f"{parameters}")
    finally:
        s.end()
    s = Server(variables | {"MAYFLYD_NONSENSE": "1", "MONGO_INITDB_ROOT_USERNAME": "boss"}, environment=False)
    try:
        check(s.up(), "without --environment nobody looks at them")
        check(code(s.client(), "listDatabases") == 0, "and nobody needs a login")
    finally:
        s.end()


def new_set(count, variables, flags, **more):
    """Members that know of one another only by their options."""
    ports = [free_port() for _ in range(count)]
    hosts = ",".join(f"127.0.0.1:{p}" for p in ports)
    servers = [
        Server(variables(i), ["--replSet", "rs0", "--initialMembers", hosts, *flags], port=p)
        for i, p in enumerate(ports)
    ]
    for s in servers:
        check(s.up(**more), "a member starts")
    return servers


def plain_set():
    """The first of the members makes the set; a restart does not do so again."""
    servers = new_set(3, lambda i: {}, [])
    try:
        hello = lambda s: s.client().admin.command("hello")
        check(
            until(lambda: all(hello(s).get("isWritablePrimary") or hello(s).get("secondary") for s in servers)), "a set"
        )
        check(hello(servers[0])["hosts"] == [f"127.0.0.1:{s.port}" for s in servers], "of the members that were named")
        check(servers[0].stop() == 0, "a member stops")
        servers[0].start()
        check(servers[0].up(), "and comes back")
        check(
            until(lambda: hello(servers[0]).get("secondary") or hello(servers[0]).get("isWritablePrimary")),
            "to the set",
        )
        check(servers[0].client().admin.command("replSetGetConfig")["config"]["version"] == 1, "which is the same")
    finally:
        for s in servers:
            s.end()


def waiting():
    """A member whose set cannot be made yet serves, says why, and stops at once."""
    s = Server({}, ["--replSet", "rs0"], port=(port := free_port()))
    check(s.up() and s.stop() == 0, "a member without --initialMembers waits to be told")
    s.flags += ["--initialMembers", f"127.0.0.1:{port},127.0.0.1:{free_port()}"]
    s.start()
    try:
        check(s.up(), "it starts without the other member")
        check(until(lambda: '"id":9000135' in s.log()), "the log to say that the other does not answer")
        check(s.client().admin.command("hello").get("setName") is None, "there is no set")
        began = time.monotonic()
        check(s.stop() == 0, "and it stops while it tries")
        figure("the end of a member that tries to reach others", time.monotonic() - began, "s")
    finally:
        s.end()


def run(*command, **variables):
    p = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    return p.returncode, p.stdout + p.stderr


def one_authority():
    """A certificate is of the authority whose ca.pem is beside it, and a member has its set's key, or none is made."""
    folder = tempfile.mkdtemp(prefix="mayfly-compose-")
    secure, certificates = ROOT / "docker/secure", ROOT / "scripts/certificates"
    goes_with = lambda own, name: run("openssl", "verify", "-CAfile", f"{folder}/{own}/ca.pem", f"{folder}/{name}")
    # The authority's key is kept elsewhere.
    check(run(certificates, f"{folder}/own", "server", "a", "a")[0] == 0, "an authority and a certificate")
    os.rename(f"{folder}/own/authority", f"{folder}/elsewhere")
    status, said = run(certificates, f"{folder}/own", "server", "b", "b")
    check(status == 2 and "AUTHORITY" in said and not os.path.exists(f"{folder}/own/b.pem"), f"without its key: {said}")
    check(run(certificates, f"{folder}/own", "server", "b", "b", AUTHORITY=f"{folder}/elsewhere")[0] == 0, "with it")
    check(goes_with("own", "own/b.pem")[0] == 0, "they go together")
    run(certificates, f"{folder}/other", "server", "c", "c")
    status, said = run(certificates, f"{folder}/own", "server", "c", "c", AUTHORITY=f"{folder}/other/authority")
    check(status == 2 and "another authority" in said, f"one of another authority: {said}")
    # Interrupted after the key of an authority, and before it was in its place.
    os.makedirs(f"{folder}/half/authority/issued")
    Path(folder, "half/authority/making").write_text("half")
    check(run(certificates, f"{folder}/half", "server", "a", "a")[0] == 0, "it is made another time")
    check(goes_with("half", "half/a.pem")[0] == 0, "and goes on")
    # A set, from which the authority was taken, or its key.
    check(run(secure, f"{folder}/set", "a", "b")[0] == 0, "a set")
    for file in ("key.pem", "key-of-the-set"):
        os.rename(f"{folder}/set/authority/{file}", f"{folder}/kept")
        check(run(secure, f"{folder}/set", "a", "b")[0] == 0, f"without {file} what is there stays")
        status, said = run(secure, f"{folder}/set", "c")
        check(status == 2 and file in said and not os.path.exists(f"{folder}/set/c/key"), f"and no more comes: {said}")
        os.rename(f"{folder}/kept", f"{folder}/set/authority/{file}")
    check(run(secure, f"{folder}/set", "c")[0] == 0 and goes_with("set/a", "set/c/c.pem")[0] == 0, "a member more")
    # What stands for something else in these commands.
    for names in (("alone",), ("alone", "alone"), ("a", "alone"), ("a", "authority")):
        status, said = run(secure, f"{folder}/words", *names)
        check(status == 2 and names[-1] in said and not os.path.exists(f"{folder}/words"), f"{names}: {said}")
    # As earlier versions made one: DIR/key, DIR/tls and DIR/tls/authority, whose certificate is in DIR/tls alone.
    os.makedirs(f"{folder}/old")
    run(certificates, f"{folder}/old/tls", "server", "a", "a")
    os.remove(f"{folder}/old/tls/authority/ca.pem")
    Path(folder, "old/key").write_text("a2V5IG9mIGFuIGVhcmxpZXIgdmVyc2lvbg==")
    status, said = run(secure, f"{folder}/old", "b")
    check(status == 2 and "earlier version" in said, f"an earlier version's: {said}")
    check(run("bash", "-ec", "\n".join(said.splitlines()[1:]))[0] == 0, "what it says to do")
    check(run(secure, f"{folder}/old", "b")[0] == 0 and goes_with("old/tls", "old/b/b.pem")[0] == 0, "its authority")
    check(Path(folder, "old/b/key").read_bytes() == Path(folder, "old/key").read_bytes(), "and its key")
    discard(folder)


def secure_set():
    """docker/compose.secure.yaml's set: certificates, the key, TLS and the first user."""
    folder = tempfile.mkdtemp(prefix="mayfly-compose-")
    make = [ROOT / "docker/secure", folder, *members()]
    for _ in range(2):  # a second time changes nothing
        subprocess.run(make, check=True, capture_output=True)
        now = {f: Path(folder, f).read_bytes() for f in ("a/key", "a/ca.pem", "a/a.pem", "authority/key.pem")}
    check(all(Path(folder, f).read_bytes() == text for f, text in now.items()), "what is there stays")
    subprocess.run([ROOT / "docker/secure", folder, "alone", "single"], check=True, capture_output=True)
    for name in (*members(), "single"):
        has = sorted(os.listdir(f"{folder}/{name}"))
        check(has == sorted(["ca.pem", f"{name}.pem"] + ["key"] * (name != "single")), f"{name} has its own: {has}")
        modes = {f: os.stat(f"{folder}/{name}/{f}").st_mode & 0o777 for f in (".", *has)}
        check(modes.pop("ca.pem") == 0o644 and set(modes.values()) == {0o700, 0o600}, f"for itself: {modes}")
    check(len({Path(folder, m, "key").read_bytes() for m in members()}) == 1, "the set has one key")
    found = subprocess.run(
        ["grep", "-rlF", Path(folder, "authority/key.pem").read_text().splitlines()[1], folder],
        capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    check(found == [f"{folder}/authority/key.pem"], f"the authority's private key is in one place: {found}")

    def variables(i):
        own, mine = members()[i], f"{folder}/{members()[i]}"
        text = SECURE.replace("/secrets", mine)
        settings_ = dict(re.findall(r"(MAYFLYD_\w+): \"?([^\"}\n]+)", text))
        user = {"MONGO_INITDB_ROOT_USERNAME": "boss", "MONGO_INITDB_ROOT_PASSWORD": PASSWORD}
        return settings_ | user | {"MAYFLYD_TLS_CERTIFICATE_KEY_FILE": f"{mine}/{own}.pem"}

    tls = dict(tls=True, tlsCAFile=f"{folder}/a/ca.pem")
    servers = new_set(3, variables, [], **tls)
    try:
        check(until(lambda: all(made(s, **tls) for s in servers)), "the user on every member")
        check(not made(servers[0]), "a client without TLS does not get in")
        check(code(servers[0].client(**tls), "listDatabases") == 13, "nor one without a login")
        hosts = ",".join(f"127.0.0.1:{s.port}" for s in servers)
        with pymongo.MongoClient(
            f"mongodb://{hosts}/?replicaSet=rs0", username="boss", password=PASSWORD, authSource="admin", **tls
        ) as c:
            concern = pymongo.WriteConcern(3, wtimeout=Deadline().millis)
            done = c.shop.things.with_options(write_concern=concern).insert_one({"_id": 1})
            check(done.acknowledged, "a driver finds the set and writes to every member")
        check(sum(s.log().count('"id":9000134') for s in servers) == 1, "the user was made once")
    finally:
        for s in servers:
            s.end()
        discard(folder)


run_parts(
    "compose",
    (files, root_user, by_files, refusals, settings, plain_set, waiting, one_authority, secure_set),
    check,
)
