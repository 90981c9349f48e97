#!/usr/bin/env python3
"""Finds hash tables of strings with std::hash, which has the same seed in every process: a client that chooses the
strings makes a list of the table. protocol/seeded_hash.h has the tables for them (ClientStringMap and its like).

Found is each unordered map or set whose keys are std::string or std::string_view, unless it names a hash of its own.
Where no client chooses the keys, the line or the one above it says `hashed: by what`.

Prints the places; the exit status is 1 when there are any. Usage: check_hashes.py FILE…
tests/layout/check_hashes_test.py shows what this script must find.
"""

import re
import sys

from cpp_text import marked, without_comments

TABLE = re.compile(r"\b(?:std|boost)::unordered_(?:flat_|node_)?(?:multi)?(map|set)\s*<")
KEY = re.compile(r"(?:const\s+)?std::string(?:_view)?$")


def arguments(text, at):
    """The arguments of a template whose list begins at `at`."""
    out, depth, begin = [], 0, at
    for i in range(at, len(text)):
        c = text[i]
        if c in "<(":
            depth += 1
        elif c in ">)" and depth:
            depth -= 1
        elif c == ">":
            return out + [text[begin:i].strip()]
        elif c == "," and not depth:
            out.append(text[begin:i].strip())
            begin = i + 1
    return []


def main():
    found = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as f:
            original = f.read()
        text = without_comments(original)
        for m in TABLE.finditer(text):
            of = arguments(text, m.end())
            plain = {"map": 2, "set": 1}[m[1]]
            if not of or not KEY.match(of[0]) or (len(of) > plain and not of[plain].startswith("std::hash")):
                continue
            if marked(original, m.start(), "hashed: "):
                continue
            found += 1
            line = text.count("\n", 0, m.start()) + 1
            print(f"{path}:{line}: a table of strings with std::hash: use one of protocol/seeded_hash.h")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
