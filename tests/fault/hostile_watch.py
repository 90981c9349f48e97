"""How long another client waits meanwhile, and what the machine itself was late: for tests/fault/hostile_run.py and
those like it."""

import itertools, multiprocessing, os, random, socket, time

from fault_test import Client, until

SLOWEST = 0.25  # seconds that another client may wait
# A round of another client, unless it is told otherwise.
FIND_AND_UPDATE = [
    {"find": "c", "filter": {"_id": 1}},
    {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]},
]


def echo(s):
    """The machine itself: a process that does nothing but answer."""
    while True:
        data = s.recv(64)
        if not data:
            return
        s.sendall(data)


def watch(port, commands, slowest, late, rounds, ended):
    """Another client: its commands one after the other, a round on each of its connections in turn (each thread that
    serves connections has some of them); and beside them the same round trip to a process that does nothing."""
    clients = itertools.cycle([Client("127.0.0.1", port) for _ in range(4)])
    ours, theirs = socket.socketpair()
    multiprocessing.Process(target=echo, args=(theirs,), daemon=True).start()
    while not ended.is_set():
        began = time.monotonic()
        ours.sendall(b"x")
        ours.recv(64)
        echoed = time.monotonic()
        c = next(clients)
        for doc in commands:
            reply = c.command("other", doc)
            if reply["ok"] != 1:
                raise AssertionError(str(reply)[:300])
        late.value = max(late.value, echoed - began)
        slowest.value = max(slowest.value, time.monotonic() - echoed)
        rounds.value += 1
        ended.wait(0.002)  # as a client that has something else to do, too


class Watcher:
    """Another client of the server on `port`, in a process of its own."""

    def __init__(self, port, commands=FIND_AND_UPDATE):
        self.port, self.commands = port, commands

    def __enter__(self):
        self.slowest, self.late, self.rounds = (multiprocessing.Value("d", 0) for _ in range(3))
        self.ended = multiprocessing.Event()
        self.process = multiprocessing.Process(
            target=watch, args=(self.port, self.commands, self.slowest, self.late, self.rounds, self.ended)
        )
        self.process.start()
        self.wait_rounds(5)
        return self

    def wait_rounds(self, n):
        before = self.rounds.value
        until(lambda: self.rounds.value >= before + n or not self.process.is_alive(), 30)

    def take(self):
        """The slowest round since the last call, how late the machine was, and whether anybody is served at all."""
        before = self.rounds.value
        self.wait_rounds(3)
        out = self.slowest.value, self.late.value, self.rounds.value > before
        self.slowest.value = self.late.value = 0
        return out

    def __exit__(self, *_):
        self.ended.set()
        self.process.join(30)
        self.process.kill()


CHUNK = 512 << 10  # bytes in which a set logs what is large


def synced_write(folder, slowest, ended):
    """What the disk needs for a chunk, again and again: the slowest."""
    block = random.Random(1).randbytes(CHUNK)
    with open(folder + "/probe", "wb") as f:
        while not ended.wait(0.1):
            began = time.monotonic()
            f.seek(0)
            f.write(block)
            f.flush()
            os.fdatasync(f.fileno())
            slowest.value = max(slowest.value, time.monotonic() - began)


class DiskProbe:
    """How long the disk under `folder` needs for a synced write of a chunk, in a process of its own."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self.value, self.ended = multiprocessing.Value("d", 0), multiprocessing.Event()
        self.process = multiprocessing.Process(target=synced_write, args=(self.folder, self.value, self.ended))
        self.process.start()
        return self

    def slowest(self):
        """In seconds, so far."""
        return self.value.value

    def __exit__(self, *_):
        self.ended.set()
        self.process.join(30)
        self.process.kill()
