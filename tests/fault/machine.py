"""What others take of the machine meanwhile: a limit in seconds is one of a test that has it for itself."""

import math, multiprocessing, os, sys, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from run import until


def processor_time(servers):
    """Of the machine: all there was, what was idle, what the servers (process ids) and this run have used; in ticks."""
    with open("/proc/stat") as f:
        ticks = [int(t) for t in f.readline().split()[1:9]]
    ours = 0
    for pid in [*servers, os.getpid()] + [c.pid for c in multiprocessing.active_children()]:
        try:
            with open(f"/proc/{pid}/stat") as f:
                ours += sum(int(t) for t in f.read().rpartition(")")[2].split()[11:13])
        except OSError:
            pass
    return sum(ticks), ticks[3] + ticks[4], ours


def taken_by_others(before, after):
    """The part of the machine, 0 to 0.8, that neither this run nor the servers had between two processor_time()."""
    total, idle, ours = (b - a for a, b in zip(before, after))
    return min(max((total - idle - ours) / max(total, 1), 0), 0.8)


class Limit:
    """So many seconds for the servers (process ids, which live on) and this run, and as many more as others take of the
    machine."""

    def __init__(self, seconds, *servers):
        self.seconds, self.servers = seconds, servers
        self.began, self.processors = time.monotonic(), processor_time(servers)

    def allowed(self):
        """Seconds, as the machine has been since."""
        return self.seconds / (1 - taken_by_others(self.processors, processor_time(self.servers)))

    def took(self):
        return time.monotonic() - self.began

    def holds(self):
        return self.took() < self.allowed()

    def until(self, condition):
        """What it gave once that is true, or what it last gave when the time is over."""
        gave = []

        def over():
            gave[:] = [condition()]
            return gave[0] or not self.holds()

        until(over, math.inf)
        return gave[0]

    def receive(self, s):
        """What comes next on a socket; TimeoutError when nothing has come in time."""
        while True:
            s.settimeout(max(0.01, min(1, self.allowed() - self.took())))
            try:
                return s.recv(1 << 20)
            except TimeoutError:
                if not self.holds():
                    raise
