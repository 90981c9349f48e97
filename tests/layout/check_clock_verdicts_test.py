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
    "a clock by another name": ("a.py", "from time import monotonic as now\nb = now()\nassert now() - b < 5\n", [3]),
    "a module by another name": ("a.py", "import time as t\nb = t.time()\nassert t.time() - b < 5\n", [3]),
    "datetime": ("a.py", "b = datetime.now()\nf()\nassert datetime.datetime.now() - b < limit\n", [3]),
    "a dict": ("a.py", "import time\nd = {'a': time.monotonic()}\nassert d['a'] < 3\n", [3]),
    "an entry": ("a.py", "import time\nd = {}\nd['a'] = time.monotonic()\nassert d['a'] < 3\n", [4]),
    "timeout=": ("a.py", "subprocess.run(a, timeout=30)\n", [1]),
    "timeout= of its own": ("a.py", "def f(a, timeout=30):\n    pass\n", [1]),
    "wait": ("a.py", "proc.wait(3)\n", [1]),
    "join": ("a.py", "t.join(2)\nassert not t.is_alive()\n", [1]),
    "settimeout": ("a.py", "s.settimeout(0.2)\n", [1]),
    "of a driver": ("a.py", "c = MongoClient(u, serverSelectionTimeoutMS=5000)\n", [1]),  # clock: a text to look at
    "of a driver, in a dict": ("a.py", "o = {k: 1, 'socketTimeoutMS': 3000}\n", [1]),
    "of a driver, in an address": (
        "a.py",
        "u = 'mongodb://h/?serverSelectionTimeoutMS=3000'\n",  # clock: a text to look at
        [1],
    ),  # clock: a text to look at
    "C++, several lines": (
        "a.cc",
        "const auto began = steady_clock::now();\nCHECK(std::chrono::duration_cast<std::chrono::seconds>(\n"
        "          steady_clock::now() - began)\n          .count() < 5);\n",
        [4],
    ),
    "C++, a clock of the server": ("a.cc", "SystemClock clock;\nCHECK(clock.Now() - began < 100);\n", [2]),
    "C++, a future": ("a.cc", "REQUIRE(f.wait_for(std::chrono::seconds(5)) == std::future_status::ready);\n", [1]),
    "C++, a condition": ("a.cc", "CHECK(cv.wait_for(l, 5s, [&] {\n  return done;\n}));\n", [1]),
    "C++, an io_context": ("a.cc", "f();\nio.run_for(std::chrono::seconds(20));\n", [2]),
    "C": ("a.c", "time_t end = time(NULL) + 15;\nwhile (left && time(NULL) < end) left = f();\n", [2]),
    "shell": ("run", 'end=$((SECONDS + 5))\nwhile [ "$SECONDS" -lt "$end" ]; do f; done\n', [2]),
    "shell, date": ("a.sh", "[ $(date +%s) -lt 5 ]\n", [1]),
    "Perl": ("a.pl", "my $end = time + 5;\nf() while time < $end;\n", [2]),
    "JavaScript, a time-out": ("a.mjs", "new MongoClient(u, { serverSelectionTimeoutMS: 15000 });\n", [1]),
    "JavaScript, of a page": ("a.mjs", "await p.waitFor({ timeout: 5_000 });\n", [1]),
    "JavaScript, in an address": (
        "a.mjs",
        "const u = `${h}/?serverSelectionTimeoutMS=20000`;\n",  # clock: a text to look at
        [1],
    ),  # clock: a text to look at
    "Go, a time-out": ("a.go", "o.SetServerSelectionTimeout(15 * time.Second)\n", [1]),
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
    "a minute": ("a.py", "subprocess.run(a, timeout=600)\nproc.wait(60)\n"),
    "a deadline of the machine": ("a.py", "proc.wait(Deadline().seconds)\n"),
    "a poll": ("a.py", "s.settimeout(0)\n"),
    "a wait with a reason": ("a.py", "s.settimeout(0.2)  # clock: polls until a deadline\n"),
    "what is no wait": ("a.py", "','.join(words)\nx = {'wtimeout': 500, 'maxTimeMS': 5}\n"),
    "C++, a clock of the test": ("a.cc", "ManualClock clock;\nCHECK(clock.Now() < 100);\n"),
    "C++, until a deadline": ("a.cc", "CHECK(f.wait_until(Deadline().at) == ready);\n"),
    "C++, of several statements": ("a.cc", "const auto at = steady_clock::now();\nCHECK(n < 5);\n"),
    "Perl, a name": ("a.pl", "if ($time < 5) { f({ time => 1 }); }\n"),
    "JavaScript, a driver's minute": ("a.mjs", "new MongoClient(u, { serverSelectionTimeoutMS: patience });\n"),
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
