#!/usr/bin/env python3
"""Finds code in coroutines that GCC 12 miscompiles.

Within the full expression of a co_await, GCC 12 destroys a lambda that captures by value, and an aggregate written with
braces, twice. Whatever it holds (a shared_ptr's count) is released once too often; the crash comes much later and
somewhere else. An object that holds nothing may be marked with `check_coroutines: trivial` in the statement.

Prints the places; the exit status is 1 when there are any. Usage: check_coroutines.py FILE…
"""

import re
import sys


def statements(text):
    """(offset, full expression) of each co_await."""
    for m in re.finditer(r"\bco_await\b", text):
        i, depth = m.end(), 0
        while i < len(text):
            c = text[i]
            if c in "([{":
                depth += 1
            elif c in ")]}":
                depth -= 1
                if depth < 0:
                    break
            elif c == ";" and depth == 0:
                break
            i += 1
        # What comes before it in the statement is part of the full expression, too.
        begin = max(text.rfind(";", 0, m.start()), text.rfind("}", 0, m.start()), text.rfind("{", 0, m.start())) + 1
        yield m.start(), text[begin:i]


def strip_bodies(expression):
    """Without the bodies of lambdas: those are other functions."""
    out, i = "", 0
    for m in re.finditer(
        r"\](?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*(?:mutable\s*)?(?:->\s*[\w:<>]+\s*)?\{", expression
    ):
        if m.end() <= i:
            continue
        out += expression[i : m.end() - 1]
        depth, i = 1, m.end()
        while i < len(expression) and depth:
            depth += {"{": 1, "}": -1}.get(expression[i], 0)
            i += 1
    return out + expression[i:]


def bad(expression):
    flat = strip_bodies(expression)
    for m in re.finditer(r"(?<![\w\]\)])\[([^\[\]]*)\]\s*(?=[({m-]|$)", flat):
        captures = [c.strip() for c in m.group(1).split(",") if c.strip()]
        if any(c != "this" and not c.startswith("&") for c in captures):
            return "a lambda that captures by value"
    if re.search(r"\b[A-Z]\w*(?:<[^<>]*>)?\s*\{", flat) or re.search(r"[(,]\s*\{\s*[^\s}]", flat):
        return "an aggregate in braces"
    return None


def main():
    found = 0
    for path in sys.argv[1:]:
        original = open(path, encoding="utf-8").read()
        text = re.sub(r"//[^\n]*", lambda m: " " * len(m.group()), original)
        for offset, expression in statements(text):
            why = bad(expression)
            line = text[:offset].count("\n") + 1
            if why and "check_coroutines: trivial" not in "\n".join(
                original.split("\n")[line - 1 : line + expression.count("\n")]
            ):
                print(f"{path}:{line}: {why} within a co_await expression: make it a variable first")
                found += 1
    return 1 if found else 0


sys.exit(main())
