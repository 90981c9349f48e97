"""Small sources in which a script of scripts/lib must find something, or must not."""

import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts/lib"


def look(script, files, arguments=None):
    """How a script of scripts/lib ends, and what it says, in a folder with these files ({name: text}); `arguments`: the
    names of all of them unless given."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        words = [sys.executable, SCRIPTS / script, *(files if arguments is None else arguments)]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True)


class Cases:
    """Counts what was looked at, and says what is wrong."""

    def __init__(self, script):
        self.script, self.passed, self.failed = script, 0, 0

    def __call__(self, ok, what, got):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        if not ok:
            print(f"FAIL {what}: {got.stdout + got.stderr or 'not found'}")

    def all(self, faults, clean, files, says=lambda case: ""):
        """Each of `faults` is found, with the words that `says` makes of it, and nothing in `clean`. `files`: makes
        {name: text} of a case."""
        for what, case in faults.items():
            got = look(self.script, files(case))
            self(got.returncode == 1 and says(case) in got.stdout and not got.stderr, what, got)
        for what, case in clean.items():
            got = look(self.script, files(case))
            self(got.returncode == 0 and not got.stdout and not got.stderr, what, got)

    def end(self):
        print(f"{self.script.removesuffix('.py')}: {self.passed} passed, {self.failed} failed")
        sys.exit(self.failed > 0)
