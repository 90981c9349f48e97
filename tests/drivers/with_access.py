#!/usr/bin/env python3
"""with_access.py single|replicaset|replicaset3 COMMAND…: starts servers with access control and TLS, runs COMMAND with
the logins that it may use, stops the servers.

Every client needs TLS and, but for the few commands before a login, a user. In the environment of the command:

- LOGINS: a line for each login, "MECHANISM URI"; the user may read and write every database. SCRAM-SHA-256 and
  SCRAM-SHA-1 are users with a password for that mechanism alone, DEFAULT is one with both and a URI without a
  mechanism, so that the driver finds out; MONGODB-X509 is the user of a certificate.
- WRONG_LOGIN, NO_LOGIN: a URI with a wrong password, and one without any.
- ROOT_LOGIN: a user who administers; MONGODB_URI: the same as DEFAULT.
- TLS_CA_FILE, TLS_CLIENT_FILE; for Java JAVA_LOGIN_OPTIONS with stores of the same.

The command's last line says "N passed, N failed". The servers must also stop cleanly.
"""

import os, subprocess, sys, tempfile
from pathlib import Path
from urllib.parse import quote

import pymongo
from pymongo.errors import PyMongoError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
from topologies import BINARY, TEST_COMMANDS, launch, until
from certificates import certificate  # behind topologies, which knows the way to it
from own import discard
from waits import Deadline

PASSWORD = "p%ss:w@rd/?"  # what a URI has to escape; not every build of a driver has SASLprep
QUOTED = quote(PASSWORD, safe="")


class Servers:
    """A standalone or a set, all of whose connections are encrypted and need a login."""

    def __init__(self, folder, topology):
        self.folder, self.processes = folder, []
        self.ca, self.set = f"{folder}/tls/ca.pem", topology != "single"
        self.server_file = certificate(f"{folder}/tls", "server", "server", "localhost", "127.0.0.1")
        self.client_file = certificate(f"{folder}/tls", "client", "app")
        options = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", self.server_file, "--tlsCAFile", self.ca]
        options += ["--tlsAllowConnectionsWithoutCertificates", *TEST_COMMANDS]
        if self.set:
            key = Path(folder, "key")
            key.write_bytes(os.urandom(33).hex().encode())
            key.chmod(0o600)
            options += ["--replSet", "rs0", "--keyFile", str(key)]
        else:
            options += ["--auth"]
        for i in range(3 if topology == "replicaset3" else 1):
            log = f"{folder}/log{i}"
            process, port = launch(BINARY, ["--dbpath", f"{folder}/data{i}", *options], log)
            assert port, Path(log).read_text(errors="replace")[-4000:]
            process.port = port
            self.processes.append(process)

    def hosts(self):
        return ",".join(f"localhost:{p.port}" for p in self.processes)

    def uri(self, login="", options="authSource=admin", certificate=False):
        more = "&replicaSet=rs0" if self.set else ""
        more += f"&tlsCertificateKeyFile={self.client_file}" if certificate else ""
        at = f"{login}@" if login else ""
        return f"mongodb://{at}{self.hosts()}/?tls=true&tlsCAFile={self.ca}&{options}{more}"

    def connect(self, *login):
        """A client of the first server; by the localhost exception, or as somebody."""
        more = dict(zip(("username", "password"), login))
        first = self.processes[0].port
        return pymongo.MongoClient("localhost", first, tls=True, tlsCAFile=self.ca, directConnection=True, **more)

    def prepare(self):
        """The set, and its users."""
        nobody = self.connect()
        if self.set:
            members = [{"_id": i, "host": f"localhost:{p.port}"} for i, p in enumerate(self.processes)]
            nobody.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
            until("a primary", lambda: nobody.admin.command("hello")["isWritablePrimary"])
        nobody.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = self.connect("root", PASSWORD)
        roles = ["readWriteAnyDatabase", "dbAdminAnyDatabase"]
        for name, mechanisms in (("sha256", ["SCRAM-SHA-256"]), ("sha1", ["SCRAM-SHA-1"]), ("both", None)):
            more = {"mechanisms": mechanisms} if mechanisms else {}
            root.admin.command("createUser", name, pwd=PASSWORD, roles=roles, **more)
        external = [{"role": r, "db": "admin"} for r in roles]
        root["$external"].command("createUser", "CN=app,OU=clients,O=Mayfly", roles=external)

    def environment(self):
        scram = "authSource=admin&authMechanism="
        logins = {
            "SCRAM-SHA-256": self.uri(f"sha256:{QUOTED}", scram + "SCRAM-SHA-256"),
            "SCRAM-SHA-1": self.uri(f"sha1:{QUOTED}", scram + "SCRAM-SHA-1"),
            "DEFAULT": self.uri(f"both:{QUOTED}"),
            "MONGODB-X509": self.uri("", "authMechanism=MONGODB-X509&authSource=%24external", True),
        }
        return dict(
            LOGINS="\n".join(f"{name} {uri}" for name, uri in logins.items()),
            WRONG_LOGIN=self.uri("both:wrong"),
            NO_LOGIN=self.uri("", "appName=nobody"),
            ROOT_LOGIN=self.uri(f"root:{QUOTED}"),
            MONGODB_URI=logins["DEFAULT"],
            TLS_CA_FILE=self.ca,
            TLS_CLIENT_FILE=self.client_file,
        )

    def java(self):
        """The same certificates as Java wants them."""
        trust, own = f"{self.folder}/trust.p12", f"{self.folder}/own.p12"
        word = "changeit"
        make = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", self.ca, "-keystore", trust]
        subprocess.run([*make, "-storetype", "PKCS12", "-storepass", word], check=True, capture_output=True)
        make = ["openssl", "pkcs12", "-export", "-in", self.client_file, "-out", own, "-passout", f"pass:{word}"]
        subprocess.run(make, check=True, capture_output=True)
        stores = f"-Djavax.net.ssl.trustStore={trust} -Djavax.net.ssl.trustStorePassword={word}"
        return stores + f" -Djavax.net.ssl.keyStore={own} -Djavax.net.ssl.keyStorePassword={word}"

    def stop(self):
        """Whether all were alive and stop cleanly."""
        alive = [p.poll() is None for p in self.processes]
        for p in self.processes:
            p.terminate()
        codes = []
        for p in self.processes:
            try:
                codes.append(p.wait(Deadline().seconds))
            except subprocess.TimeoutExpired:
                p.kill()
                codes.append("killed")
        if not all(alive) or any(codes):
            print(f"servers: {alive}, exit codes {codes}")
        return all(alive) and not any(codes)


def main():
    folder = tempfile.mkdtemp(prefix="mayfly-access-")
    servers = None
    try:
        servers = Servers(folder, sys.argv[1])
        servers.prepare()
        more = servers.environment()
        if "java" in sys.argv[2]:
            more["JAVA_LOGIN_OPTIONS"] = servers.java()
        patience = Deadline(600).seconds
        status = subprocess.run(sys.argv[2:], env=dict(os.environ, **more), timeout=patience).returncode
    except PyMongoError as e:
        print(f"cannot prepare: {e}")
        status = 1
    finally:
        clean = servers is not None and servers.stop()
        if clean and not status:
            discard(folder)
    if not clean or (status and servers is None):
        print("0 passed, 1 failed")
    return status if clean else 1


if __name__ == "__main__":
    sys.exit(main())
