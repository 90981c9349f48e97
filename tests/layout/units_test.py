#!/usr/bin/env python3
"""scripts/lib/units.sh: which Catch2 programs are run, and when one has failed."""

import os, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden"))
from waits import wait_for
SUMMARY = '<OverallResultsCases successes="{}" failures="{}"/>'
# What `ninja -t` says of a build.
NINJA = """#!/bin/sh
case "$4" in
  targets) for t in PROGRAMS; do echo "tests/$t: CXX_EXECUTABLE_LINKER__${t}_Release"; done
    echo "tests/all: phony"; echo "gone_test: phony"; echo "tests/replay: CXX_EXECUTABLE_LINKER__replay" ;;
  query) printf 'tests/few:\\n  input: phony\\n    tests/few_of\\n    tests/fine_test\\n  outputs:\\n    few\\n' ;;
esac
"""


def says(passed, failed=0, then=""):
    return f"echo '{SUMMARY.format(passed, failed)}'\n{then}"


def run(programs, target="all", known=None, **variables):
    """What run_units says of these programs ({name: script}), and its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {f"b/tests/{n}": t for n, t in programs.items()}.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text("#!/bin/bash\n" + text)
            Path(folder, name).chmod(0o700)
        Path(folder, "tools").mkdir()
        Path(folder, "tools/ninja").write_text(NINJA.replace("PROGRAMS", " ".join(known or programs)))
        Path(folder, "tools/ninja").chmod(0o700)
        Path(folder, "tmp").mkdir()
        script = f"ROOT={ROOT} logs=$PWD/logs; . $ROOT/scripts/lib/units.sh; run_units b {target}"
        bare = {k: v for k, v in os.environ.items() if not k.startswith(("MAYFLY_", "TESTS_"))}
        bare |= {"PATH": f"{folder}/tools:{bare['PATH']}", "TMPDIR": f"{folder}/tmp", **variables}
        r = subprocess.run(["bash", "-c", script], cwd=folder, env=bare, capture_output=True, text=True)
        own = lambda: list(Path(folder, "tmp").glob("mayfly-*"))
        if "kept: " not in r.stdout:
            wait_for(lambda: not own())
        return r.stdout, r.returncode, [f.name for p in own() for f in p.iterdir()]


def counts(out):
    return out.splitlines()[-1]


out, code, kept = run({"fine_test": says(3) + "touch $TMPDIR/left", "more_test": says(4)})
assert (counts(out), code, kept) == ("units: 7 passed, 0 failed", 0, []), out
# It dies behind its summary, hangs there, has looked at nothing, or dies before; what it had open is kept.
for text, expected, why in (
    (says(3, then="touch $TMPDIR/server.log; kill -SEGV $$"), "3 passed, 1 failed", "ended with the status 139"),
    (says(3, then="exit 124"), "3 passed, 1 failed", "it hung"),
    (says(0), "0 passed, 1 failed", "ended with the status 0"),
    (says(2, 1, "exit 1"), "2 passed, 1 failed", "ended with the status 1"),
    ("touch $TMPDIR/server.log; kill -9 $$", "0 passed, 1 failed", "ended early"),
):
    out, code, kept = run({"bad_test": text})
    assert (counts(out), code) == (f"units: {expected}", 1) and why in out, out
    assert ("server.log" in text) == (kept == ["server.log"]), (out, kept)
assert run({"bad_test": "touch $TMPDIR/server.log; exit 1"}, MAYFLY_NO_KEEP="1")[2] == []  # meant to fail
# Only what is built now, or what the target is made of; a program that is not there has failed, and so has a run of
# none.
BOTH = {"fine_test": says(3), "old_test": says(5)}
assert counts(run(BOTH, known=["fine_test"])[0]) == "units: 3 passed, 0 failed"
assert counts(run(BOTH, "few")[0]) == "units: 3 passed, 0 failed"
assert counts(run(BOTH, known=["fine_test", "unbuilt_test"])[0]) == "units: 3 passed, 1 failed"
assert run({"old_test": says(5)}, "few")[:2] == ("units: 0 passed, 0 failed\n", 1)
print("units: passed")
