#!/usr/bin/env python3
"""with_server.py COMMAND…: starts a mayflyd of its own, runs COMMAND with MONGODB_URI and HTTP_URL set, stops the
server. FREE_PORTS has a few ports for what the command starts itself (golden/ports.py).

The server must also stop cleanly. The command's last line says "N passed, N failed".
"""

import os, subprocess, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from ports import free_port
from run import ROOT, Server
from waits import Deadline

http_port = free_port()
server = Server(os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd")), ["--httpPort", str(http_port)])
try:
    env = dict(
        os.environ,
        MONGODB_URI=f"mongodb://127.0.0.1:{server.port}/",
        MONGODB_PORT=str(server.port),
        FREE_PORTS=",".join(str(free_port()) for _ in range(4)),
        HTTP_URL=f"http://127.0.0.1:{http_port}",
    )
    status = subprocess.run(sys.argv[1:], env=env, timeout=Deadline(600).seconds).returncode
    alive = server.proc.poll() is None
finally:
    clean = server.stop()
if not alive:
    print("the server died\n0 passed, 1 failed")
elif not clean:
    print("the server did not stop cleanly\n0 passed, 1 failed")
sys.exit(status if alive and clean else 1)
