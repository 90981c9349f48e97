#!/usr/bin/env python3
"""Backups of stopped servers by mayflyd --backup: after a clean end and after kill -9, ended by signals, of a member of
a set, of a time series whose log is replayed behind it; and the commands of docs/backup.md.

A part that is named on the command line runs alone. MAYFLY_BACKUP names another mayfly-backup; MAYFLY_SEED replays the
random choices.
"""

import json, os, re, shlex, signal, subprocess, tempfile
from datetime import datetime, timedelta, timezone

from backups import TOOL, Server, becomes, check, fill, folder, hashes, listing, offline, restore
from backups import run_backup_parts, tool, work
from fault_test import BINARY, ROOT, Deadline, random_moment, rnd, until, wait_for


def stopped():
    """Backups of a stopped server by mayflyd --backup: after a clean end and after kill -9, in one folder with those of
    the running server; ended by signals at any moment."""
    s, path = Server(), folder()
    fill(s.client, 3000)
    first = s.backup(path)
    status, said = offline(path, s.data)
    check(status == 100 and "mayfly-backup create" in said, f"not while it runs: {said[-300:]}")
    check(len(listing(path)) == 1, "and nothing is made")
    s.client.app.more.insert_many([{"_id": i} for i in range(100)])
    s.client.app.more.insert_one({"_id": "last"})
    want = hashes(s.client)
    s.stop(signal.SIGKILL)
    status, said = offline(path, s.data)
    check(status == 0, f"after kill -9: {said[-500:]}")
    made = json.loads([l for l in said.splitlines() if '"id":9000228' in l][0])["attr"]
    check(made["bytesCopied"] < made["bytes"] / 2, f"it takes what the folder has: {made}")
    check([b["id"] for b in listing(path)] == [first["id"], made["id"]], "both are listed")
    status, said = offline(path, s.data, "--full", "--logpath", f"{work}/offline.log")
    check(status == 0 and said.startswith("made the backup"), f"a full one: {said}")
    check(tool("verify", "--path", path)[0] == 0, "all are whole")
    check(not os.path.exists(f"{s.data}/.backup"), "and nothing is left in the data directory")
    status, said, data = restore(path, "--id", made["id"])
    r = Server(data)
    check(hashes(r.client) == want, "what it has is what was acknowledged")
    check(r.client.admin.command("ttlStatus", 1)["restored"]["backup"] == made["id"], "and expiry is held")
    r.stop()
    s.start()
    check(hashes(s.client) == want, "the server starts as before")
    s.stop()

    nothing, new = tempfile.mkdtemp(prefix="nothing-", dir=work), folder()
    for data, options, words in (
        (nothing, [], "no data"),
        (s.data, ["--fork", "--logpath", "/dev/null"], "cannot --fork"),
        (s.data, ["--restore", path], "opposite"),
        (s.data, ["--enableEncryption", "--encryptionKeyFile", "/dev/null"], "ncryption"),
    ):
        status, said = offline(new, data, *options)
        check(status != 0 and words in said, f"refused, {words}: {status} {said[-300:]}")
    alone = subprocess.run([BINARY, "--full", "--dbpath", s.data], capture_output=True, text=True)
    check(alone.returncode != 0 and "--backup" in alone.stderr, f"--full is of it: {alone.stderr}")
    check(offline(f"{s.data}/in", s.data)[0] != 0, "not into the data directory")
    check(not os.path.exists(new) and not os.listdir(nothing), "and nothing was made")

    # Ended by a signal: whole, or not there.
    for n in range(8):
        files, had = sorted(os.listdir(f"{path}/files")), len(listing(path))
        s.start()
        s.client.app.grows.insert_many([{"pad": rnd.randbytes(4000)} for _ in range(2000)])
        s.stop()
        p = subprocess.Popen(
            [BINARY, "--backup", path, "--dbpath", s.data], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        random_moment(0, 0.4)
        p.send_signal(rnd.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL)) if n else signal.SIGTERM)
        said = p.communicate()[0].decode()
        check(p.returncode in (0, 100, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT), f"it ends: {said[-300:]}")
        check((len(listing(path)) > had) == (p.returncode == 0) or p.returncode == -signal.SIGKILL, f"round {n}")
        if p.returncode == 100:
            check("signal" in said and sorted(os.listdir(f"{path}/files")) == files, f"as it was: {said[-300:]}")
    check(offline(path, s.data)[0] == 0 and tool("verify", "--path", path)[0] == 0, "and the next one is whole")
    for n in range(4):
        data = f"{tempfile.mkdtemp(prefix='ended-', dir=work)}/data"
        words = [BINARY, "--restore", path, "--dbpath", data]
        p = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        random_moment(0.05, 0.4)
        p.send_signal(signal.SIGTERM)
        said = p.communicate()[0].decode()
        left = os.listdir(data) if os.path.exists(data) else []
        ended = p.returncode == 0 or (p.returncode in (100, -signal.SIGTERM) and not left)
        check(ended, f"a restore ends by a signal, and leaves nothing: {p.returncode} {left} {said[-300:]}")


def stopped_member():
    """Its backup says where it is in the set's log: the archive goes on behind it."""
    path, archive = folder(), tempfile.mkdtemp(prefix="archive-", dir=work)
    s = Server(None, "--replSet", "rs0", "--logArchivePath", archive, "--setParameter", "logArchiveSegmentSecs=1")
    alone = {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{s.port}"}]}
    s.client.admin.command("replSetInitiate", alone)
    wait_for(lambda: s.client.admin.command("hello").get("isWritablePrimary"))
    fill(s.client, 1000)
    s.stop(signal.SIGKILL)
    status, said = offline(path, s.data)
    check(status == 0, f"of a member: {said[-500:]}")
    position = listing(path)[0]
    check(position.get("set") == "rs0" or "rs0" in str(position), f"it is one of the set: {position}")
    s.start(s.port)
    check(becomes(lambda: s.client.admin.command("hello").get("isWritablePrimary")), "it goes on as a member")
    s.client.app.later.delete_many({"_id": {"$lt": 50}})
    s.client.app.docs.insert_many([{"_id": i, "n": i} for i in range(5000, 5200)])
    wait_for(lambda: s.client.admin.command("serverStatus")["logArchive"]["waitingEntries"] == 0)
    want = hashes(s.client)["app"]
    s.stop()
    status, said, data = restore(path, "--archive", archive)
    check(status == 0, f"restore: {said[-500:]}")
    r = Server(data)
    check(hashes(r.client)["app"] == want, "with what the archive has behind it")
    r.stop()


def series_until():
    """Points of a time series at each of some times: while buckets are filled, sealed, opened again, changed and
    expired, the log that is replayed behind a backup has all of it."""
    path, archive = folder(), tempfile.mkdtemp(prefix="archive-", dir=work)
    quick = ["--setParameter", "logArchiveSegmentSecs=1", "--testClock"]
    s = Server(None, "--replSet", "rs0", "--logArchivePath", archive, *quick)
    alone = {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{s.port}"}]}
    s.client.admin.command("replSetInitiate", alone)
    wait_for(lambda: s.client.admin.command("hello").get("isWritablePrimary"))
    kept = {"timeseries": {"timeField": "t", "metaField": "m"}, "expireAfterSeconds": 86400}
    s.client.app.command("create", "points", **kept)
    base, states, sealed = datetime.now(timezone.utc).replace(microsecond=0), [], []
    points = lambda client: sorted((p["t"], str(p["m"]), p["v"]) for p in client.app.points.find())
    merged = lambda: s.client.app.command("collStats", "points")["timeseries"]["numBucketsSealed"]

    def insert(first, count, step=1):
        at = lambda i: base + timedelta(seconds=step * i)
        made = [{"t": at(i), "m": i % 5, "v": rnd.random()} for i in range(first, first + count)]
        rnd.shuffle(made)
        s.client.app.points.insert_many(made)

    def note():
        there = points(s.client)
        states.append((s.client.admin.command("ping")["operationTime"], there))
        sealed.append(merged())

    def advance(hours):
        s.client.admin.command("clock", {"advanceSeconds": hours * 3600})

    insert(0, 600)
    s.backup(path)
    for first in (600, 1200):
        insert(first, 600)
        note()
    s.client.app.points.delete_many({"m": 3})
    note()
    advance(2)
    had = sealed[-1]
    check(until(lambda: merged() > had), f"buckets are sealed: {had}")
    note()
    insert(300, 60)
    s.client.app.points.update_many({"m": 2}, {"$set": {"m": "two"}})
    note()
    insert(36000, 200, 10)
    advance(130)
    check(until(lambda: len(points(s.client)) < len(states[-1][1])), "points expire")
    note()
    wait_for(lambda: s.client.admin.command("serverStatus")["logArchive"]["waitingEntries"] == 0)
    s.stop()
    check(sealed[0] < sealed[-1], f"between the times: {sealed}")
    for n, (at, wanted) in enumerate(states):
        status, said, data = restore(path, "--archive", archive, "--until", f"{at.time},{at.inc}")
        check(status == 0, f"restore {n}: {said[-500:]}")
        r = Server(data, "--setParameter", "ttlMonitorEnabled=false")
        check(points(r.client) == wanted, f"points as they were, {n}: {len(points(r.client))} of {len(wanted)}")
        check(r.client.app.command("validate", "points", full=True)["valid"], f"whose buckets are valid, {n}")
        r.stop()


def recipes():
    """The commands of docs/backup.md, as they stand there, with other paths, ports and ids."""
    page = (ROOT / "docs/backup.md").read_text()
    blocks = re.findall(r"```(sh|js)\n(.*?)```", page, re.S)
    commands = [l for _, b in blocks for l in b.splitlines() if l.strip()]
    check(len(commands) == 11, f"{len(commands)} commands")
    s, path = Server(), folder()
    fill(s.client, 500)
    data, ids = f"{work}/recipe/data", []
    for command in commands:
        words = command.replace("/backups/db", path).replace("/data/restored", data).replace("/data/db", s.data)
        words = words.replace("127.0.0.1:27017", f"127.0.0.1:{s.port}")
        if ids:
            words = words.replace("20300101T120000000Z-0123456789ab", ids[0])
        shell = re.fullmatch(r"db\.adminCommand\((\{.*\})\)", words)
        if shell:
            if "replSetInitiate" in words:
                s.extra += ["--replSet", "rs1"]
                s.stop(), s.start()
                words = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{s.port}", words)
                shell = re.fullmatch(r"db\.adminCommand\((\{.*\})\)", words)
            argument = json.loads(re.sub(r"([{,]\s*)([$\w]+):", r'\1"\2":', shell[1]))
            reply = s.client.admin.command(argument)
            check(reply["ok"] == 1, f"{command}: {reply}")
            if "backup" in argument:
                ids.append(reply["id"])
            if "replSetInitiate" in argument:
                check(until(lambda: s.client.admin.command("hello").get("isWritablePrimary")), "a set of one")
            continue
        words = shlex.split(words)
        words[0] = {"mayfly-backup": TOOL, "mayflyd": BINARY}[words[0]]
        if "--backup" in words:
            s.stop()
        r = subprocess.run(words, capture_output=True, text=True, timeout=Deadline(120).seconds)
        check(r.returncode == 0, f"{command}: {r.stdout} {r.stderr}")
        if "--backup" in words:
            s.start()
        if "--restore" in words:
            want = hashes(s.client)
            s.stop()
            s = Server(data)
            check(hashes(s.client) == want, "what was restored is equal")
    check(s.client.admin.command("ttlStatus", 1).get("restored") is None, "released")
    s.stop()


run_backup_parts("backup_stopped_run", [stopped, stopped_member, series_until, recipes])
