"""What every fault test has: the server under test, a seed for its random choices, a count of what was looked at, the
start of a server.

MAYFLYD names another binary; MAYFLY_SEED replays the random choices of a run.
"""

import base64, fcntl, hashlib, hmac, json, os, random, signal, sys, threading, time
from pathlib import Path

from bson.binary import Binary

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
import failed_parts
import own
from certificates import certificate
from own import discard
from ports import free_port
from run import HELD_MICROS, ROOT, WATCHED, Client, held, initiate, launch, report_held
from waits import PATIENCE, Deadline, processor_seconds, until, wait_for

BINARY = os.environ.get("MAYFLYD", str(ROOT / "build/release/mayflyd"))
SEED = int(os.environ.get("MAYFLY_SEED", random.randrange(1 << 30)))
rnd = random.Random(SEED)


class Checks:
    """Counts what was looked at and prints it as it comes; `quiet`: only what failed, with the seed."""

    def __init__(self, quiet=False):
        self.passed = self.failed = 0
        self.quiet = quiet

    def __call__(self, ok, what):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        own.failed = own.failed or not ok
        if not self.quiet:
            print(("ok   " if ok else "FAIL ") + what, flush=True)
        elif not ok:
            print(f"FAIL {what} (seed {SEED})", flush=True)

    def end(self, name):
        """Prints the line that scripts/test reads, and ends the program. Nothing looked at is a failure."""
        if self.passed + self.failed == 0:
            self(False, f"{name}: nothing was checked")
        if self.failed:
            for line in own.troubles():
                print(line)
            own.keep()
        print(f"{name}: {self.passed} passed, {self.failed} failed")
        sys.exit(self.failed != 0)


def skip(what, why):
    """A part that cannot be run here: scripts/test shows it in its summary."""
    print(f"SKIPPED: {what}: {why}", flush=True)


FIGURES = Path(os.environ.get("MAYFLY_FIGURES", ROOT / "build/test-logs/figures.json"))


def figure(name, value, unit="ms"):
    """What a person wants to know and no verdict depends on: printed, and kept by the name of the run in FIGURES, into
    which other runs write as well."""
    print(f"     {name}: {value:,.1f} {unit}", flush=True)
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    with open(FIGURES, "a+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        try:
            kept = json.load(f)
        except ValueError:
            kept = {}  # the first, or a run was killed while it wrote
        run = Path(sys.argv[0]).stem.removesuffix("_run")
        kept.setdefault(run, {})[name] = {"value": round(value, 3), "unit": unit}
        f.truncate(0)
        json.dump(kept, f, indent=1, sort_keys=True)


def check_held(check, data):
    """That no command held an io thread of the server on `data`, which was started with WATCHED, for too long."""
    seen, too_long = held(BINARY, data + ".log")
    report_held(seen)
    check(not too_long, f"held a thread that serves connections too long: {', '.join(too_long)}")


def run_parts(name, parts, check):
    """Runs the parts (functions) that the command line names, or all of them; one that ends early has failed. Ends the
    program."""
    print(f"seed {SEED}")
    again = failed_parts.wanted()
    for part in parts:
        if part.__name__ not in (again if again is not None else sys.argv[1:] or [part.__name__]):
            continue
        print(f"     {part.__name__}", flush=True)
        passed, failed = check.passed, check.failed
        try:
            part()
        except Exception as e:
            check(False, f"{part.__name__} ended: {e!r}"[:3000])
        if check.failed > failed:
            failed_parts.note(part.__name__, check.passed - passed, check.failed - failed)
    failed_parts.end()
    check.end(name)


def random_moment(least, most):
    """A fault comes at any moment: within a span of seconds. The time that passes is the test's random choice here; no
    condition says when it has come."""
    time.sleep(rnd.uniform(least, most))  # sleeps: a random moment


class UntilGone(threading.Thread):
    """Takes one step after the other on a connection of its own until the server is gone. `seed`: of its own choices;
    each step that was acknowledged is to be counted, and no other."""

    def __init__(self, port, seed=None):
        super().__init__(daemon=True)
        self.port, self.rnd, self.acknowledged = port, random.Random(seed), 0

    def run(self):
        try:
            c = Client("127.0.0.1", self.port)
            while True:
                self.step(c)
        except (ConnectionError, OSError):
            pass


def wait_for_load(workers):
    """Waits until each UntilGone has had a step acknowledged: a fault before that meets nothing. An error if one does
    not come so far."""
    until(lambda: all(w.acknowledged or not w.is_alive() for w in workers))
    idle = sum(w.acknowledged == 0 for w in workers)
    assert not idle, f"no load: {idle} of {len(workers)} clients had nothing acknowledged (seed {SEED})"


def start(data, *options, binary=BINARY, stdin=None):
    """A server on a data directory, with its output beside it in `data`.log: the process, which knows its `port`, and a
    client."""
    proc, proc_port = launch(binary, ["--dbpath", data, *options], data + ".log", stdin=stdin)
    if proc_port is None:
        log = open(data + ".log", errors="replace").read()
        print(log[-5000:], *own.why_not(proc.poll(), log), sep="\n")
        sys.exit("the server did not start\n0 passed, 1 failed")
    proc.port = proc_port
    return proc, Client("127.0.0.1", proc_port)


def memory_kb(pid, what="VmRSS"):
    """KB of memory that a process has, as /proc/PID/status says: now, or (VmHWM) at most since it began or since
    forget_peak."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(what + ":"))


def memory_mb(pid, what="VmRSS"):
    return memory_kb(pid, what) // 1024


def forget_peak(pid):
    """VmHWM begins anew."""
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")


def kill(proc):
    proc.send_signal(signal.SIGKILL)
    proc.wait()


def stop(proc):
    """By SIGTERM; the exit code."""
    proc.send_signal(signal.SIGTERM)
    return proc.wait(Deadline().seconds)


def log_in(port, user, password, db="admin", client=None):
    """A connection that says what it is told to (`client`, or a new one), behind a login as RFC 7677 has it."""
    c = client or Client("127.0.0.1", port)
    bare = f"n={user},r={base64.b64encode(os.urandom(18)).decode()}"
    r = c.command(db, {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(f"n,,{bare}".encode())})
    challenged = bytes(r["payload"]).decode()
    part = dict(p.split("=", 1) for p in challenged.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(part["s"]), int(part["i"]))
    mac = lambda k, m: hmac.digest(k, m.encode(), "sha256")
    final = f"c=biws,r={part['r']}"
    signed = f"{bare},{challenged},{final}"
    key = mac(salted, "Client Key")
    proof = bytes(a ^ b for a, b in zip(key, mac(hashlib.sha256(key).digest(), signed)))
    final += ",p=" + base64.b64encode(proof).decode()
    r = c.command(db, {"saslContinue": 1, "conversationId": r["conversationId"], "payload": Binary(final.encode())})
    assert r["ok"] == 1, r
    check_signature = base64.b64encode(mac(mac(salted, "Server Key"), signed)).decode()
    assert bytes(r["payload"]).decode() == f"v={check_signature}", r
    r = c.command(db, {"saslContinue": 1, "conversationId": r["conversationId"], "payload": Binary(b"")})
    assert r["ok"] == 1 and r["done"] is True, r
    return c
