#!/usr/bin/env python3
"""check_runs of scripts/lib/layout.sh: each run of tests/fault is in a step, and the lists name what is there."""

import subprocess
import tempfile
from pathlib import Path

LAYOUT = Path(__file__).resolve().parents[2] / "scripts/lib/layout.sh"
FILES = ("kill", "limits", "links", "isolation", "chaos")
LISTS = {
    "DURABILITY_RUNS": "kill isolation",
    "CRASH_RUNS": "kill limits",
    "SET_RUNS": "links isolation",
    "CHAOS_RUNS": "chaos",
    "ALONE_RUNS": "links",
    "NOT_JUNK": "kill limits",
    "ASAN_RUNS": "kill",
}


def run(folder, **changed):
    """What check_runs says of the lists, some of which are others; its last line is what it has counted."""
    lists = [f"{name}=({names})" for name, names in {**LISTS, **changed}.items()]
    script = [
        "set -euo pipefail",
        f". '{LAYOUT}'",
        *lists,
        "layout_passed=0 layout_failed=0",
        "check_runs",
        'echo "$layout_passed $layout_failed"',
    ]
    r = subprocess.run(["bash", "-c", "\n".join(script)], cwd=folder, capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return r.stdout.splitlines()


with tempfile.TemporaryDirectory() as folder:
    Path(folder, "tests/fault").mkdir(parents=True)
    for name in FILES:
        Path(folder, f"tests/fault/{name}_run.py").write_text("")
    # Five files, and eleven names in seven lists.
    assert run(folder) == ["16 0"], run(folder)
    for name, names in LISTS.items():
        said = run(folder, **{name: f"{names} lnks"})
        assert f"{name}: there is no tests/fault/lnks_run.py" in said and said[-1][-1] != "0", (name, said)
    assert run(folder, CHAOS_RUNS="")[:-1] == ["no step runs tests/fault/chaos_run.py"]
print("check_runs: passed")
