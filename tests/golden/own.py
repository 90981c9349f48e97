"""What a run has for itself, and that nothing of it is left.

`claim()` gives the run a folder for all its files and a reaper: a process that waits for the run's end and then ends
what the run has started and not ended, also when it was killed. The reaper knows those processes by a variable in their
environment. The folder goes as well, unless the run has called `keep()`, because somebody is to look at what failed.

  own.py reap PID MARK [FOLDER]     is the reaper
  own.py end MARK                   ends what a step of scripts/test has left behind
  own.py run COMMAND…               the command with all that; its exit status. The folder is kept if that is not 0
  own.py lacks TREE [KILLS [LOG]]   says what the machine lacks, a line each; prints nothing if that is nothing. TREE:
                                    the checkout, LOG: what a step there has written that failed; KILLS: what `own.py
                                    kills` had said when it began
"""

import os, re, select, shutil, signal, subprocess, sys, tempfile, uuid
from pathlib import Path

import ports

MARK = "TESTS_RUN"  # not MAYFLY_…: those a run may take away from what it starts
STEP = "TESTS_STEP"  # the same for a step of scripts/test
_KEPT = ".kept"
DISK, MEMORY = 512, 256  # MB without which a run cannot be right
BUILD = 2000  # MB that the release build takes
claimed = None
kills_before = 0


def claim():
    """For the process that calls it and what it starts from now on; once."""
    global claimed, kills_before
    if claimed:
        return
    kills_before = kills()
    os.environ.setdefault(ports.SHARED, ports.FOLDER)  # which all runs have together
    claimed = os.path.realpath(tempfile.mkdtemp(prefix="mayfly-"))
    # The reaper of a run outlives the run around it.
    bare = {k: v for k, v in os.environ.items() if k not in (MARK, STEP)}
    mark = os.environ[MARK] = uuid.uuid4().hex
    os.environ["TMPDIR"] = tempfile.tempdir = claimed  # also of the programs that it runs
    subprocess.Popen(
        [sys.executable, __file__, "reap", str(os.getpid()), mark, claimed],
        env=bare,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for line in troubles():
        print(line, flush=True)


def keep():
    """The folder stays, and says where it is. Not with MAYFLY_NO_KEEP set: of runs that are meant to fail."""
    if claimed and os.listdir(claimed) and not os.environ.get("MAYFLY_NO_KEEP"):
        open(os.path.join(claimed, _KEPT), "w").close()
        print(f"kept: {claimed}", flush=True)


def kills():
    """How many processes the system has ended for lack of memory, since it was started."""
    try:
        with open("/proc/vmstat") as f:
            return next((int(line.split()[1]) for line in f if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def available():
    """MB of memory that can be had: of the machine, or of what a container may take of it (cgroup v2)."""
    with open("/proc/meminfo") as f:
        out = next(int(line.split()[1]) >> 10 for line in f if line.startswith("MemAvailable"))
    try:
        most, used, stat = (Path("/sys/fs/cgroup/memory." + n).read_text() for n in ("max", "current", "stat"))
        files = int(re.search(r"^inactive_file (\d+)", stat, re.M)[1])  # what it gives back when it is asked to
        return min(out, (int(most) - int(used) + files) >> 20)
    except (OSError, TypeError, ValueError):  # no such group, or "max": no limit
        return out


def troubles(since=None, folders=()):
    """What the machine lacks, a line each. `since`: what kills() was; `folders`: {another folder: MB that it needs}."""
    out = []
    for folder, needs in {tempfile.gettempdir(): DISK, **dict(folders)}.items():
        disk = shutil.disk_usage(folder).free >> 20
        if disk < needs:
            out.append(f"SHORT OF DISK: {disk} MB are free in {folder}, a run needs {needs}")
    memory = available()
    if memory < MEMORY:
        out.append(f"SHORT OF MEMORY: {memory} MB are available, a run needs {MEMORY}")
    killed = kills() - (kills_before if since is None else since)
    if killed > 0 and (claimed or since is not None):
        out.append(f"SHORT OF MEMORY: the system has ended {killed} processes meanwhile, because it had no more")
    return out


SAID = {
    "Address already in use": "OCCUPIED PORT: another process listens where a server was to",
    "EADDRINUSE": "OCCUPIED PORT: another process listens where a server was to",
    "No space left on device": "SHORT OF DISK: something could not be written",
    "Cannot allocate memory": "SHORT OF MEMORY: a process got none",
    "Killed signal terminated program": "SHORT OF MEMORY: the system has ended a compiler",
}
NO_MEMORY = {"std::bad_alloc": "SHORT OF MEMORY: the server got none"}


def said(log, texts=SAID):
    """Lines for what a log says of it."""
    return list(dict.fromkeys(line for text, line in texts.items() if text in log))


def why_not(code, log):
    """Lines that say why a server did not start: its exit code (None: it runs) and what it has written."""
    out = said(log, SAID | NO_MEMORY) or troubles()
    if code == -signal.SIGKILL:
        out.append("SHORT OF MEMORY? the server was killed by somebody else")
    return out


def lacks(tree, since=None, log=None):
    """The same for a checkout, and a step in it: lines that its log has, lines for what else the log says, and what the
    machine lacks now. Tests that take memory away on purpose have bad_alloc in their logs: that says nothing here."""
    built = os.path.exists(os.path.join(tree, "build/release/mayflyd"))
    text = Path(log).read_text(errors="replace") if log and os.path.exists(log) else ""
    out = re.findall(r"^(?:SHORT OF|OCCUPIED PORT).*", text, re.M) or said(text)
    return list(dict.fromkeys(out + troubles(since, {tree: DISK if built else BUILD})))


def kill_marked(variable, mark):
    """Kills what has that in its environment; how many."""
    wanted = f"{variable}={mark}".encode()
    killed = 0
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/environ", "rb") as f:
                marked = wanted in f.read().split(b"\0")
            with open(f"/proc/{p}/stat") as f:
                if marked and f.read().rpartition(")")[2].split()[0] not in "ZX":
                    killed += 1
                    os.kill(int(p), signal.SIGKILL)
        except OSError:
            pass  # it has ended, or is somebody else's
    return killed


def reap(pid, mark, folder=None):
    """Waits for the end of the process, then ends what has its mark."""
    try:
        select.select([os.pidfd_open(pid)], [], [])
    except ProcessLookupError:
        pass
    while kill_marked(MARK, mark):  # what is killed last may have started something
        pass
    if folder and not os.path.exists(os.path.join(folder, _KEPT)):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "reap":
        reap(int(arguments[0]), *arguments[1:])
    elif what == "end":
        if kill_marked(STEP, arguments[0]):
            import waits

            waits.until(lambda: not kill_marked(STEP, arguments[0]))
    elif what == "run":
        claim()
        status = subprocess.run(arguments).returncode
        if status:
            keep()
        sys.exit(status if status >= 0 else 128 - status)
    elif what == "kills":
        print(kills())
    elif what == "lacks":
        for line in lacks(arguments[0], *map(int, arguments[1:2]), *arguments[2:]):
            print(line)
    else:
        sys.exit(f"own.py has no {what}")
