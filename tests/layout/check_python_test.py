#!/usr/bin/env python3
"""scripts/lib/check_python.py finds what a merge leaves behind, and nothing where names are bound in other ways."""

import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/lib/check_python.py"
# The file, what is said of it, and with which line.
FAULTS = {
    "a name that is bound nowhere": ("def f():\n    return found\n", "2: found is bound nowhere"),
    "one that another function binds": ("def f():\n    found = 1\ndef g():\n    return found\n", "4: found is bound"),
    "at the top": ("print(found)\n", "1: found is bound nowhere"),
    "in a comprehension": ("x = [y for z in range(3)]\n", "1: y is bound nowhere"),
    "after the comprehension": ("x = [z for z in range(3)]\nprint(z)\n", "z is bound nowhere"),
    "the name of a class's attribute": ("class A:\n    b = 1\n    def f(self):\n        return b\n", "4: b is bound"),
    "in an annotation": ("def f(x: Missing):\n    return x\n", "1: Missing is bound nowhere"),
    "in a decorator": ("@cached\ndef f():\n    pass\n", "1: cached is bound nowhere"),
    "an import of what is not there": ("from helpers import gone\n", "has no gone"),
    "a function twice": ("def f():\n    pass\nx = 1\ndef f():\n    pass\n", "4: f is defined in line 1 too"),
    "a method twice": ("class A:\n    def f(self): pass\n    def f(self): pass\n", "3: f is defined in line 2 too"),
    "marks of a merge": ("x = 1\n<<<<<<< one\ny = 2\n", "does not compile"),
}
CLEAN = {
    "builtins": "print(len(__file__), __name__)\n",
    "a later line of the module": "def f():\n    return g()\ndef g():\n    return 1\n",
    "by `global`": "def f():\n    global x\n    x = 1\ndef g():\n    return x\n",
    "by import, for, with, except, walrus, match and arguments": """import os.path, json as j
from helpers import there
from elsewhere import anything
for i in range(3):
    print(i, os, j, there, anything)
with open("x") as f:
    print(f)
try:
    pass
except OSError as e:
    print(e)
if (n := 3) > 2:
    print(n)
match n:
    case {"a": a, **rest}:
        print(a, rest)
def g(a, *b, c=1, **d):
    return a, b, c, d, lambda q: q
""",
    "around it": """def f():
    x = 1
    def g():
        nonlocal x
        x += 1
        return x
    return g
""",
    "what a class binds, in the class": "class A:\n    b = 1\n    c = b\n",
    "either of two": "try:\n    import x\nexcept ImportError:\n    x = None\nprint(x)\n",
    "defined in two branches": "if 1:\n    def f(): pass\nelse:\n    def f(): pass\n",
    "a property with a setter": """class A:
    @property
    def f(self): return 1
    @f.setter
    def f(self, v): pass
""",
    "all of another": "from helpers import *\nprint(there)\n",
    "all of an unknown one": "from elsewhere import *\nprint(whatever)\n",
}


def run(folder, text):
    path = Path(folder, "script.py")
    path.write_text(text)
    r = subprocess.run(
        [sys.executable, SCRIPT, path, Path(folder, "helpers.py"), Path(folder, "other/helpers.py")],
        capture_output=True,
        text=True,
    )
    return r.returncode, r.stdout + r.stderr


with tempfile.TemporaryDirectory() as folder:
    Path(folder, "helpers.py").write_text("there = 1\n")
    Path(folder, "other").mkdir()
    Path(folder, "other/helpers.py").write_text("gone = 1\n")  # not the one that is meant
    for what, (text, said) in FAULTS.items():
        code, out = run(folder, text)
        assert code == 1 and said in out and len(out.splitlines()) == 1, f"{what}: {code} {out}"
    for what, text in CLEAN.items():
        code, out = run(folder, text)
        assert code == 0 and not out, f"{what}: {code} {out}"
    # A file elsewhere may mean either.
    Path(folder, "else").mkdir()
    Path(folder, "else/script.py").write_text("from helpers import gone, there\nfrom helpers import neither\n")
    files = ("else/script.py", "helpers.py", "other/helpers.py")
    r = subprocess.run([sys.executable, SCRIPT, *files], cwd=folder, capture_output=True, text=True)
    assert r.stdout == "else/script.py:2: helpers.py has no neither\n", r.stdout
print("check_python: passed")
