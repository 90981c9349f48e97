#!/usr/bin/env python3
"""Encryption at rest: nothing that was stored can be found in any file, whatever ends the server; keys that change,
that are wrong or that are lost; sets whose members have different keys, or none.

Every search for stored text is made on a server without encryption as well, where it must find it. With the names of
parts (functions) as arguments only those run. The last line says "N passed, N failed". MAYFLY_KILL_ROUNDS (8): kills
under load.
"""

import base64, hashlib, os, secrets, shutil, subprocess, tempfile, threading
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, Checks, Deadline, discard, kill, launch, random_moment, rnd, run_parts, stop, until
from replica_set import Member, ReplicaSet

ROUNDS = int(os.environ.get("MAYFLY_KILL_ROUNDS", "8"))
FUTURE = "--setParameter", "ttlMonitorSleepSecs=1"
check = Checks()
folder = tempfile.mkdtemp(prefix="mayfly-at-rest-")
made = 0


def key_file(key=None, mode=0o600, text=None):
    """The path of a new one."""
    global made
    made += 1
    path = f"{folder}/key{made}"
    with open(path, "w") as f:
        f.write(text if text is not None else base64.b64encode(key or os.urandom(32)).decode() + "\n")
    os.chmod(path, mode)
    return path


def new_directory():
    global made
    made += 1
    return f"{folder}/data{made}"


def encrypted(key, *more):
    return ["--enableEncryption", "--encryptionKeyFile", key, *more]


def serve(data, *options):
    proc, port = launch(BINARY, ["--dbpath", data, *options], data + ".log")
    assert port, open(data + ".log", errors="replace").read()[-2000:]
    proc.port = port
    return proc, pymongo.MongoClient(
        "127.0.0.1",
        port,
        directConnection=True,
        serverSelectionTimeoutMS=Deadline().millis,
        retryWrites=False,
        retryReads=False,
    )


def files_below(directory):
    for at, _, names in os.walk(directory):
        for name in names:
            yield Path(at, name)


def bytes_of(path):
    """None: it was removed meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def open_without_name(pid):
    """Sizes of the files that the process has open and that have no name."""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "(deleted)" in os.readlink(fd):
                yield os.stat(fd).st_size
        except OSError:
            pass  # closed meanwhile


def found(texts, directory, pid=None):
    """{text: names of the files that have it}: below the directory, and of what the process has open without a name."""
    where = {t: set() for t in texts}
    paths = list(files_below(directory))
    if pid:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if "(deleted)" in os.readlink(fd):
                    paths.append(fd)
            except OSError:
                pass  # closed meanwhile
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:
            continue  # gone meanwhile
        for t in texts:
            if t.encode() in content:
                where[t].add("spill" if str(path).startswith("/proc") else os.path.relpath(path, directory))
    return where


def tree(directory):
    """What every file is, by its bytes."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files_below(directory)}


def wait(condition, what, seconds=60):
    assert until(condition, seconds), "no " + what


# --- what is in the files -------------------------------------------------------------------------------------------


def store_everything(client):
    """A canary in each place that may hold something of a user's: {what: text}."""
    c = {w: f"{w}-{secrets.token_hex(8)}" for w in ["value", "id", "indexed", "archived", "role", "session", "capped"]}
    c |= {w: f"{w}{secrets.token_hex(8)}" for w in ["collection", "view", "user", "custom", "profiled"]}
    db = client.shop
    db.docs.create_index("k")
    db.docs.insert_many([{"_id": f"{c['id']}-{i}", "v": c["value"], "k": [f"{c['indexed']}-{i}"]} for i in range(200)])
    db.create_collection(c["collection"])
    db.command("create", c["view"], viewOn="docs", pipeline=[{"$match": {"v": c["value"]}}])
    db.create_collection("old")
    db.create_collection("late", onExpire={"action": "archive", "into": {"db": "shop", "coll": "old"}})
    db.late.create_index("at", expireAfterSeconds=0)
    db.late.insert_one({"at": __import__("datetime").datetime(2020, 1, 1), "text": c["archived"]})
    wait(lambda: db.old.count_documents({}) == 1, "archived document")
    db.create_collection("ring", capped=True, size=100000)
    db.ring.insert_one({"text": c["capped"]})
    db.command("createUser", c["user"], pwd=secrets.token_hex(8), roles=[], customData={"x": c["custom"]})
    client.admin.command("createRole", c["role"], roles=[], privileges=[])
    with pymongo.MongoClient("127.0.0.1", client.address[1], directConnection=True) as retrying:
        with retrying.start_session() as session:
            retrying.shop.docs.find_one_and_update(
                {"_id": f"{c['id']}-1"}, {"$set": {"s": c["session"]}}, session=session
            )
    db.command("profile", 2)
    db.docs.find_one({"v": c["profiled"]})
    db.command("profile", 0)
    db.docs.delete_one({"_id": f"{c['id']}-3"})
    return c


def spill(client, canary):
    """A cursor whose sort has its runs on disk."""
    client.admin.command("setParameter", 1, internalQueryMaxBlockingSortMemoryUsageBytes=2 << 20)
    db = client.shop
    db.large.insert_many([{"n": i * 7919 % 4000, "v": f"{canary}{i}" + "y" * 3000} for i in range(4000)])
    cursor = db.large.find({}, sort=[("n", 1)], allow_disk_use=True, batch_size=2)
    first = next(cursor)
    return cursor, first


def look_everywhere(on, names_of_audit):
    """The same with and without encryption: while it runs, after kill -9, after the restart and a clean end."""
    data, label = new_directory(), "encrypted" if on else "plain"
    options = encrypted(key_file()) if on else []
    proc, client = serve(data, *options, *FUTURE)
    canaries = store_everything(client)
    spilled = f"spilled-{secrets.token_hex(8)}-"
    cursor, first = spill(client, spilled)
    everything = [*canaries.values(), spilled]

    def look(when, pid=None):
        where = found(everything, data, pid)
        if on:
            # The audit log is text for whoever administers the server: what was changed is its purpose.
            leaks = {t: f - {"audit/audit.json"} if t in names_of_audit(canaries) else f for t, f in where.items() if f}
            leaks = {t: f for t, f in leaks.items() if f}
            check(not leaks, f"{label}, {when}: none of {len(everything)} texts is in any file: {leaks}")
        else:
            missing = [t for t in (everything if pid else canaries.values()) if not where[t]]
            # What is merged is compressed as well, which may cut a text in two.
            least = 0 if "kill" in when or pid else len(canaries) // 2
            check(len(missing) <= least, f"{label}, {when}: they are in some file: missing {missing}")
        return where

    nameless = sum(open_without_name(proc.pid))
    where = look("while it runs", proc.pid)
    check(
        ("spill" in where[spilled]) != on and nameless > 0,
        f"{label}: the sort has {nameless} bytes on disk, {'without' if on else 'with'} the documents in them",
    )
    rest = list(cursor)
    check(
        first["n"] == 0 and [d["n"] for d in rest] == list(range(1, 4000)) and rest[9]["v"].startswith(spilled),
        f"{label}: and reads them back",
    )
    kill(proc)
    look("after kill -9")
    proc, client = serve(data, *options, *FUTURE)
    check(
        client.shop.docs.count_documents({"v": canaries["value"]}) == 199 and client.shop.old.count_documents({}) == 1,
        f"{label}: everything is there after kill -9",
    )
    client.admin.command("fsync", 1)
    client.shop.command("compact", "docs")
    look("after fsync and compact")
    status = client.admin.command("serverStatus")["encryptionAtRest"]
    expected = {"encryptionEnabled": True, "encryptionKeyId": "local", "encryptionCipherMode": "AES256-CTR"}
    check(status == (expected if on else {"encryptionEnabled": False}), f"{label}: serverStatus says {status}")
    check(stop(proc) == 0, f"{label}: it ends in order")
    look("after a clean end")
    proc, client = serve(data, *options)
    check(client.shop.docs.find_one({"k": f"{canaries['indexed']}-7"}) is not None, f"{label}: and serves again")
    stop(proc)


def canaries():
    # Of the value only where a view's pipeline has it, and of a user what createUser was given.
    names = lambda c: {c["collection"], c["view"], c["user"], c["role"], c["value"], c["custom"]}
    look_everywhere(False, names)
    look_everywhere(True, names)


# --- crashes --------------------------------------------------------------------------------------------------------


def kills():
    """kill -9 at random moments of a load: what was acknowledged is there, and nothing can be read in the files."""
    data, key, canary = new_directory(), key_file(), secrets.token_hex(8)
    proc, client = serve(data, *encrypted(key))
    client.shop.docs.create_index("v")
    acknowledged, lost = set(), 0

    def load(port, n, round_no):
        with pymongo.MongoClient("127.0.0.1", port, directConnection=True, retryWrites=False) as c:
            i = 0
            try:
                while True:
                    ids = [f"{round_no}-{n}-{i}-{j}" for j in range(1 + i % 7)]
                    wc = pymongo.WriteConcern(w=1, j=i % 10 == 0)
                    docs = c.shop.get_collection("docs", write_concern=wc)
                    docs.insert_many([{"_id": d, "v": canary + d, "pad": "p" * 500} for d in ids])
                    acknowledged.update(ids)
                    i += 1
            except PyMongoError:
                pass

    for round_no in range(ROUNDS):
        threads = [threading.Thread(target=load, args=(proc.port, n, round_no)) for n in range(3)]
        for t in threads:
            t.start()
        random_moment(0.1, 1.2)
        kill(proc)
        for t in threads:
            t.join()
        proc, client = serve(data, *encrypted(key))
        there = {d["_id"] for d in client.shop.docs.find({}, {"_id": 1})}
        lost += len(acknowledged - there)
        check(not acknowledged - there, f"kill {round_no}: {len(acknowledged)} acknowledged, {len(there)} there")
        indexed = client.shop.docs.count_documents({"v": {"$gte": ""}})
        check(indexed == len(there), f"kill {round_no}: the index has {indexed}")
    check(client.shop.command("validate", "docs", full=True)["valid"], "validate finds nothing")
    check(not found([canary], data)[canary], "and nothing can be read in the files")
    stop(proc)


# --- keys -----------------------------------------------------------------------------------------------------------


def refused(what, data, code, says, *options):
    """A start that ends with this code and says this, and changes nothing."""
    before = tree(data) if os.path.isdir(data) else None
    p = subprocess.run(
        [BINARY, "--dbpath", data, "--port", "0", "--nounixsocket", "--httpPort", "0", *options],
        capture_output=True,
        text=True,
        timeout=Deadline().seconds,
    )
    check(p.returncode == code, f"{what}: exit code {p.returncode}, expected {code}")
    said = [says] if isinstance(says, str) else says
    check(all(s in p.stderr for s in said), f"{what}: {p.stderr.strip()[-600:]}")
    check((tree(data) if before is not None else None) == before, f"{what}: nothing was changed")


def refusals():
    data, plain, key, other = new_directory(), new_directory(), key_file(), key_file()
    proc, client = serve(data, *encrypted(key))
    client.shop.docs.insert_many([{"_id": i, "v": "x" * 100} for i in range(1000)])
    stop(proc)
    proc, client = serve(plain)
    client.shop.docs.insert_one({"_id": 1})
    stop(proc)
    keystore = f"{data}/encryption.keystore"
    good = open(keystore, "rb").read()

    refused("an encrypted store without the option", data, 100, ["encrypted", "--enableEncryption"])
    refused("a wrong key", data, 100, ["wrong master key", other], *encrypted(other))
    refused(
        "a wrong key to change from",
        data,
        100,
        ["wrong master key"],
        *encrypted(other, "--encryptionRotateFrom", key_file()),
    )
    refused("a plain store with the option", plain, 100, ["not encrypted", "initial sync"], *encrypted(key))
    for what, change in [
        ("a byte of the keystore changed", good[:60] + bytes([good[60] ^ 1]) + good[61:]),
        ("half of the keystore", good[: len(good) // 2]),
        ("an empty keystore", b""),
        ("something else as the keystore", os.urandom(len(good))),
    ]:
        open(keystore, "wb").write(change)
        refused(what, data, 100, ["encryption.keystore", "damaged", "backup"], *encrypted(key))
    os.remove(keystore)
    refused("no keystore", data, 100, ["encryption.keystore", "missing"], *encrypted(key))
    refused("no keystore and no option", data, 100, ["encryption.keystore", "missing"])
    open(keystore, "wb").write(good)
    shutil.copy(keystore, plain)
    refused("a keystore beside plain data", plain, 100, ["not encrypted", "belong together"], *encrypted(key))
    refused("the same without the option", plain, 100, ["not encrypted", "belong together"])
    os.remove(f"{plain}/encryption.keystore")

    # Another store's keystore: the same master key, and not the key of these files.
    third = new_directory()
    proc, _ = serve(third, *encrypted(key))
    stop(proc)
    shutil.copy(f"{third}/encryption.keystore", keystore)
    p = subprocess.run(
        [BINARY, "--dbpath", data, "--port", "0", "--nounixsocket", *encrypted(key)], capture_output=True, text=True
    )
    check(p.returncode == 100 and "another store" in p.stderr, f"another store's keystore: {p.stderr.strip()[-400:]}")
    open(keystore, "wb").write(good)

    options = lambda path: ["--enableEncryption", "--encryptionKeyFile", path]
    refused("no key file", data, 2, "No such file", *options(f"{folder}/none"))
    refused("a key file that others can read", data, 2, "chmod 600", *options(key_file(mode=0o644)))
    refused("a key that is too short", data, 2, "32 bytes in base64", *options(key_file(key=os.urandom(16))))
    refused("a key file that is none", data, 2, "32 bytes in base64", *options(key_file(text="not a key\n")))
    refused("the option without a key file", data, 2, "--encryptionKeyFile", "--enableEncryption")
    refused("a key file without the option", data, 2, "--enableEncryption", "--encryptionKeyFile", key)
    refused("another cipher", data, 2, "AES256-CTR", *encrypted(key, "--encryptionCipherMode", "AES256-GCM"))
    refused("a key server", data, 2, "encryptionKeyFile", "--kmipServerName", "kms.example")

    for directory, more, n in [(data, encrypted(key), 1000), (plain, [], 1)]:
        proc, client = serve(directory, *more)
        check(client.shop.docs.count_documents({}) == n, f"afterwards everything is there ({n})")
        stop(proc)


def kind_of(path):
    """MANIFEST, CURRENT, OPTIONS, IDENTITY, sst, log …"""
    name = Path(path).name
    return name.split("-")[0] if name[0].isupper() else name.rsplit(".", 1)[-1]


def damages(data, others, before):
    """(what, bytes to put there) for a file: each way in which it may be damaged. `others`: of files of its kind;
    `before`: what it was a moment ago, if it was there."""
    middle = len(data) // 2
    flip = lambda at: data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
    yield "a bit of its prefix", flip(9)
    yield "a bit behind that", flip(40)
    yield "its last byte", flip(len(data) - 1)
    if len(data) > 4096:
        yield "a bit of its first block", flip(4096)
        yield "a bit in its middle", flip(max(middle, 4096))
        yield "only its prefix", data[:4096]
    yield "its half", data[:middle]
    yield "all but its last byte", data[:-1]
    yield "nothing of it", b""
    for other in others[:1]:
        yield "another file of its kind", other
    if before not in (None, data):
        yield "an older copy of it", before


def damage():
    """A file of an encrypted store that is damaged: the server says so, or what it answers is right. It neither crashes
    nor makes anything up."""
    good, key, count = new_directory(), key_file(), 3000
    proc, client = serve(good, *encrypted(key))
    documents = [{"_id": i, "v": f"value {i} " + "x" * 300} for i in range(count)]
    for at in range(0, count, 1000):
        client.shop.docs.insert_many(documents[at : at + 1000])
        client.admin.command("fsync")
    client.shop.docs.create_index("v")
    stop(proc)
    # What is in the log alone.
    proc, client = serve(good, *encrypted(key))
    client.shop.docs.insert_many([{"_id": count + i, "v": "late"} for i in range(50)])
    older = {p: bytes_of(p) for p in files_below(good)}
    client.shop.docs.insert_many([{"_id": count + i, "v": "late"} for i in range(50, 100)])
    kill(proc)
    files = [p for p in files_below(good) if p.stat().st_size > 64 and kind_of(p) not in ("lock", "json")]
    kinds = {}
    for path in sorted(files):
        kinds.setdefault(kind_of(path), []).append(path)
    seen = {kind: [p.read_bytes() for p in paths] for kind, paths in kinds.items()}
    check({"MANIFEST", "CURRENT", "sst", "log"} <= set(kinds), f"kinds of files: {sorted(kinds)}")
    refused_by, served = 0, 0
    for kind, paths in kinds.items():
        path = max(paths, key=lambda p: p.stat().st_size)
        others = [d for p, d in zip(paths, seen[kind]) if p != path]
        for what, changed in damages(path.read_bytes(), others, older.get(path)):
            where = f"{kind}, {what}"
            copy = new_directory()
            shutil.copytree(good, copy)
            Path(copy, path.relative_to(good)).write_bytes(changed)
            proc, port = launch(BINARY, ["--dbpath", copy, *encrypted(key)], copy + ".log")
            said = open(copy + ".log", errors="replace").read()
            if port is None:
                code = proc.wait(Deadline().seconds)
                check(code in (2, 14, 100), f"{where}: exit code {code}: {said[-400:]}")
                clear = any(w in said for w in ("orrupt", "amaged", "missing", "another store"))
                check(clear, f"{where}: {said[-400:]}")
                refused_by += 1
            else:
                c = pymongo.MongoClient("127.0.0.1", port, directConnection=True, retryReads=False)
                check_answers(c, where, count, kind == "log")
                c.close()
                stop(proc)
                check(proc.returncode is not None and proc.returncode >= 0, f"{where}: ends by {proc.returncode}")
                served += 1
            shutil.rmtree(copy, ignore_errors=True)
    check(refused_by > 5 and served > 0, f"{refused_by} were refused, {served} were served")


def damaged_backup():
    """A file of an encrypted server's backup that is damaged: the restore says which, and leaves nothing behind."""
    data, key, backups = new_directory(), key_file(), new_directory()
    proc, client = serve(data, *encrypted(key))
    client.shop.docs.insert_many([{"_id": i, "v": f"value {i} " + "x" * 300} for i in range(3000)])
    client.shop.docs.create_index("v")
    client.admin.command("backup", 1, path=backups)
    stop(proc)

    def restore():
        to = new_directory()
        words = [BINARY, "--restore", backups, "--dbpath", to, *encrypted(key)]
        p = subprocess.run(words, capture_output=True, text=True, timeout=Deadline(120).seconds)
        return p.returncode, p.stdout + p.stderr, to

    files = sorted(p for p in Path(backups).rglob("*") if p.is_file() and p.stat().st_size > 64)
    check(len(files) > 5, f"files of the backup: {len(files)}")
    for path in files:
        whole = path.read_bytes()
        for what, changed in damages(whole, [], None):
            path.write_bytes(changed)
            status, said, to = restore()
            right = status == 100 and path.name in said and not (os.path.isdir(to) and os.listdir(to))
            check(right, f"backup: {path.name}, {what}: {status}, {said[-300:]}")
        path.write_bytes(whole)
    status, said, to = restore()
    check(status == 0, f"as it was it is restored: {said[-300:]}")
    proc, client = serve(to, *encrypted(key))
    check(client.shop.docs.count_documents({}) == 3000, "with all that was in it")
    stop(proc)


def check_answers(client, where, count, may_lack_end):
    """Each document that comes is as it was written; there are all, or an error says why not. `may_lack_end`: of what
    was in the log alone the end may be missing, as after a loss of power."""
    try:
        got = {d["_id"]: d["v"] for d in client.shop.docs.find()}
        by_index = {d["_id"] for d in client.shop.docs.find({"v": {"$gte": ""}}, {"_id": 1}).hint("v_1")}
    except PyMongoError as e:
        check("orrupt" in str(e) or "damaged" in str(e), f"{where}: an error of a read: {e}")
        return
    right = all(v == ("late" if i >= count else f"value {i} " + "x" * 300) for i, v in got.items())
    check(right, f"{where}: what is answered was written")
    whole = set(range(count + 100))
    lacks = whole - set(got)
    allowed = not lacks or (may_lack_end and lacks == set(range(min(lacks), count + 100)) and min(lacks) >= count)
    check(allowed and by_index == set(got), f"{where}: {len(lacks)} are missing, {len(by_index)} by the index")


def rotation():
    data, keys = new_directory(), [key_file() for _ in range(4)]
    proc, client = serve(data, *encrypted(keys[0]))
    client.shop.docs.insert_many([{"_id": i, "v": "x" * 100} for i in range(1000)])
    client.admin.command("fsync", 1)
    kill(proc)  # with a log to be read
    tables = lambda: {p: d for p, d in tree(data).items() if p.endswith(".sst")}
    before = tables()
    keystore = Path(f"{data}/encryption.keystore")
    killed = Path(f"{keystore}.aB3xY9")  # by a start that was killed: the data key, wrapped by the first master key
    shutil.copy(keystore, killed)
    proc, client = serve(data, *encrypted(keys[1], "--encryptionRotateFrom", keys[0]))
    check(client.shop.docs.count_documents({}) == 1000, "a start with a new key, and the one before, serves")
    after = tables()  # some may have been merged meanwhile
    check(
        before and all(after.get(p, d) == d for p, d in before.items()), f"no file is rewritten ({len(before)} files)"
    )
    check("its master key was replaced" in open(data + ".log").read(), "and the log says so")
    check(not killed.exists(), "nothing is left that the key before opens")
    was = keystore.read_bytes()
    args = encrypted(keys[2], "--encryptionRotateFrom", keys[1])
    again = subprocess.run(
        [BINARY, "--dbpath", data, "--port", "0", "--nounixsocket", *args],
        capture_output=True,
        text=True,
        timeout=Deadline().seconds,
    )
    said = again.returncode == 100 and "another process is using the data directory" in again.stderr
    check(said, f"a second start beside it is refused: {again.returncode} {again.stderr[-300:]}")
    check(keystore.read_bytes() == was, "and has not replaced the key under the one that runs")
    stop(proc)
    refused("the key before", data, 100, "wrong master key", *encrypted(keys[0]))
    for _ in range(2):
        proc, client = serve(data, *encrypted(keys[1], "--encryptionRotateFrom", keys[0]))
        check(client.shop.docs.count_documents({}) == 1000, "the same options again do nothing")
        stop(proc)

    # Whatever moment it dies at, one of the two keys opens it.
    now, n = 1, 0
    for _ in range(ROUNDS):
        after = 2 + (now == 2)
        args = encrypted(keys[after], "--encryptionRotateFrom", keys[now])
        p = subprocess.Popen(
            [BINARY, "--dbpath", data, "--port", "0", "--nounixsocket", "--httpPort", "0", *args],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        random_moment(0, 0.08)
        kill(p)
        proc, client = serve(data, *args)
        n += client.shop.docs.count_documents({}) == 1000
        stop(proc)
        now = after
    check(n == ROUNDS, f"killed {ROUNDS} times while the key is replaced")
    proc, client = serve(data, *encrypted(keys[now]))
    check(client.shop.docs.count_documents({}) == 1000, "everything is there under the last key")
    stop(proc)


def secrecy():
    """The key shows nowhere; a configuration file names the options as MongoDB does."""
    raw = os.urandom(32)
    key, data = key_file(raw), new_directory()
    config = f"{folder}/mayfly.conf"
    with open(config, "w") as f:
        f.write(f"security:\n  enableEncryption: true\n  encryptionKeyFile: {key}\n")
    proc, client = serve(data, "--config", config, "-vv")
    client.shop.docs.insert_one({"_id": 1})
    shown = client.admin.command("getCmdLineOpts")["parsed"]["security"]
    check(shown == {"enableEncryption": True, "encryptionKeyFile": key}, f"getCmdLineOpts shows the path: {shown}")
    replies = str([client.admin.command(c) for c in ["getCmdLineOpts", "serverStatus", "hello"]])
    replies += str(client.admin.command("getLog", "global")) + str(client.admin.command("getParameter", "*"))
    forms = [base64.b64encode(raw).decode().rstrip("="), raw.hex(), raw.hex().upper()]
    check(not any(f in replies for f in forms), "the key is in no reply")
    log = open(data + ".log").read()
    check("The data is encrypted" in log and not any(f in log for f in forms), "nor in the log")
    check(not any(w for w in found(forms, data).values()), "nor in the data directory")
    check(not any(raw in p.read_bytes() for p in files_below(data)), "as bytes neither")
    stop(proc)


# --- sets -----------------------------------------------------------------------------------------------------------


def first_with_data(s, first, canary, thousands):
    """A member that had data before there was a set, so that others have to copy it."""
    s.members = [first]
    first.start(replica_set=False)
    first.wait_up()
    for n in range(thousands):
        first.client.shop.docs.insert_many(
            [{"_id": n * 1000 + i, "v": f"{canary}-{i}", "b": rnd.randbytes(1500)} for i in range(1000)]
        )
    first.stop()
    first.start()
    first.wait_up()
    first.client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": first.host}]})
    s.wait(lambda: first.hello()["isWritablePrimary"], "the first member to lead")


def sets():
    """Copies between members: each stores what it takes under its own key, or plain when it has none."""
    canary, logged = f"copied-{secrets.token_hex(8)}", f"logged-{secrets.token_hex(8)}"
    s = ReplicaSet(0)
    try:
        kinds = [encrypted(key_file()), encrypted(key_file()), []]
        for i, options in enumerate(kinds):
            s.members.append(Member(f"{s.folder}/{i}", options))
        first, second, plain = s.members
        first_with_data(s, first, canary, 20)
        for joiner in (second, plain):
            s.members.append(joiner)
            joiner.start()
            joiner.wait_up()
            s.add(joiner)
            for _ in range(3):
                random_moment(0.02, 0.3)
                if joiner is second:
                    check(
                        not found([canary], joiner.folder + "/data")[canary], "nothing to read in the midst of a copy"
                    )
                joiner.kill()
                joiner.start()
            s.wait(lambda: joiner.hello().get("secondary"), "the joiner to follow", 120)
        copied = "Initial sync" in open(f"{second.folder}/log", errors="replace").read()
        check(copied, "the second member copied the data files")
        s.primary().client.shop.docs.insert_many([{"_id": f"late{i}", "v": f"{logged}-{i}"} for i in range(100)])
        s.settled(120)
        hashes = s.hashes("shop")
        check(len(set(hashes)) == 1, f"all members hold the same: {hashes}")

        def look(when):
            for m, on in [(first, True), (second, True), (plain, False)]:
                where = found([canary, logged], m.folder + "/data", m.proc.pid if m.running() else None)
                if on:
                    leaks = {t: f for t, f in where.items() if f}
                    check(not leaks, f"{when}: member {m.port}: nothing can be read: {leaks}")
                else:
                    check(all(where.values()), f"{when}: member {m.port} without encryption: all can be read")

        look("while they run")
        stores = [open(f"{m.folder}/data/encryption.keystore", "rb").read()[9:25] for m in (first, second)]
        check(stores[0] != stores[1], "each member has a key of its own")
        for m in s.members:
            m.kill()
        look("after kill -9 of all")
        for m in s.members:
            m.start()
        for m in s.members:
            m.wait_up()
        s.in_place(120)
        s.settled(120)
        check(len(set(s.hashes("shop"))) == 1, "and after the restart they hold the same")
        for m in s.members:
            check(m.stop() == 0, "a member ends in order")
        look("after a clean end")
    finally:
        s.close()


def from_plain():
    """How a set becomes encrypted: a member with an empty directory takes everything from one that is not."""
    canary = f"moved-{secrets.token_hex(8)}"
    s = ReplicaSet(0)
    try:
        first_with_data(s, Member(f"{s.folder}/0"), canary, 5)
        joiner = Member(f"{s.folder}/1", encrypted(key_file()))
        s.members.append(joiner)
        joiner.start()
        joiner.wait_up()
        s.add(joiner)
        s.wait(lambda: joiner.hello().get("secondary"), "the joiner to follow", 120)
        s.settled(60)
        check(joiner.client.shop.docs.count_documents({}) == 5000, "an encrypted member copies a plain one's data")
        check(not found([canary], joiner.folder + "/data")[canary], "and nothing of it can be read")
        check(bool(found([canary], s.members[0].folder + "/data")[canary]), "which can be at the plain one")
    finally:
        s.close()


PARTS = [canaries, kills, refusals, damage, damaged_backup, rotation, secrecy, sets, from_plain]
if __name__ == "__main__":
    try:
        run_parts("encryption at rest", PARTS, check)
    finally:
        discard(folder)
