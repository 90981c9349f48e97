#!/usr/bin/env python3
"""tests/mutants/run.py: when a mutant counts as found."""

import sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/mutants"))
import run
from mutants import Mutant, red_case

LINE, DOTS = "-" * 79, "." * 79
PLACE = f"/a/b_test.cc:7\n{DOTS}\n\n/a/b_test.cc:9: "
FAILED = "FAILED:\n  CHECK( 1 == 2 )\n\n"
RED = f"{LINE}\nWhat it is about\n  a section\n{LINE}\n{PLACE}{FAILED}"
OTHER = f"{LINE}\nAnother\n{LINE}\n{PLACE}{FAILED}"
WARNED = f"{LINE}\nWhat it is about\n{LINE}\n{PLACE}warning:\n  slow\n\n"
END = "test cases: 2 | 1 passed | 1 failed\n"


def mutant(command, says=red_case("What it is"), name="a"):
    return Mutant(name, "f", "t", "i", "unit", command, says)


# Red because of what it names, not by something else.
one = mutant("x")
for status, text, found, says in (
    (1, RED + END, True, "unit is red"),
    (1, OTHER + RED + END, True, "unit is red"),
    (1, OTHER + END, False, "by chance"),
    (1, WARNED + OTHER + END, False, "by chance"),
    (1, "no such file: What it is about", False, "by chance"),
    (0, RED, False, "nobody noticed"),
    # A hang: only if a deadline of the test has said so.
    (None, "", False, "hangs, and no deadline"),
    (None, RED, False, "hangs, and no deadline"),
    (None, "     waited 61 s in vain: a.py:3: until(x)\n", False, "hangs, and no deadline"),
    (None, "     waited 61 s in vain: a.py:3: until(x)\n" + RED, True, "a deadline of its own says"),
):
    got = run.verdict(one, status, text)
    assert got[0] == found and says in got[1], (status, text, got)

# Without the mutant each command is green, which is looked at once; a run that is red anyhow finds nothing.
with tempfile.TemporaryDirectory() as folder:
    count = Path(folder, "count")
    fine, bad = f"sh -c 'echo $MAYFLY_NO_KEEP >>{count}'", "sh -c 'exit 1'"
    three = [mutant(fine, name="a"), mutant(bad, name="b"), mutant(fine, name="c")]
    left = run.green(three, lambda m, more: Path(folder, m.name + more))
    assert [m.name for m in left] == ["a", "c"] and count.read_text() == "1\n", (left, count.read_text())
    assert (run.passed, run.failed) == (0, 1)

# None of them is content with any red.
for m in run.MUTANTS:
    for text in (END, "1 failed", "FAIL\n", "terminate called\n" + END):
        assert not run.verdict(m, 1, text)[0], (m.name, text)
print("mutants: passed")
