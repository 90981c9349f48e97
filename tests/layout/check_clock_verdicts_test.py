#!/usr/bin/env python3
"""What scripts/lib/check_clock_verdicts.py must find, and what it must leave alone."""

import subprocess, sys, tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/lib/check_clock_verdicts.py"
FOUND = {  # name: (file name, text, lines)
    "a difference": ("a.py", "import time\nb = time.monotonic()\nassert time.monotonic() - b < 5\n", [3]),
    "a variable": ("a.py", "import time\nb = time.time()\nx = time.time() - b\nif x > 2:\n    pass\n", [4]),
    "of a tuple": ("a.py", "import time\nx, n = time.monotonic(), 3\nassert n > 2\nassert x < 2\n", [4]),
    "an attribute": (
        "a.py",
        "import time\nclass A:\n    def f(self):\n"
        "        self.late = max(self.late, time.perf_counter())\na = A()\ncheck(a.late < 1, '')\n",
        [6],
    ),
    "a list": ("a.py", "import time\ngiven = []\ngiven.append(time.monotonic())\nassert sorted(given)[0] <= 1\n", [4]),
    "what a function gives": (
        "a.py",
        "import time\ndef f():\n    return time.monotonic()\nassert f() < 3\n",
        [4],
    ),
    "shared by processes": (
        "a.py",
        "import time\ndef f(v):\n    v.value = max(v.value, time.monotonic())\n    return v.value > 1\n",
        [4],
    ),
    "by its name": ("a.py", "def f(took):\n    return took < 3\n", [2]),
    "a deadline": ("a.py", "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end:\n    f()\n", [3]),
    "dates": ("a.py", "check((a - b).total_seconds() > 1.9, '')\n", [1]),
    "C++": (
        "a.cc",
        "auto begin = std::chrono::steady_clock::now();\nCHECK(steady_clock::now() - begin < 5s);\n",
        [2],
    ),
    "C++, a variable": (
        "a.cc",
        "const int64_t took = clock.MonotonicMicros() - begin;\nf();\nif (took >= 3) FAIL();\n",
        [3],
    ),
    "JavaScript": ("a.mjs", "const begin = Date.now();\nf();\nassert.ok(Date.now() - begin < 30000);\n", [3]),
    "Go": ("a.go", "end := time.Now()\n\nif time.Now().After(end) {\n", [3]),
    "Java": ("a.java", "long end = System.nanoTime();\nwant(System.nanoTime() < end);\n", [2]),
    "Rust": ("a.rs", "let end = Instant::now();\nwant(Instant::now() < end)?;\n", [2]),
}
LEFT = {
    "a reason": ("a.py", "import time\nb = time.time()\nassert time.time() - b > 1  # clock: at least\n"),
    "a reason behind a call of several lines": (
        "a.py",
        "check(\n    took > 2\n    and more,\n    'x',\n)  # clock: at least\n",
    ),
    "a name of another function": (
        "a.py",
        "import time\ndef f():\n    end = time.time()\ndef g(end):\n    return end < 3\n",
    ),
    "a count": ("a.py", "import time\ngiven = [time.time()]\nassert len(given) > 3\n"),
    "a figure": ("a.py", "import time\nb = time.time()\nfigure('x', time.time() - b)\n"),
    "an id": ("a.py", "import time\nkey = f'{time.monotonic_ns()}'\nassert key > 'a'\n"),
    "equality": ("a.py", "import time\nb = time.time()\nassert b == b\n"),
    "C++, a template": ("a.cc", "std::vector<std::chrono::steady_clock::time_point> seen;\n"),
    "C++, a reason": ("a.cc", "return steady_clock::now() < at;  // clock: a deadline that only a hang misses\n"),
    "C++, a comment": ("a.cc", "// steady_clock::now() < at would be one\n"),
    "JavaScript, a date": ("a.js", "const at = new Date(Date.now() - 1000);\nc.find((d) => d.at);\n"),
}


def lines_of(name, text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        out = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True)
        assert not out.stderr, out.stderr
        return [int(line.split(":")[1]) for line in out.stdout.splitlines()]


wrong = []
for what, (name, text, want) in FOUND.items():
    got = lines_of(name, text)
    if got != want:
        wrong.append(f"{what}: {got}, want {want}")
for what, (name, text) in LEFT.items():
    got = lines_of(name, text)
    if got:
        wrong.append(f"{what}: {got} is none")
for w in wrong:
    print(w)
print(f"check_clock_verdicts: {len(FOUND) + len(LEFT) - len(wrong)} passed, {len(wrong)} failed")
sys.exit(bool(wrong))
