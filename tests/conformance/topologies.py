"""Servers for tests: a standalone, or a replica set on free ports."""
import os
from pathlib import Path

from run import Server

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd"))
TEST_COMMANDS = ("--setParameter", "enableTestCommands=1")


class Single:
    def __init__(self):
        self.server = Server(BINARY, TEST_COMMANDS)
        self.uri = f"mongodb://127.0.0.1:{self.server.port}/"

    def stop(self):
        return self.server.stop()


def start(topology):
    return {"single": Single}[topology]()
