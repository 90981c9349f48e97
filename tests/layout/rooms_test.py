#!/usr/bin/env python3
"""What rooms.txt allows in storage and above it: each case is a small tree of its own."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADERS = [
    "storage/kv/kv.h",
    "storage/clock.h",
    "storage/operation.h",
    "storage/catalog/catalog.h",
    "storage/core/open_storage.h",
    "storage/core/storage_impl.h",
    "storage/read/read_view.h",
    "storage/write/write_unit.h",
    "storage/write/write_unit_impl.h",
    "storage/schema/catalog_impl.h",
    "storage/storage.h",
    "query/plan/planner.h",
]

# (file, what it includes, whether that is a breach)
CASES = [
    ("storage/kv/a.cc", "storage/kv/kv.h", False),
    ("storage/kv/a.cc", "storage/operation.h", True),
    ("storage/operation.cc", "storage/clock.h", False),
    ("storage/clock.cc", "storage/operation.h", True),
    ("storage/catalog/a.h", "storage/kv/kv.h", False),
    ("storage/catalog/a.h", "storage/core/open_storage.h", True),
    ("storage/catalog/a.h", "storage/storage.h", True),
    ("storage/read/a.cc", "storage/core/storage_impl.h", False),
    ("storage/read/a.cc", "storage/write/write_unit.h", True),
    ("storage/read/a.cc", "storage/storage.h", True),
    ("storage/write/a.cc", "storage/read/read_view.h", False),
    ("storage/write/a.cc", "storage/schema/catalog_impl.h", True),
    ("storage/schema/a.cc", "storage/write/write_unit_impl.h", False),
    ("storage/validate.cc", "storage/schema/catalog_impl.h", False),
    ("storage/a.cc", "query/plan/planner.h", True),
    ("query/plan/a.cc", "storage/storage.h", False),
    ("replication/a.cc", "storage/write/write_unit.h", False),
    ("replication/a.cc", "storage/core/storage_impl.h", True),
    ("replication/a.cc", "storage/write/write_unit_impl.h", True),
    ("server/net/a.cc", "storage/schema/catalog_impl.h", True),
    ("nowhere/a.cc", "storage/kv/kv.h", True),
]


def breaches(tree, rule):
    script = str(tree / "scripts/lib/check_tree.py")
    out = subprocess.run([sys.executable, script, rule], capture_output=True, text=True)
    return [line for line in out.stdout.split("\n") if line.startswith(rule + ":")]


def main():
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        (tree / "scripts/lib").mkdir(parents=True)
        for name in ("check_tree.py", "rooms.txt"):
            shutil.copy(ROOT / "scripts/lib" / name, tree / "scripts/lib" / name)
        subprocess.run(["git", "init", "-q"], cwd=tree, check=True)

        def write(path, text):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
            subprocess.run(["git", "add", path], cwd=tree, check=True)

        def expect(what, found, wanted):
            nonlocal passed, failed
            if bool(found) == wanted:
                passed += 1
            else:
                failed += 1
                print(f"rooms: {what}: {'not found' if wanted else found}")

        for h in HEADERS:
            write(h, "#pragma once\n")
        expect("headers alone", breaches(tree, "include"), False)
        for path, included, wanted in CASES:
            write(path, f'#include "{included}"\n')
            expect(f"{path} includes {included}", breaches(tree, "include"), wanted)
            (tree / path).unlink()
        write("protocol/a.cc", "// " + "x" * 97 + "\n")
        expect("100 columns", breaches(tree, "length"), False)
        write("protocol/a.cc", "// " + "x" * 98 + "\n")
        expect("101 columns", breaches(tree, "length"), True)
    print(f"rooms: {passed} passed, {failed} failed")
    sys.exit(failed != 0)


main()
