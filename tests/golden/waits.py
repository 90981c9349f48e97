"""How long a test waits. A deadline is for what hangs and decides nothing else: it is far behind what anything takes,
and as much longer as the machine is slow or the server is built with a sanitizer. What a test starts, in any language,
takes that factor from MAYFLY_SLOWNESS.
"""

import hashlib, inspect, linecache, os, re, time
from pathlib import Path

PATIENCE = 60  # seconds that a deadline has at least, on an ordinary machine


def _slowness():
    """How many times longer this machine takes now than an ordinary one: a piece of work that takes 60 ms there."""
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"work", b"work", 50_000)
    slow = min(max(1.0, (time.perf_counter() - began) / 0.06), 10.0)
    sanitized = re.search(r"/(asan|tsan|debug)/", os.environ.get("MAYFLYD", ""))
    return slow * (5 if sanitized else 1)


_GIVEN = "MAYFLY_SLOWNESS"
SLOWNESS = max(_slowness(), float(os.environ.get(_GIVEN) or 1))
os.environ[_GIVEN] = f"{SLOWNESS:.2f}"


class Deadline:
    """So many seconds, PATIENCE at least, as often as the machine is slow."""

    def __init__(self, seconds=PATIENCE):
        self.began, self.seconds = time.monotonic(), max(seconds, PATIENCE) * SLOWNESS
        self.millis = int(self.seconds * 1000)

    def took(self):
        """Seconds so far: a figure, not a verdict."""
        return time.monotonic() - self.began

    def holds(self):
        return self.took() < self.seconds  # clock: a deadline that only a hang misses

    def until(self, condition):
        """What it gave once that is true, or what it last gave when the time is over, which is said with what was
        waited for. It polls, because conditions are of other processes: what a server answers, a file, a line of /proc.
        None of them wakes anybody."""
        while True:
            out = condition()
            if out:
                return out
            if not self.holds():
                print(f"     waited {self.took():.0f} s in vain: {_caller()}", flush=True)
                return out
            time.sleep(0.01)  # sleeps: polls until a deadline

    def receive(self, s):
        """What comes next on a socket; TimeoutError when nothing has come in time."""
        while True:
            s.settimeout(1)  # clock: polls until a deadline
            try:
                return s.recv(1 << 20)
            except TimeoutError:
                if not self.holds():
                    raise


def until(condition, seconds=PATIENCE):
    """Waits for a condition until a Deadline: what it gave, which is true, or what it last gave when that is over."""
    return Deadline(seconds).until(condition)


def wait_for(condition, seconds=PATIENCE):
    """As until, where nothing goes on without it: an error that says what was waited for."""
    out = until(condition, seconds)
    if not out:
        raise AssertionError(f"waited in vain: {_caller()}")
    return out


def _caller():
    """Who waits, and the line in which it says for what: not what every test waits with."""
    for f in inspect.stack(0)[2:]:
        name = Path(f.filename).name
        if name not in ("waits.py", "topologies.py", "replica_set.py"):
            return f"{name}:{f.lineno}: {linecache.getline(f.filename, f.lineno).strip()}"
    return "?"


def processor_seconds(pid):
    """What a process has used of processors (clock_getcpuclockid): other programs hardly stretch it. 0 when it is
    gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0
