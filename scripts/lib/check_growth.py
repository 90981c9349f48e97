#!/usr/bin/env python3
"""Finds expression code that builds values of unbounded size without charging them, or loops long without checking for
interrupts. Such values are built through query/expression/growth.h.

Checked are
  - functions that evaluate: those with an EvalContext or EvalArgs among their parameters;
  - helpers in the same file that they call;
  - the leaves of updates;
  - the code that runs stages of pipelines and sorts (not their parsers);
  - an accumulator's Add and Merge, which must report what they keep.

A value with a small bound is marked with a comment `bounded: why`, in the same line or the one before.
tests/layout/check_growth_test.py shows what this script must find.

Prints the places; the exit status is 1 when there are any. Usage: check_growth.py FILE…
"""

import re
import sys

from cpp_text import blank, body_end, marked

# By other means than growth.h, however it is used.
NEVER = [
    (re.compile(r"\bBuild(?:Array|Bson)\("), "a value built in one go"),
    (re.compile(r"\bBson(?:Array)?Builder \w+\(\w"), "a builder on bytes of its own"),
    (re.compile(r"(?<![\w:])Elements\("), "all elements in a vector"),
    (re.compile(r"\bstd::(?:stable_)?sort\("), "a sort that cannot be interrupted"),
    (
        re.compile(r"\.r?find\((?!')(?=[^)]*[,)])(?![^)]*\bname\b)"),
        "a search that may take the square of its input, or the container is no index",
    ),
]
GROWS = re.compile(r"(?:\.|->)(?:push_back|emplace_back|insert|try_emplace|append)\(|\bout \+=")
# As large as a number says, in one step.
SIZED = re.compile(
    r"(?:\.|->)resize\((?!\w*(?:mark|start|begin|size)\w*\))(?=[^)]*\b(?!k[A-Z]|sizeof)[a-z]\w*)|"
    r"\bstd::vector<[^;()]*> \w+\((?![\w.]*(?:begin|size)\()[a-z]\w*[,)]"
    r"|\bstd::string(?: \w+)?\((?!')[a-z]\w*, (?:'|static_cast<char>)"
)
CHARGED = re.compile(
    r"\b(?:Charge|Growing\w+|Kept|ElementList|charge_?|large_memory::Hold|hold_?|Room|memory_?|memory_limit)\b"
)
PACED = re.compile(r"\b(?:Pace|pace_?|Step|CheckInterrupt|Check)\b")
LOOP = re.compile(r"\b(?:for|while) \(")
EVALUATES = r"EvalArgs|EvalContext|ApplyContext"
FUNCTION = re.compile(
    r"^[ ]{0,2}(?:template <[^\n]*>\n[ ]*)?(?:static )?(?:Result<[^\n]*>|Value|void|bool|auto) "
    r"(\w+)\(([^;{}]*?)\)[^;{}]*\{",
    re.M,
)

# The stages: a pipeline's own memory is a member that has one of these names. What parses a stage is charged to the
# ParseWork.
ANY = re.compile(
    r"^[ ]{0,2}(?![ ]*(?:return|else|case)\b)(?:template <[^\n]*>\n[ ]*)?(?:static )?"
    r"[\w:<>,&* ]+? \*?&?(?:\w+::)*(\w+)\(([^;{}]*?)\)[^;{}()]*\{",
    re.M,
)
PARSES = re.compile(
    r"^(?:Parse\w*|Serialize|Explain\w*|AddDependencies|MatchDependencies|Split\w+|Note\w+|Named\w+|"
    r"Make\w*|Fold\w*|EqualRatios|Every|Check\w+|MatchBehind|TakeSource|"
    r"[A-Z]\w*Stage|index_path|if|for|while|switch)$"
)


def grows(body, parameters):
    """A match of what grows in a loop of the body, or at once by a number; None if nothing does."""
    if hit := SIZED.search(body):
        return hit
    if not LOOP.search(body):
        return None
    text = "|".join(re.findall(r"\bstd::string[&*]? (\w+)", parameters + ";" + body)) or "@"
    tables = (
        "|".join(
            re.findall(
                r"\b(?:std::(?:unordered_)?map|absl::\w*map|boost::unordered\w*map)<[^;(){}]*>[&*]? (\w+)",
                parameters + ";" + body,
            )
        )
        or "@"
    )
    return GROWS.search(body) or re.search(rf"\*?\b(?:{text}) \+=|\b(?:{tables})\[[^\]]*\] (?:=|\+=)", in_loops(body))


def in_loops(body):
    """The body with blanks for what stands in no loop."""
    keep = bytearray(len(body))
    for m in LOOP.finditer(body):
        depth, at = 1, m.end()
        while at < len(body) and depth:  # the head
            depth += {"(": 1, ")": -1}.get(body[at], 0)
            at += 1
        block = re.compile(r"\s*\{").match(body, at)
        end = body_end(body, block.end()) if block else body.find(";", at) + 1
        keep[m.start() : end] = b"1" * (end - m.start())
    return "".join(c if k else " " for c, k in zip(body, keep))


def nested(body):
    """Where a loop stands in a loop."""
    for m in re.finditer(r"\b(?:for|while) \((?:[^()]|\([^()]*\))*\) \{", body):
        inner = body[m.end() : body_end(body, m.end())]
        if hit := re.search(r"\b(?:for|while) \(", inner):
            return m.end() + hit.start()
    return None


def main():
    found = 0
    for path in sys.argv[1:]:
        original = open(path, encoding="utf-8").read()
        text = blank(original)

        told = set()

        def report(offset, what):
            nonlocal found
            line = text.count("\n", 0, offset)
            if line in told:
                return
            told.add(line)
            if marked(original, offset, "bounded:"):
                return
            found += 1
            print(f"{path}:{line + 1}: {what}")

        helpers = {m[1]: m for m in ANY.finditer(text) if not re.search(EVALUATES, m[2]) and not PARSES.match(m[1])}
        for m in FUNCTION.finditer(text):
            name, parameters = m.group(1), m.group(2)
            end = body_end(text, m.end())
            body = text[m.end() : end]
            if path.endswith("accumulator.cc"):
                if name in ("Add", "Merge") and GROWS.search(body) and "*memory" not in body:
                    report(m.start(1), f"{name} keeps what it does not tell")
                continue
            if not re.search(EVALUATES, parameters) or name == "Serialize":
                continue
            for pattern, what in NEVER:
                for hit in pattern.finditer(body):
                    report(m.end() + hit.start(), f"{name}: {what}")
            if not CHARGED.search(body) and (hit := grows(body, parameters)):
                report(m.end() + hit.start(), f"{name}: grows in a loop or by a number and is charged to nobody")
            if not PACED.search(body) and not CHARGED.search(body) and (at := nested(body)) is not None:
                report(m.end() + at, f"{name}: a loop in a loop that cannot be interrupted")
            for called in () if CHARGED.search(body) else re.findall(r"(?<![.>:])\b([A-Z]\w*)\(", body):
                if h := helpers.get(called):
                    inner = text[h.end() : body_end(text, h.end())]
                    if not CHARGED.search(inner) and (hit := grows(inner, h[2])):
                        report(
                            h.end() + hit.start(),
                            f"{called}, called by {name}: grows in a loop or by a number and is charged to nobody",
                        )
        if re.search(r"(?:^|/)query/(?:pipeline|sort)/|/stage", path) and not path.endswith("accumulator.cc"):
            for m in ANY.finditer(text):
                body = text[m.end() : body_end(text, m.end())]
                if PARSES.match(m.group(1)) or CHARGED.search(body):
                    continue
                if hit := grows(body, m.group(2)):
                    report(
                        m.end() + hit.start(),
                        f"{m.group(1)}: a stage grows in a loop or by a number and is charged to nobody",
                    )
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
