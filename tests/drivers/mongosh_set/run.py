"""mongosh's rs.* helpers: on a set of one member (set.js), and on one of three (three.js)."""

import os, subprocess, sys, tempfile
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here.parents[1] / "golden"))
from run import ROOT, Server
from own import discard
from waits import Deadline

BINARY = os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd"))


def run(script, count):
    """Whether the script on so many servers, and their end, went well; and what it counted."""
    servers = [Server(BINARY, ("--replSet", "rs0")) for _ in range(count)]
    home = tempfile.mkdtemp()
    try:
        out = subprocess.run(
            [
                "node",
                os.environ["NODE_MODULES"] + "/mongosh/bin/mongosh.js",
                "--quiet",
                f"mongodb://127.0.0.1:{servers[0].port}/set_test?directConnection=true",
                "--file",
                str(here / "checks.js"),
                "--file",
                str(here / script),
            ],
            env=dict(os.environ, HOME=home, HOSTS=",".join(f"127.0.0.1:{s.port}" for s in servers)),
            capture_output=True,
            text=True,
            timeout=Deadline(600).seconds,
        )
        print(out.stdout, out.stderr)
    finally:
        clean = all([s.stop() for s in servers])
        if clean:
            discard(home)
    last = (out.stdout.strip().split("\n") or [""])[-1].split()
    if len(last) < 4 or last[2] != "passed," or not clean:
        return 0, 1
    return int(last[1]), int(last[3])


results = [run("set.js", 1), run("three.js", 3)]
passed, failed = (sum(r[i] for r in results) for i in (0, 1))
print(f"mongosh_set: {passed} passed, {failed} failed")
sys.exit(failed > 0)
