"""A mayflyd with TLS for the runs that look at it, certificates for it and for its clients (scripts/certificates makes
them in the run), and messages of the wire protocol for connections that are made by hand.
"""

import socket, ssl, struct, tempfile

import bson, pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, Checks, Deadline, certificate, launch, stop, until

check = Checks()
folder = tempfile.mkdtemp(prefix="mayfly-tls-")
OWN, FOREIGN = f"{folder}/own", f"{folder}/foreign"
CA = f"{OWN}/ca.pem"
SERVER = certificate(OWN, "server", "server", "localhost", "127.0.0.1")
CLIENT = certificate(OWN, "client", "app", "readWrite.shop")
PING = {"ping": 1, "$db": "admin"}
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
        more["serverSelectionTimeoutMS"] = 3000  # so long waits who is to be refused
        if tls and certificate:
            more["tlsCertificateKeyFile"] = certificate
        more |= options
        return pymongo.MongoClient("localhost", self.port, directConnection=True, **more)

    def gets_in(self, *args, **options):
        with self.client(*args, **options) as c:
            try:
                return c.admin.command("ping")["ok"] == 1
            except PyMongoError:
                return False

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=Deadline().seconds)

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
            ended = stop(self.proc)
            check(ended == 0, f"the server ends in order: {ended}")


def message(body, request=1):
    payload = struct.pack("<i", 0) + b"\0" + bson.encode(body)
    return struct.pack("<iiii", 16 + len(payload), request, 0, 2013) + payload


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


def closed(s):
    """Whether the server ends this connection, whatever it says before."""
    s.settimeout(Deadline().seconds)
    try:
        while s.recv(65536):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def code_of(f, *args, **options):
    try:
        f(*args, **options)
        return 0
    except PyMongoError as e:
        return getattr(e, "code", None) or str(e)
