"""Instructions of a server in user space, counted by callgrind: the machine may be busy."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from fault_test import Client, free_port


def annotated(file, inclusive):
    """(instructions, function) of a file that callgrind wrote, with those of what it calls if `inclusive`, and the sum
    as "PROGRAM TOTALS"."""
    text = subprocess.run(
        ["callgrind_annotate", *(["--inclusive=yes"] if inclusive else ["--auto=no"]), "--threshold=100", file],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for line in text.splitlines():
        if found := re.match(r" *([\d,]+) \(.*?\) +(.*)", line):
            yield int(found[1].replace(",", "")), found[2]


class Counted:
    """A server under callgrind. `parts`: functions to look for, with all that they call, {what: text in the name}."""

    def __init__(self, binary, *flags, key=None, parts=None):
        self.parts = parts or {}
        self.folder = tempfile.mkdtemp(prefix="mayfly-bench-counted-")
        self.out, self.port = f"{self.folder}/out", free_port()
        if key:
            Path(self.folder, "key").write_text(key)
            os.chmod(f"{self.folder}/key", 0o600)
            flags = (*flags, "--keyFile", f"{self.folder}/key", "--replSet", "rs0")
        member = "--replSet" in flags
        command = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.out}"]
        command += [binary, "--port", str(self.port), "--dbpath", f"{self.folder}/data", "--nounixsocket", "--quiet"]
        command += ["--httpPort", "0", "--ioThreads", "1", *flags]
        with open(f"{self.folder}/log", "ab") as log:
            self.proc = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.nobody = self.until(lambda: Client("127.0.0.1", self.port))
        if member:
            self.nobody.command("admin", {"replSetInitiate": {"_id": "rs0", "members": [
                {"_id": 0, "host": f"127.0.0.1:{self.port}"}]}})  # fmt: skip
            self.until(lambda: self.nobody.command("admin", {"hello": 1}).get("isWritablePrimary"))

    def until(self, f):
        deadline = time.monotonic() + 120
        while True:
            try:
                if r := f():
                    return r
            except OSError:
                pass
            if self.proc.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: {Path(self.folder, 'log').read_text()[-2000:]}")
            time.sleep(0.1)  # sleeps: polls until a deadline

    def control(self, *what):
        subprocess.run(["callgrind_control", *what, str(self.proc.pid)], check=True, capture_output=True)

    def counted(self, act):
        """The files that callgrind writes of what all threads run while `act()` does; the caller removes them."""
        before = set(Path(self.folder).glob("out*"))
        self.control("--instr=on")
        self.control("--zero")
        act()
        self.control("--dump")
        self.control("--instr=off")
        return set(Path(self.folder).glob("out*")) - before

    def instructions(self, act):
        """Instructions that all threads run while `act()` does."""
        total = 0
        for p in self.counted(act):
            total += sum(int(n) for n in re.findall(r"^totals: (\d+)", p.read_text(), re.M))
            p.unlink()
        return total

    def count(self, client, command, n, then=None):
        """Instructions of one `command(i)` when it is repeated `n` times, with a share of `then` (a command), and those
        of the parts."""

        def act():
            for i in range(n):
                reply = client.command("shop", command(n + i))
                assert reply["ok"] == 1 and not reply.get("writeErrors"), reply
            if then:
                client.command("admin", then)

        for i in range(n // 4 + 1):
            client.command("shop", command(i))
        if then:
            client.command("admin", then)
        total, parts = 0, dict.fromkeys(self.parts, 0)
        for p in self.counted(act):
            for value, what in annotated(p, inclusive=True):
                if what.startswith("PROGRAM TOTALS"):
                    total += value
                for part, name in self.parts.items():
                    # A function has a line for each file whose lines are inlined in it; the largest has the others.
                    if name in what:
                        parts[part] = max(parts[part], value)
            p.unlink()
        return total / n, {part: value / n for part, value in parts.items()}

    def end(self):
        self.proc.send_signal(signal.SIGTERM)
        self.proc.wait(120)
        shutil.rmtree(self.folder, ignore_errors=True)
