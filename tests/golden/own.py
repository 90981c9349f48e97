"""What a run has for itself, and that nothing of it is left.

`claim()` gives the run a folder for all its files and a reaper: a process that waits for the run's end and then ends
what the run has started and not ended, also when it was killed. The reaper knows those processes by a variable in their
environment. The folder goes as well if the run has ended with 0; otherwise somebody is to look at it, and the run says
where it is. What a run does not need any more it gives to `discard()`.

  own.py reap PID MARK [FOLDER]     is the reaper
  own.py end MARK                   ends what a step of scripts/test has left behind
  own.py run COMMAND…               the command with all that; its exit status. The folder is kept if that is not 0
  own.py lacks TREE [KILLS [LOG]]   says what the machine lacks, a line each; prints nothing if that is nothing. TREE:
                                    the checkout, LOG: what a step there has written that failed; KILLS: what `own.py
                                    kills` had said when it began
"""

import atexit, os, re, select, shutil, signal, subprocess, sys, tempfile, uuid
from pathlib import Path

import ports

MARK = "TESTS_RUN"  # not MAYFLY_…: those a run may take away from what it starts
STEP = "TESTS_STEP"  # the same for a step of scripts/test
_PASSED = ".passed"  # in the folder: the run has ended with 0
DISK, MEMORY = 512, 256  # MB without which a run cannot be right
BUILD = 2000  # MB that the release build takes
claimed = None
failed = False  # something has, so far
kills_before = 0
_said = False
_exit = sys.exit


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
    sys.exit = _note_exit
    atexit.register(_end, os.getpid())
    for line in troubles():
        print(line, flush=True)


def _note_exit(status=None):
    """sys.exit of a run: an exit handler does not learn the status otherwise."""
    global failed
    failed = failed or status not in (None, 0)
    _exit(status)


def _end(pid):
    """The exit handler. A process that is killed comes to no such place: its folder stays as well."""
    if os.getpid() != pid:
        return  # a fork
    if failed or getattr(sys, "last_type", None):  # an exception that nobody has caught
        keep()
    else:
        open(os.path.join(claimed, _PASSED), "w").close()


def _gives_up():
    return bool(os.environ.get("MAYFLY_NO_KEEP"))


def keep():
    """Says where the folder of a run that has failed is, once. Not with MAYFLY_NO_KEEP set: of runs that are meant to
    fail, whose folders go."""
    global failed, _said
    failed = True
    if claimed and not _said and not _gives_up() and os.listdir(claimed):
        _said = True
        print(f"kept: {claimed}", flush=True)


def discard(folder):
    """Takes a folder away before the run ends, unless something has failed or is just failing: the reason may be in
    it."""
    if not failed and sys.exc_info()[0] is None:
        shutil.rmtree(folder, ignore_errors=True)


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
    if not folder or not os.path.isdir(folder):
        return
    if _gives_up() or os.path.exists(os.path.join(folder, _PASSED)) or not os.listdir(folder):
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
        os.chmod(claimed, 0o711)  # a test may go on as somebody else, who must come to the folders in it
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
