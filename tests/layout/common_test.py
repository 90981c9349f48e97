#!/usr/bin/env python3
"""scripts/lib/common.sh: installs are made by one script at a time, and once."""

import os, subprocess, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Each install is replaced by a look at the lock, from outside, and by what it leaves.
SCRIPT = """
. ROOT/scripts/lib/common.sh
install_packages() { :; }
setup_node() { :; }
held() { if flock -n "$TOOLS/install.lock" true; then echo "FREE $1"; else echo "HELD $1"; fi; }
python_install() { held python; }
conformance_install() { held conformance; }
npm_install() { held npm; }
setup_python; setup_conformance; setup_npm "$ROOT/tests/browser"
flock -n "$TOOLS/install.lock" true && echo "FREE then"
"""
# By the one that was before.
AGAIN = """
. ROOT/scripts/lib/common.sh
mkdir "$TOOLS/p"; touch "$TOOLS/p/.complete"
python_install "$TOOLS/p"; conformance_install list "$TOOLS/p"; ls "$TOOLS/p/.complete"
"""


def run(script):
    with tempfile.TemporaryDirectory() as folder:
        bare = {k: v for k, v in os.environ.items() if not k.startswith(("MAYFLY_", "TESTS_"))}
        bare["MAYFLY_TOOLS"] = folder
        words = ["bash", "-c", script.replace("ROOT/", f"{ROOT}/", 1)]
        r = subprocess.run(words, env=bare, capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
        return r.stdout.replace(folder, "TOOLS").split("\n")


assert run(SCRIPT) == ["HELD python", "HELD conformance", "HELD npm", "FREE then", ""], run(SCRIPT)
assert run(AGAIN) == ["TOOLS/p/.complete", ""], run(AGAIN)
print("common: passed")
