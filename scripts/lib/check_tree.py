#!/usr/bin/env python3
"""Rules of the tree that a machine can check. Prints every breach; the last line counts the rules.

scripts/lib/check_tree.py [--root FOLDER] [RULE…]
             include names length pages functions docstrings headers format log_ids

include      a file includes only from the rooms that scripts/lib/rooms.txt allows its room, and no …_impl.h of
             another layer
names        no two files of the layers have the same name
length       lines of C++ have at most 100 columns (data in raw strings may be longer); a file has at most 800 lines,
             or says why: `long file: …` in its first 20 lines
pages        lines of scripts and pages have at most 120 columns (tables, links and code samples may be longer)
functions    a function has at most 100 lines, or says why: `// long function: …` in the line above it
docstrings   a type at namespace level in a header has a comment above it; so has a public function, or the first of the
             functions that stand together with it (constructors, overrides and what is a line long need none)
headers      a header compiles by itself, without a precompiled one. build/headers.cache remembers which ones did
format       the tree is as clang-format 16 would have it
log_ids      an id of the log's lines is one line's: it stands in one place, or in several with the same text

--root names another git work tree (for tests).
"""

import argparse
import collections
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # --root changes it
NO_ROOMS = {"tests", "bench", "build", "docs", "scripts", "docker", "cmake"}
CODE = ["protocol", "timeseries", "storage", "query", "ttl", "replication", "security", "backup", "link", "server"]
# Headers above whose code an on-disk format or a protocol stands as a grammar: there columns are meaning.
GRAMMARS = {
    "replication/engine.h",
    "replication/log_segment.h",
    "replication/log_store.h",
    "replication/member_link.h",
    "replication/resume_token.h",
    "storage/catalog/catalog_format.h",
    "storage/write/session_row.h",
    "storage/keys/key_format.h",
    "storage/write/document_diff.h",
    "storage/write/log_format.h",
    "timeseries/bucket_codec.h",
    "timeseries/double_stream.h",
    "timeseries/integer_stream.h",
    "timeseries/value_column.h",
}
COLUMNS, TEXT_COLUMNS, FILE_LINES, FUNCTION_LINES = 100, 120, 800, 100


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [p for p in out.split("\n") if p and (ROOT / p).exists()]


def cpp(folders=()):
    return [p for p in tracked("*.cc", "*.h") if not folders or p.split("/")[0] in folders]


# --- include ----------------------------------------------------------------------------------------------------------
# Rooms from the bottom up: each may include itself and the rooms that it names; "a/*" stands for every room in a.
def include():
    lines = (ROOT / "scripts/lib/rooms.txt").read_text().split("\n")
    direction = [line.split(":") for line in lines if ":" in line and line[0] != "#"]
    rooms = {name.strip(): below.split() for name, below in direction}

    def room(path):
        for alone in (path, path.rsplit(".", 1)[0]):
            if alone in rooms:
                return alone
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
    # What stands above is built on what stands below it in the file: so there are no circles.
    above = set()
    for name, below in rooms.items():
        for r in below:
            found = {x for x in rooms if x.startswith(r[:-1])} if r.endswith("/*") else {r}
            for x in sorted((found & rooms.keys()) - above - {name}):
                yield f"scripts/lib/rooms.txt: {name} names {x}, which does not stand in front of it"
        above.add(name)
    other = lambda p: p.name in NO_ROOMS or p.name.startswith((".", "build"))
    tops = [p for p in ROOT.iterdir() if p.is_dir() and not other(p)]
    for path in sorted(p for top in tops for p in top.rglob("*")):
        name = path.relative_to(ROOT)
        if path.suffix in (".cc", ".h") and name.parts[0] not in CODE:
            yield f"{name}: {name.parts[0]}/ is no room: add it to CODE and scripts/lib/rooms.txt"
        elif path.suffix in (".inc", ".cpp", ".cxx", ".hpp", ".ipp", ".c"):
            yield f"{name}: sources end in .cc, headers in .h, so that they are checked"
    for path in cpp(CODE):
        mine = room(path)
        if not mine:
            yield f"{path}: in no room of scripts/lib/rooms.txt"
            continue
        may = allowed(rooms[mine]) | {mine}
        for n, line in enumerate((ROOT / path).read_text().split("\n"), 1):
            m = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line)
            if not m:
                continue
            beside, above = os.path.normpath(os.path.join(os.path.dirname(path), m[1])), os.path.normpath(m[1])
            it = next((p for p in (beside, above) if (ROOT / p).is_file()), None)
            if it and room(it) not in may:
                yield f"{path}:{n}: {mine} includes {it}, of {room(it) or 'no room'}"
            elif it and it.endswith("_impl.h") and it.split("/")[0] != path.split("/")[0]:
                yield f"{path}:{n}: {it} is for {it.split('/')[0]}/ alone"


# --- names ------------------------------------------------------------------------------------------------------------
def names():
    places = collections.defaultdict(list)
    for path in cpp(CODE):
        if not path.endswith("/main.cc"):  # each program has one
            places[path.rsplit("/", 1)[1]].append(path)
    for paths in places.values():
        if len(paths) > 1:
            yield f"{' and '.join(paths)} have the same name"


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
    for path in cpp() + tracked("*.py", "*.js", "*.mjs"):
        lines = (ROOT / path).read_text().split("\n")
        if len(lines) - 1 > FILE_LINES and "long file:" not in "\n".join(lines[:20]):
            yield f"{path}: {len(lines) - 1} lines"


# --- pages ------------------------------------------------------------------------------------------------------------
def pages():
    for path in tracked(
        "*.py",
        "*.md",
        "*.sh",
        "*.cmake",
        "*CMakeLists.txt",
        "scripts/*",
        ".ci/run",
        "tests/drivers/*/run",
        "tests/browser/run*",
    ):
        code = False
        for n, line in enumerate((ROOT / path).read_text().split("\n"), 1):
            if path.endswith(".md") and line.lstrip().startswith("```"):
                code = not code
            if len(line) > TEXT_COLUMNS and not code and not line.lstrip().startswith(("|", "!")) and "://" not in line:
                yield f"{path}:{n}: {len(line)} columns"


# --- functions --------------------------------------------------------------------------------------------------------
def functions():
    files = [p for p in cpp() if not p.startswith("tests/")]
    out = subprocess.run(
        ["ctags", "--c++-kinds=f", "--fields=+ne", "-f", "-", *files], cwd=ROOT, capture_output=True, text=True
    ).stdout
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
    headers = [p for p in cpp(CODE) if p.endswith(".h")]
    yield from types_without_docstring(headers)
    yield from functions_without_docstring(headers)


def functions_without_docstring(headers):
    options = ["--output-format=json", "--language-force=C++", "--kinds-C++=pf", "--fields=+naKZ", "-f", "-"]
    out = subprocess.run(["ctags", *options, *headers], cwd=ROOT, capture_output=True, text=True).stdout
    texts = {}
    for tag in map(json.loads, out.splitlines()):
        scope = tag.get("scope", "")
        lines = texts.setdefault(tag["path"], (ROOT / tag["path"]).read_text().split("\n"))
        first = last = tag["line"] - 1
        while not re.search(r"[;{]\s*(//.*)?$", lines[last]) and last + 1 < len(lines):
            last += 1
        said = " ".join(lines[first : last + 1])
        if (
            tag.get("access", "public") != "public"
            or tag["name"].startswith(("operator", "~"))
            or tag["name"] == scope.split("::")[-1]
            or "__anon" in scope
            or re.search(r"\boverride\b|\bfinal\b|= default|= delete", said)
            or (tag["kind"] == "function" and re.search(r"\{.*\}", lines[first]))
            or "//" in said
        ):
            continue
        above = first - 1
        while above > 0 and not is_edge(lines[above].strip()):
            above -= 1
        if not any("//" in line for line in lines[above + 1 : first]):
            yield f"{tag['path']}:{first + 1}: {lines[first].strip()[:60]}"


def is_edge(line):
    """Of the functions that stand together."""
    return line == "" or line.endswith("{") or line.startswith(("#", "}")) or re.match(r"\w+:$", line) is not None


def types_without_docstring(headers):
    for path in headers:
        depth, before, raw = 0, "", (ROOT / path).read_text()
        text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', raw)
        namespaces = 0
        for n, line in enumerate(text.split("\n"), 1):
            bare = re.sub(r"//.*", "", line)
            if re.match(r"namespace\b.*\{", bare):
                namespaces += 1
                before = ""
                continue
            if (
                depth == 0
                and re.match(r"(class|struct|enum class|enum)\s+\w+.*\{", bare)
                and not before.strip().startswith("//")
                and "//" not in line
            ):
                yield f"{path}:{n}: {bare.strip()[:60]}"
            if re.match(r"\}  // namespace|\}\s*$", bare) and depth == 0:
                continue
            depth += bare.count("{") - bare.count("}")
            if bare.strip().startswith("template"):
                continue  # the comment stands above it
            before = line


# --- headers ----------------------------------------------------------------------------------------------------------
# What the build passes too (cmake/, and the include folder of the one library that is not found without).
HEADER_FLAGS = [
    "-std=c++20",
    "-Wno-pragma-once-outside-header",
    "-DBOOST_ASIO_NO_DEPRECATED",
    "-DBOOST_ASIO_SEPARATE_COMPILATION",
    "-DBOOST_BEAST_SEPARATE_COMPILATION",
]
# Headers that many others include, the largest first. They are compiled once, and a header that includes one begins
# with its result, which takes a third of the time. This hides nothing: what a header says itself comes behind its
# includes in any case, and the others that it includes are checked by themselves.
HEADER_BASES = [
    "server/dispatch/server_context.h",
    "server/dispatch/command.h",
    "storage/storage.h",
    "storage/catalog/catalog_types.h",
    "protocol/error.h",
]


def headers():
    compiler = shutil.which("clang++-16")
    if not compiler:
        yield "clang++-16 is not installed"
        return
    paths = [p for p in cpp() if p.endswith(".h")]
    if not paths:
        return
    bson = subprocess.run(["pkg-config", "--cflags", "libbson-1.0"], capture_output=True, text=True).stdout.split()
    flags = [*HEADER_FLAGS, "-I.", *bson]
    texts, reach = {}, {}

    def text(path):
        if path not in texts:
            texts[path] = (ROOT / path).read_text() if (ROOT / path).exists() else ""
        return texts[path]

    def included(path):
        """The headers of the tree that it includes, also by way of others; and itself."""
        if path not in reach:
            out, todo = set(), [path]
            while todo:
                p = todo.pop()
                if p not in out and text(p):
                    out.add(p)
                    for name in re.findall(r'^\s*#\s*include "([^"]+)"', text(p), re.M):
                        todo += [name, os.path.normpath(os.path.join(os.path.dirname(p), name))]
            reach[path] = out
        return reach[path]

    def state(path):
        """Changes when what the compiler reads of the tree for it changes."""
        h = hashlib.sha256(repr(flags).encode())
        for p in sorted(included(path)):
            h.update(f"{p}\0{text(p)}\0".encode())
        return h.hexdigest()

    def clang(*arguments):
        """None, or what the compiler says."""
        r = subprocess.run([compiler, *flags, *arguments], cwd=ROOT, capture_output=True, text=True)
        return None if r.returncode == 0 else r.stderr

    def base_of(path):
        return next((b for b in HEADER_BASES if b != path and b in included(path)), None)

    cache = ROOT / "build/headers.cache"
    try:
        known = json.loads(cache.read_text())
    except (OSError, ValueError):
        known = {}
    states = {p: state(p) for p in paths}
    todo = [p for p in paths if known.get(p) != states[p]]
    good = {p: states[p] for p in paths if p not in todo}
    uses = collections.Counter(base_of(p) for p in todo)
    with ThreadPoolExecutor(os.cpu_count()) as pool, tempfile.TemporaryDirectory() as d:
        bases = {b: f"{d}/{i}.pch" for i, b in enumerate(HEADER_BASES) if uses[b] > 2}
        made = pool.map(lambda b: clang("-x", "c++-header", "-o", bases[b], b), bases)
        ready = {b for b, errors in zip(bases, made) if errors is None}

        def compile(path):
            base = base_of(path)
            if base in ready and clang("-include-pch", bases[base], "-fsyntax-only", "-x", "c++", path) is None:
                return None
            return clang("-fsyntax-only", "-x", "c++", path)

        for path, errors in zip(todo, pool.map(compile, todo)):
            if errors is None:
                good[path] = states[path]
            else:
                first = next((line for line in errors.split("\n") if "error:" in line), errors[:200])
                yield f"{path}: does not compile by itself: {first}"
    cache.parent.mkdir(exist_ok=True)
    cache.write_text(json.dumps(good))


# --- format -----------------------------------------------------------------------------------------------------------
def format():
    tool = shutil.which("clang-format-16")
    if not tool:
        yield "clang-format-16 is not installed"
        return
    r = subprocess.run([tool, "--dry-run", "-Werror", *cpp()], cwd=ROOT, capture_output=True, text=True)
    for line in r.stderr.split("\n"):
        if ": error:" in line:
            yield line.split(": error:")[0] + ": not as clang-format would have it"


# --- log_ids ----------------------------------------------------------------------------------------------------------
# `Write(severity, component, id, "text"` and its shorter forms. Without a literal the text is the place itself.
LOG_LINE = re.compile(r"LogComponent::\w+,\s*(?:\w+ \? )?(\d{5,8})(?: : (\d{5,8}))?,\s*(\"(?:[^\"\\]|\\.)*\")?")


def log_ids():
    texts = collections.defaultdict(dict)
    for path in cpp(CODE):
        text = (ROOT / path).read_text()
        for m in LOG_LINE.finditer(text):
            place = f"{path}:{text.count(chr(10), 0, m.start(1)) + 1}"
            texts[m[1]].setdefault(m[3] if m[3] and not m[2] else m[2] or place, place)
    return [f"the log's id {i} names several lines: {', '.join(t.values())}" for i, t in texts.items() if len(t) > 1]


RULES = [include, names, length, pages, functions, docstrings, headers, format, log_ids]


def main():
    global ROOT
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--root", type=Path, default=ROOT)
    args.add_argument("rules", nargs="*", metavar="RULE")
    args = args.parse_args()
    ROOT = args.root.resolve()
    unknown = set(args.rules) - {r.__name__ for r in RULES}
    if unknown:
        sys.exit(f"unknown rule: {', '.join(sorted(unknown))}")
    wanted = [r for r in RULES if not args.rules or r.__name__ in args.rules]
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
