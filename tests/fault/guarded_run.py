#!/usr/bin/env python3
"""What a server guards by itself: collections that are a client's however they are named, files that are its user's
alone, a clock that is far ahead at start-up, an audit log that cannot be written, a small cgroup.

MAYFLY_SEED replays the random choices.
"""

import os, stat, subprocess, tempfile, threading, time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from fault_test import (
    BINARY,
    Checks,
    Deadline,
    forget_peak,
    free_port,
    kill,
    memory_mb,
    rnd,
    run_parts,
    skip,
    start,
    stop,
    until,
    wait_for,
)

check = Checks()
BUILD_MB = 500  # what docs/limits.md says of a build
LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)


def folder():
    return tempfile.mkdtemp(prefix="mayfly-guarded-")


def connect(proc, **options):
    return pymongo.MongoClient("127.0.0.1", proc.port, directConnection=True, retryWrites=False, **options)


def names(replica_set=None):
    """A client may name a collection as $out names its own: it expires as any other and outlives a restart. What an
    $out has left does not."""
    data = folder() + "/data"
    options = ["--replSet", "rs0"] if replica_set else []
    proc, _ = start(data, *options)
    client = connect(proc)
    if replica_set:
        client.admin.command(
            "replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{proc.port}"}]}
        )
    wait_for(lambda: client.admin.command("hello")["isWritablePrimary"])
    where = "on a set" if replica_set else "on a standalone"
    mine = ["tmp.agg_out.5f0c0ffee0ddba11decaf000", "tmp.convertToCapped.x", "tmp.mr.y"]
    for name in mine:
        client.t[name].create_index("at", expireAfterSeconds=0)
        client.t[name].insert_many([{"_id": 1}, {"_id": 2, "at": LONG_AGO}])
    check(
        all(until(lambda: client.t[n].count_documents({}) == 1) for n in mine),
        f"documents of collections with odd names expire {where}",
    )
    client.t.big.insert_many([{"_id": i, "text": "x" * 200} for i in range(60000)])
    done = threading.Event()

    def out():
        try:
            client.t.big.aggregate([{"$addFields": {"a": {"$range": [0, 20]}}}, {"$out": "copy"}])
        except PyMongoError:
            pass
        done.set()

    threading.Thread(target=out, daemon=True).start()
    temporary = lambda: [c for c in client.t.list_collection_names() if c.startswith("tmp.") and c not in mine]
    check(
        until(lambda: temporary() or done.is_set()) and not done.is_set(),
        f"the process is killed while $out writes {where}",
    )
    kill(proc)
    proc, _ = start(data, *options)
    client = connect(proc)
    wait_for(lambda: client.admin.command("hello")["isWritablePrimary"])
    check(until(lambda: not temporary()), f"what that $out wrote is gone after a restart {where}: {temporary()}")
    check(
        sorted(mine) == sorted(c for c in client.t.list_collection_names() if c.startswith("tmp.")),
        f"the client's own collections are there {where}",
    )
    check(all(client.t[n].count_documents({}) == 1 for n in mine), f"and so are their documents {where}")
    client.t.big.aggregate([{"$limit": 2}, {"$out": mine[0]}])
    check(client.t[mine[0]].count_documents({}) == 2, f"$out may write to such a name {where}")
    client.t[mine[0]].create_index("at", expireAfterSeconds=0)
    client.t[mine[0]].insert_one({"_id": "due", "at": LONG_AGO})
    check(
        until(lambda: not client.t[mine[0]].count_documents({"_id": "due"})),
        f"and what it wrote expires once it is there {where}",
    )
    check(stop(proc) == 0, f"it stops {where}")


def names_on_a_set():
    names(replica_set=True)


def open_to_others(root):
    return [str(p) for p in [Path(root), *Path(root).rglob("*")] if stat.S_IMODE(p.lstat().st_mode) & 0o077]


def permissions():
    """Nothing the server makes can be read by others, unless the umask is asked for."""
    base = folder()
    os.umask(0o022)
    sockets = base + "/sockets"
    os.mkdir(sockets)

    def started(name, *options):
        data = f"{base}/{name}/data"
        os.mkdir(f"{base}/{name}")
        port = free_port()
        proc = subprocess.Popen(
            [
                BINARY,
                "--port",
                str(port),
                "--httpPort",
                "0",
                "--unixSocketPrefix",
                sockets,
                "--dbpath",
                data,
                "--logpath",
                f"{base}/{name}/log",
                "--pidfilepath",
                f"{base}/{name}/pid",
                *options,
            ],
            stdout=subprocess.DEVNULL,
        )
        proc.port = port
        client = connect(proc, serverSelectionTimeoutMS=Deadline().millis)
        client.t.c.insert_one({})
        client.t.c.create_index("at", expireAfterSeconds=5)
        client.t.command("collMod", "c", index={"name": "at_1", "expireAfterSeconds": 6})
        client.admin.command("fsync")
        return data, proc, client

    data, proc, client = started("plain")
    check(not open_to_others(data), f"the data directory is its user's alone: {open_to_others(data)[:5]}")
    check(any(Path(data).rglob("audit.json")), "the audit log is there")
    mode = lambda p: stat.S_IMODE(os.stat(p).st_mode)
    check(mode(f"{base}/plain/log") == 0o600, "so is the log")
    check(mode(f"{base}/plain/pid") == 0o644, "the pid file may be read")
    check(mode(f"{sockets}/mongodb-{proc.port}.sock") == 0o700, "the socket has filePermissions")
    check(
        client.admin.command("getParameter", 1, processUmask=1, honorSystemUmask=1)["processUmask"] == "077",
        "getParameter says 077",
    )
    check(
        not [l for l in client.admin.command("getLog", "startupWarnings")["log"] if "data directory" in l], "no warning"
    )
    check(stop(proc) == 0, "it stops")
    os.chmod(data, 0o755)
    proc, client = restart(data)
    check(
        [l for l in client.admin.command("getLog", "startupWarnings")["log"] if "0755" in l],
        "a directory that others can read is warned of",
    )
    stop(proc)
    data, proc, client = started("group", "--setParameter", "processUmask=027")
    check(
        mode(data) == 0o750 and all(mode(p) & 0o137 == 0 for p in Path(data).glob("*.sst")),
        f"processUmask=027 lets the group read: {oct(mode(data))}",
    )
    check(client.admin.command("getParameter", 1, processUmask=1)["processUmask"] == "027", "getParameter says 027")
    stop(proc)
    data, proc, client = started("system", "--setParameter", "honorSystemUmask=true")
    check(mode(data) == 0o755, f"honorSystemUmask leaves the system's: {oct(mode(data))}")
    stop(proc)
    for bad in (
        ["processUmask=999"],
        ["processUmask=x"],
        ["processUmask=027", "--setParameter", "honorSystemUmask=true"],
        ["honorSystemUmask=7"],
    ):
        r = subprocess.run(
            [BINARY, "--port", "0", "--dbpath", base + "/bad", "--setParameter", *bad],
            capture_output=True,
            text=True,
            timeout=Deadline().seconds,
        )
        check(r.returncode == 2, f"{bad} is refused: {r.returncode} {r.stderr[-120:]}")


def restart(data):
    proc, _ = start(data)
    return proc, connect(proc)


def downtime():
    """A clock that says the server was off for longer than it may have been suspends expiry until somebody confirms it,
    also over a restart."""
    data = folder() + "/data"
    proc, client = restart(data)
    client.t.c.create_index("at", expireAfterSeconds=0)
    client.t.c.insert_one({"_id": 1, "at": datetime.now(timezone.utc) + timedelta(seconds=1)})
    check(stop(proc) == 0, "it stops")
    left = time.monotonic()
    until(lambda: time.monotonic() > left + 3)  # clock: at least; longer than it may be off, and any more is as well
    for again in range(2):
        proc, _ = start(data, "--setParameter", "ttlMaxDowntimeSecs=1")
        client = connect(proc)
        clock = client.admin.command("ttlStatus", 1).get("clock", {})
        check(
            clock.get("suspended") and "ttlMaxDowntimeSecs" in clock.get("reason", ""),
            f"ttlStatus says why ({again}): {clock}",
        )
        check(client.t.c.count_documents({}) == 1, "nothing is removed")
        if again == 0:
            check(stop(proc) == 0, "it stops")
    check(client.admin.command("ttlRelease", 1, confirm=True)["ok"] == 1, "it is confirmed")
    check(until(lambda: client.t.c.count_documents({}) == 0), "then what is due goes")
    check("clock" not in client.admin.command("ttlStatus", 1), "and ttlStatus says nothing more")
    stop(proc)
    proc, client = restart(data)
    check("clock" not in client.admin.command("ttlStatus", 1), "without the parameter any time is believed")
    stop(proc)


def audit():
    """Entries that cannot be written wait, are counted and reported, and stop what would need another one if so
    asked."""
    base = folder()
    link = base + "/audit.json"
    os.symlink("/dev/full", link)
    proc, _ = start(base + "/data", "--auditPath", link, "--logRotate", "reopen", "--logappend")
    client = connect(proc)
    client.t.create_collection("c", clusteredIndex={"key": {"_id": 1}, "unique": True}, expireAfterSeconds=100)
    state = client.admin.command("serverStatus")["auditLog"]
    check(state["waiting"] >= 1 and state["lost"] == 0 and "space" in state["error"], f"entries wait: {state}")
    log = "\n".join(client.admin.command("getLog", "global")["log"])
    check("The audit log cannot be written" in log, "the log says so")
    client.admin.command("setParameter", 1, auditFailClosed=True)
    for refused in ({"collMod": "c", "expireAfterSeconds": 7}, {"drop": "c"}, {"create": "d"}, {"ttlPause": "c"}):
        try:
            client.t.command(refused)
            check(False, f"{refused} is refused")
        except PyMongoError as e:
            check(e.code == 96 and "auditFailClosed" in str(e), f"{refused} is refused: {str(e)[:80]}")
    try:
        client.admin.command("setParameter", 1, ttlMonitorEnabled=False)
        check(False, "setParameter of what is audited is refused")
    except PyMongoError as e:
        check(e.code == 96, "setParameter of what is audited is refused")
    client.t.c.insert_one({"_id": 1})
    check(client.t.c.count_documents({}) == 1, "other commands go on")
    os.unlink(link)
    client.admin.command("logRotate", 1)
    state = client.admin.command("serverStatus")["auditLog"]
    check(state["waiting"] == 0 and state["lost"] == 0, f"with room again nothing waits: {state}")
    check('"createCollection"' in Path(link).read_text(), "and nothing was lost")
    client.t.command({"collMod": "c", "expireAfterSeconds": 7})
    check(Path(link).read_text().count('"collMod"') == 1, "what was refused goes")
    os.rename(link, link + ".1")
    os.symlink("/dev/full", link)
    client.admin.command("logRotate", 1)
    client.admin.command("setParameter", 1, auditFailClosed=False)
    for i in range(60):  # each entry is 30 kB
        client.t.command({"ttlHold": "c", "filter": {"_id": "x" * 30000}})
    state = client.admin.command("serverStatus")["auditLog"]
    check(
        # Those of logRotate and setParameter besides.
        state["lost"] > 0 and state["waiting"] + state["lost"] == 62,
        f"beyond 1 MB they are lost, and counted: {state}",
    )
    stop(proc)


def long_keys():
    """Keys of megabytes: the store keeps the beginning and a hash. 40 whole ones took 2.5 GB, and 0.9 GB of its
    manifest."""
    data = folder() + "/data"
    proc, client = restart(data)
    c = client.t.c

    def long(i):
        return "x" * (6 << 20) + str(i)

    for i in range(20):
        c.insert_one({"_id": long(i), "n": i, "s": [f"a{i}", long(-i)]})
    c.create_index("s")
    check(c.find_one({"_id": long(7)}, {"n": 1, "_id": 0}) == {"n": 7}, "one of them is found by its _id")
    check(c.find_one({"s": long(-9)}, {"n": 1, "_id": 0}) == {"n": 9}, "and by an element of an array")
    check(c.count_documents({"_id": {"$gt": long(18)}}) == 1 + 8, "a range that ends in them")
    check(len(c.distinct("n", {"s": {"$gte": long(-3)}})) == 7 + 1, "another, of an index")
    try:
        c.insert_one({"_id": long(3)})
        check(False, "a second one of the same _id is refused")
    except PyMongoError as e:
        check(e.code == 11000 and len(str(e)) < 10000, f"a second one of the same _id is refused: {str(e)[:90]}")
    c.update_one({"_id": long(50)}, {"$set": {"n": 50}}, upsert=True)
    check(c.delete_one({"_id": long(50)}).deleted_count == 1, "an upsert, and a delete")
    check(c.update_one({"_id": long(4)}, {"$set": {"s": "short"}}).modified_count == 1, "an update")
    check(c.find_one({"s": long(-4)}) is None, "whose old value is gone")
    check(client.t.command("validate", "c")["valid"], "and all is valid")
    client.t.command("compact", "c")
    manifest = sum(f.stat().st_size for f in Path(data).rglob("MANIFEST*"))
    check(0 < manifest < 200 << 20, f"the manifest stays small: {manifest >> 20} MB")
    check(stop(proc) == 0, "it stops")


def build_memory():
    """An index is built in bounded memory, however long its keys are and however much larger than their documents."""
    LETTERS = 1_040_000  # with what a key has besides, just under 1 MiB

    def grown(c, keys):
        forget_peak(proc.pid)
        before = memory_mb(proc.pid)
        c.create_index(keys)
        return memory_mb(proc.pid, "VmHWM") - before

    def text(n):
        return rnd.randbytes(n // 2).hex()

    proc, client = restart(folder() + "/data")
    c = client.t.long
    for i in range(0, 120, 8):
        c.insert_many([{"_id": k, "s": text(LETTERS)} for k in range(i, i + 8)])
    more = grown(c, "s")
    check(more < BUILD_MB, f"120 keys of 1 MB: {more} MB more")
    check(c.find_one({"s": c.find_one({"_id": 100})["s"]}, {"_id": 1})["_id"] == 100, "and they are there")
    c = client.t.arrays
    for i in range(8):
        c.insert_one({"_id": i, "s": [text(LETTERS) for _ in range(15)]})
    more = grown(c, "s")
    check(more < BUILD_MB, f"8 documents with 15 of them each: {more} MB more")
    # Documents of 36 kB, each with 31 MB of keys.
    c = client.t.wide
    c.insert_many([{"_id": i, "a": list(range(1700)), "s": text(18_000)} for i in range(12)])
    more = grown(c, [("a", 1), ("s", 1)])
    check(more < BUILD_MB, f"12 documents with 1,700 keys of 18 kB each: {more} MB more")
    for name in ("long", "arrays", "wide"):
        check(client.t.command("validate", name)["valid"], f"{name} is valid")
    check(stop(proc) == 0, "it stops")


def cgroup():
    """In 256 MB many clients may write 15 MB at once: they wait for each other, and the process stays."""
    group = Path("/sys/fs/cgroup/memory")
    v1 = group.is_dir()
    group = (group if v1 else Path("/sys/fs/cgroup")) / f"mayfly-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if v1 else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(256 << 20))
        (group / ("tasks" if v1 else "cgroup.procs")).read_text()
    except OSError as e:
        skip("the small cgroup", f"only root can make one: {e}")
        return
    data = folder() + "/data"
    wrapper = data + ".sh"
    Path(wrapper).write_text(f'#!/bin/sh\necho $$ > {group}/{"tasks" if v1 else "cgroup.procs"}\nexec {BINARY} "$@"\n')
    os.chmod(wrapper, 0o755)
    proc, client = start(data, binary=wrapper)
    info = client.command("admin", {"hostInfo": 1})
    check(info["system"]["memLimitMB"] == 256, f"the limit of its own cgroup is found: {info['system']['memLimitMB']}")
    errors, written = [], []

    def write(n):
        with connect(proc, socketTimeoutMS=Deadline(300).millis) as c:
            for k in range(4):
                try:
                    c.t.c.insert_one({"_id": f"{n}-{k}", "b": rnd.randbytes(15 << 20)})
                    written.append(f"{n}-{k}")
                except PyMongoError as e:
                    errors.append(str(e)[:200])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(proc.poll() is None and not errors, f"all of them are written: {len(written)}, {errors[:2]}")
    if proc.poll() is None:
        with connect(proc) as c:
            check(sorted(d["_id"] for d in c.t.c.find({}, {"_id": 1})) == sorted(written), "and are there")
        check(stop(proc) == 0, "it stops")
    group.rmdir()


run_parts(
    "guarded", [names, names_on_a_set, permissions, downtime, audit, long_keys, build_memory, cgroup], check
)
