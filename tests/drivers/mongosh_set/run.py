import os, subprocess, sys, tempfile
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here.parents[1] / "golden"))
from run import ROOT, Server

server = Server(os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd")), ("--replSet", "rs0"))
home = tempfile.mkdtemp()
try:
    out = subprocess.run(["node", os.environ["NODE_MODULES"] + "/mongosh/bin/mongosh.js", "--quiet",
                          f"mongodb://127.0.0.1:{server.port}/set_test?directConnection=true", "--file", str(here / "set.js")],
                         env=dict(os.environ, HOME=home), capture_output=True, text=True, timeout=120)
    print(out.stdout, out.stderr)
finally:
    clean = server.stop()
last = (out.stdout.strip().split("\n") or [""])[-1]
sys.exit(0 if clean and last.endswith(" 0 failed") else 1)
