"""How a run that failed says which of its parts did, and how it is told to run only those: scripts/lib/steps.sh has the
protocol. Without its two variables nothing is written and everything is run.
"""

import os
from pathlib import Path


def note(part, passed=0, failed=1):
    """A part that has failed, and how much passed and failed in it; "*": that cannot be said of a part."""
    path = os.environ.get("MAYFLY_FAILED")
    if path:
        with open(path, "a") as f:
            f.write(f"{part}\t{passed}\t{failed}\n")


def end():
    """The run has come to its last part: only then may what it has noted stand for all that failed."""
    path = os.environ.get("MAYFLY_FAILED")
    if path and os.path.exists(path):
        with open(path, "a") as f:
            f.write(".\n")


def wanted():
    """The names of the parts to run, or None for all."""
    path = os.environ.get("MAYFLY_AGAIN")
    return {line.split("\t")[0] for line in Path(path).read_text().splitlines()} if path else None
