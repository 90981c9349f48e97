#!/usr/bin/env python3
"""The recipes of docs/security.md are run as they stand there: what the shell, mongosh and the server are told, with
the paths, ports and passwords of this run. A line of the page that looks like a recipe and is of no kind that is known
here is a failure. Not run here: connection strings with names of hosts (conformance/auth.py), mongodump and
mongorestore (access_run.py), and the file with two keys (members_run.py).
The last line says "N passed, N failed".
"""

import json, os, re, shlex, signal, subprocess, tempfile, urllib.request
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, ROOT, Checks, Deadline, certificate, free_port, run_parts, until
from own_server import OwnServer, code

check = Checks(quiet=True)
PAGE = (ROOT / "docs/security.md").read_text()
PASSWORD = "of this run 4711"
ELSEWHERE = re.compile(r"mongodb://\S+\.example|mongo(dump|restore) |- (OLD|NEW) KEY")


class Server(OwnServer):
    """With TLS for who wants it, so that all recipes can be run on one."""

    check, root_password = check, PASSWORD

    def prepare(self):
        self.tls = Path(self.folder) / "tls"
        for more in (["server", "db", "localhost", "127.0.0.1"], ["client", "app"]):
            certificate(self.tls, *more)
        self.extra += ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", f"{self.tls}/db.pem"]
        self.extra += ["--tlsCAFile", f"{self.tls}/ca.pem", "--tlsAllowConnectionsWithoutCertificates"]
        Path(f"{self.folder}/mayfly.password").write_text(PASSWORD + "\n")
        os.chmod(f"{self.folder}/mayfly.password", 0o600)

    def shell(self, text, client):
        """db.f({…}), db.adminCommand({…}) and the like, as mongosh sends them."""
        m = re.fullmatch(r'db(?:\.getSiblingDB\("([^"]+)"\))?\.(\w+)\(\s*(\{.*\})\)', text, re.S)
        check(m, f"a command of the shell: {text}")
        db, method, argument = m.groups()
        argument = argument.replace("passwordPrompt()", json.dumps(PASSWORD))
        argument = json.loads(re.sub(r"([{,]\s*)([$\w]+):", r'\1"\2":', argument))
        if method == "createUser":
            argument = {"createUser": argument.pop("user"), **argument}
        else:
            check(method in ("adminCommand", "runCommand"), f"what the shell has: {method}")
        return client[db or "admin"].command(argument)

    def mongosh(self, words):
        """A client with the connection string and the flags of mongosh."""
        uri, *flags = words
        uri = uri.replace("db.example", "127.0.0.1").replace("127.0.0.1", f"127.0.0.1:{self.port}", 1)
        uri = uri.replace("app:PASSWORD@", "app@")
        more = {} if "X509" in uri or "@" not in uri else {"password": PASSWORD}
        files = dict(zip(flags[::2], flags[1::2]))
        check(set(files) <= {"--tlsCAFile", "--tlsCertificateKeyFile"}, f"flags of mongosh: {flags}")
        for flag, file in files.items():
            more[flag[2:]] = str(self.tls / file)
        return pymongo.MongoClient(uri, directConnection=True, serverSelectionTimeoutMS=Deadline().millis, **more)


def recipes():
    """The indented commands of the page, each in one piece: a line that is indented further continues it."""
    found = []
    for line in re.sub(r"^```.*?^```", "", PAGE, flags=re.S | re.M).splitlines():
        if re.match(r" {4}\S", line):
            found.append(line[4:].removesuffix("\\"))
        elif re.match(r" {5,}\S", line) and found:
            found[-1] += "\n" + line.strip().removesuffix("\\")
    return [r for r in found if not r.startswith("[")]  # links are text: a list's second line


RECIPES = recipes()


def of_kind(start):
    return [r for r in RECIPES if r.startswith(start) and not ELSEWHERE.match(r)]


def known():
    """Each recipe is of a kind that a part of this run takes."""
    for r in RECIPES:
        check(r.startswith(("mongosh ", "db.", "mayflyd ", "mongodb://")) or ELSEWHERE.match(r), f"a known kind: {r}")
        check(not re.search(r'"[^"\']*\$[^"\']*"', r.partition("mongosh ")[2]), f"no $ that a shell replaces: {r}")
    check(len(of_kind("mongosh ")) == 3, f"of mongosh: {of_kind('mongosh ')}")
    check(len(of_kind("db.")) == 3 and len(of_kind("mayflyd ")) == 2, "of the shell and of the server")


def first_user():
    """The first user, an application's and one with a certificate, and how each logs in."""
    with Server() as s:
        making, logging_in, by_certificate = (shlex.split(r) for r in of_kind("mongosh "))
        check(making[1] == "--eval", f"the first user is made first: {making}")
        s.shell(making[2], s.connect())
        root = s.mongosh(logging_in[1:])
        who = root.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        check(who == [{"user": "root", "db": "admin"}], f"and logs in: {who}")
        for r in of_kind("db."):
            if "createUser" in r:
                s.shell(r, root)
        (uri,) = of_kind("mongodb://")
        app = s.mongosh([uri])
        app.shop.things.insert_one({"_id": 1})
        check(app.shop.things.find_one() == {"_id": 1}, "an application has its database")
        try:
            app.other.things.insert_one({})
            check(False, "and no other")
        except PyMongoError as e:
            check(e.code == 13, f"and no other: {e}")
        certified = s.mongosh(by_certificate[1:])
        check(certified.shop.things.find_one() == {"_id": 1}, "who has a certificate, too")
        who = certified.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        check(who == [{"user": "CN=app,OU=clients,O=Mayfly", "db": "$external"}], f"by its subject: {who}")


def by_options():
    """A start that makes the first user; filters of the audit log; a scraper's token and a set's key file."""
    first, audit = (shlex.split(r) for r in of_kind("mayflyd "))
    inline = re.findall(r"`(openssl rand [^`]*>[^`]*)`", re.sub(r"\s+", " ", PAGE))
    check(len(inline) == 2, f"secrets that openssl makes: {inline}")

    class Made(Server):
        def prepare(self):
            super().prepare()
            mine = lambda text: text.replace("/etc/mayfly", f"{self.folder}/mayfly")
            for command in inline:
                subprocess.run(["sh", "-c", "umask 077; " + mine(command)], check=True)
            self.extra += [mine(word) for word in first[1:]] + audit[1:]
            self.extra += ["--auditDestination", "file", "--auditPath", f"{self.folder}/audit.json"]
            self.extra += ["--replSet", "rs0", "--keyFile", f"{self.folder}/mayfly.key"]
            self.extra += ["--httpMetricsTokenFile", f"{self.folder}/mayfly.token"]
            self.extra += ["--initialMembers", f"127.0.0.1:{self.port}"]

        def events(self):
            lines = Path(f"{self.folder}/audit.json").read_text().splitlines()
            return [(e["atype"], e["param"].get("ns")) for e in map(json.loads, lines)]

    with Made(auth=False) as s:
        root = s.connect("root")
        check(until(lambda: code(root.admin.command, "ping") == 0), "the user of the options, once the set is there")
        check(root.admin.command("hello")["isWritablePrimary"], "a set with its key file")
        token = Path(f"{s.folder}/mayfly.token").read_text().strip()
        request = urllib.request.Request(f"http://127.0.0.1:{s.http}/metrics")
        request.add_header("Authorization", f"Bearer {token}")
        check(
            b"mayfly_" in urllib.request.urlopen(request, timeout=Deadline().seconds).read(), "a scraper has its token"
        )
        for db in ("shop", "other"):
            root[db].create_collection("c")
            root[db].drop_collection("c")
        seen = [e for e in s.events() if e[0].endswith("Collection")]
        check(seen == [("createCollection", "shop.c"), ("dropCollection", "shop.c")], f"the filter holds: {seen}")
        (change,) = (r for r in of_kind("db.") if "auditFilter" in r)
        s.shell(change, root)
        root.other.create_collection("d")
        check(("createCollection", "other.d") in s.events(), "and is another one at run time")


def secure_set():
    """The set in five minutes, by a shell."""
    blocks = [b for b in re.findall(r"```\n(.*?)```", PAGE, re.S) if b.startswith("docker/secure")]
    check(len(blocks) == 1, f"the recipe of a set: {len(blocks)}")
    text, ports = blocks[0], {str(n): str(free_port()) for n in (27017, 27018, 27019)}
    shell, _, connect = text.partition("mongosh ")
    for port, own in ports.items():
        check(shell.count(port) == 2, f"a member and its port: {port}")
        shell = shell.replace(port, own)
    with tempfile.TemporaryDirectory(prefix="mayfly-recipe-") as folder:
        os.symlink(BINARY, f"{folder}/mayflyd")
        shell = f"set -eu; mayflyd() {{ {folder}/mayflyd \"$@\"; }}\n" + shell.replace("docker/", f"{ROOT}/docker/", 1)
        # Its own group, so that all that it starts can be ended.
        made = subprocess.Popen(["bash", "-c", shell + "\nwait"], cwd=folder, start_new_session=True)
        try:
            check(until(lambda: os.path.exists(f"{folder}/secrets/password")), "what it makes")
            mode = os.stat(f"{folder}/secrets/password").st_mode & 0o777
            check(mode == 0o600, f"a password that nobody else reads: {mode:o}")
            (uri,) = shlex.split(connect)
            password = lambda: Path(f"{folder}/secrets/password").read_text().strip()
            uri = uri.replace("localhost", f"localhost:{ports['27017']}").replace("secrets/", f"{folder}/secrets/")
            uri = uri.replace("root@", "root:PASSWORD@")

            def leads():
                try:
                    with pymongo.MongoClient(  # clock: what fails is tried again
                        uri.replace("PASSWORD", password()), serverSelectionTimeoutMS=3000
                    ) as c:
                        return len(c.admin.command("hello")["hosts"]) == 3 and c.shop.things.insert_one({}).acknowledged
                except PyMongoError:
                    return False

            check(until(leads, 90), "the set is there, with a login and TLS")
            for port in ports.values():
                with pymongo.MongoClient(
                    "localhost", int(port), directConnection=True, tls=True, tlsCAFile=f"{folder}/secrets/a/ca.pem"
                ) as c:
                    check(code(c.shop.things.find_one) == 13, "nobody reads without a login")
                with pymongo.MongoClient(  # clock: it is to fail
                    "localhost", int(port), directConnection=True, serverSelectionTimeoutMS=2000
                ) as c:
                    check(code(c.admin.command, "ping") != 0, "nor without TLS")
        finally:
            os.killpg(made.pid, signal.SIGKILL)
            made.wait()


run_parts("recipes_run", [known, first_user, by_options, secure_set], check)
