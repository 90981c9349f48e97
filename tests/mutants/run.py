#!/usr/bin/env python3
"""Whether the tests notice when the server is wrong: each of mutants.py is put into a copy of the tree, in
build/mutants, which is built there as far as it has changed; then the part of a step of scripts/test that it names must
go red, because of what it names, and be green without it: each command is run once before, on the tree as it is.

  tests/mutants/run.py [--check | NAME…]

--check: only whether each text is there exactly once; builds nothing. NAME: a part of the names of those to try. The
last line says "N passed, N failed".
"""

import os, re, shlex, shutil, signal, subprocess, sys, time
from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden"))
import own

TREE = ROOT / "build/mutants"
BUILD = TREE / "build/release"
LIMIT = 1800  # seconds; what hangs longer than the deadlines of its own tests says nothing
passed = failed = 0


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print(("ok   " if ok else "FAIL ") + what, flush=True)


def there(mutant):
    """Whether its text is in its file, once; else it is said."""
    path = ROOT / mutant.file
    n = path.read_text().count(mutant.text) if path.exists() else -1
    where = "no such file" if n < 0 else f"its text is there {n} times: look where the code has gone, and put it back"
    check(n == 1, f"{mutant.name}: {mutant.file}" + ("" if n == 1 else f": {where}"))
    return n == 1


def copy_tree():
    """What git knows of the checkout, committed or not, in TREE; what is equal keeps its time, or all would be built
    again."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE
    )
    names = {n for n in listed.stdout.decode().split("\0") if n and (ROOT / n).is_file()}
    for name in names:
        source, target = ROOT / name, TREE / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)
    for path in TREE.rglob("*"):
        name = path.relative_to(TREE)
        if name.parts[0] != "build" and path.is_file() and str(name) not in names:
            path.unlink()


def run(command, log, **more):
    """Its exit status, None if it hung; its output is in a file."""
    with open(log, "w") as f:
        process = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, start_new_session=True, **more)
        try:
            return process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def build(targets, log):
    environment = {**os.environ, "CCACHE_BASEDIR": str(TREE), "CCACHE_NOHASHDIR": "1"}
    if not (BUILD / "build.ninja").exists() and run(["cmake", "--preset", "release"], log, cwd=TREE, env=environment):
        return False
    return run(["cmake", "--build", "--preset", "release", "--target", *targets], log, cwd=TREE, env=environment) == 0


def execute(mutant, log):
    """The exit status of its command, None if it hung."""
    fill = {"build": BUILD, "python": sys.executable}
    command = [part.format(**fill) for part in shlex.split(mutant.command)]
    # What is meant to fail keeps nothing.
    return run(command, log, cwd=ROOT, env={**os.environ, "MAYFLYD": str(BUILD / "mayflyd"), "MAYFLY_NO_KEEP": "1"})


def verdict(mutant, status, text):
    """(whether the mutant was found, what to say): its command has ended so, None if it hung, and has written this."""
    told = re.search(mutant.says, text)
    if status == 0:
        return False, f"nobody noticed: {mutant.command} of {mutant.step} is green"
    if status is None and not (told and re.search(r"waited \d+ s in vain", text)):
        return False, f"{mutant.step} hangs, and no deadline of its own says for what"
    if not told:
        return False, f"{mutant.step} is red, but by chance"
    return True, f"{mutant.step} " + ("is red" if status is not None else "hangs, which a deadline of its own says")


def green(mutants, log):
    """Those whose commands are green without them; of the others it is said. A command of several is run once."""
    ended = {}
    for mutant in mutants:
        if mutant.command not in ended:
            ended[mutant.command] = execute(mutant, log(mutant, "-before"))
        if ended[mutant.command] != 0:
            check(False, f"{mutant.name}: {mutant.command} of {mutant.step} is red or hangs without it")
    return [m for m in mutants if ended[m.command] == 0]


def log_of(mutant, more=""):
    return ROOT / f"build/test-logs/mutant-{mutant.name.replace(' ', '-')}{more}.log"


def try_one(mutant):
    log = log_of(mutant)
    file = TREE / mutant.file
    right = file.read_text()
    began = time.monotonic()
    try:
        file.write_text(right.replace(mutant.text, mutant.instead))
        if not build(mutant.targets, log):
            check(False, f"{mutant.name}: it does not build, see {log}")
            return
        status = execute(mutant, log)
    finally:
        file.write_text(right)
    found, what = verdict(mutant, status, log.read_text(errors="replace"))
    check(found, f"{mutant.name}: {what} ({time.monotonic() - began:.0f} s)" + ("" if found else f", see {log}"))


def main():
    names = [a for a in sys.argv[1:] if a != "--check"]
    wanted = [m for m in MUTANTS if not names or any(n in m.name for n in names)]
    found = [m for m in wanted if there(m)]
    if "--check" not in sys.argv:
        own.claim()  # a program that crashes leaves its files there
        (ROOT / "build/test-logs").mkdir(parents=True, exist_ok=True)
        copy_tree()
        log = ROOT / "build/test-logs/mutants-build.log"
        targets = sorted({t for m in found for t in m.targets})
        if build(targets, log):
            for mutant in green(found, log_of):
                try_one(mutant)
        else:
            check(False, f"the tree itself does not build, see {log}")
    if passed + failed == 0:
        check(False, "there is no such mutant")
    print(f"mutants: {passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
