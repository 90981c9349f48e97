#!/usr/bin/env python3
"""with_ports.py N COMMAND…: runs COMMAND, which starts servers itself, with N reserved ports in FREE_PORTS.

Whatever it has started and not ended goes with it, also when this process is killed.
"""

import os, subprocess, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
import own
from ports import free_port
from waits import Deadline

own.claim()
ports = ",".join(str(free_port()) for _ in range(int(sys.argv[1])))
patience = Deadline(600).seconds
try:
    sys.exit(subprocess.run(sys.argv[2:], env=dict(os.environ, FREE_PORTS=ports), timeout=patience).returncode)
except subprocess.TimeoutExpired:
    print(f"{sys.argv[2]} has not ended in {patience:.0f} s\n0 passed, 1 failed")
    sys.exit(1)
