#!/usr/bin/env python3
"""Tests that decide by elapsed time, which a busy machine stretches. Prints each place.

scripts/lib/check_clock_verdicts.py FILE…

A comparison (<, <=, >, >=) is a finding if a side of it is a time of a clock, or was made of one: by arithmetic, min,
max and the like, by a variable, an attribute, a list it was put into or a function that gives it. So is one of what is
called took, elapsed, slowest or latency. A test says instead what happened: so many answers, so much work of a
processor, an end before a Deadline (tests/golden/waits.py, tests/unit/patience.h). A comparison that no busy machine
makes wrong says why in its last line, or in the statement's:

    check(took >= 3, "…")  # clock: at least, which a slow machine cannot miss

Python is followed name by name; other languages line by line.
"""

import ast
import re
import sys
from pathlib import Path

EXCUSED = re.compile(r"(#|//) clock: \S")
CALLED = {"took", "elapsed", "slowest", "latency"}
SOURCES = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "total_seconds", "time_ns"}
KEEPS = {"int", "float", "max", "min", "sorted", "sum", "round", "abs", "list", "next", "median", "mean"}
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def is_clock(call):
    """time.monotonic() and the like; time.time()."""
    f = call.func
    if isinstance(f, ast.Attribute):
        return f.attr in SOURCES or (f.attr == "time" and isinstance(f.value, ast.Name) and f.value.id == "time")
    return isinstance(f, ast.Name) and f.id in SOURCES


class Python:
    """What of a module is made of times: names by the function that binds them, attributes wherever they are."""

    def __init__(self, text, path):
        self.tree, self.lines = ast.parse(text, path), text.split("\n")
        self.names, self.attributes, self.scope_of, self.statement_of = set(), set(), {}, {}
        self.walk(self.tree, (), None)
        while True:
            known = len(self.names), len(self.attributes)
            for node in ast.walk(self.tree):
                self.follow(node)
            if known == (len(self.names), len(self.attributes)):
                break

    def walk(self, node, scope, statement):
        """The functions around each node, and the statement that it is in."""
        self.scope_of[node], self.statement_of[node] = scope, statement
        inner = (*scope, node) if isinstance(node, FUNCTIONS) else scope
        for child in ast.iter_child_nodes(node):
            self.walk(child, inner, child if isinstance(child, ast.stmt) else statement)

    def follow(self, node):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.bind(target, node.value)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            self.bind(node.target, node.value)
        elif isinstance(node, (ast.For, ast.comprehension)):
            self.bind(node.target, node.iter)
        elif isinstance(node, ast.Return) and node.value and self.timed(node.value):
            function = self.scope_of[node][-1]
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.names.add((self.scope_of[function], function.name))
                self.attributes.add(function.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "add") and any(self.timed(a) for a in node.args):
                self.mark(node.func.value)

    def bind(self, target, value):
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            if len(target.elts) == len(value.elts):
                for t, v in zip(target.elts, value.elts):
                    self.bind(t, v)
                return
        if self.timed(value):
            self.mark(target)

    def mark(self, target):
        if isinstance(target, (ast.Tuple, ast.List)):
            for t in target.elts:
                self.mark(t)
        elif isinstance(target, ast.Name):
            self.names.add((self.scope_of[target], target.id))
        elif isinstance(target, ast.Attribute):
            if target.attr == "value":  # of what several processes share
                self.mark(target.value)
            else:
                self.attributes.add(target.attr)
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            self.mark(target.value)

    def timed(self, node):
        if isinstance(node, ast.Name):
            scope = self.scope_of[node]
            return node.id in CALLED or any((scope[:n], node.id) in self.names for n in range(len(scope) + 1))
        if isinstance(node, ast.Attribute):
            return node.attr in self.attributes | CALLED or (node.attr == "value" and self.timed(node.value))
        if isinstance(node, ast.Call):
            if is_clock(node):
                return True
            f = node.func
            if isinstance(f, ast.Name) and f.id in KEEPS:
                return any(self.timed(a) for a in node.args)
            return self.timed(f)
        if isinstance(node, ast.BinOp):
            return self.timed(node.left) or self.timed(node.right)
        if isinstance(node, (ast.UnaryOp,)):
            return self.timed(node.operand)
        if isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr)):
            return self.timed(node.value)
        if isinstance(node, ast.IfExp):
            return self.timed(node.body) or self.timed(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(self.timed(v) for v in node.values)
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return any(self.timed(e) for e in node.elts)
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return self.timed(node.elt)
        return False

    def findings(self):
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Compare) and any(isinstance(op, ORDER) for op in node.ops):
                if any(self.timed(side) for side in [node.left, *node.comparators]):
                    statement = self.statement_of[node]
                    # Of a block, such as a loop, only its head.
                    end = statement.body[0].lineno - 1 if getattr(statement, "body", None) else statement.end_lineno
                    lines = self.lines[node.lineno - 1 : node.end_lineno] + self.lines[max(end, node.lineno) - 1 :][:1]
                    if not any(EXCUSED.search(line) for line in lines):
                        yield node.lineno


CLOCK = re.compile(
    r"(steady|system|high_resolution)_clock::now|MonotonicMicros\(|clock_gettime|gettimeofday|Date\.now\(|"
    r"performance\.now\(|hrtime|nanoTime\(|currentTimeMillis\(|Instant::now\(|\.elapsed\(|time\.(Now|Since)\(|"
    r"microtime\(|\btime\(\)|EPOCHREALTIME"
)
ASSIGNED = re.compile(r"([\w.]+)\s*(?::=|\+?=)\s*(?!=)(.*)")
COMPARED = re.compile(r" (<|>|<=|>=) |\.(After|Before|isAfter|isBefore)\(| -(lt|le|gt|ge) ")


def by_line(text):
    """The same in a language of which only lines are looked at."""
    lines, timed = text.split("\n"), set(CALLED)

    def is_timed(line):
        return CLOCK.search(line) or any(re.search(rf"(?<![\w\"']){re.escape(n)}\b", line) for n in timed)

    for number, line in enumerate(lines):
        code = re.sub(r'"[^"]*"|//.*|^\s*(///?|\*|#).*', "", line)
        found = ASSIGNED.search(code)
        if found and is_timed(found.group(2)) and not COMPARED.search(code):
            timed.add(found.group(1))
        if COMPARED.search(code) and is_timed(code):
            if not any(EXCUSED.search(near) for near in lines[number : number + 2]):
                yield number + 1


def main():
    found = 0
    for path in sys.argv[1:]:
        text = Path(path).read_text()
        python = path.endswith(".py") or text.startswith("#!/usr/bin/env python3")
        for line in sorted(set(Python(text, path).findings() if python else by_line(text))):
            print(f"{path}:{line}: a verdict by the clock: {text.split(chr(10))[line - 1].strip()}")
            found += 1
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
