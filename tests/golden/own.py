"""What a run has for itself, and that nothing of it is left.

`claim()` gives the run a folder for all its files and a reaper: a process that waits for the run's end and then ends
what the run has started and not ended, also when it was killed. The reaper knows those processes by a variable in their
environment. The folder goes as well, unless the run has called `keep()`, because somebody is to look at what failed.
"""

import os, select, shutil, signal, subprocess, sys, tempfile, uuid

import ports

MARK = "TESTS_RUN"  # not MAYFLY_…: those a run may take away from what it starts
_KEPT = ".kept"
DISK, MEMORY = 512, 256  # MB without which a run cannot be right
claimed = None


def claim():
    """For the process that calls it and what it starts from now on; once."""
    global claimed
    if claimed:
        return
    os.environ.setdefault(ports.SHARED, ports.FOLDER)  # which all runs have together
    claimed = os.path.realpath(tempfile.mkdtemp(prefix="mayfly-"))
    bare = {k: v for k, v in os.environ.items() if k != MARK}  # the reaper of a run outlives the run around it
    mark = os.environ[MARK] = uuid.uuid4().hex
    os.environ["TMPDIR"] = tempfile.tempdir = claimed  # also of the programs that it runs
    subprocess.Popen(
        [sys.executable, __file__, str(os.getpid()), mark, claimed],
        env=bare,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for line in troubles():
        print(line, flush=True)


def keep():
    """The folder stays, and says where it is."""
    if claimed and os.listdir(claimed):
        open(os.path.join(claimed, _KEPT), "w").close()
        print(f"kept: {claimed}", flush=True)


def troubles():
    """What the machine lacks, a line each."""
    out = []
    disk = shutil.disk_usage(tempfile.gettempdir()).free >> 20
    if disk < DISK:
        out.append(f"SHORT OF DISK: {disk} MB are free in {tempfile.gettempdir()}, a run needs {DISK}")
    with open("/proc/meminfo") as f:
        memory = next(int(line.split()[1]) >> 10 for line in f if line.startswith("MemAvailable"))
    if memory < MEMORY:
        out.append(f"SHORT OF MEMORY: {memory} MB are available, a run needs {MEMORY}")
    return out


SAID = (
    ("Address already in use", "OCCUPIED PORT: another process listens where the server was to"),
    ("No space left on device", "SHORT OF DISK: the server could not write"),
    ("Cannot allocate memory", "SHORT OF MEMORY: the server got none"),
    ("std::bad_alloc", "SHORT OF MEMORY: the server got none"),
)


def why_not(code, log):
    """Lines that say why a server did not start: its exit code (None: it runs) and what it has written."""
    out = [line for said, line in SAID if said in log] or troubles()
    if code == -signal.SIGKILL:
        out.append("SHORT OF MEMORY? the server was killed by somebody else")
    return out


def reap(pid, mark, folder):
    """Waits for the end of the process, then ends what has its mark."""
    try:
        select.select([os.pidfd_open(pid)], [], [])
    except ProcessLookupError:
        pass
    wanted = f"{MARK}={mark}".encode()
    while True:  # what is killed last may have started something
        left = []
        for p in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{p}/environ", "rb") as f:
                    marked = wanted in f.read().split(b"\0")
                with open(f"/proc/{p}/stat") as f:
                    if marked and f.read().rpartition(")")[2].split()[0] not in "ZX":
                        left.append(int(p))
                        os.kill(int(p), signal.SIGKILL)
            except OSError:
                pass  # it has ended, or is somebody else's
        if not left:
            break
    if not os.path.exists(os.path.join(folder, _KEPT)):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    reap(int(sys.argv[1]), sys.argv[2], sys.argv[3])
