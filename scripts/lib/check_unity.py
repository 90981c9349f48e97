#!/usr/bin/env python3
"""Finds what the files of one library may not have together, because several of them are compiled as one (unity builds,
cmake/mayfly_library.cmake):

  - the same name in unnamed namespaces of two files, or static in both: a function, a type, a constant, an enumerator;
  - such a name that a header of this library or of a lower one declares as well, in the same namespace: the file that
    is compiled behind it would call the wrong one, or none;
  - `using namespace` outside of a function: it would be so in the files behind it, too;
  - a macro that is not undefined in the same file, unless it stands above all includes and is for them.

A name says what it is of (kArithmeticOps, not kOps); what two files need is one function, in a header of their folder.

Prints the places; the exit status is 1 when there are any. Usage: check_unity.py FILE…, sources and headers, named from
the root of the tree. The library of a file is its first folder; of a test, tests/unit/NAME.
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

ROOMS = Path(__file__).resolve().parent / "rooms.txt"
FORMAT = "%N\t%K\t%F\t%n\t%s\t%{scopeKind}\t%{C++.properties}"
CTAGS = ["ctags", "-x", "--languages=C++", "--language-force=C++", "--c++-kinds=+p-x", "--fields-C++=+{properties}"]
UNNAMED = re.compile(r"(::)?__anon\w+")
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
DIRECTIVE = re.compile(r"^using namespace .*;", re.M)
# Macros of the test framework look like functions that are declared.
MACROS = {"TEST_CASE", "SECTION", "REQUIRE", "CHECK", "INFO", "CAPTURE", "GENERATE"}


def library_of(path):
    parts = path.split("/")
    return "/".join(parts[:3]) if parts[0] == "tests" else parts[0]


def read_rooms():
    """Library: what its files may include, as scripts/lib/rooms.txt says."""
    allowed = collections.defaultdict(set)
    for line in ROOMS.read_text().splitlines():
        room, colon, others = line.partition(":")
        if colon and not line.startswith("#"):
            allowed[room.split("/")[0]] |= {r.split("/")[0] for r in [room, *others.split()]}
    for _ in allowed:
        for library, seen in allowed.items():
            allowed[library] = set().union(seen, *(allowed[s] for s in seen))
    return allowed


def read_tags(files):
    """own: library, name, file: its lines. shared: (namespace, name): the headers that declare it."""
    own = collections.defaultdict(lambda: collections.defaultdict(dict))
    shared = collections.defaultdict(set)
    command = [*CTAGS, "--_xformat=" + FORMAT, *files]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        name, kind, file, number, scope, scope_kind, properties = line.split("\t")
        unnamed = re.search(r"__anon\w+$", scope) is not None
        # Of a class, a function or an enumeration that has a name: nobody's but theirs.
        if scope_kind not in ("", "namespace") and not (scope_kind == "enum" and unnamed):
            continue
        if kind in ("member", "namespace", "local") or name.startswith("__anon") or name in MACROS:
            continue
        place = UNNAMED.sub("", scope)
        if file.endswith(".h"):
            if "__anon" not in scope:
                shared[place, name].add(file)
        elif "__anon" in scope or "static" in properties.split(","):
            own[library_of(file)][name].setdefault(file, (place, number))
    return own, shared


def clashes(own, shared):
    rooms = read_rooms()
    for library, names in sorted(own.items()):
        for name, files in sorted(names.items()):
            places = [f"{file}:{number}" for file, (_, number) in sorted(files.items())]
            if len(files) > 1:
                yield f"{places[0]}: {name} is also in {', '.join(places[1:])}"
            if library.startswith("tests/"):
                continue
            for file, (place, number) in sorted(files.items()):
                for header in sorted(shared.get((place, name), ())):
                    if library_of(header) in rooms.get(library, {library}):
                        yield f"{file}:{number}: {name} is also in {header}"


def leaks(file):
    with open(file, encoding="utf-8") as f:
        text = f.read()
    if not file.startswith("tests/") and not re.search(r"^int main\(", text, re.M):
        for m in DIRECTIVE.finditer(text):
            yield f"{file}:{text.count(chr(10), 0, m.start()) + 1}: {m[0]} reaches the files behind this one"
    first_include = text.find("#include")
    for m in DEFINE.finditer(text):
        if m.start() < first_include or re.search(rf"^[ \t]*#[ \t]*undef[ \t]+{m[1]}\b", text[m.end() :], re.M):
            continue
        yield f"{file}:{text.count(chr(10), 0, m.start()) + 1}: {m[1]} is not undefined at the end of the file"


def main(files):
    found = list(clashes(*read_tags(files)))
    for file in files:
        if file.endswith(".cc"):
            found += leaks(file)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
