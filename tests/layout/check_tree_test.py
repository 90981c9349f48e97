#!/usr/bin/env python3
"""Every rule of scripts/lib/check_tree.py finds what breaks it, and nothing in a small tree that keeps it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/lib/check_tree.py"


def header(body, includes=""):
    return f"#pragma once\n\n{includes}namespace mayfly {{\n\n{body}\n}}  // namespace mayfly\n"


def function(lines, above=""):
    """A function whose body has that many lines."""
    begin, end = "namespace mayfly {\n\n", "}\n\n}  // namespace mayfly\n"
    return f"{begin}{above}void Long(int& n) {{\n" + "  ++n;\n" * lines + end


CLEAN = {
    "scripts/lib/rooms.txt": "# rooms\nprotocol:\nstorage/kv: protocol\nstorage/read: storage/kv\nserver: storage/*\n",
    # One of the headers that the rule `headers` compiles once for all that include it.
    "protocol/error.h": header("/// A failure.\nstruct Error {\n  int code = 0;\n};\n"),
    "storage/kv/kv.h": header(
        "/// A pair.\nstruct Pair {\n  int a = 0;\n  Error error;\n};\n", '#include "protocol/error.h"\n\n'
    ),
    "storage/kv/kv_error.h": header("/// Another.\nstruct KvError : Error {};\n", '#include "protocol/error.h"\n\n'),
    "storage/read/reader.h": header(
        "/// Reads pairs.\nclass Reader {\n  Pair pair_;\n};\n", '#include "storage/kv/kv.h"\n\n'
    ),
    "server/main.cc": '#include "storage/read/reader.h"\n\nint main() { return 0; }\n',
    "server/longest.cc": function(99),
    "server/reasoned.cc": function(150, "// long function: a table in the shape of code\n"),
    "server/log_lines.cc": "void F(Log& log) {\n"
    '  log.Write(LogSeverity::kInfo, LogComponent::kControl, 9000001, "one line");\n'
    '  log.Warn(LogComponent::kControl, 9000001, "one line");\n}\n',
    "server/columns.cc": "// " + "x" * 97 + "\n",
    "server/data.cc": 'const char* kData = R"(\n' + "x" * 300 + '\n)";\n',
    "docs/page.md": "x" * 120 + "\n\n| " + "x" * 200 + " |\n\n```\n" + "x" * 200 + "\n```\n",
}
# What a change to the clean tree breaks: (rule, file, text of it, what is said).
BREACHES = [
    ("include", "storage/kv/up.h", header("", '#include "storage/read/reader.h"\n\n'), "storage/kv includes"),
    ("include", "storage/read/up.cc", '#include "server/main.h"\n', "storage/read includes server/main.h"),
    ("include", "storage/read/angles.cc", "#include <server/main.h>\n", "storage/read includes server/main.h"),
    ("include", "storage/kv/dots.cc", '# include "../read/reader.h"\n', "storage/kv includes storage/read/reader.h"),
    ("include", "storage/nowhere/x.cc", "int x;\n", "in no room"),
    ("include", "scripts/lib/rooms.txt", CLEAN["scripts/lib/rooms.txt"] + "ttl: nothing\n", "a room that is none"),
    (
        "include",
        "scripts/lib/rooms.txt",
        "protocol: server\nstorage/kv: protocol\nstorage/read: storage/kv\nserver: storage/*\n",
        "protocol names server, which does not stand in front of it",
    ),
    ("include", "execution/a.cc", "int x;\n", "execution/ is no room"),
    ("include", "server/table.inc", "1, 2\n", "sources end in .cc"),
    ("names", "storage/read/kv.h", "#pragma once\n", "storage/kv/kv.h and storage/read/kv.h have the same name"),
    ("length", "server/columns.cc", "// " + "x" * 98 + "\n", "101 columns"),
    ("length", "server/lines.cc", "int x;\n" * 801, "801 lines"),
    ("length", "tests/lines_run.py", "x = 1\n" * 801, "801 lines"),
    ("pages", "docs/page.md", "x" * 121 + "\n", "121 columns"),
    ("pages", "scripts/tool", "# " + "x" * 119 + "\n", "121 columns"),
    ("pages", "tests/a_test.py", "# " + "x" * 119 + "\n", "121 columns"),
    ("functions", "server/longest.cc", function(100), "Long has 101 lines"),
    (
        "log_ids",
        "server/again.cc",
        'void F(Log& log) {\n  log.Warn(LogComponent::kControl, 9000001, "another");\n}\n',
        "9000001 names several lines: server/again.cc:2, server/log_lines.cc:2",
    ),
    (
        "log_ids",
        "server/again.cc",
        "void F(Log& log) {\n  log.Warn(LogComponent::kControl, 9000001, text);\n}\n",
        "9000001 names several lines",
    ),
    ("docstrings", "storage/kv/kv.h", header("struct Pair {\n  int a = 0;\n};\n"), "struct Pair"),
    ("docstrings", "storage/kv/kind.h", header("enum class Kind { kOne };\n"), "enum class Kind"),
    ("docstrings", "storage/kv/count.h", header("int Count(int a);\n"), "int Count(int a);"),
    (
        "docstrings",
        "storage/kv/counter.h",
        header("/// A counter.\nclass Counter {\n public:\n  int Count();\n};\n"),
        "int Count();",
    ),
    (
        "headers",
        "storage/kv/kv.h",
        header("/// A pair.\nstruct Pair {\n  std::string a;\n};\n"),
        "storage/read/reader.h",
    ),
    ("headers", "server/alone.h", header("/// Needs another.\nclass Alone {\n  Error e_;\n};\n"), "server/alone.h"),
    (
        "headers",
        "storage/kv/kv_error.h",
        header("/// A text.\nclass KvError : Error {\n  std::string s_;\n};\n", '#include "protocol/error.h"\n\n'),
        "storage/kv/kv_error.h",
    ),
    ("format", "server/main.cc", "int main() {return 0;}\n", "not as clang-format would have it"),
]
passed = failed = 0


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAIL {what}")


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "-C", root, "add", "-A"], check=True)


def run(root, *rules, path=os.environ["PATH"]):
    """(exit status, output) of the rules on a tree."""
    r = subprocess.run(
        [sys.executable, SCRIPT, "--root", root, *rules],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    return r.returncode, r.stdout + r.stderr


with tempfile.TemporaryDirectory() as d:
    clean = Path(d) / "clean"
    clean.mkdir()
    subprocess.run(["git", "-C", clean, "init", "-q"], check=True)
    shutil.copy(ROOT / ".clang-format", clean)
    (clean / ".gitignore").write_text("/build/\n")
    write(clean, CLEAN)
    status, out = run(clean)
    check(status == 0 and "9 passed, 0 failed" in out, f"a clean tree: {out}")
    check(run(clean, "nothing")[0] != 0, "a rule that does not exist is refused")

    # What has compiled once is not compiled again.
    (Path(d) / "bin").mkdir()
    (Path(d) / "bin/clang++-16").write_text("#!/bin/sh\necho 'error: compiled again' >&2\nexit 1\n")
    (Path(d) / "bin/clang++-16").chmod(0o755)
    again = f"{d}/bin:{os.environ['PATH']}"
    status, out = run(clean, "headers", path=again)
    check(status == 0, f"a second run compiles nothing: {out}")

    for i, (rule, name, text, said) in enumerate(BREACHES):
        tree = Path(d) / str(i)
        shutil.copytree(clean, tree)
        write(tree, {"server/main.h": "#pragma once\n", name: text})
        status, out = run(tree, rule)
        check(status == 1 and said in out and out.startswith(rule), f"{rule} of {name}: {status} {out}")
        if rule == "headers":
            # It stays a breach, and a header that did not change is compiled once more when one that it includes has.
            status, out = run(tree, rule)
            check(status == 1 and said in out, f"{rule} of {name}, asked again: {status} {out}")
            write(tree, {name: CLEAN.get(name, header("/// Nothing.\nclass Alone {};\n"))})
            status, out = run(tree, rule)
            check(status == 0, f"{rule} of {name}, mended: {status} {out}")
print(f"check_tree: {passed} passed, {failed} failed")
sys.exit(failed != 0)
