"""TCP ports for servers that tests start, where others must know the port beforehand."""

import fcntl, os, random, socket, tempfile

_own = random.SystemRandom()  # not the seed's: two tests with one seed run side by side
_held = []  # locked until this process ends: nobody else's test takes the port while its server is down
# One folder for all runs of a user: not that of this run (own.py), nor of one in which it was started.
SHARED = "TESTS_PORTS"
FOLDER = os.environ.get(SHARED) or os.path.join(tempfile.gettempdir(), f"mayfly-ports-{os.getuid()}")


def free_port():
    """A port of the loopback interface that nobody has, reserved until this process ends. It lies below those that the
    system gives to clients: a client would otherwise take the port of a server that is not up yet, or was killed."""
    os.makedirs(FOLDER, exist_ok=True)
    for _ in range(1000):
        port = _own.randrange(10_000, 20_000)
        lock = open(os.path.join(FOLDER, str(port)), "a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return port
    raise OSError("no port from 10000 to 19999 is free")
