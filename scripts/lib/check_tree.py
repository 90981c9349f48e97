#!/usr/bin/env python3
"""Rules of the tree that a machine can check. Prints every breach; the last line counts the rules.

  scripts/lib/check_tree.py [RULE…]       include length pages functions docstrings format

  include      a file includes only from the rooms that DIRECTION allows its room
  length       lines of C++ have at most 100 columns (data in raw strings may be longer), a file 800 lines
  pages        lines of scripts and pages have at most 120 columns (tables, links and code samples may be longer)
  functions    a function has at most 100 lines, or says why: `// long function: …` in the line above it
  docstrings   what a header offers at namespace level has a comment above it
  format       the tree is as clang-format 16 would have it
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ["protocol", "storage", "query", "ttl", "replication", "security", "execution", "server"]
# Headers above whose code an on-disk format or a protocol stands as a grammar: there columns are meaning.
GRAMMARS = {"replication/engine.h", "replication/log_store.h", "replication/member_link.h", "replication/resume_token.h",
            "storage/catalog/catalog_format.h", "storage/keys/key_format.h", "storage/write/document_diff.h", "storage/write/log_format.h"}
COLUMNS, TEXT_COLUMNS, FILE_LINES, FUNCTION_LINES = 100, 120, 800, 100


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [p for p in out.split("\n") if p and (ROOT / p).exists()]


def cpp(folders=()):
    return [p for p in tracked("*.cc", "*.h") if not folders or p.split("/")[0] in folders]


# --- include ----------------------------------------------------------------------------------------------------------
# Rooms from the bottom up: each may include itself and the rooms that it names; "a/*" stands for every room in a.
DIRECTION = [line.split(":") for line in (ROOT / "scripts/lib/rooms.txt").read_text().split("\n") if ":" in line and line[0] != "#"]


def include():
    rooms = {name.strip(): below.split() for name, below in DIRECTION}

    def room(path):
        folder = path.rsplit("/", 1)[0]
        while folder and folder not in rooms:
            folder = folder.rsplit("/", 1)[0] if "/" in folder else ""
        return folder

    def allowed(below):
        """All that the rooms of the list may include, and they themselves."""
        out, todo = set(), list(below)
        while todo:
            r = todo.pop()
            found = [x for x in rooms if x.startswith(r[:-1])] if r.endswith("/*") else [r]
            for x in found:
                if x not in out:
                    out.add(x)
                    todo += rooms[x]
        return out

    for name, below in rooms.items():
        for r in below:
            if r.rstrip("/*") not in rooms and not any(x.startswith(r[:-1]) for x in rooms):
                yield f"scripts/lib/rooms.txt: {name} names a room that is none: {r}"
    for path in cpp(CODE):
        mine = room(path)
        if not mine:
            yield f"{path}: in no room of scripts/lib/rooms.txt"
            continue
        may = allowed(rooms[mine]) | {mine}
        for n, line in enumerate((ROOT / path).read_text().split("\n"), 1):
            m = re.match(r'#include "([^"]+)"', line)
            if m and (ROOT / m[1]).exists() and room(m[1]) not in may:
                yield f"{path}:{n}: {mine} includes {m[1]}, of {room(m[1]) or 'no room'}"


# --- length -----------------------------------------------------------------------------------------------------------
def length():
    for path in cpp():
        raw = False
        lines = (ROOT / path).read_text().split("\n")
        for n, line in enumerate(lines, 1):
            grammar = path in GRAMMARS and re.match(r"\s*(//|.*///<)", line)
            if len(line) > COLUMNS and not grammar and not raw and 'R"' not in line and "://" not in line:
                yield f"{path}:{n}: {len(line)} columns"
            for m in re.finditer(r'R"(\w*)\(|\)(\w*)"', line):
                raw = m[0].startswith("R")
        if len(lines) - 1 > FILE_LINES and "long file:" not in "\n".join(lines[:20]):
            yield f"{path}: {len(lines) - 1} lines"


# --- pages ------------------------------------------------------------------------------------------------------------
def pages():
    for path in tracked("*.py", "*.md", "*.sh", "*.cmake", "*CMakeLists.txt", "scripts/*", ".ci/run", "tests/drivers/*/run", "tests/browser/run*"):
        code = False
        for n, line in enumerate((ROOT / path).read_text().split("\n"), 1):
            if path.endswith(".md") and line.lstrip().startswith("```"):
                code = not code
            if len(line) > TEXT_COLUMNS and not code and not line.lstrip().startswith(("|", "!")) and "://" not in line:
                yield f"{path}:{n}: {len(line)} columns"


# --- functions --------------------------------------------------------------------------------------------------------
def functions():
    files = [p for p in cpp() if not p.startswith("tests/")]
    out = subprocess.run(["ctags", "--c++-kinds=f", "--fields=+ne", "-f", "-", *files], cwd=ROOT, capture_output=True, text=True).stdout
    if not out:
        yield "ctags printed nothing"
    for row in out.split("\n"):
        m = re.match(r"(\S+)\t(\S+)\t.*\tline:(\d+).*\tend:(\d+)", row)
        if m and int(m[4]) - int(m[3]) > FUNCTION_LINES:
            above = (ROOT / m[2]).read_text().split("\n")[int(m[3]) - 2]
            if "long function:" not in above:
                yield f"{m[2]}:{m[3]}: {m[1]} has {int(m[4]) - int(m[3])} lines"


# --- docstrings -------------------------------------------------------------------------------------------------------
def docstrings():
    for path in cpp(CODE):
        if not path.endswith(".h") or path.endswith("_pch.h"):
            continue
        depth, before, raw = 0, "", (ROOT / path).read_text()
        text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', raw)
        namespaces = 0
        for n, line in enumerate(text.split("\n"), 1):
            bare = re.sub(r"//.*", "", line)
            if re.match(r"namespace\b.*\{", bare):
                namespaces += 1
                before = ""
                continue
            if depth == 0 and re.match(r"(class|struct|enum class|enum)\s+\w+.*\{", bare) and not before.strip().startswith("//") and "//" not in line:
                yield f"{path}:{n}: {bare.strip()[:60]}"
            if re.match(r"\}  // namespace|\}\s*$", bare) and depth == 0:
                continue
            depth += bare.count("{") - bare.count("}")
            if bare.strip().startswith("template"):
                continue  # the comment stands above it
            if line.strip() or True:
                before = line


def format():
    tool = shutil.which("clang-format-16")
    if not tool:
        yield "clang-format-16 is not installed"
        return
    r = subprocess.run([tool, "--dry-run", "-Werror", *cpp()], cwd=ROOT, capture_output=True, text=True)
    for line in r.stderr.split("\n"):
        if ": error:" in line:
            yield line.split(": error:")[0] + ": not as clang-format would have it"


RULES = [include, length, pages, functions, docstrings, format]


def main():
    wanted = [r for r in RULES if len(sys.argv) == 1 or r.__name__ in sys.argv[1:]]
    failed = 0
    for rule in wanted:
        found = list(rule())
        for breach in found[:50]:
            print(f"{rule.__name__}: {breach}")
        if len(found) > 50:
            print(f"{rule.__name__}: and {len(found) - 50} more")
        failed += bool(found)
    print(f"tree: {len(wanted) - failed} passed, {failed} failed")
    sys.exit(failed != 0)


main()
