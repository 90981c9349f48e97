#!/usr/bin/env python3
"""A whole server on disks that fail: power loss, a full disk, a directory that is read-only or in use, damaged files.

MAYFLY_POWER_ROUNDS (12) power losses; MAYFLY_SEED replays the random choices. Mounting a small file system needs root;
without it those cases are skipped, and say so.
"""

import os, shutil, signal, subprocess, tempfile, threading, time
from pathlib import Path

import fault_test
from fault_test import BINARY, ROOT, Checks, Client, Deadline, discard, figure, launch, rnd, skip, stop, until, wait_for

FAULTY = os.environ.get("MAYFLY_FAULT_SERVER", str(ROOT / "build/release/tests/fault_server"))
ROUNDS = int(os.environ.get("MAYFLY_POWER_ROUNDS", "12"))
check = Checks(quiet=True)
work = tempfile.mkdtemp(prefix="mayfly-disk-")


def start(data, binary=BINARY, extra=()):
    return fault_test.start(
        data, *extra, binary=binary, stdin=subprocess.PIPE
    )  # by which a faulty disk is told what to do


def tell(proc, line):
    proc.stdin.write(line.encode() + b"\n")
    proc.stdin.flush()


def refused(data, name):
    """Starts a server that must not start; its exit code must be 100 and its log must name `name`."""
    log = f"{work}/refused.log"
    if os.path.exists(log):
        os.remove(log)
    proc, port = launch(BINARY, ["--dbpath", data], log)
    if port is not None:
        stop(proc)
        return f"it started, and should have named {name}"
    code, text = proc.wait(Deadline().seconds), open(log, errors="replace").read()
    if code != 100:
        return f"exit code {code}, want 100: {text[-1500:]}"
    return None if name in text else f"{name} is not named: {text[-1500:]}"


def all_ids(c, coll="docs"):
    out, reply = {}, c.command("disk", {"find": coll, "batchSize": 100000})
    while True:
        cur = reply["cursor"]
        for d in cur.get("firstBatch", cur.get("nextBatch")):
            out[d["_id"]] = d
        if not cur["id"]:
            return out
        reply = c.command("disk", {"getMore": cur["id"], "collection": coll, "batchSize": 100000})


def lose_power():
    """Every write acknowledged with j: true is there afterwards, and whatever the same client was told before it; and
    every collection."""
    data = f"{work}/power"
    proc, c = start(data, FAULTY)
    c.command("disk", {"createIndexes": "docs", "indexes": [{"key": {"v": 1}, "name": "v"}]})
    sure, kept, collections = -1, -1, set()
    n = 0
    for round_no in range(ROUNDS):
        killer = threading.Timer(rnd.uniform(0.03, 0.4), tell, (proc, "power"))  # at any moment: that is the test
        killer.start()
        acknowledged = 0
        try:
            while True:
                j = rnd.random() < 0.2
                if rnd.random() < 0.02:
                    name = f"made{n}"
                    if c.command("disk", {"create": name})["ok"] == 1:
                        collections.add(name)
                r = c.command(
                    "disk",
                    {
                        "insert": "docs",
                        "documents": [{"_id": n, "v": n % 10, "pad": "x" * 300}],
                        "writeConcern": {"j": j},
                    },
                )
                if r["ok"] != 1 or r.get("n") != 1:
                    break  # the power goes: the server sees its disk vanish
                acknowledged += 1
                if j:
                    sure = n
                n += 1
        except (ConnectionError, OSError):
            pass
        killer.join()
        code = proc.wait(Deadline().seconds)
        check(code == 9, f"power round {round_no}: exit code {code}")
        proc, c = start(data, FAULTY)
        there = all_ids(c)
        lost = [i for i in range(sure + 1) if i not in there and i not in skipped]
        check(not lost, f"power round {round_no}: lost {lost[:10]} of what came up to a j: true write {sure}")
        names = {
            x["name"]
            for x in c.command("disk", {"listCollections": 1, "nameOnly": True, "cursor": {"batchSize": 10000}})[
                "cursor"
            ]["firstBatch"]
        }
        check(collections <= names, f"power round {round_no}: collections are gone: {collections - names}")
        v = c.command("disk", {"validate": "docs", "full": True})
        check(v.get("valid") is True, f"power round {round_no}: validate: {str(v)[:1500]}")
        # What was lost without j: true may be lost; it is not asked for again.
        skipped.update(i for i in range(sure + 1, n + 1) if i not in there)
        sure, n = n, n + 1
    check(stop(proc) == 0, "power: clean stop")


skipped = set()


def fill_until_full(c, pad, coll="docs"):
    """Inserts until the disk is full; returns how many documents were acknowledged and the error."""
    for n in range(1_000_000):
        r = c.command("disk", {"insert": coll, "documents": [{"_id": n, "pad": pad}], "writeConcern": {"j": True}})
        if r["ok"] != 1 or r.get("writeErrors"):
            return n, (r if r["ok"] != 1 else r["writeErrors"][0])
    return n, {}


def full_disk(name, c, make_room):
    pad = os.urandom(16000)  # does not compress
    n, error = fill_until_full(c, pad)
    check(error.get("code") == 14031, f"{name}: writes on a full disk: {str(error)[:500]}")
    check(len(all_ids(c)) == n, f"{name}: reads go on, with what was acknowledged and nothing else")
    check(c.command("disk", {"count": "docs"})["n"] == n, f"{name}: the count")
    make_room()
    ok = until(lambda: c.command("disk", {"insert": "docs", "documents": [{"_id": "again"}]}).get("n") == 1)
    check(ok, f"{name}: writing goes on when there is room")
    v = c.command("disk", {"validate": "docs", "full": True})
    check(v.get("valid") is True and v.get("nrecords") == n + ok, f"{name}: validate: {str(v)[:1500]}")


def full_disks():
    proc, c = start(f"{work}/full", FAULTY)
    c.command("disk", {"insert": "docs", "documents": [{"_id": "first"}]})
    c.command("disk", {"delete": "docs", "deletes": [{"q": {}, "limit": 0}]})
    tell(proc, "free 3000000")
    full_disk("full disk", c, lambda: tell(proc, "free none"))
    check(stop(proc) == 0, "full disk: clean stop")
    small = f"{work}/small"
    os.mkdir(small)
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", small], stderr=subprocess.DEVNULL).returncode
        != 0
    ):
        skip("a full file system", "mounting one needs root")
        return
    try:
        with open(f"{small}/filler", "wb") as f:
            f.write(b"x" * (48 << 20))
        proc, c = start(f"{small}/data")
        full_disk("full file system", c, lambda: os.remove(f"{small}/filler"))
        check(stop(proc) == 0, "full file system: clean stop")
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        why = refused(f"{small}/data", f"{small}/data")
        check(why is None, f"read-only file system: {why}")
    finally:
        subprocess.run(["umount", "-l", small])


def in_use():
    data = f"{work}/used"
    proc, c = start(data)
    c.command("disk", {"insert": "docs", "documents": [{"_id": 1}]})
    why = refused(data, data)
    check(why is None, f"a second process: {why}")
    check(c.command("disk", {"count": "docs"})["n"] == 1, "the first process goes on")
    check(stop(proc) == 0, "in use: clean stop")


def not_a_directory():
    path = f"{work}/plain-file"
    Path(path).write_text("x")
    why = refused(path, path)
    check(why is None, f"a file as the data directory: {why}")
    if os.geteuid() != 0:
        os.mkdir(f"{work}/locked", 0o500)
        why = refused(f"{work}/locked", f"{work}/locked")
        check(why is None, f"a read-only directory: {why}")
    else:
        skip("a read-only directory", "root may write everywhere")


def damaged_files():
    good = f"{work}/good"
    proc, c = start(good)
    for i in range(40):
        c.command("disk", {"insert": "docs", "documents": [{"_id": f"{i}-{k}", "pad": "y" * 500} for k in range(50)]})
    c.command("admin", {"fsync": 1})  # into table files
    for i in range(400):
        c.command("disk", {"insert": "docs", "documents": [{"_id": i, "pad": "x" * 500}]})
    proc.send_signal(signal.SIGKILL)  # what came last is in the log only
    proc.wait(Deadline().seconds)

    def files(prefix="", suffix=""):
        return sorted(
            f
            for f in os.listdir(good)
            if f.startswith(prefix) and f.endswith(suffix) and os.path.getsize(f"{good}/{f}") > 0
        )

    def flip(path, at):
        with open(path, "r+b") as f:
            f.seek(at)
            b = f.read(1)
            f.seek(at)
            f.write(bytes([b[0] ^ 0x5A]))

    biggest = max(files(suffix=".sst"), key=lambda f: os.path.getsize(f"{good}/{f}"))
    log = max(files(suffix=".log"), key=lambda f: os.path.getsize(f"{good}/{f}"))
    manifest = files(prefix="MANIFEST")[-1]
    damages = {
        "a table file that is gone": (biggest, os.remove),
        "a table file cut in half": (biggest, lambda p: os.truncate(p, os.path.getsize(p) // 2)),
        "a byte of the manifest": (manifest, lambda p: flip(p, os.path.getsize(p) // 2)),
        "a manifest that is gone": (manifest, os.remove),
        "CURRENT with nonsense": ("CURRENT", lambda p: Path(p).write_text("nonsense\n")),
        "a byte in the middle of the log": (log, lambda p: flip(p, os.path.getsize(p) // 2)),
    }
    for what, (name, damage) in damages.items():
        copy = f"{work}/damaged"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(good, copy)
        damage(f"{copy}/{name}")
        why = refused(copy, name)
        check(why is None, f"{what}: {why}")
    # A damaged block is met when it is read: that operation fails and names the file, others go on.
    copy = f"{work}/damaged"
    shutil.rmtree(copy)
    shutil.copytree(good, copy)
    flip(f"{copy}/{biggest}", 200)
    proc, c = start(copy)
    r = c.command("disk", {"find": "docs", "batchSize": 100000})
    check(r["ok"] != 1 and r.get("code") == 1 and biggest in r.get("errmsg", ""), f"a damaged block: {str(r)[:500]}")
    check(c.command("admin", {"ping": 1})["ok"] == 1, "a damaged block: the connection goes on")
    check(
        c.command("disk", {"find": "docs", "filter": {"_id": 7}})["cursor"]["firstBatch"],
        "a damaged block: other documents are read",
    )
    stop(proc)
    # The untouched directory opens, with everything.
    proc, c = start(good)
    check(len(all_ids(c)) == 2400, "the untouched directory opens")
    check(stop(proc) == 0, "damage: clean stop")


def hung_disk_at_the_end():
    """A write waits for a disk that does not answer when SIGTERM comes: the process ends all the same, and what was
    acknowledged is there."""
    data = f"{work}/hung"
    proc, c = start(data, FAULTY)
    c.command("disk", {"insert": "docs", "documents": [{"_id": i} for i in range(100)], "writeConcern": {"j": True}})
    tell(proc, "slow 600000")

    def write():
        try:
            Client("127.0.0.1", proc.port).command(
                "disk", {"insert": "docs", "documents": [{"_id": 1000}], "writeConcern": {"j": True}}
            )
        except OSError:
            pass  # the process ended

    waiting = threading.Thread(target=write)
    waiting.start()
    wait_for(lambda: len(all_ids(c)) == 101)
    began = time.monotonic()
    proc.send_signal(signal.SIGTERM)
    code = proc.wait(Deadline(120).seconds)
    figure("the end on a hung disk", time.monotonic() - began, "s")
    waiting.join()
    check(code == 14, f"a hung disk: exit code {code}")
    proc, c = start(data)
    check(set(range(100)) <= set(all_ids(c)), "a hung disk: what was acknowledged is there")
    check(stop(proc) == 0, "a hung disk: clean stop")


try:
    lose_power()
    hung_disk_at_the_end()
    full_disks()
    in_use()
    not_a_directory()
    damaged_files()
finally:
    discard(work)
check.end("disk")
