#!/usr/bin/env python3
"""Runs golden files against a real server over a real socket.

  tests/golden/run.py [--binary build/release/mayflyd | --uri HOST:PORT] [--reference] [FILE_OR_FOLDER ...]

Golden files end in .test; another file in a folder that is given is an error (but Python's). Those in a folder
`replication` run, in the order of their names, on a member of a set of their own (--replSet rs0, not initiated at
first). --reference: the server of --uri is not Mayfly; files that say `only mayfly` are left out.

A golden file is a list of directives, each at the beginning of a line; every file gets a fresh database, named in texts
as <db>. A command may go on over several lines, up to an empty one, the next directive or its expected reply. A file:

  # name: tests/golden/find/limit.test
  # description: a find gives no more documents than its limit
  # group: [find]

  setup {"insert": "c", "documents": [{"_id": 1, "a": 2}, {"_id": 2, "a": 3}]}
  command {"find": "c", "sort": {"_id": 1}, "limit": 1}  # the first one
  ---- rows
  {"_id": 1, "a": 2}

  command error 2 BadValue {"find": "c", "limit": -1}

  # text
      A comment, and so is a line that begins with # in an expected reply; the first lines say name, description, group.
      Behind a directive ` # text` is one, too, if no double quote is in it.
  only mayfly
      The file uses what a reference server does not have (the clock, for one).
  clock 2030-01-01T00:00:00Z
      Sets the server's clock and freezes it.
  advance 60s
      Moves it (ms, s, m, h, d); returns when everything due is gone.
  sweep
      Runs one pass of the TTL monitor and returns when it is over.
  setup {command}
      The command must succeed; its reply is not compared.
  command {command}
      The command, then one of these lines and the expected reply below it; without one it must only succeed.
        ----                    the whole reply
        ---- has                what the reply must contain at least: of a document, in it and at any depth, the fields
                                that are given; of an array as many entries, each of which contains at least its own
        ---- rows [unordered]   the documents of cursor.firstBatch, one a line; no line: it has none
  command error [CODE] [NAME] {command}
      The command must fail with this code and code name. When its ok is 1, the first entry of writeErrors counts, which
      has a code but no name, and without one writeConcernError. A reply may be expected, too, with ---- or ---- has.
  eventually {command}
      As command, but asked again until the reply is as expected or a deadline has come: for what is written in the
      background.
  keep NAME PATH [+N]
      From here on "<NAME>" stands for what the last reply has at the dotted path (a number: and N more).
  expect-fail TEXT
      The next command is known to fail: that is reported, and is an error once it passes.

Before its document each command may have, in this order and behind `error`:
  db=NAME     it is sent to this database
  txn=A+      it begins a transaction of a session that is called A here
  txn=A       it goes on with that transaction

In expected replies "<any>" stands for any value, "<number>", "<string>", "<date>", "<uuid>", "<oid>" for any of the
type, "<missing>" for a field that must not be there. A plain number equals a number of any type; {"$numberLong": "1"}
and the like also check the type. Replies lose operationTime and $clusterTime before they are compared.
"""

import argparse, hashlib, json, os, re, signal, socket, struct, subprocess, sys, tempfile, threading
from pathlib import Path

import bson
from bson import json_util
from bson.codec_options import CodecOptions
from bson.int64 import Int64

import failed_parts
import golden_file
import own
from ports import free_port
from waits import Deadline, until

own.claim()
ROOT = Path(__file__).resolve().parents[2]
JSON = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    tz_aware=True,
    uuid_representation=bson.binary.UuidRepresentation.STANDARD,
    datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_AUTO,
)
CODEC = CodecOptions(
    tz_aware=True,
    datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_AUTO,
    uuid_representation=bson.binary.UuidRepresentation.STANDARD,
)


class Client:
    """One connection; sends OP_MSG and reads the reply."""

    def __init__(self, host, port):
        self.sock = socket.create_connection((host, port), timeout=Deadline(120).seconds)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = 0

    def command(self, db, doc):
        doc = dict(doc)
        doc.setdefault("$db", db)
        self.send(bson.encode(doc, codec_options=CODEC))
        return self.reply()

    def send(self, body, **sequences):
        """A command in BSON, and lists of documents beside it, as drivers send them; reads no reply."""
        data = struct.pack("<I", 0) + b"\0" + body
        for name, documents in sequences.items():
            part = name.encode() + b"\0" + b"".join(bson.encode(d, codec_options=CODEC) for d in documents)
            data += b"\1" + struct.pack("<i", len(part) + 4) + part
        self.request += 1
        self.sock.sendall(struct.pack("<iiii", 16 + len(data), self.request, 0, 2013) + data)

    def reply(self):
        """To what was sent last."""
        answered = None
        while answered != self.request:  # before it may come what was given up when its time was over
            size, _, answered, op = struct.unpack("<iiii", self._read(16))
            data = self._read(size - 16)
        if op != 2013:
            raise AssertionError(f"reply opcode {op}")
        return bson.decode(data[5:], codec_options=CODEC)

    def _read(self, n):
        out = b""
        while len(out) < n:
            part = self.sock.recv(n - len(out))
            if not part:
                raise ConnectionError("server closed the connection")
            out += part
        return out


def initiate(client, host):
    """Makes a server the one member of a set and waits until it is primary: the reply to replSetInitiate. An error when
    it refuses, or does not become one."""
    reply = client.command("admin", {"replSetInitiate": {"_id": "rs0", "members": [{"_id": 0, "host": host}]}})
    if reply.get("ok") != 1:
        raise AssertionError(f"{host} refuses replSetInitiate: {show(reply)}")
    seen, deadline = {"hello": 1}, Deadline()
    while not (hello := client.command("admin", seen)).get("isWritablePrimary"):
        if not deadline.holds():
            raise AssertionError(f"{host} has not become primary in {deadline.took():.0f} s: {show(hello)}")
        seen = {"hello": 1, "topologyVersion": hello["topologyVersion"], "maxAwaitTimeMS": 1000}
    return reply


def launch(binary, args, log_path, stdin=None):
    """Starts a mayflyd on a free port with its output in a file; returns (process, port) once it listens, (process,
    None) if it ended. It ends with this process, whatever ends that (own.py)."""
    wanted = 0
    if "--replSet" in args:  # its members must know the port beforehand
        wanted = free_port()
    proc = subprocess.Popen(
        [
            binary,
            "--port",
            str(wanted),
            "--nounixsocket",
            *([] if "--httpPort" in args else ["--httpPort", "0"]),
            *args,
        ],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    ready, port = threading.Event(), []

    def drain():
        with open(log_path, "ab", buffering=0) as log:
            for line in proc.stdout:
                log.write(line)
                if not port and b'"id":23016' in line:  # "Waiting for connections"
                    port.append(json.loads(line)["attr"]["port"])
                    ready.set()
        ready.set()

    proc.drain = threading.Thread(target=drain, daemon=True)
    proc.drain.start()
    ready.wait(Deadline().seconds)
    return proc, port[0] if port else None


# What the server writes by itself every so often, by the clock of the machine: no file may depend on when that falls.
# The clock of the files drives everything else (reaper, cursors, sessions).
QUIET = ("--setParameter", "writePeriodicNoops=false", "--setParameter", f"logicalSessionRefreshMillis={2**31 - 1}")


# Whatever keeps a thread that serves connections busy for longer than it is designed to is logged, with the command. It
# is time of that thread's processor (CLOCK_THREAD_CPUTIME_ID), not of the clock: other programs do not stretch it, a
# sanitizer's build does. Ten times the design is a failure.
WATCHED_MICROS = 10_000
WATCHED = ("--setParameter", f"ioThreadWatchdogMicros={WATCHED_MICROS}")
HELD_MICROS = int(os.environ.get("MAYFLY_HELD_MICROS", str(10 * WATCHED_MICROS)))


def held(binary, log_path):
    """({command: (times, longest in microseconds)} of what held an io thread, those that did so for too long) by the
    server's output."""
    most = HELD_MICROS * (20 if re.search(r"/(asan|tsan|debug)/", str(Path(binary).resolve())) else 1)
    seen = {}
    with open(log_path, errors="replace") as f:
        for line in f:
            if '"id":9000115' not in line:
                continue
            try:
                attr = json.loads(line)["attr"]
            except ValueError:
                continue
            n, longest = seen.get(attr["command"], (0, 0))
            seen[attr["command"]] = n + 1, max(longest, attr["micros"])
    return seen, [c for c, (_, longest) in seen.items() if longest > most]


def report_held(seen):
    for command, (n, longest) in sorted(seen.items(), key=lambda e: -e[1][1]):
        print(f"     {command} held an io thread {n} times, {longest / 1000:.0f} ms at most", flush=True)


class Server:
    """A mayflyd of our own on a free port, with a movable clock."""

    def __init__(self, binary, extra=()):
        self.dir, self.binary = tempfile.mkdtemp(prefix="mayfly-golden-"), binary
        self.proc, self.port = launch(
            binary, ["--dbpath", f"{self.dir}/data", "--testClock", *QUIET, *WATCHED, *extra], f"{self.dir}/out.log"
        )
        if self.port is None:
            self.proc.kill()
            log = open(f"{self.dir}/out.log", errors="replace").read()
            said = own.why_not(self.proc.wait(), log)
            sys.exit("\n".join(["the server did not start:", log[-4000:], *said, "0 passed, 1 failed"]))
        self.client = Client("127.0.0.1", self.port)

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        try:
            code = self.proc.wait(Deadline().seconds)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            code = f"killed, because it did not end in {Deadline().seconds:.0f} s"
        self.proc.drain.join(Deadline().seconds)
        if code != 0:
            print(f"server exit: {code}\n" + open(f"{self.dir}/out.log", errors="replace").read()[-6000:])
        seen, too_long = held(self.binary, f"{self.dir}/out.log")
        report_held(seen)
        for command in too_long:
            print(f"FAIL {command} held a thread that serves connections for longer than {HELD_MICROS / 1000:.0f} ms")
        if code == 0:
            own.discard(self.dir)
        return code == 0 and not too_long


WILD = {
    "<any>": lambda v: True,
    "<number>": lambda v: isinstance(v, (int, float, bson.Decimal128)) and not isinstance(v, bool),
    "<string>": lambda v: isinstance(v, str),
    "<date>": lambda v: hasattr(v, "tzinfo") or isinstance(v, bson.DatetimeMS),
    "<uuid>": lambda v: type(v).__name__ == "UUID" or isinstance(v, bson.Binary),
    "<oid>": lambda v: isinstance(v, bson.ObjectId),
}


def difference(want, got, path="", subset=False):
    """None, or where the two differ."""
    if isinstance(want, str) and want in WILD:
        return None if WILD[want](got) else f"{path or 'reply'}: want {want}, got {show(got)}"
    if isinstance(want, dict) and isinstance(got, dict):
        wanted = [k for k in want if want[k] != "<missing>"]
        for k in want:
            if want[k] == "<missing>" and k in got:
                return f"{path}.{k}: should not be there, is {show(got[k])}"
        if subset:
            for k in wanted:
                if k not in got:
                    return f"{path}.{k}: missing"
        elif wanted != list(got):
            return f"{path or 'reply'}: fields {list(got)}, want {wanted}"
        for k in wanted:
            d = difference(want[k], got[k], f"{path}.{k}", subset)
            if d:
                return d
        return None
    if isinstance(want, list) and isinstance(got, list):
        if len(want) != len(got):
            return f"{path}: {len(got)} entries, want {len(want)}: {show(got)}"
        for i, (w, g) in enumerate(zip(want, got)):
            d = difference(w, g, f"{path}.{i}", subset)
            if d:
                return d
        return None
    numeric = (int, float)
    if isinstance(want, numeric) and not isinstance(want, (bool, Int64)):
        if isinstance(got, bson.Decimal128):
            ok = float(got.to_decimal()) == want
        else:
            ok = (
                isinstance(got, numeric)
                and not isinstance(got, bool)
                and (got == want or (got != got and want != want))
            )
    elif type(want) is type(got) or (isinstance(want, str) and isinstance(got, str)):
        ok = want == got
    else:
        ok = False
    return None if ok else f"{path or 'reply'}: want {show(want)}, got {show(got)}"


def show(v):
    try:
        return json_util.dumps(v, json_options=json_util.RELAXED_JSON_OPTIONS)[:1500]
    except Exception:
        return repr(v)[:1500]


def canonical_numbers(text):
    """Plain numbers stay plain; only $number… wrappers become typed."""
    return json_util.loads(text, json_options=JSON)


UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class File:
    def __init__(self, path, db, client, mayfly):
        self.path, self.db, self.client, self.mayfly = path, db, client, mayfly
        self.passed = self.failed = 0
        self.kept, self.last, self.numbers = {}, {}, {}

    def fail(self, line, why):
        self.failed += 1
        print(f"FAIL {os.path.relpath(self.path, ROOT)}:{line}: {why}")

    def send(self, text):
        db = self.db
        m = re.match(r"db=(\S+)\s+", text)
        if m:
            db, text = m.group(1).replace("<db>", self.db), text[m.end() :]
        more = {}
        if m := re.match(r"txn=(\w+)(\+?)\s+", text):
            more, text = self.transaction(m.group(1), bool(m.group(2))), text[m.end() :]
        self.last = self.client.command(db, {**canonical_numbers(self.fill(text)), **more})
        return dict(self.last)

    def transaction(self, name, begins):
        """What makes a command one of the transaction of the session of that name in this file."""
        self.numbers[name] = self.numbers.get(name, 0) + begins
        session = bson.Binary(hashlib.md5(f"{self.db}/{name}".encode()).digest(), 4)
        fields = {"lsid": {"id": session}, "txnNumber": Int64(self.numbers[name]), "autocommit": False}
        return {**fields, "startTransaction": True} if begins else fields

    def fill(self, text):
        """<db> and what was kept, as JSON: write "<NAME>" with its quotes."""
        text = text.replace("<db>", self.db)
        for name, value in self.kept.items():
            text = text.replace(f'"<{name}>"', json_util.dumps(value, json_options=JSON))
        return text

    def run(self):
        expect_fail = None
        try:
            directives = golden_file.parse(self.path.read_text())
        except golden_file.Malformed as e:
            return self.fail(e.line, e)
        for line, keyword, text, kind, expected in directives:
            try:
                if keyword == "only":
                    if text != "mayfly":
                        raise ValueError(f"only mayfly, not only {text}")
                    if not self.mayfly:
                        return
                elif keyword == "clock":
                    self.admin({"clock": {"freeze": True}})  # first, or time passes between the two
                    self.admin({"clock": {"set": canonical_numbers(json.dumps({"d": {"$date": text}}))["d"]}})
                elif keyword == "advance":
                    m = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
                    self.admin({"clock": {"advanceMillis": Int64(int(m.group(1)) * UNITS[m.group(2)])}})
                elif keyword == "sweep":
                    self.admin({"clock": {"pass": True}})
                elif keyword == "setup":
                    r = self.send(text)
                    if r.get("ok") != 1 or r.get("writeErrors"):
                        self.fail(line, f"setup failed: {show(r)}")
                elif keyword == "keep":
                    name, path, *more = text.split()
                    value = self.last
                    for part in path.split("."):
                        value = value[int(part)] if isinstance(value, list) else value[part]
                    self.kept[name] = value + int(more[0]) if more else value
                elif keyword == "expect-fail":
                    expect_fail = text
                else:
                    deadline = Deadline()
                    why = self.command(text, kind, expected)
                    while why and keyword == "eventually" and deadline.holds():
                        why = self.command(text, kind, expected)
                    if expect_fail is not None:
                        if why is None:
                            why = f"passes now, but is marked expect-fail {expect_fail}"
                        else:
                            print(f"known failure {self.path.name}:{line} ({expect_fail})")
                            why = None
                        expect_fail = None
                    if why:
                        self.fail(line, why)
                    else:
                        self.passed += 1
            except (ConnectionError, socket.timeout) as e:
                self.fail(line, f"connection lost: {e}")
                raise
            except Exception as e:  # a malformed file is a failure, not a crash of the run
                self.fail(line, f"{type(e).__name__}: {e}")
        if expect_fail is not None:
            self.fail(directives[-1][0], "expect-fail is of the next command, and none comes")

    def admin(self, doc):
        r = self.client.command("admin", doc)
        if r.get("ok") != 1:
            raise AssertionError(show(r))

    def command(self, text, kind, expected):
        error = golden_file.expected_error(text)
        reply = self.send(error[2] if error else text)
        for k in ("operationTime", "$clusterTime"):
            reply.pop(k, None)
        if error:
            if why := golden_file.wrong_error(reply, *error[:2]):
                return f"{why}: {show(reply)}"
        elif reply.get("ok") != 1:
            return f"failed: {show(reply)}"
        if expected is None:
            return None
        expected = self.fill(expected)
        if kind in (golden_file.ROWS, golden_file.UNORDERED):
            want = [canonical_numbers(l) for l in expected.split("\n") if l.strip()]
            got = reply["cursor"]["firstBatch"]
            if kind == golden_file.UNORDERED:
                order = lambda d: json_util.dumps(d, sort_keys=True)
                want, got = sorted(want, key=order), sorted(got, key=order)
            return difference(want, got, "rows")
        return difference(canonical_numbers(expected), reply, "", subset=(kind == golden_file.HAS))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--binary", default=str(ROOT / "build/release/mayflyd"))
    ap.add_argument("--uri", help="HOST:PORT of a server that runs already")
    ap.add_argument("--reference", action="store_true", help="the server is not Mayfly: leave out files that say so")
    ap.add_argument("files", nargs="*")
    a = ap.parse_args()
    paths, no_golden_files = golden_file.files(a.files or [str(ROOT / "tests/golden")])
    server = None
    if a.uri:
        host, port = a.uri.split(":")
        client = Client(host, int(port))
    else:
        server = Server(a.binary)
        client = server.client
    passed = failed = 0
    standalone = server
    paths.sort(key=lambda p: p.parent.name == "replication")  # last, on another server
    again = failed_parts.wanted()
    part = lambda p: "replication" if p.parent.name == "replication" else str(p)  # those build on one another
    paths = [p for p in paths if again is None or part(p) in again]
    for n, path in enumerate(paths):
        if standalone and server is standalone and path.parent.name == "replication":
            server = Server(a.binary, ("--replSet", "rs0", "--oplogSize", "990"))
            client = server.client
        f = File(path, f"golden_{n}", client, not a.reference)
        try:
            f.run()
        except (ConnectionError, socket.timeout):
            if server and server.proc.poll() is not None:
                print("the server is gone:\n" + open(f"{server.dir}/out.log", errors="replace").read()[-6000:])
                server = Server(a.binary)
                client = server.client
            else:
                client = Client(host, int(port)) if a.uri else Client("127.0.0.1", server.port)
        else:
            client.command(f.db, {"dropDatabase": 1})
            client.command("admin", {"clock": "real"})
        passed, failed = passed + f.passed, failed + f.failed
        if f.failed:
            failed_parts.note(part(path), f.passed, f.failed)
    for error in no_golden_files:
        failed += 1
        failed_parts.note("*")
        print(f"FAIL {error}")
    failed_parts.end()
    if standalone and server is not standalone and not standalone.stop():
        failed += 1
        failed_parts.note("*")
        print("FAIL the standalone did not stop cleanly, or held a thread too long")
    if server and not server.stop():
        failed += 1
        failed_parts.note("*")
        print("FAIL the server did not stop cleanly, or held a thread too long")
    if passed + failed == 0:
        failed = 1
        print(f"FAIL nothing to run in {', '.join(map(str, a.files))}")
    if failed:
        for line in own.troubles():
            print(line)
    print(f"golden: {passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
