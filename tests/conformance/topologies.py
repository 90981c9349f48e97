"""Servers for tests: a standalone, or a replica set of one or three members on free ports of this machine.

Test commands (fail points) are on. As a program: topologies.py NAME COMMAND…: runs COMMAND with MONGODB_URI set against
such servers; they must also stop cleanly.
"""

import os, subprocess, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
import run
from ports import free_port
from run import ROOT, Client, Server, launch
from waits import Deadline

BINARY = os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd"))
TEST_COMMANDS = ("--setParameter", "enableTestCommands=1")


def until(what, f, seconds=60):
    """Waits for a condition; the bound is a failure, not a pause."""
    v = run.until(f, seconds)
    assert v, f"waited {seconds} s for {what}"
    return v


class Single:
    def __init__(self):
        self.members = [Server(BINARY, TEST_COMMANDS)]
        self.uri = f"mongodb://127.0.0.1:{self.members[0].port}/"

    def stop(self):
        return all([m.stop() for m in self.members])


class ReplicaSet(Single):
    def __init__(self, members):
        # Others must know a member's port, also before it is there again.
        self.members = [
            Server(BINARY, (*TEST_COMMANDS, "--replSet", "rs0", "--port", str(free_port()))) for _ in range(members)
        ]
        try:
            self.initiate()
        except BaseException:
            self.stop()
            raise
        self.uri = "mongodb://" + ",".join(f"127.0.0.1:{m.port}" for m in self.members) + "/?replicaSet=rs0"

    def initiate(self):
        reply = self.members[0].client.command(
            "admin",
            {
                "replSetInitiate": {
                    "_id": "rs0",
                    "members": [{"_id": i, "host": f"127.0.0.1:{m.port}"} for i, m in enumerate(self.members)],
                }
            },
        )
        if reply.get("ok") != 1:
            raise AssertionError(f"replSetInitiate: {reply}")
        until("a primary", self.primary)
        until("all members", lambda: all(self.state(m) in ("primary", "secondary") for m in self.members))

    @staticmethod
    def state(member):
        hello = member.client.command("admin", {"hello": 1})
        return "primary" if hello.get("isWritablePrimary") else "secondary" if hello.get("secondary") else None

    @staticmethod
    def kill(member):
        """kill -9."""
        member.proc.kill()
        member.proc.wait()
        member.client.sock.close()

    @staticmethod
    def restart(member):
        """A killed member again, on its port and directory."""
        member.proc, port = launch(BINARY, member.proc.args[1:], f"{member.dir}/out.log")
        if port is None:
            raise AssertionError(
                "the server did not start:\n" + open(f"{member.dir}/out.log", errors="replace").read()[-4000:]
            )
        member.client = Client("127.0.0.1", port)

    def primary(self):
        return next((m for m in self.members if m.proc.poll() is None and self.state(m) == "primary"), None)


def start(topology):
    return Single() if topology == "single" else ReplicaSet(3 if topology == "replicaset3" else 1)


def main():
    servers = start(sys.argv[1])
    try:
        env = dict(os.environ, MONGODB_URI=servers.uri)
        status = subprocess.run(sys.argv[2:], env=env, timeout=Deadline(900).seconds).returncode
        alive = all(m.proc.poll() is None for m in servers.members)
    finally:
        clean = servers.stop()
    if not alive or not clean:
        print("a server died\n0 passed, 1 failed" if not alive else "a server did not stop cleanly\n0 passed, 1 failed")
    return status if alive and clean else 1


if __name__ == "__main__":
    sys.exit(main())
