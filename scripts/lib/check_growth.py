#!/usr/bin/env python3
"""Finds where evaluating an expression makes something as large as its input asks for without charging it, or works long without looking
whether it should stop. Such things are made by means of query/expression/growth.h. Looked at are the functions that evaluate (an EvalContext or
EvalArgs among their parameters) and the leaves of updates; what has a small bound of its own says so in a comment, `bounded: why`, in that
line or the one before. Also: an accumulator's Add and Merge tell what they keep.
Prints the places; the exit status is 1 when there are any. Usage: check_growth.py FILE…"""
import re
import sys

# By other means than growth.h, however it is used.
NEVER = [(re.compile(r"\bBuild(?:Array|Bson)\("), "a value built in one go"),
         (re.compile(r"\bBson(?:Array)?Builder \w+\(\w"), "a builder on bytes of its own"),
         (re.compile(r"(?<![\w:])Elements\("), "all elements in a vector"),
         (re.compile(r"\bstd::(?:stable_)?sort\("), "a sort that cannot be interrupted"),
         (re.compile(r"\.r?find\((?!')(?=[^)]*[,)])(?![^)]*\bname\b)"), "a search that may take the square of its input, or the container is no index")]
GROWS = re.compile(r"\.(?:push_back|emplace_back|insert|try_emplace|append)\(|\bout \+=")
CHARGED = re.compile(r"\b(?:Charge|Growing\w+|Kept|ElementList|charge_?|large_memory::Hold)\b")
LOOP = re.compile(r"\b(?:for|while) \(")
FUNCTION = re.compile(r"^[ ]{0,2}(?:template <[^\n]*>\n[ ]*)?(?:static )?(?:Result<[^\n]*>|Value|void|bool|auto) (\w+)\(([^;{}]*?)\)[^;{}]*\{", re.M)


def body_end(text, at):
    depth = 1
    while at < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def blank(text):
    """Comments and texts as spaces, so that they match nothing."""
    text = re.sub(r"//[^\n]*", lambda m: " " * len(m.group()), text)
    text = re.sub(r'R"(\w*)\(.*?\)\1"', lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', lambda m: '"' + " " * (len(m.group()) - 2) + '"', text)


def main():
    found = 0
    for path in sys.argv[1:]:
        original = open(path, encoding="utf-8").read()
        lines = original.split("\n")
        text = blank(original)

        def report(offset, what):
            nonlocal found
            line = text.count("\n", 0, offset)
            if any("bounded:" in l for l in lines[max(0, line - 1):line + 1]):
                return
            found += 1
            print(f"{path}:{line + 1}: {what}")

        for m in FUNCTION.finditer(text):
            name, parameters = m.group(1), m.group(2)
            end = body_end(text, m.end())
            body = text[m.end():end]
            if path.endswith("accumulator.cc"):
                if name in ("Add", "Merge") and GROWS.search(body) and "*memory" not in body:
                    report(m.start(1), f"{name} keeps what it does not tell")
                continue
            if not re.search(r"EvalArgs|EvalContext|ApplyContext", parameters) or name == "Serialize":
                continue
            for pattern, what in NEVER:
                for hit in pattern.finditer(body):
                    report(m.end() + hit.start(), f"{name}: {what}")
            if LOOP.search(body) and GROWS.search(body) and not CHARGED.search(body):
                report(m.end() + GROWS.search(body).start(), f"{name}: grows in a loop and is charged to nobody")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
