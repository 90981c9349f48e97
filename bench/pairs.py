#!/usr/bin/env python3
"""Processor time of the same operations on two binaries that take turns, each with a server and data of its own: what
else the machine does meets both.

    bench/pairs.py BEFORE AFTER [--rounds N] [--seconds S] [--connections N] [--load PATH]
    -- OPTION…    behind all of it: options of both servers

A round is one run of mayfly_load on each of them, now one first and now the other. Shown are the medians of the
server's processor time for an operation, the median of the rounds' ratios, and the ratios of all rounds.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/golden")]
from run import launch


def measured(load, proc, port, seconds, connections):
    """{workload: microseconds of the server's processor time for an operation}."""
    command = [load, "--port", str(port), "--pid", str(proc.pid), "--seconds", seconds, "--connections", connections]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "ERRORS" in out:
        sys.exit(out)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| ")]
    return {r[0]: float(r[7]) for r in rows[1:] if re.fullmatch(r"[\d.]+", r[7])}


def middle(values):
    return sorted(values)[len(values) // 2]


def main():
    args, options = sys.argv[1:], []
    if "--" in args:
        at = args.index("--")
        args, options = args[:at], args[at + 1 :]
    value = lambda name, otherwise: args[args.index(name) + 1] if name in args else otherwise
    binaries = args[:2]
    load = value("--load", str(ROOT / "build/release/bench/mayfly_load"))
    if len(binaries) < 2 or not all(os.access(b, os.X_OK) for b in [*binaries, load]):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-pairs-") as folder:
        servers = [launch(b, ["--dbpath", f"{folder}/{i}", *options], f"{folder}/{i}.log")
                   for i, b in enumerate(binaries)]  # fmt: skip
        rounds = []
        try:
            for n in range(int(value("--rounds", "5"))):
                both = {}
                for side in (0, 1) if n % 2 == 0 else (1, 0):
                    both[side] = measured(load, *servers[side], value("--seconds", "1"), value("--connections", "8"))
                rounds.append((both[0], both[1]))
        finally:
            for proc, _ in servers:
                proc.send_signal(signal.SIGTERM)
                proc.wait(60)
    print("| operation | before, us | after, us | after / before | of each round |\n| --- | ---: | ---: | ---: | --- |")
    for row in rounds[0][0]:
        before, after = ([r[side][row] for r in rounds] for side in (0, 1))
        ratios = [a / b for a, b in zip(after, before)]
        each = ", ".join(f"{r:.2f}" for r in ratios)
        print(f"| {row} | {middle(before):.2f} | {middle(after):.2f} | {middle(ratios):.2f} | {each} |")


main()
