#!/usr/bin/env python3
"""scripts/lib/steps.sh: what a step counts as, what is tried again, what the last lines say, and that nothing of a
script that was killed goes on. And tests/golden/own.py: what it says of a machine that lacks something."""

import os, shutil, signal, subprocess, sys, tempfile, uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden"))
import own
from waits import wait_for

HEAD = f"""
set -euo pipefail
. {ROOT}/scripts/lib/common.sh
. "$ROOT/scripts/lib/steps.sh"
forgive=${{forgive:-1}}
own_logs "$PWD/logs"
# once NAME: fails the first time.
once() {{ if [ -e "$1" ]; then echo "1 passed, 0 failed"; else touch "$1"; echo "FAIL $1"; return 1; fi; }}
# note TEXT: as tests/golden/failed_parts.py does.
note() {{ printf "$1" >>"$MAYFLY_FAILED"; }}
"""


def run(body, **variables):
    """(what a script of steps has written, its exit status)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script").write_text(HEAD + body + "\nsummary\n")
        # Not what the step has around it.
        bare = {k: v for k, v in os.environ.items() if not k.startswith(("MAYFLY_", "TESTS_"))}
        # A script that was begun with interrupts ignored, as in the background, cannot take them back.
        words = ["env", "--default-signal=INT", "bash", "script"]
        r = subprocess.run(words, cwd=folder, env={**bare, **variables}, capture_output=True, text=True)
        return r.stdout + r.stderr, r.returncode


def counts(out):
    return out.splitlines()[-1]


def has(out, *texts):
    for text in texts:
        assert text in out, f"{text!r} is not in:\n{out}"


out, code = run('step fine echo "3 passed, 0 failed"; step one true')
assert (counts(out), code) == ("4 passed, 0 failed", 0), out
out, code = run('step half sh -c "echo 3 passed, 1 failed; exit 1"; step nothing echo "0 passed, 0 failed"')
assert (counts(out), code) == ("3 passed, 2 failed", 1) and "FLAKY" not in out, out
out, code = run('middle() { false; echo "3 passed, 0 failed"; }; step m middle; beside n middle; together', forgive="0")
assert (counts(out), code) == ("0 passed, 2 failed", 1), out  # a function does not go on after what fails
out, code = run('step quiet sh -c "echo 3 passed, 0 failed; exit 1"')  # it has died behind its line
assert (counts(out), code) == ("3 passed, 1 failed", 1), out

# A step that leaves no counts has failed, whatever an earlier run has left: its shell was ended, or could not write.
GONE = 'run_step() { [ "$1" = gone ] || echo "1 0" >"$logs/good.count"; }; '
for forgive in "0", "1":
    for before in ("", 'echo "7 0" >"$logs/gone.count"; own_logs "$logs"; ', '(: >"$logs/gone.count"); '):
        out, code = run(GONE + before + "beside good true; beside gone true; together", forgive=forgive)
        assert (counts(out), code) == ("1 passed, 1 failed", 1), out
        has(out, "gone: it has left no counts")
# So with a real one, whose shell is killed.
GONE = "gone() { p=$BASHPID; kill -9 $(ps -o ppid= -p $p); }; beside x gone; beside y true; together 2>/dev/null"
out, code = run(GONE, forgive="0")
assert (counts(out), code) == ("1 passed, 1 failed", 1), out
assert run("")[1] == 1 and counts(run("")[0]) == "0 passed, 1 failed", run("")  # nothing was run

# Tried once more: alone, also of what ran beside others; told in the last lines.
out, code = run("step a once a; beside b once b; beside c once c; together")
assert (counts(out), code) == ("3 passed, 0 failed", 0), out
has(out, "FLAKY a, ", "FLAKY b, ", "FLAKY c, ", "logs/b.first.log")
assert len(out.splitlines()) - out.splitlines().index(next(l for l in out.splitlines() if l.startswith("FLAKY"))) <= 5
assert "FAIL a" not in [l for l in out.splitlines() if not l.startswith("       |")], out
# Neither by --strict and full, nor what only reads the code.
out, code = run("step a once a; beside b once b; together", forgive="0")
assert (counts(out), code) == ("0 passed, 2 failed", 1) and "FLAKY" not in out, out
has(out, "a: FAIL a", "failed: a b")
out, code = run('step layout once a; step "build release" once b')
assert (counts(out), code) == ("0 passed, 2 failed", 1) and "FLAKY" not in out, out

# A step that knows its parts: 5 + 3 passed the first time, one part is run again.
PARTS = """
parts() {
  if [ -n "$MAYFLY_AGAIN" ]; then
    [ "$(grep -v '^\\.' "$MAYFLY_AGAIN" | cut -f1)" = one ] || return 1
    echo "only one: 4 passed, 0 failed"
  elif [ -e again ]; then
    echo "all: 9 passed, 0 failed"
  else
    touch again
    FIRST
    return 1
  fi
}
step parts parts"""
out, code = run(PARTS.replace("FIRST", 'note "one\\t3\\t1\\n.\\n"; echo "8 passed, 1 failed"'))
assert (counts(out), code) == ("9 passed, 0 failed", 0), out
has(out, "FLAKY parts (one), ")
# Everything again: it did not come to its end; something failed that is in no part; that cannot be said of a part.
for first in (
    'note "one\\t3\\t1\\n"; echo "3 passed, 1 failed"',
    'note "one\\t3\\t1\\n"; echo "Traceback"',
    'note "one\\t3\\t1\\n.\\n"; echo "8 passed, 2 failed"',
    'note "one\\t3\\t1\\n.\\n*\\t0\\t1\\n"; echo "8 passed, 2 failed"',
):
    out, code = run(PARTS.replace("FIRST", first))
    assert (counts(out), code) == ("9 passed, 0 failed", 0), out
    has(out, "FLAKY parts, ")

# What the machine lacked is said, and changes no verdict.
out, code = run('step a sh -c "echo fatal: No space left on device; exit 1"; step b sh -c "echo EADDRINUSE; exit 1"')
assert (counts(out), code) == ("0 passed, 2 failed", 1), out
last = "\n".join(out.splitlines()[-6:])
has(last, "a: SHORT OF DISK: something could not be written", "b: OCCUPIED PORT: ")
out, code = run('step a sh -c "echo SHORT OF MEMORY: 3 MB are available; echo No space left on device; exit 1"')
has(out, "\na: SHORT OF MEMORY: 3 MB")
assert "a: SHORT OF DISK: something" not in out, out
out, code = run('step a echo "No space left on device"')  # it passes
assert "SHORT OF" not in out, out


def alive(variable):
    """The words of the processes that began with this in their environment and have not ended."""
    out = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            if variable.encode() in Path(f"/proc/{p}/environ").read_bytes():
                if Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    out += Path(f"/proc/{p}/cmdline").read_text().split("\0")
        except OSError:
            pass
    return out


# What a step leaves behind ends with it: its second try is alone, and so is the next step.
LEFT = """
left() {
  local others
  others=$(cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c "^LEFT=$PWD$" || true)
  LEFT=$PWD setsid sleep 1005 &
  echo "$others" >>counted
  once "$1"
}
step a left x; step b left y; beside c left z; together; paste -sd' ' counted
"""
out, code = run(LEFT)
assert code == 0 and "0 0 0 0 0 0\n" in out, out

# A part that could not be run is told in the last lines, also of a step that is run in parts and of one that is not run
# again.
SKIPS = """
skips() { echo "SKIPPED: perl: not here"; echo "3 passed, 0 failed"; }
some() {
  [ -z "$MAYFLY_AGAIN" ] || { echo "3 passed, 0 failed"; return; }
  skips; note "one\\t2\\t1\\n.\\n"; echo "2 passed, 1 failed"
  return 1
}
step a skips; step b some; step c true
"""
out, code = run(SKIPS)
last = out[out.rindex("FLAKY b") :]
assert code == 0 and "a: SKIPPED: perl: not here\nb: SKIPPED: perl: not here\n" in last and "c: SK" not in last, out

# What has passed is not run again, with what it has skipped; not so for another tree or other settings, and not what
# passed while the tree was changed.
REMEMBER = """
git init -q .; printf 'logs\\npassed\\nran\\nsaid\\n' >.gitignore; echo text >file; git add file
once_more() { (remember_in "$PWD/passed"; step a ran; beside b ran; together; summary) >said; cat said; }
ran() { echo "SKIPPED: perl: not here"; echo x >>ran; echo "3 passed, 0 failed"; }
times() { echo "TIMES $(wc -l <ran)"; }
once_more; once_more; times
echo "SAID $(grep -c "^[ab]: SKIPPED: perl: not here" said)"
"""
out, code = run(REMEMBER + "step x true")
assert code == 0 and "TIMES 2\n" in out and "SAID 2\n" in out, out
KILLED = REMEMBER.replace("once_more; once_more", "once_more; echo >passed/*/a.count; once_more")
out, code = run(KILLED + "step x true")
assert code == 0 and "TIMES 3\n" in out, out  # it was killed while it wrote that
out, code = run(REMEMBER.replace("echo x >>ran", "echo x >>ran; echo x >>file") + "step x true")
assert "TIMES 4\n" in out and "the tree has changed meanwhile" in out, out
CHANGES = "echo other >file|chmod +x file|touch new|rm file|export MAYFLY_SEED=2|export MAYFLY_ROUNDS=1|export CXX=cat"
names = REMEMBER[: REMEMBER.index("once_more()")] + 'name() { remember_in p; echo "NAME $remember"; }; name; name'
out, code = run(names + "".join(f"; {change}; name" for change in CHANGES.split("|")) + "; step x true")
named = [line for line in out.splitlines() if line.startswith("NAME p/")]
assert code == 0 and len(named) == 9 and len(set(named)) == 8, out

# Names are looked at before anything is done.
GIVEN = 'GATE=(a b) FULL=(a b c); read_arguments ARGUMENTS; passed=1; echo "${steps[*]} $forgive $again $whole"'
for words, got in (("", "a b 1 0 0"), ("--again full", "a b c 0 1 1"), ("--strict c a", "c a 0 0 0")):
    has(run(GIVEN.replace("ARGUMENTS", words))[0], got + "\n")
for words in ("a typo", "typo a", "--strct a", "a --strct"):
    out, code = run(GIVEN.replace("ARGUMENTS", words))
    assert code == 1 and "error: unknown " in out and "passed" not in out, out

# Ended in the middle: by itself, by what it calls, by an interrupt, also one that the command takes for itself.
CATCHES = "import os, signal; signal.signal(2, lambda *_: None); os.kill($$, 2); print('3 passed, 0 failed')"
for end, said, status in (
    ("false", "ended early", 1),
    ('die "no compiler" 2>/dev/null', "ended early", 1),
    ("exit 0", "ended early", 1),
    ("kill -INT $$", "interrupted", 130),
    ("kill -TERM $$", "interrupted", 143),
    (f'step catches python3 -c "{CATCHES}"', "interrupted", 130),
):
    out, code = run(f"told_when_ended; step one true; {end}; step two true")
    assert (counts(out), code) == ("1 passed, 1 failed", status) and "ok   two" not in out, (end, out)
    has(out, f"failed: {said}")
out, code = run("told_when_ended; step one true; step two false", forgive="0")
assert (counts(out), code) == ("1 passed, 1 failed", 1) and "ended early" not in out, out

# One at a time in a checkout. What has a descriptor of the lock would keep it when the script has been killed.
HOLDS = "sh -c '! ls -l /proc/self/fd | grep build/test.lock'"
out, code = run(
    f"""
only_one "$PWD/build/test.lock"
TOOLS=$PWD/tools
step a {HOLDS}; beside b {HOLDS}; together
look() {{ {HOLDS}; }}
step d alone look
beside e sleep 0; ! ls -l "/proc/${{pids[0]}}/fd" 2>/dev/null | grep build/test.lock; together
{{ (only_one "$PWD/build/test.lock") 2>&1 || true; }} | grep -q "another scripts/test runs" && echo TWO
(only_one "$PWD/build/another/test.lock") && echo OTHER
""",
    forgive="0",
)
assert (counts(out), code) == ("4 passed, 0 failed", 0), out
has(out, "TWO\n", "OTHER\n")

# Killed: what it has started ends, also what its subshells would start then.
with tempfile.TemporaryDirectory() as folder:
    mark = f"STEPS_TEST={uuid.uuid4()}"
    many = "many() { for d in 1 2 3 4 5 6; do sleep 1000; done; }; beside m many"
    Path(folder, "script").write_text(
        HEAD.replace("forgive=", 'marked "$@"\n[ "$*" = "x y" ] || exit\nreaped\nforgive=', 1)
        + f"{many}; beside a setsid sleep 1001; step b sleep 1002; together"
    )
    name, value = mark.split("=")
    bare = {k: v for k, v in os.environ.items() if not k.startswith("TESTS_")}
    shell = subprocess.Popen(["bash", "script", "x", "y"], cwd=folder, env={**bare, name: value})
    wait_for(lambda: {"1000", "1001", "1002"} <= set(alive(mark)))
    shell.send_signal(signal.SIGKILL)
    shell.wait()
    wait_for(lambda: not alive(mark))

# What own.py finds by itself.
usage, memory = shutil.disk_usage, own.available
shutil.disk_usage = lambda folder: usage(folder)._replace(free=100 << 20)
said = own.troubles(0, {"/": 101})
assert said[0].startswith("SHORT OF DISK: 100 MB are free in ") and said[1].endswith("in /, a run needs 101"), said
shutil.disk_usage, own.available = usage, lambda: 5
assert "SHORT OF MEMORY: 5 MB are available, a run needs 256" in own.troubles(), own.troubles()
own.available, counted = memory, own.kills
own.kills = lambda: 7
assert "the system has ended 2 processes" in "".join(own.troubles(5)) and not own.troubles(7)
own.kills = counted
assert memory() > 0 and counted() >= 0
assert own.why_not(1, 'x "error":"bind: Address already in use" y') == [own.SAID["Address already in use"]]
assert own.why_not(1, "terminate: std::bad_alloc") == [own.NO_MEMORY["std::bad_alloc"]]
assert own.why_not(-signal.SIGKILL, "")[-1].startswith("SHORT OF MEMORY?")
print("steps: passed")
