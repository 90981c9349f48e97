#!/usr/bin/env python3
"""scripts/test: the gate installs nothing that it does not use."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
text = (ROOT / "scripts/test").read_text()
steps = {name: body for name, body in re.findall(r"^    (\w+)\)(.*?);;", text, re.M | re.S)}
lists = {name: names.split() for name, names in re.findall(r"^(\w+_RUNS)=\(([^)]*)\)", text, re.M)}
# The newer cargo is for the checker of isolation, which takes minutes to build.
for step, runs in (("durability", "DURABILITY_RUNS"), ("sets", "SET_RUNS")):
    assert ("setup_cargo 1.80" in steps[step]) == ("isolation" in lists[runs]), (step, lists[runs])
print("gate: passed")
