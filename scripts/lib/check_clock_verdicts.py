#!/usr/bin/env python3
"""Tests that decide by elapsed time, which a busy machine stretches. Prints each place.

scripts/lib/check_clock_verdicts.py FILE…

A comparison (<, <=, >, >=) is a finding if a side of it is a time of a clock, or was made of one: by arithmetic, min,
max and the like, by a variable, an attribute, a list it was put into or a function that gives it. So is one of what is
called took, elapsed, slowest or latency. A test says instead what happened: so many answers, so much work of a
processor, an end before a Deadline (tests/golden/waits.py, tests/unit/patience.h). A comparison that no busy machine
makes wrong says why in its last line, or in the statement's:

    check(took >= 3, "…")  # clock: at least, which a slow machine cannot miss

So is a finding what waits for less than a minute by a literal: `timeout=`, wait, join, settimeout, …TimeoutMS; in C++
any wait_for and run_for. A Deadline has the machine's factor.

Python is followed name by name; C and C++ statement by statement, other languages line by line.
"""

import ast
import re
import sys
from pathlib import Path

EXCUSED = re.compile(r"(#|//) (clock|sleeps): \S")
CALLED = {"took", "elapsed", "slowest", "latency"}
SOURCES = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "total_seconds", "time_ns"}
OF_TIME = SOURCES - {"total_seconds"} | {"time"}
OF_DATES = {"now", "utcnow", "today"}
PATIENCE = 60  # seconds that a wait has at least
MILLIS = re.compile(r"((?:serverSelection|connect|socket|waitQueue)TimeoutMS|\btimeoutMS)\b")
KEEPS = {"int", "float", "max", "min", "sorted", "sum", "round", "abs", "list", "next", "median", "mean"}
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def literal(node):
    """The number that it is; None: it is none."""
    known = isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    return node.value if known else None


def is_short(name, node, seconds):
    """A wait that is called so is of less than a minute, and no poll. `seconds`: names of waits in seconds."""
    n = literal(node)
    return bool(n) and (
        (name in seconds and 0 < n < PATIENCE) or (name and MILLIS.search(name) and n < PATIENCE * 1000)
    )


class Python:
    """What of a module is made of times: names by the function that binds them, attributes wherever they are."""

    def __init__(self, text, path):
        self.tree, self.lines = ast.parse(text, path), text.split("\n")
        self.names, self.attributes, self.scope_of, self.statement_of = set(), set(), {}, {}
        self.modules, self.clocks = {"time"}, set(SOURCES)  # what the module of clocks, and clocks, are called here
        for node in ast.walk(self.tree):
            for name in getattr(node, "names", []) if isinstance(node, (ast.Import, ast.ImportFrom)) else []:
                if isinstance(node, ast.Import) and name.name == "time":
                    self.modules.add(name.asname or name.name)
                elif isinstance(node, ast.ImportFrom) and node.module == "time" and name.name in OF_TIME:
                    self.clocks.add(name.asname or name.name)
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

    def is_clock(self, call):
        """time.monotonic() and the like; time.time(); datetime.now()."""
        f = call.func
        if isinstance(f, ast.Attribute):
            of = f.value.attr if isinstance(f.value, ast.Attribute) else getattr(f.value, "id", None)
            return (
                f.attr in SOURCES
                or (f.attr == "time" and of in self.modules)
                or (f.attr in OF_DATES and of == "datetime")
            )
        return isinstance(f, ast.Name) and f.id in self.clocks

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
            if self.is_clock(node):
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
        if isinstance(node, ast.Dict):
            return any(self.timed(v) for v in node.values)
        if isinstance(node, ast.DictComp):
            return self.timed(node.value)
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return self.timed(node.elt)
        return False

    def waits_shortly(self, node):
        """It waits for less than a minute, by a literal."""
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            return any(is_short(k.arg, k.value, {"timeout"}) for k in node.keywords) or (
                len(node.args) == 1 and is_short(called, node.args[0], {"wait", "join", "settimeout"})
            )
        if isinstance(node, ast.Dict):
            names = [k.value if isinstance(k, ast.Constant) and isinstance(k.value, str) else None for k in node.keys]
            return any(is_short(name, v, ()) for name, v in zip(names, node.values))
        if isinstance(node, ast.arguments):
            named = (node.posonlyargs + node.args)[-len(node.defaults) or len(node.args) :]
            pairs = [*zip(named, node.defaults), *zip(node.kwonlyargs, node.kw_defaults)]
            return any(is_short(a.arg, d, {"timeout"}) for a, d in pairs)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return any(int(m[2]) < PATIENCE * 1000 for m in re.finditer(MILLIS.pattern + r"=(\d+)", node.value))
        return False

    def findings(self):
        for node in ast.walk(self.tree):
            compares = isinstance(node, ast.Compare) and any(isinstance(op, ORDER) for op in node.ops)
            if (
                compares
                and any(self.timed(side) for side in [node.left, *node.comparators])
                or self.waits_shortly(node)
            ):
                statement = self.statement_of[node]
                if isinstance(node, ast.arguments):
                    node = self.scope_of[node][-1]
                # Of a block, such as a loop, only its head.
                end = statement.body[0].lineno - 1 if getattr(statement, "body", None) else statement.end_lineno
                last = node.lineno if isinstance(node, FUNCTIONS) else node.end_lineno
                lines = self.lines[node.lineno - 1 : last] + self.lines[max(end, node.lineno) - 1 :][:1]
                if not any(EXCUSED.search(line) for line in lines):
                    yield node.lineno


SHORT = re.compile(r"(?:\w*TimeoutMS|\btimeoutMS|\btimeout)[\"']?\s*[:=]\s*(\d[\d_]*)\b")


def short_millis(text):
    """A time-out of less than a minute is in it, as a driver's options and JavaScript have them."""
    return any(0 < int(n.replace("_", "")) < PATIENCE * 1000 for n in SHORT.findall(text))


CLOCK = re.compile(
    r"(steady|system|high_resolution)_clock::now|MonotonicMicros\(|clock_gettime|gettimeofday|Date\.now\(|"
    r"performance\.now\(|hrtime|nanoTime\(|currentTimeMillis\(|Instant::now\(|\.elapsed\(|time\.(Now|Since)\(|"
    r"microtime\(|\btime\((NULL|nullptr|0)?\)|EPOCHREALTIME|\bSECONDS\b|\bdate \+%s"
)
PERL = re.compile(r"(?<![$@%>:\w])time\b(?! *(=>|\}))")
WAITS = re.compile(r"\b(wait_for|run_for)\(")
REAL = re.compile(r"\bSystemClock (\w+)[;{(]")
GO_WAITS = re.compile(r"Timeout\(.*\b([1-5]?\d) \* time\.Second|Timeout\(.* time\.Millisecond")
ASSIGNED = re.compile(r"([\w.]+)\s*(?::=|\+?=)\s*(?!=)(.*)")
COMPARED = re.compile(r" (<|>|<=|>=) |\.(After|Before|isAfter|isBefore)\(| -(lt|le|gt|ge) ")


def statements(lines, joined):
    """(number of the first line, lines) of each statement; `joined`: it may have several."""
    first = 0
    for number, line in enumerate(lines):
        code = re.sub(r"//.*|^\s*#.*", "", line).rstrip()
        if not joined or not code or code[-1] in ";{}:" or number + 1 == len(lines):
            yield first, lines[first : number + 1]
            first = number + 1


def by_line(text, ending):
    """The same in a language of which only lines are looked at, or statements."""
    lines, timed = text.split("\n"), set(CALLED)
    c, perl = ending in ("c", "cc", "h"), ending == "pl"
    # Shell quotes what it compares.
    left_out = r"^\s*#.*| # .*" if ending in ("sh", "run") else r'"[^"]*"|//.*|^\s*(///?|\*|#).*'

    # Whatever else is called clock is moved by a test.
    own = re.compile("|".join(rf"\b{n}\.(Now|MonotonicMicros)\(" for n in REAL.findall(text)) or "(?!)")

    def is_timed(code):
        if CLOCK.search(code) or own.search(code) or (perl and PERL.search(code)):
            return True
        return any(re.search(rf"(?<![\w\"']){re.escape(n)}\b", code) for n in timed)

    for number, several in statements(lines, c):
        codes = [re.sub(left_out, "", line) for line in several]
        code = " ".join(c.strip() for c in codes) if len(codes) > 1 else codes[0]
        short = (
            (c and WAITS.search(code))
            or GO_WAITS.search(code)
            or (ending != "run" and short_millis("\n".join(several)))
        )
        compared = COMPARED.search(code) and is_timed(code)
        found = ASSIGNED.search(code)
        if found and is_timed(found.group(2)) and not COMPARED.search(code):
            timed.add(found.group(1))
        if compared or short:
            if not any(EXCUSED.search(near) for near in lines[number : number + len(several) + 1]):
                at = [i for i, line in enumerate(codes) if COMPARED.search(line) or WAITS.search(line)] or [0]
                yield number + at[0] + 1


def main():
    found = 0
    for path in sys.argv[1:]:
        text = Path(path).read_text()
        ending = path.rpartition(".")[2] if "." in Path(path).name else "run"
        python = path.endswith(".py") or text.startswith("#!/usr/bin/env python3")
        for line in sorted(set(Python(text, path).findings() if python else by_line(text, ending))):
            print(f"{path}:{line}: a verdict by the clock: {text.split(chr(10))[line - 1].strip()}")
            found += 1
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
