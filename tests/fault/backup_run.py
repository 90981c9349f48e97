#!/usr/bin/env python3
"""Backups of running servers and restores: under load on a standalone and on a secondary, files that are not copied
twice, kill -9 of the server, the tool and a restore at random moments, killOp, a full disk, damaged files and
manifests, encrypted data, and expiry after a restore: held, shifted, run. The archive of the log of two sets in one
folder, and its check.

A part that is named on the command line runs alone. MAYFLY_BACKUP names another mayfly-backup; MAYFLY_SEED replays the
random choices. Mounting a small file system needs root; without it that part is skipped, and says so.
"""

import base64, hashlib, os, shutil, signal, subprocess, tempfile, threading, time, urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

import bson
import pymongo
from bson.int64 import Int64
from pymongo.errors import PyMongoError

from backups import HOUR, TOOL, Load, Server, becomes, check, fill, folder, hashes, listing, restore, run_backup_parts
from backups import offline, tool, whole, work
from fault_test import BINARY, ROOT, Deadline, free_port, random_moment, rnd, skip, until, wait_for
from replica_set import ReplicaSet, code
def load():
    """Backups while there are writes; the second one copies little; each is a state that there was."""
    s, path = Server(), folder()
    fill(s.client)
    with Load(s.client) as writes:
        wait_for(lambda: writes.acknowledged > 300 or writes.errors)
        before = writes.acknowledged
        first = s.backup(path)
        between = writes.acknowledged
        wait_for(lambda: writes.acknowledged > between + 300 or writes.errors)
        third = writes.acknowledged
        second = s.backup(path)
    check(not writes.errors, f"writes go on: {writes.errors[:1]}")
    check(first["filesCopied"] == first["files"], "the first copies all")
    check(second["bytesCopied"] < second["bytes"] / 2, f"the second not: {second}")
    check(code(lambda: s.client.app.command("backup", 1, path=path)) == 13, "to admin only")
    status, said = tool("list", "--path", path)
    check(status == 0 and first["id"] in said and second["id"] in said, f"list: {said}")
    status, said = tool("verify", "--path", path)
    check(status == 0 and said.count("all checksums and indexes are right") == 2, f"verify: {said}")
    for b, least in ((first, before), (second, third)):
        status, said, data = restore(path, "--id", b["id"])
        check(status == 0, f"restore: {said[-500:]}")
        r = Server(data)
        whole(r.client, least)
        check(hashes(r.client)["app"] == hashes(s.client)["app"], "what nobody wrote is equal")
        check(r.stop() == 0, "the restored server stops cleanly")
    mode = lambda p: os.stat(p).st_mode & 0o777
    modes = {mode(p) for p in Path(path).rglob("*") if p.is_file()}
    check(mode(path) == 0o700 and modes == {0o600}, f"for nobody else to read: {modes}")
    check(not os.path.exists(f"{s.data}/.backup/checkpoint"), "nothing is left in the data directory")
    s.stop()


def incremental():
    """Without changes nothing but the small files is copied; full reads and heals; prune removes."""
    s, path = Server(), folder()
    fill(s.client, 8000)
    s.backup(path)
    again = s.backup(path)
    check(again["bytesCopied"] < 1_000_000 < again["bytes"], f"nothing new: {again}")
    victim = max(Path(path, "files").iterdir(), key=lambda f: f.stat().st_size)
    with open(victim, "r+b") as f:
        f.seek(victim.stat().st_size // 2)
        f.write(b"damage")
    check(tool("verify", "--path", path, "--checksums")[0] == 1, "the damage is found")
    full = s.backup(path, incremental=False)
    check(full["bytesCopied"] == full["bytes"], "a full one copies all")
    check(tool("verify", "--path", path)[0] == 0, "and heals what is damaged")
    s.client.app.docs.delete_many({})
    s.client.app.command("compact", "docs")
    last = s.backup(path)
    many = len(list(Path(path, "files").iterdir()))
    status, said = tool("prune", "--path", path, "--keep", "1")
    left = list(Path(path, "files").iterdir())
    check(status == 0 and len(left) == last["files"] < many, f"prune: {said} {len(left)} of {many}")
    check(tool("prune", "--path", path, "--keep", "0")[0] == 1, "the newest stays")
    check(tool("verify", "--path", path)[0] == 0, "what is left is whole")
    check(tool("delete", "--path", path, "--id", "none")[0] == 1, "there must be such a backup")
    status, said = tool("delete", "--path", path, "--id", last["id"])
    check(status == 0 and not list(Path(path, "files").iterdir()), f"delete: {said}")
    s.stop()


def one_at_a_time():
    """One backup a server, one a folder; currentOp shows it with its progress; killOp ends it and leaves nothing."""
    s, path = Server(), folder()
    fill(s.client, 6000)
    s.backup(path)
    files = sorted(os.listdir(f"{path}/files"))
    s.client.app.docs.update_many({}, {"$set": {"more": 1}})
    outcome = []

    def slow():
        outcome.append(code(lambda: s.backup(path, rateBytesPerSecond=100_000)))

    t = threading.Thread(target=slow)
    t.start()

    def running():
        ops = [o for o in s.client.admin.command("currentOp")["inprog"] if "backup" in o.get("command", {})]
        return ops[0] if ops and ops[0].get("progress", {}).get("done", 0) > 0 else None

    op = until(running)
    check(op and op["msg"].startswith("Backup: ") and op["progress"]["total"] > op["progress"]["done"], f"shown: {op}")
    check(code(lambda: s.backup(folder())) == 46, "another one of this server: LockBusy")
    other = Server()
    check(code(lambda: other.backup(path)) == 46, "another server's into this folder: LockBusy")
    status, said = tool("verify", "--path", path)
    check(status == 1 and "in use" in said, f"the tool, too: {said}")
    check(restore(path)[0] == 100, "and a restore")
    s.client.admin.command("killOp", op=op["opid"])
    t.join(Deadline().seconds)
    check(outcome == [11601], f"killed: {outcome}")
    check(sorted(os.listdir(f"{path}/files")) == files, "the folder is as it was")
    check(not os.path.exists(f"{s.data}/.backup/checkpoint"), "and the data directory")
    check(code(lambda: s.backup(path, rateBytesPerSecond=100_000, maxTimeMS=300)) == 50, "maxTimeMS ends it, too")
    check(sorted(os.listdir(f"{path}/files")) == files, "and leaves nothing")
    check(s.backup(path)["filesCopied"] > 0, "then another one works")
    s.stop(), other.stop()


def kills():
    """kill -9 of the server in the midst of a backup: earlier ones stay whole, half ones are no backups, and the next
    one cleans up. The same of the tool and of restores."""
    s, path = Server(), folder()
    fill(s.client, 3000)
    good = s.backup(path)
    want = hashes(s.client)
    for n in range(6):
        s.client.extra.docs.insert_many([{"pad": rnd.randbytes(5000)} for _ in range(1000)])
        t = threading.Thread(target=lambda: code(lambda: s.backup(path, rateBytesPerSecond=20_000_000)))
        t.start()
        random_moment(0, 0.3)
        s.stop(signal.SIGKILL)
        t.join()
        status, said = tool("verify", "--path", path)
        check(status == 0 and good["id"] in said, f"round {n}: earlier backups are whole: {said}")
        s.start()
        check(not os.path.exists(f"{s.data}/.backup"), "the server cleans its directory")
    last = s.backup(path)
    stored = {f.name for f in Path(path, "files").iterdir()}
    check(not any(f.endswith(".partial") for f in stored), "what was half is gone")
    listed = [b["id"] for b in listing(path)]
    check(last["id"] in listed and good["id"] in listed, "both are listed")
    for n in range(6):
        data = f"{tempfile.mkdtemp(prefix='half-', dir=work)}/data"
        p = subprocess.Popen(
            [BINARY, "--restore", path, "--id", good["id"], "--dbpath", data],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        random_moment(0, 0.25)
        p.kill()
        p.wait()
        if os.path.exists(f"{data}/RESTORING"):
            r = subprocess.run([BINARY, "--dbpath", data, "--port", "0"], capture_output=True, text=True)
            check(r.returncode == 100 and "restore was broken off" in r.stdout + r.stderr, "no server on half of it")
        status, said, data = (
            restore(path, "--id", good["id"], data=data)
            if os.path.exists(f"{data}/RESTORING") or not os.path.exists(data) or not os.listdir(data)
            else (0, "", data)
        )
        check(status == 0, f"the next restore begins anew: {said[-300:]}")
        r = Server(data)
        check(hashes(r.client) == want, "and has everything")
        r.stop()
    uri = f"mongodb://127.0.0.1:{s.port}/?directConnection=true"
    for n in range(3):
        s.client.extra.docs.insert_many([{"pad": rnd.randbytes(5000)} for _ in range(500)])
        p = subprocess.Popen(
            [TOOL, "create", "--uri", uri, "--path", path, "--rate", "4000000"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        random_moment(0.1, 0.6)
        p.kill()
        p.wait()
        check(tool("verify", "--path", path, "--checksums")[0] in (0, 1), "the folder can be looked at")
        ops = lambda: s.client.admin.command("currentOp")["inprog"]
        wait_for(lambda: not [o for o in ops() if "backup" in o.get("command", {})])
    check(tool("verify", "--path", path)[0] == 0, "all that is there is whole")
    status, said = tool("create", "--uri", uri, "--path", path)
    check(status == 0 and "made the backup" in said, f"create: {said}")
    s.stop()


def disk_full():
    """A disk that has no room: a clear error, nothing left half, room for what was there; the same for a restore."""
    small = f"{work}/small"
    os.makedirs(small)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", small]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        skip("a full file system", "mounting one needs root")
        return
    try:
        s = Server()
        s.client.app.docs.insert_many([{"pad": rnd.randbytes(10000)} for _ in range(600)])
        path = f"{small}/b"
        good = s.backup(path)
        s.client.app.more.insert_many([{"pad": rnd.randbytes(10000)} for _ in range(4000)])
        for how in ({}, {"incremental": False}):
            try:
                s.backup(path, **how)
                check(False, "it fitted")
            except PyMongoError as e:
                check(e.code == 14031 and path in str(e), f"says what is full: {e}")
            left = [f.name for d in ("files", "backups") for f in Path(path, d).iterdir()]
            check(not any(f.endswith(".partial") for f in left), f"nothing half: {left}")
            check(tool("verify", "--path", path)[0] == 0, "the earlier backup is whole")
        check(s.client.app.docs.count_documents({}) == 600, "the server goes on")
        elsewhere = folder()
        s.backup(elsewhere)
        status, said, data = restore(elsewhere, data=f"{small}/data")
        check(status == 100 and "there are" in said, f"a restore says so, too: {said[-300:]}")
        check(not os.listdir(data), "and leaves the directory empty")
        s.stop()
        tool("delete", "--path", path, "--id", good["id"])
    finally:
        subprocess.run(["umount", "-l", small])


def damage():
    """A damaged, cut or missing file, and a damaged manifest: found, named, nothing half restored."""
    s, path = Server(), folder()
    fill(s.client)
    s.backup(path)
    s.stop()
    kept = f"{path}.kept"
    shutil.copytree(path, kept)
    files = sorted(Path(path, "files").iterdir(), key=lambda f: -f.stat().st_size)
    sst, manifest = files[0], next(Path(path, "backups").iterdir())

    def bit(f):
        with open(f, "r+b") as o:
            at = rnd.randrange(f.stat().st_size)
            o.seek(at)
            b = o.read(1)[0]
            o.seek(at)
            o.write(bytes([b ^ (1 << rnd.randrange(8))]))

    for n in range(12):
        f = rnd.choice([sst, manifest, rnd.choice(files)])
        if f.stat().st_size == 0:
            continue
        how = rnd.choice([bit, lambda f: os.truncate(f, rnd.randrange(f.stat().st_size)), os.remove])
        if f == manifest and how is os.remove:
            how = bit
        how(f)
        status, said = tool("verify", "--path", path)
        check(status == 1 and f.name in said, f"verify names {f.name}: {said}")
        said = listing(path)[0]
        check(("damaged" in said) == (f == manifest) and said["id"] == manifest.name, f"the list says it: {said}")
        status, said, data = restore(path)
        check(status == 100 and f.name in said, f"restore names {f.name}: {said[-500:]}")
        check(not os.path.exists(data) or not os.listdir(data), "nothing is restored")
        shutil.copy(Path(kept, f.parent.name, f.name), f)
    check(tool("verify", "--path", path)[0] == 0, "as it was, all is right")
    Path(path, "LOCK").write_text("Mayfly backups 2\n")
    check(restore(path)[0] == 100, "a folder of another version is refused")


def hostile():
    """A manifest with a right checksum that says anything: refused by name, and nothing is restored."""
    s, path = Server(), folder()
    fill(s.client, 500)
    s.backup(path)
    s.stop()
    manifest = next(Path(path, "backups").iterdir())
    whole = manifest.read_bytes()
    body = bson.decode(whole[13:-32], codec_options=bson.CodecOptions(document_class=bson.SON))

    def write(change):
        odd = bson.decode(bson.encode(body), codec_options=bson.CodecOptions(document_class=bson.SON))
        change(odd)
        bytes_ = bson.encode(odd)
        front = whole[:9] + len(bytes_).to_bytes(4, "little") + bytes_
        manifest.write_bytes(front + hashlib.sha256(front).digest())

    named = lambda name: lambda m: m["files"][0].update(name=name)
    without = lambda name: lambda m: m.update(files=[f for f in m["files"] if f["name"] != name])
    big = bson.Int64((1 << 63) - 1)
    for change, words in (
        (lambda m: m.update(files=[]), "no files"),
        (lambda m: m["files"].append(m["files"][0]), "twice"),
        (lambda m: m["catalog"].update(collections=bson.Int64(-1)), "a field is missing"),
        (lambda m: [f.update(size=big) for f in m["files"]], "more bytes"),
        (lambda m: m["files"][0].update(size=bson.Int64(-5)), "list of files"),
        (named("../x"), "list of files"),
        (named("/etc/passwd"), "list of files"),
        (named("RESTORING"), "none of a store"),
        (named("notes.txt"), "none of a store"),
        (without("CURRENT"), "CURRENT is not in its manifest"),
        (lambda m: m["files"][0].update(sum=b"x" * 32), "is missing"),
        (lambda m: m["files"][0].update(size=bson.Int64(7)), ""),
        (lambda m: m.pop("catalog"), "a field is missing"),
    ):
        write(change)
        status, said, data = restore(path)
        check(status == 100 and words in said, f"{words}: {status} {said[-300:]}")
        check(not os.path.exists(data), "there is not even a directory")
    write(lambda m: None)
    status, said, data = restore(path)
    check(status == 0, f"written as it was, it is restored: {said[-300:]}")
    write(lambda m: m["catalog"].update(collections=bson.Int64(1000)))
    status, said, data = restore(path)
    check(status == 0 and "countedCollections" in said, f"another number of collections is told: {said[-300:]}")


def figures():
    """serverStatus and /metrics tell of backups: a running one, the last one, one that failed."""
    http = free_port()
    s, path = Server(None, "--httpPort", str(http)), folder()
    fill(s.client, 3000)
    status = lambda: s.client.admin.command("serverStatus")["backup"]
    check(status() == {"running": False, "made": 0, "failed": 0}, f"none yet: {status()}")
    other = pymongo.MongoClient("127.0.0.1", s.port, directConnection=True)
    slow = threading.Thread(target=lambda: other.admin.command("backup", 1, path=path, rateBytesPerSecond=1 << 20))
    slow.start()
    check(until(lambda: status().get("bytesTotal", 0) > 0, 30), "a running one")
    check(status()["running"] and status()["bytesDone"] <= status()["bytesTotal"], f"{status()}")
    slow.join()
    r = s.backup(path)
    last = status()["last"]
    same = ("id", "files", "bytes", "filesCopied", "bytesCopied", "durationMillis")
    check(all(last[k] == r[k] for k in same), f"{last} {r}")
    check(status()["made"] == 2 and last["path"] == path and not status()["running"], f"{status()}")
    check(code(lambda: s.backup(f"{s.data}/b")) in (2, 38), "one that is refused")
    with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=Deadline().seconds) as reply:
        text = reply.read().decode()
    for line in ("running 0", "_failures_total 1", f"last_bytes {r['bytes']}"):
        check(any(l.startswith("mayfly_backup") and l.endswith(line) for l in text.splitlines()), f"metrics: {line}")
    check("mayfly_backups_total 2" in text, "metrics: backups made")
    now = status()
    check(now["failed"] == 1 and now["lastFailure"]["path"] == f"{s.data}/b" and now["lastFailure"]["error"], f"{now}")
    s.backup(path)
    check("lastFailure" not in status(), "a later one that is made takes its place")
    s.stop()


def refused():
    """A restore into what is not empty, options that do not go together, paths that are not to be used."""
    s, path = Server(), folder()
    fill(s.client, 500)
    s.backup(path)
    for bad in ("relative", f"{s.data}/b", s.data, work, "/proc/none/b"):
        check(code(lambda: s.backup(bad)) in (2, 38), f"not into {bad}")
    os.symlink(work, f"{work}/link-{s.port}")
    check(code(lambda: s.backup(f"{work}/link-{s.port}/b")) == 2, "not by a link")
    for more in ({"incremental": "x"}, {"rateBytesPerSecond": -1}, {"rateBytesPerSecond": 0}, {"unknown": 1}):
        check(code(lambda: s.backup(folder(), **more)) in (2, 14, 51024, 40415), f"refused: {more}")
    s.stop()
    status, said, _ = restore(path, data=s.data)
    check(status == 100 and "is not empty" in said, f"not over data: {said[-300:]}")
    check(Server(s.data).stop() == 0, "which is as it was")
    for words in (["--id", "x"], ["--expiry", "run"], ["--until", "2030-01-01T00:00:00Z"]):
        r = subprocess.run([BINARY, "--dbpath", f"{work}/none", *words], capture_output=True, text=True)
        check(r.returncode == 2 and "--restore" in r.stdout + r.stderr, f"only with --restore: {words}")
    check(restore(path, "--expiry", "never")[0] == 2, "there is no such expiry")
    status, said, data = restore(path, "--until", "2030-01-01T00:00:00Z")
    check(status == 100 and "standalone" in said and not os.path.exists(data), f"no log to replay: {said[-300:]}")
    check(restore(path, "--id", "../x")[0] == 100, "no such backup")


def of_others():
    """A restore takes nothing away that it has not made, and two at once into one directory do not harm each other."""
    s, path = Server(), folder()
    fill(s.client, 1000)
    s.backup(path)
    s.stop()
    mine = Path(tempfile.mkdtemp(prefix="mine-", dir=work))
    Path(mine, "precious").mkdir()
    Path(mine, "RESTORING").write_text("a note of somebody")
    status, said, _ = restore(path, data=str(mine))
    check(status == 100 and "not empty" in said, f"only its own mark is one: {said[-300:]}")
    check(sorted(os.listdir(mine)) == ["RESTORING", "precious"], "and all is there")
    shutil.rmtree(Path(mine, "precious"))
    Path(mine, "RESTORING").unlink()
    Path(mine, "RESTORING").mkdir()
    check(restore(path, data=str(mine))[0] == 100 and os.path.isdir(f"{mine}/RESTORING"), "nor is a folder")
    for i in range(6):
        data = f"{tempfile.mkdtemp(prefix='twice-', dir=work)}/data"
        words = [BINARY, "--restore", path, "--dbpath", data]
        both = []
        for _ in range(2):
            both.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            random_moment(0, 0.03 * i)
        ended = sorted(p.wait(Deadline().seconds) for p in both)
        check(ended == [0, 100], f"one is done, the other refused: {ended}")
        r = Server(data)
        check(r.client.app.docs.count_documents({}) == 1000, "and what it has restored is whole")
        r.stop()


def of_secondary():
    """A backup of a secondary under load; restored as a standalone, then as a new set, which has nothing of the old
    one's life: configuration, votes, sessions, resume tokens."""
    rs, path = ReplicaSet(3), folder()
    try:
        rs.initiate()
        primary = rs.primary()
        client = primary.client
        fill(client)
        with client.start_session() as session:
            lsid = session.session_id
        retried = {"insert": "once", "documents": [{"_id": 1}], "lsid": lsid, "txnNumber": Int64(1)}
        client.app.command(retried)
        with client.app.watch() as stream:
            client.app.docs.insert_one({"_id": -1, "n": -1})
            token = next(stream)["_id"]
        with Load(client) as writes:
            wait_for(lambda: writes.acknowledged > 200 or writes.errors)
            secondary = rs.others(primary)[0]
            before = writes.acknowledged
            b = secondary.client.admin.command("backup", 1, path=path)
        check(not writes.errors, f"writes go on: {writes.errors[:1]}")
        check(b["position"]["ts"].time > 0 and b["position"]["index"] > 0, f"its position: {b}")
        rs.settled()
        want = hashes(client)["app"]
        status, said = tool("verify", "--path", path)
        check(status == 0, f"verify: {said}")
        status, said, data = restore(path)
        check(status == 0, f"restore: {said[-500:]}")
        r = Server(data)
        whole(r.client, 0)
        check(hashes(r.client)["app"] == want, "what was there before is equal")
        check("setName" not in r.client.admin.command("hello"), "a standalone of no set")
        r.stop()
        # The old set lives on, in later seconds than that of the restore, and of the new set's first entry.
        restored, later = int(time.time()), []
        with client.app.watch() as stream:

            def of_later():
                client.app.later.insert_one({})
                later.append(next(stream))
                return later[-1]["clusterTime"].time > restored  # clock: a date, waited for

            check(until(of_later), "the old set goes on")
        next_second = later[-1]["clusterTime"].time + 1
        check(until(lambda: time.time() > next_second), "and time")  # clock: a date, waited for
        r = Server(data, "--replSet", "rs1")
        alone = {"_id": "rs1", "members": [{"_id": 0, "host": f"127.0.0.1:{r.port}"}]}
        new = r.client.admin.command("replSetInitiate", alone)
        check(new["ok"] == 1, "it becomes a new set")
        check(until(lambda: r.client.admin.command("hello").get("isWritablePrimary")), "which has a primary")
        ids = [c.admin.command("replSetGetConfig")["config"]["settings"]["replicaSetId"] for c in (client, r.client)]
        check(ids[0] != ids[1], "it is not the old set")
        again = r.client.app.command(retried)
        check(again["writeErrors"][0]["code"] == 11000, f"a retry of the old set's is new here: {again}")
        ended = code(lambda: r.client.app.watch(resume_after=token).try_next())
        check(ended == 286, f"old resume tokens end: {ended}")
        ended = code(lambda: r.client.app.watch(resume_after=later[-1]["_id"]).try_next())
        check(ended == 286, f"and those of what it did after the restore: {ended}")
        with r.client.app.watch() as stream:
            r.client.app.docs.insert_one({"_id": -3, "n": -3})
            check(next(stream)["documentKey"] == {"_id": -3}, "new streams work")
            token = stream.resume_token
        check(code(lambda: r.client.app.watch(resume_after=token).try_next()) == 0, "and resume")
        r.client.app.docs.insert_one({"_id": -2, "n": -2})
        m = Server(None, "--replSet", "rs1")
        config = r.client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        config["members"].append({"_id": 1, "host": f"127.0.0.1:{m.port}"})
        r.client.admin.command("replSetReconfig", config)
        check(becomes(lambda: m.client.admin.command("hello").get("secondary")), "another member joins")
        check(becomes(lambda: m.client.admin.command("ttlStatus", 1).get("restored")), "and holds expiry, too")
        r.client.admin.command("ttlRelease", 1, restored=True, confirm=True)
        check(becomes(lambda: "restored" not in m.client.admin.command("ttlStatus", 1)), "until it is released")
        check(becomes(lambda: hashes(m.client) == hashes(r.client)), "with the same data")
        m.stop(), r.stop()
    finally:
        rs.close()


def expiry():
    """Held: nothing is removed, what was past its deadline stays hidden, until somebody releases it. Shifted: all is
    there as it was. Run: gone at once."""
    s, path = Server(None, "--testClock"), folder()
    now = s.client.admin.command("clock", 1)["now"]
    s.client.app.command("insert", "own", documents=[{"_id": i} for i in range(10)], expireAfterSeconds=600)
    s.client.app.command("insert", "own", documents=[{"_id": 99}])
    s.client.app.ttl.create_index("at", expireAfterSeconds=600)
    s.client.app.ttl.insert_many([{"_id": i, "at": now} for i in range(5)])
    b = s.backup(path)
    s.stop()

    def later(data):
        """A server that lives an hour after the backup."""
        r = Server(data, "--testClock", "--setParameter", "ttlMonitorSleepSecs=1")
        r.client.admin.command("clock", {"advanceSeconds": HOUR})
        return r

    def stored(r):
        own = len(list(r.client.app.command("find", "own", includeExpired=True)["cursor"]["firstBatch"]))
        return own, r.client.app.ttl.count_documents({})

    status, said, data = restore(path)
    check(status == 0, f"restore: {said[-300:]}")
    r = later(data)
    check("Expiry is held" in r.log(), "the log says so")
    status = r.client.admin.command("ttlStatus", 1)
    check(status["restored"]["backup"] == b["id"] and status["restored"]["expiryHeld"] is True, f"ttlStatus: {status}")
    check({x["state"] for x in status["rules"]} == {"held"}, f"every rule is held: {status['rules']}")
    check(r.client.app.command("ttlCheck", "ttl")["restored"]["expiryHeld"] is True, "ttlCheck says so")
    check(r.client.admin.command("ttlForecast", 1)["overdue"] == 15, "the forecast counts what would go")
    check(stored(r) == (11, 5), f"nothing is removed: {stored(r)}")
    check(r.client.app.own.count_documents({}) == 1, "documents past their own deadline stay absent")
    check(r.client.app.own.update_one({"_id": 3}, {"$set": {"x": 1}}).matched_count == 0, "also for updates")
    r.client.app.command("compact", "own")
    check(stored(r) == (11, 5), "neither an update nor compact removes them")
    r.client.app.own.insert_one({"_id": 4, "new": True})
    check(r.client.app.own.count_documents({}) == 2, "a new document takes the place of one")
    r.stop()
    r = later(data)
    check(stored(r) == (11, 5), "it is held over a restart")
    release = lambda **more: r.client.admin.command("ttlRelease", 1, restored=True, **more)
    try:
        release()
        check(False, "without confirm")
    except PyMongoError as e:
        check(e.code == 72 and "14 documents" in str(e), f"it says how many would go: {e}")
    check(code(lambda: r.client.app.command("ttlRelease", 1, restored=True, confirm=True)) == 72, "to admin only")
    check(release(confirm=True)["rules"] == 2, "released")
    check(until(lambda: stored(r) == (2, 0)), f"what is due goes: {stored(r)}")
    check("restored" not in r.client.admin.command("ttlStatus", 1), "ttlStatus no longer says so")
    check(code(lambda: release(confirm=True)) == 20, "there is nothing more to release")
    r.stop()

    status, said, data = restore(path, "--expiry", "run")
    r = later(data)
    check(until(lambda: stored(r) == (1, 0)), f"run: gone at once: {stored(r)}")
    r.stop()

    status, said, data = restore(path, "--expiry", "shift")
    check(status == 0, f"restore: {said[-300:]}")
    r = Server(data, "--testClock", "--setParameter", "ttlMonitorSleepSecs=1")
    left = [d["left"] for d in r.client.app.own.find({"_id": {"$lt": 99}}, {"left": {"$meta": "ttlMillis"}})]
    check(len(left) == 10 and all(0 < x <= 600_000 for x in left), f"shift: as long as at the backup: {left}")
    r.client.admin.command("clock", {"advanceSeconds": HOUR})
    check(until(lambda: stored(r) == (1, 0)), f"then they expire: {stored(r)}")
    r.stop()


def shift_of_the_past():
    """Deadlines that passed between backup and restore: moved by --expiry shift; rules that count from dates in
    documents are held, each until it is released."""
    s, path = Server(), folder()
    s.client.app.command("insert", "own", documents=[{"_id": i} for i in range(20)], expireAfterSeconds=2)
    s.client.app.ttl.create_index("at", expireAfterSeconds=2)
    s.client.app.ttl.insert_many([{"_id": i, "at": datetime.now(timezone.utc)} for i in range(5)])
    s.client.app.idle.create_index("at", expireAfterSeconds=86400)
    s.client.app.idle.insert_one({"at": datetime.now(timezone.utc)})
    s.backup(path)
    wait_for(lambda: s.client.app.own.count_documents({}) == 0, 20)
    young = lambda: {"at": {"$gt": datetime.now(timezone.utc) - timedelta(seconds=3)}}
    wait_for(lambda: s.client.app.ttl.count_documents(young()) == 0)
    s.stop()
    status, said, data = restore(path, "--expiry", "shift")
    check(status == 0, f"restore: {said[-300:]}")
    r = Server(data)
    rules = {(x["ns"], x["index"]): x for x in r.client.admin.command("ttlStatus", 1)["rules"]}
    check(rules["app.ttl", "at_1"]["state"] == "held", f"the rule with something due is held: {rules}")
    check(rules["app.ttl", "at_1"]["guard"]["wouldExpireNow"] == 5, "it says how many")
    check(rules["app.idle", "at_1"]["state"] == "active", "the other is not")
    check(r.client.app.ttl.count_documents({}) == 5, "its documents are there")
    check(until(lambda: r.client.app.own.count_documents({}) == 0, 20), "the moved deadlines come")
    r.client.app.command("ttlRelease", "ttl", index="at_1", confirm=True)
    check(r.client.app.ttl.count_documents({}) >= 0, "released")
    r.stop()


def encrypted():
    """Files go as they are on the disk, with their key wrapped: no plain text in the folder, and the same master key
    opens it."""
    def key(name):
        f = f"{work}/{name}.key"
        Path(f).write_text(base64.b64encode(os.urandom(32)).decode())
        os.chmod(f, 0o600)
        return f

    one, other = key("one"), key("other")
    on = lambda k: ["--enableEncryption", "--encryptionKeyFile", k]
    s, path = Server(None, *on(one)), folder()
    secret = "a secret that nobody may read"
    s.client.app.docs.insert_many([{"_id": i, "text": secret} for i in range(2000)])
    s.client.app.docs.create_index("text")
    s.backup(path)
    again = s.backup(path)
    check(again["bytesCopied"] < again["bytes"] / 2, "files are found again")
    want = hashes(s.client)
    s.stop()
    rotated = [*on(other), "--encryptionRotateFrom", one]
    for words, reason in (([], "is encrypted"), (on(other), "master key"), (rotated, "RotateFrom")):
        status, said = offline(path, s.data, *words)
        check(status != 0 and reason in said, f"offline, {words}: {said[-300:]}")
    status, said = offline(path, s.data, *on(one))
    check(status == 0, f"offline: {said[-300:]}")
    plain = [f for f in Path(path).rglob("*") if f.is_file() and secret.encode() in f.read_bytes()]
    check(not plain, f"no plain text: {plain}")
    status, said = tool("verify", "--path", path)
    check(status == 0 and said.count("give --encryptionKeyFile") == 3, f"verify without the key: {said}")
    status, said = tool("verify", "--path", path, "--encryptionKeyFile", one)
    check(status == 0 and said.count("indexes are right") == 3, f"verify with it: {said}")
    check(tool("verify", "--path", path, "--encryptionKeyFile", other)[0] == 1, "with another")
    for words, reason in (([], "is encrypted"), (on(other), "needs the master key")):
        status, said, data = restore(path, *words)
        check(status == 100 and reason in said and not os.path.exists(data), f"restore: {said[-300:]}")
    status, said, data = restore(path, *on(one))
    check(status == 0, f"restore: {said[-300:]}")
    r = Server(data, *on(one))
    check(hashes(r.client) == want, "equal")
    r.stop()
    status, said, data = restore(path, *on(other), "--encryptionRotateFrom", one)
    check(status == 0, f"restore with another master key: {said[-300:]}")
    Server(data, *on(other)).stop()
    p, plain_path = Server(), folder()
    p.backup(plain_path)
    p.stop()
    check(restore(plain_path, *on(one))[0] == 100, "a plain one does not become encrypted")


def archive_of_two_sets():
    """A restored server is begun as a set with the options of the old one, so both archive their logs in one folder,
    with equal indexes: each backup can be restored with it. `verify` reads all of it, and names damage and gaps."""
    remote = f"{work}/remote"
    os.makedirs(remote)
    extra = ["--logArchivePath", f"{work}/local", "--logArchiveCommand", f"mv {{}} {remote}/"]
    extra += ["--setParameter", "logArchiveSegmentSecs=1"]
    made = []
    for name in ("old", "new"):
        rs, path = ReplicaSet(1, extra), folder()
        try:
            m = rs.members[0]
            if made:
                m.stop()
                shutil.rmtree(f"{m.folder}/data")
                status, said, _ = restore(made[0][0], "--expiry", "run", data=f"{m.folder}/data")
                check(status == 0, f"the old one is restored: {said[-500:]}")
                m.start()
                m.wait_up()
            rs.initiate()
            m.client.app[name].insert_one({"_id": "before"})
            m.client.admin.command("backup", 1, path=path)
            state = lambda: m.client.admin.command("serverStatus")["logArchive"]
            done = lambda: state()["state"] == "running" and state()["waitingEntries"] == 0
            for i in range(3):
                m.client.app[name].insert_one({"_id": i})
                check(until(done, 60), f"it is archived: {state()}")
            made.append((path, name))
        finally:
            rs.close()
    segments = sorted(Path(remote).glob("*.segment"))
    sets = {s.name.split("-")[0] for s in segments}
    check(len(sets) == 2 and len(segments) >= 6, f"segments of two sets: {segments}")
    for path, name in made:
        status, said, data = restore(path, "--expiry", "run", "--archive", remote)
        check(status == 0, f"{name} is restored with its archive: {said[-500:]}")
        if status != 0:
            continue
        r = Server(data)
        count = r.client.app[name].count_documents({})
        check(count == 4, f"{name}: all that the archive has behind its backup is there: {count}")
        r.stop()

    page = (ROOT / "docs/log-archive.md").read_text()
    command = next(l for l in page.splitlines() if l.startswith("mayfly-backup verify"))
    words = [remote if w == "/archive" else w for w in command.split()[1:]]
    status, said = tool(*words)
    check(status == 0 and said.count("nothing is missing") == 2, f"{command}: {said}")
    backups = made[0][0]
    status, said = tool("verify", "--path", backups, "--archive", remote)
    check(status == 0 and "indexes are right" in said and "nothing is missing" in said, f"with backups: {said}")
    shutil.copytree(remote, f"{backups}/log")
    for of, options in ((remote, words), (f"{backups}/log", ["verify", "--path", backups])):
        mine = sorted(f for f in Path(of).glob("*.segment") if f.name.startswith(segments[0].name.split("-")[0]))
        victim = mine[1]
        whole = victim.read_bytes()
        at = len(whole) // 2
        for kind, damaged in (("bit", whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]), ("gap", None)):
            victim.unlink()
            if damaged:
                victim.write_bytes(damaged)
            status, said = tool(*options)
            named = victim.name in said if damaged else "lacks entr" in said and mine[2].name in said
            check(status == 1 and named, f"{kind}: {said}")
        victim.write_bytes(whole)
        check(tool(*options)[0] == 0, "as it was, all is right")
    status, said = tool("verify", "--archive", f"{work}/nothing")
    check(status == 1 and "cannot list" in said, f"a folder that is not there: {said}")
    status, said = tool("verify", "--archive", f"{backups}/files")
    check(status == 1 and "no segments" in said, f"a folder without an archive: {said}")
    check(tool("verify")[0] == 1, "something must be named")


run_backup_parts(
    "backup_run",
    [load, incremental, one_at_a_time, kills, disk_full, damage, hostile, figures, refused, of_others, of_secondary,
     expiry, shift_of_the_past, encrypted, archive_of_two_sets],
)  # fmt: skip
