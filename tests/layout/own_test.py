#!/usr/bin/env python3
"""tests/golden/own.py: the folder of a run is gone if the run has ended with 0, and stays with all that it holds after
each other end."""

import os, re, shutil, subprocess, sys, tempfile
from pathlib import Path
from subprocess import PIPE

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))
from waits import until

HEAD = f"""
import os, signal, sys, tempfile
sys.path.insert(0, {str(GOLDEN)!r})
import own
own.claim()
print("folder: " + own.claimed, flush=True)
made = tempfile.mkdtemp()
open(made + "/log", "w").close()
def part():
    try:
        fails()
    finally:
        own.discard(made)
def fails():
    raise OSError("a part")
"""
ENDS = {  # the end of a program: whether its folder stays, and whether the program can say so
    "pass": (False, False),
    "own.discard(made)": (False, False),
    "sys.exit(0)": (False, False),
    "sys.exit()": (False, False),
    "if not os.fork():\n    sys.exit(1)\nos.wait()": (False, False),
    "sys.exit(1)": (True, True),
    "sys.exit('a reason')": (True, True),
    "raise AssertionError('not within 60 s')": (True, True),
    "part()": (True, True),
    "own.failed = True\nown.discard(made)": (True, True),
    "own.failed = True\nown.discard(made)\nown.keep()\nsys.exit(1)": (True, True),
    "os.kill(os.getpid(), signal.SIGKILL)": (True, False),
}


def reaped(folder):
    """No reaper has it for its argument any more."""
    for p in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder.encode() in p.read_bytes().split(b"\0"):
                return False
        except OSError:
            pass  # it has ended
    return True


with tempfile.TemporaryDirectory() as shared:
    # Not as a part of the run around this one; its temporary files lie where this test looks.
    environment = {**os.environ, "TMPDIR": shared}
    runs = {
        end: subprocess.Popen([sys.executable, "-c", HEAD + end], stdout=PIPE, stderr=PIPE, text=True, env=environment)
        for end in ENDS
    }
    for end, (stays, says) in ENDS.items():
        out, error = runs[end].communicate()
        folder = re.search("^folder: (.*)$", out, re.M)[1]
        assert out.count(f"kept: {folder}") == says, (end, out, error)
        assert until(lambda: reaped(folder)), end
        if stays:
            assert list(Path(folder).glob("*/log")), f"{end}: the log is gone"
            shutil.rmtree(folder)
        else:
            assert not os.path.exists(folder), f"{end}: {folder} stays"
