"""Whether another client is served meanwhile, and how long it waits: for tests/fault/hostile_run.py and those like it.

The verdict counts. Beside the other client a control does the same with a process that does nothing but answer, and
with the disk if the client's writes are synced. Whatever else the machine does slows both of them; while the control
has SHARE answers (SHARE_SYNCED of a disk), the other client has one at least. How long it waited is a figure."""

import itertools, multiprocessing, os, random, socket, time, typing

from fault_test import Client, Deadline, until

PAUSE = 0.002  # seconds between two rounds, as of a client that has something else to do, too
# What a control is given while another client must have one round: some ten times what that needs beside the worst
# attack.
SHARE, SHARE_SYNCED = 200, 50
# A round of another client, unless it is told otherwise.
FIND_AND_UPDATE = [
    {"find": "c", "filter": {"_id": 1}},
    {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]},
]


class Seen(typing.NamedTuple):
    """Of a while."""

    slowest: float  # seconds of a round of the other client
    late: float  # seconds of a round of the control
    rounds: int  # answered to the other client
    control: int  # answered to the control
    goes_on: bool  # the other client is still answered
    share: int

    def served(self):
        """Whether the other client was answered, when it is measured by the control."""
        return self.goes_on and self.rounds >= self.control // self.share

    def __str__(self):
        end = "" if self.goes_on else ", and then no more"
        return (
            f"another client was answered {self.rounds} times{end}, a process that does nothing {self.control} times "
            f"(1 in {self.share} is wanted); slowest {self.slowest * 1000:.0f} ms, {self.late * 1000:.0f} ms"
        )


def echo(s):
    """The machine itself: a process that does nothing but answer."""
    while True:
        data = s.recv(64)
        if not data:
            return
        s.sendall(data)


def going_on(ended):
    """Until it is told to end, or nobody is there any more who could."""
    parent = os.getppid()
    while not ended.is_set() and os.getppid() == parent:
        yield


def watch(port, commands, slowest, rounds, ended):
    """Another client: its commands one after the other, a round on each of its connections in turn (each thread that
    serves connections has some of them)."""
    clients = itertools.cycle([Client("127.0.0.1", port) for _ in range(4)])
    for _ in going_on(ended):
        began = time.monotonic()
        c = next(clients)
        for doc in commands:
            reply = c.command("other", doc)
            if reply["ok"] != 1:
                raise AssertionError(str(reply)[:300])
        slowest.value = max(slowest.value, time.monotonic() - began)
        rounds.value += 1
        ended.wait(PAUSE)


def control(folder, late, rounds, ended):
    """The same with a process that does nothing; and a synced write in `folder`, if there is one."""
    ours, theirs = socket.socketpair()
    multiprocessing.Process(target=echo, args=(theirs,), daemon=True).start()
    theirs.close()
    file = open(folder + "/control", "wb") if folder else None
    block = random.Random(1).randbytes(4096)
    for _ in going_on(ended):
        began = time.monotonic()
        ours.sendall(b"x")
        ours.recv(64)
        if file:
            file.seek(0)
            file.write(block)
            file.flush()
            os.fdatasync(file.fileno())
        late.value = max(late.value, time.monotonic() - began)
        rounds.value += 1
        ended.wait(PAUSE * (5 if file else 1))  # it is not to keep the disk busy


class Watcher:
    """Another client of the server on `port`, in a process of its own. `synced`: a folder on the disk that the client's
    writes wait for, if they do."""

    def __init__(self, port, commands=FIND_AND_UPDATE, synced=None):
        self.port, self.commands, self.synced = port, commands, synced

    def __enter__(self):
        self.slowest, self.late = (multiprocessing.Value("d", 0) for _ in range(2))
        self.rounds, self.controlled = (multiprocessing.Value("q", 0) for _ in range(2))
        self.ended = multiprocessing.Event()
        other = (self.port, self.commands, self.slowest, self.rounds, self.ended)
        self.process = multiprocessing.Process(target=watch, args=other)
        beside = (self.synced, self.late, self.controlled, self.ended)
        self.control = multiprocessing.Process(target=control, args=beside)
        self.process.start()
        self.control.start()
        self.wait_rounds(5)
        self.take()
        return self

    def wait_rounds(self, n):
        """Until the other client has been answered so often; False: it is not."""
        before = self.rounds.value
        until(lambda: self.rounds.value >= before + n or not self.process.is_alive())
        return self.rounds.value >= before + n

    def take(self):
        """What was Seen since the last call."""
        rounds, controlled = self.rounds.value - self.before[0], self.controlled.value - self.before[1]
        goes_on = self.wait_rounds(3)
        share = SHARE_SYNCED if self.synced else SHARE
        out = Seen(self.slowest.value, self.late.value, rounds, controlled, goes_on, share)
        self.slowest.value = self.late.value = 0
        self.before = self.rounds.value, self.controlled.value
        return out

    before = 0, 0

    def __exit__(self, *_):
        self.ended.set()
        for p in (self.process, self.control):
            p.join(Deadline().seconds)
            p.kill()
