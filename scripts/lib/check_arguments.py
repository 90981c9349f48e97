#!/usr/bin/env python3
"""Finds arguments of commands that are read and then dropped: a client sends an option, it is accepted, and nothing
happens (`in.OptBool("bypassEmptyTsReplacement");`).

Looked for are reads of an ArgReader
  - that are statements of their own, so that nobody has the value;
  - whose variable is not named again in the function;
  - whose member (`a.ordered = in.BoolOr(…)`) no file reads.

A field that has nothing to do on this server says why in a comment `unused: why`, in the same line or the one before;
ArgReader::Ignore needs one, too. tests/layout/check_arguments_test.py shows what this script must find.

Prints the places; the exit status is 1 when there are any. Usage: check_arguments.py FILE…
"""

import re
import sys

from cpp_text import blank, body_end, marked, without_comments

READER = re.compile(r"\bArgReader&? (\w+)\b")
GETTERS = r"(?:Opt\w+|\w+Or|String|Document|Array|Documents|Int64|Any|Ignore|Collection)"
# What stands before a statement, or before one that a condition governs.
BEGINS = r"(?:(?<=[;{})])|(?<=\belse)|(?<=^))\s*"


def enclosing_end(text, at):
    """Where the function around `at` ends: the first line that begins with a bracket."""
    end = re.compile(r"^\}", re.M).search(text, at)
    return end.start() if end else len(text)


def faults(original, read_members):
    """(offset, what) of one file's text. `read_members`: names that some file reads as .name or ->name."""
    text, code = blank(original), without_comments(original)
    readers = "|".join(sorted(set(READER.findall(text))))
    if not readers:
        return

    def name_at(at):
        m = re.compile(r'\s*"([^"]*)"|\s*(\w+)').match(code, at)
        return (m[1] or m[2]) if m else "the first field"

    get = rf"\b(?:{readers})(?:\.|->)({GETTERS})\("
    for m in re.finditer(BEGINS + r"(?:\(void\)\s*|static_cast<void>\()?" + get, text):
        end = body_end(text, m.end(), "()")
        if re.compile(r"\)?\s*;").match(text, end):
            yield m.start(1), f"{name_at(m.end())} is read and dropped"
    for m in re.finditer(r"\b[\w:<>]+[&*]? (\w+) = " + get, text):
        if not re.search(rf"\b{m[1]}\b", text[m.end() : enclosing_end(text, m.end())]):
            yield m.start(2), f"{name_at(m.end())} is read into '{m[1]}', and nobody looks at that"
    for m in re.finditer(r"(?:\.|->)(\w+) = " + get, text):
        if m[1] not in read_members:
            yield m.start(2), f"{name_at(m.end())} is read into .{m[1]}, and nobody looks at that"


def members_read(text):
    """Names that stand behind . or -> and are not only assigned to, and those that a struct's own functions return or
    test."""
    text = blank(text)
    found = set(re.findall(r"(?:\.|->)(\w+)\b(?!\s*=[^=])", text))
    # A function within a struct says the member alone.
    for m in re.finditer(r"^(?:struct|class) [^;{]*\{", text, re.M):
        body = text[m.end() : body_end(text, m.end())]
        for inner in re.finditer(r"\)(?: const)?(?: override)? \{", body):
            found.update(re.findall(r"\w+", body[inner.end() : body_end(body, inner.end())]))
    for m in re.finditer(r"^\S[^\n;={}]*\b\w+::\w+\([^;{}]*\{", text, re.M):
        found.update(re.findall(r"(?<![.>\w])\w+", text[m.end() : body_end(text, m.end())]))
    return found


def main():
    texts = {path: open(path, encoding="utf-8").read() for path in sys.argv[1:]}
    read = set().union(*(members_read(t) for t in texts.values()))
    found = 0
    for path, text in texts.items():
        for at, what in sorted(faults(text, read)):
            if marked(text, at, "unused:"):
                continue
            found += 1
            print(f"{path}:{text.count(chr(10), 0, at) + 1}: {what}")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
