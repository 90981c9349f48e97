#!/usr/bin/env python3
"""docs/privileges.md has the tables that tests/data/privileges.txt gives, and names every action of Mayfly's own."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/privileges.md").read_text()

failed = subprocess.run([sys.executable, ROOT / "scripts/lib/privileges_page.py", "--check"]).returncode != 0
actions = set(re.findall(r"^  X\((\w+)\)", (ROOT / "security/action.h").read_text(), re.M))
used = set()
for line in (ROOT / "tests/data/privileges.txt").read_text().splitlines():
    if " | " in line and not line.startswith("#"):
        for term in re.findall(r"!?([\w,]+)@", line.rsplit(" | ", 1)[1]):
            used |= set(term.split(","))
if unknown := used - actions:
    print(f"tests/data/privileges.txt: no such action: {', '.join(sorted(unknown))}")
    failed = True
for action in ("viewExpiry", "changeExpiry", "holdExpiry", "reviewGuard", "readExpired", "backup"):
    if action not in used or f"| `{action}` |" not in PAGE:
        print(f"docs/privileges.md: no row explains `{action}`, or no command needs it")
        failed = True
sys.exit(failed)
