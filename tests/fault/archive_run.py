#!/usr/bin/env python3
"""The archive of the log and restores to a point in time: a client writes one thing after another (documents with and
without deadlines, transactions, units in chunks, changes of the schema) and keeps what there was at each operation's
time, while others write beside it and the server is killed at any moment; in a set of three its primaries, too, and the
member that archives. Copies of data directories with the archive behind them must then be what there was at each of
many times. An archive on a full disk, segments that are damaged, missing or twice, encryption, commands.
MAYFLY_SEED, MAYFLY_ARCHIVE_TIMES (6; the times to restore to, per part), MAYFLY_ARCHIVE_KILLS (3). Parts as arguments.
"""

import copy, datetime, os, shlex, shutil, subprocess, tempfile, threading, time
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, ROOT, Deadline, discard, free_port, random_moment, rnd, run_parts, until
from replica_set import FAULTY, Checks, Member, ReplicaSet

REPLAY = str(ROOT / "build/release/tests/archive_replay")
TIMES = int(os.environ.get("MAYFLY_ARCHIVE_TIMES", "6"))
KILLS = int(os.environ.get("MAYFLY_ARCHIVE_KILLS", "3"))
check = Checks()
QUICK = ["--setParameter", "logArchiveSegmentSecs=1", "--setParameter", "logArchiveSegmentMB=1"]
LARGE = "x" * 2_500_000
ACCOUNTS = 10


def now():
    return datetime.datetime.now(datetime.timezone.utc)


class Model:
    """What one client has written, and what there was at the time of each of its operations."""

    def __init__(self, client):
        self.client, self.state, self.deadlines, self.times = client, {"plain": {}}, {}, []
        self.next = 0

    def step(self):
        """One operation, tried until it has succeeded: whatever became of it before, it ends the same."""
        self.next += 1
        n = self.next
        colls = list(self.state)
        c = rnd.choice(colls)
        key = f"k{rnd.randrange(60)}"
        kinds = ["put"] * 8 + ["delete"] * 2 + ["transaction"] * 3 + ["expiring"] * 4 + ["index", "large", "many"]
        kinds += ["create"] if len(colls) < 4 else ["drop", "rename"]
        kind = rnd.choice(kinds)
        if kind in ("drop", "rename") and c == "plain":
            kind = "put"
        act, after = getattr(self, kind)(n, c, key)
        deadline = Deadline()
        while True:
            try:
                with self.client.start_session(causal_consistency=True) as s:
                    act(s)
                    at = s.operation_time
                break
            except PyMongoError as e:
                if not deadline.holds():
                    raise AssertionError(f"{kind} does not succeed: {e!r}") from e
        after()
        self.times.append((at, copy.deepcopy(self.state), len(self.deadlines)))

    def put(self, n, c, key):
        def act(s):
            self.client.model[c].replace_one({"_id": key}, {"_id": key, "n": n}, upsert=True, session=s)

        return act, lambda: self.state[c].update({key: n})

    def delete(self, n, c, key):
        return (
            lambda s: self.client.model[c].delete_one({"_id": key}, session=s),
            lambda: self.state[c].pop(key, None),
        )

    def large(self, n, c, key):
        def act(s):
            document = {"_id": key, "n": n, "text": LARGE}
            self.client.model.large.replace_one({"_id": key}, document, upsert=True, session=s)

        return act, lambda: None

    def many(self, n, c, key):
        keys = [f"k{rnd.randrange(60)}" for _ in range(5)]

        def act(s):
            self.client.model[c].bulk_write(
                [pymongo.ReplaceOne({"_id": k}, {"_id": k, "n": n}, upsert=True) for k in keys], session=s
            )

        return act, lambda: self.state[c].update({k: n for k in keys})

    def transaction(self, n, c, key):
        keys = [f"k{rnd.randrange(60)}" for _ in range(3)]

        def act(s):
            with s.start_transaction():
                for k in keys:
                    self.client.model[c].replace_one({"_id": k}, {"_id": k, "n": n}, upsert=True, session=s)
                self.client.model.plain.delete_one({"_id": key}, session=s)

        def after():
            self.state[c].update({k: n for k in keys})
            self.state["plain"].pop(key, None)

        return act, after

    def expiring(self, n, c, key):
        deadline = now() + datetime.timedelta(milliseconds=rnd.choice([300, 1000, 3_600_000]))
        deadline = deadline.replace(microsecond=deadline.microsecond // 1000 * 1000)

        def act(s):
            self.client.model.command(
                "update", "expiring",
                updates=[{"q": {"_id": n}, "u": {"_id": n}, "upsert": True}], expireAt=deadline, session=s,
            )  # fmt: skip

        return act, lambda: self.deadlines.update({n: deadline})

    def index(self, n, c, key):
        field = rnd.choice(["n", "m", "o"])
        return lambda s: self.client.model[c].create_index(field, session=s), lambda: None

    def create(self, n, c, key):
        name = f"c{n}"

        def act(s):
            self.client.model[name].replace_one({"_id": "first"}, {"_id": "first", "n": n}, upsert=True, session=s)

        return act, lambda: self.state.update({name: {"first": n}})

    def drop(self, n, c, key):
        return lambda s: self.client.model.drop_collection(c, session=s), lambda: self.state.pop(c)

    def rename(self, n, c, key):
        name = f"r{n}"

        def act(s):
            if name not in self.client.model.list_collection_names(session=s):
                self.client.admin.command("renameCollection", f"model.{c}", to=f"model.{name}", session=s)

        return act, lambda: self.state.update({name: self.state.pop(c)})


class Beside(threading.Thread):
    """Moves money between accounts in transactions, and writes what expires at once: no time may show a half."""

    def __init__(self, uri):
        super().__init__()
        self.uri, self.stop, self.made = uri, False, 0

    def run(self):
        client = pymongo.MongoClient(  # clock: what fails is tried again
            self.uri, serverSelectionTimeoutMS=2000, socketTimeoutMS=5000, retryWrites=False
        )
        n = 0
        while not self.stop:
            n += 1
            a, b = n % ACCOUNTS, (n * 7 + 1) % ACCOUNTS
            try:
                with client.start_session() as s, s.start_transaction():
                    client.bank.accounts.update_one({"_id": a}, {"$inc": {"v": -1}}, session=s)
                    client.bank.other.update_one({"_id": b}, {"$inc": {"v": 1}}, session=s)
                self.made += 1
                client.bank.command("insert", "short", documents=[{"n": n}] * 3, expireAfterSeconds=1)
                if n % 8 == 0:
                    client.bank.large.replace_one({"_id": 1}, {"n": n, "text": LARGE * 2}, upsert=True)
            except PyMongoError:
                pass
        client.close()


def open_bank(client):
    for c in ("accounts", "other"):
        client.bank[c].insert_many([{"_id": i, "v": 0} for i in range(ACCOUNTS)])


class Archive:
    """The archive of a run, and copies of data directories that it can be replayed on."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="mayfly-archive-")
        self.path, self.bases, self.taken, self.key = f"{self.folder}/archive", [], 0, None

    def options(self, *more):
        return ["--logArchivePath", self.path, *QUICK, *more]

    def take_base(self, member, at):
        """Of a member that does not run. `at`: a time that is not before it."""
        self.taken += 1
        to = f"{self.folder}/base{self.taken}"
        shutil.copytree(f"{member.folder}/data", to)
        self.bases.append((at, to))

    def replay(self, base, at):
        """The data directory, and what the replay says; None and what was wrong."""
        to = tempfile.mkdtemp(prefix="restored-", dir=self.folder)
        shutil.copytree(base, f"{to}/data")
        text = f"{at.time}:{at.inc}" if at else "-"
        r = subprocess.run(
            [REPLAY, f"{to}/data", self.path, text, *([self.key] if self.key else [])], capture_output=True, text=True
        )
        if r.returncode != 0:
            shutil.rmtree(to)
            return None, r.stderr
        return to, r.stdout

    def verify(self):
        r = subprocess.run([REPLAY, "verify", self.path], capture_output=True, text=True)
        return r.returncode == 0, r.stdout + r.stderr

    def segments(self):
        return sorted(Path(self.path).glob("*.segment"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        discard(self.folder)


def begin(s, steps):
    """A new set with a bank and a model that has done some steps."""
    s.initiate()
    client = connect(s.uri)
    model = Model(client)
    open_bank(client)
    for _ in range(steps):
        model.step()
    return client, model


def rebase(s, archive, m, model):
    """The one member of a set stops, a copy is made of its directory, and it goes on."""
    m.stop()
    archive.take_base(m, model.times[-1][0])
    m.start()
    m.wait_up()
    s.primary()


def begin_with_base(s, archive, steps=1, wait=False):
    """A set of one that has a model and, behind its first steps, a copy of its directory. `wait`: until all of that is
    archived."""
    s.initiate()
    m, model = s.members[0], Model(connect(s.uri))
    for _ in range(steps):
        model.step()
    if wait:
        archived(m)
    rebase(s, archive, m, model)
    return model


def archived(member, seconds=60):
    """Waits until all that the member has applied is archived."""

    def done():
        try:
            status = member.client.admin.command("serverStatus")["logArchive"]
            return status["state"] == "running" and status["waitingEntries"] == 0
        except PyMongoError:
            return False

    # Notes of an idle primary and the like come all the time: none waits at some moment.
    if not until(done, seconds):
        raise AssertionError("not archived: " + member.tail()[-2000:])


def restored(folder, extra=()):
    """A standalone server on a restored directory, which removes nothing."""
    m = Member(folder, ["--setParameter", "ttlMonitorEnabled=false", "--httpPort", "0", *extra])
    m.start(replica_set=False)
    m.wait_up()
    return m


def differences(client, at, state, deadlines):
    """Between the restored server and the model, in words."""
    out = []
    names = set(client.model.list_collection_names()) - {"large", "expiring"}
    wanted = {c for c in state if state[c]} | {"plain"}
    if not (names - {"plain"}) <= set(state) or not (wanted - {"plain"}) <= names:
        out.append(f"collections {sorted(names)} instead of {sorted(state)}")
    for c in names & set(state):
        there = {d["_id"]: d["n"] for d in client.model[c].find()}
        if there != state[c]:
            out.append(f"{c}: {sorted(set(there.items()) ^ set(state[c].items()))[:6]}")
    reply = client.model.command("find", "expiring", includeExpired=True, batchSize=1_000_000)
    there = {d["_id"] for d in reply["cursor"]["firstBatch"]}
    live = at.as_datetime() + datetime.timedelta(seconds=2)
    missing = {n for n, deadline in deadlines.items() if deadline > live} - there
    if missing or not there <= set(deadlines):
        out.append(f"expiring: missing {sorted(missing)[:5]}, too many {sorted(there - set(deadlines))[:5]}")
    if "accounts" in client.bank.list_collection_names():
        total = sum(d["v"] for c in ("accounts", "other") for d in client.bank[c].find())
        if total != 0:
            out.append(f"half of a transfer: {total}")
    for db in ("model", "bank"):
        for c in client[db].list_collection_names():
            if not client[db].command("validate", c)["valid"]:
                out.append(f"{db}.{c} is not valid")
    return out


def restore_and_compare(archive, model, times, what):
    wrong, done = [], 0
    for at, state, n in sorted(times, key=lambda t: t[0].time):
        # The one of that very time may have more: what expired between the model's last step and the end.
        bases = [b for b in archive.bases if (b[0].time, b[0].inc) < (at.time, at.inc)]
        if not bases:
            continue
        folder, said = archive.replay(rnd.choice(bases)[1], at)
        done += 1
        if folder is None:
            wrong.append(f"{at}: {said}")
            continue
        m = restored(folder)
        try:
            deadlines = dict(list(model.deadlines.items())[:n])
            wrong += [f"{at}: {d}" for d in differences(m.client, at, state, deadlines)]
        finally:
            m.kill()
            discard(folder)
    check(done > 0 and not wrong, f"{what}: restored to {done} times, each as it was {wrong[:4]}")


def sample(model, least=0):
    times = model.times[least:]
    return rnd.sample(times, min(TIMES, len(times)))


def connect(uri):
    return pymongo.MongoClient(  # clock: what fails is tried again
        uri, serverSelectionTimeoutMS=5000, connectTimeoutMS=2000, socketTimeoutMS=8000, retryWrites=False
    )


def by_restore():
    """`mayflyd --restore --until` of a backup of a running member."""
    with Archive() as archive:
        s = ReplicaSet(1, archive.options())
        backups = f"{archive.folder}/backups"
        try:
            client, model = begin(s, 40)
            client.admin.command("backup", 1, path=backups)
            first = len(model.times)
            for _ in range(80):
                model.step()
            archived(s.members[0])
        finally:
            s.close()

        page = (ROOT / "docs/log-archive.md").read_text()
        command = next(l for l in page.splitlines() if l.startswith("mayflyd --restore"))

        def restore(*options):
            """The page's command, with other paths and another time."""
            to = tempfile.mkdtemp(prefix="restored-", dir=archive.folder)
            words = shlex.split(command)
            at = words.index("--until")
            words[at : at + 2] = options
            paths = {"mayflyd": BINARY, "/backups/db": backups, "/archive": archive.path}
            paths["/data/restored"] = f"{to}/data"
            words = [paths.get(w, w) for w in words]
            r = subprocess.run(words, capture_output=True, text=True, timeout=Deadline(120).seconds)
            return to, r.returncode, r.stdout + r.stderr

        for at, state, n in sample(model, first):
            to, code, said = restore("--until", f"{at.time},{at.inc}")
            check(code == 0, f"restored until {at}: {said[-500:]}")
            m = restored(to)
            try:
                odd = differences(m.client, at, state, dict(list(model.deadlines.items())[:n]))
                check(not odd, f"{at} is as it was: {odd[:4]}")
                held = m.client.admin.command("ttlStatus", 1)["restored"]
                check(held["expiryHeld"], "and its expiry is held")
                check(held["backupTime"] <= held["dataTime"] <= held["since"], f"which says of when: {held}")
                # The last unit is not behind the time, and that is what the data is of.
                check(held["dataTime"].timestamp() < at.time + 2, f"{held} for {at}")
            finally:
                m.kill()
        at, state, _ = model.times[-1]
        pipe = f"{archive.path}/of-nobody.keystore"
        os.mkfifo(pipe)
        to, code, said = restore("--expiry", "run")
        check(code == 0, f"restored to the end, and a pipe is no keystore: {said[-500:]}")
        os.unlink(pipe)
        m = restored(to)
        odd = differences(m.client, at, state, dict(model.deadlines))
        check(not odd, f"without a time: to the archive's end {odd[:4]}")
        m.kill()
        victim = archive.segments()[-1]
        kept = victim.read_bytes()
        victim.unlink()
        os.mkfifo(victim)
        to, code, said = restore("--until", f"{at.time},{at.inc}")
        check(code == 100 and victim.name in said, f"a pipe is no segment, and nobody waits for it: {said[-300:]}")
        victim.unlink()
        victim.write_bytes(kept)
        late = datetime.datetime.fromtimestamp(at.time + 86400, datetime.timezone.utc).strftime("%FT%TZ")
        # Nothing is copied for any of these: there is not even a directory.
        for text, words in (
            ("1,1", "take an earlier backup"),
            (f"{at.time + 86400},1", "ends at"),
            (late, "ends at"),
            (late.replace("Z", ".5Z"), "fraction of a second"),
            ("yesterday", "must be a time"),
        ):
            to, code, said = restore("--until", text)
            check(code == 100 and words in said and not os.path.exists(f"{to}/data"), f"{text}: {said[-300:]}")
        moved = [(v, v.read_bytes()) for v in archive.segments()]
        for gone, words in (
            (moved[-2:-1], "a segment is missing"),
            (moved[:-1], "it begins with"),
            (moved, "no segments"),
            (None, "cannot list the archive"),
        ):
            for v, _ in gone or moved:
                v.unlink()
            if gone is None:
                os.rename(archive.path, f"{archive.path}.away")
            to, code, said = restore("--until", f"{at.time},{at.inc}")
            check(code == 100 and words in said and not os.path.exists(f"{to}/data"), f"{words}: {said[-300:]}")
            if gone is None:
                os.rename(f"{archive.path}.away", archive.path)
            for v, whole in gone or moved:
                v.write_bytes(whole)
        to, code, said = restore("--until", f"{at.time},{at.inc}")
        check(code == 0, f"and as it was, it is restored: {said[-300:]}")


def alone():
    """A set of one that is killed at any moment."""
    with Archive() as archive:
        s = ReplicaSet(1, archive.options())
        try:
            (client, model), m = begin(s, 20), s.members[0]
            beside = Beside(s.uri)
            beside.start()
            for i in range(KILLS):
                for _ in range(rnd.randrange(20, 60)):
                    model.step()
                if i == 0:
                    m.stop()
                else:
                    m.kill()  # at once, whatever the archiver does
                archive.take_base(m, model.times[-1][0])
                m.start()
                m.wait_up()
                s.primary()
            killed, late_bases, early = [0], [], len(archive.bases)

            def kill_often():
                while not beside.stop:
                    random_moment(0.1, 2.5)
                    m.kill()
                    if len(archive.bases) < 2 * KILLS:
                        # What was under way may be in it, or done and not noted yet: the one behind that is later.
                        late_bases.append(len(model.times) + 1)
                        archive.take_base(m, None)
                    m.start()
                    m.wait_up()
                    killed[0] += 1

            beside_kills = threading.Thread(target=kill_often)
            beside_kills.start()
            for _ in range(60 * KILLS):
                model.step()
            beside.stop = True
            beside_kills.join()
            s.primary()
            for _ in range(20):
                model.step()
            for i, behind in enumerate(late_bases):
                archive.bases[early + i] = (model.times[behind][0], archive.bases[early + i][1])
            beside.join()
            s.primary()
            archived(m)
            whole, said = archive.verify()
            check(whole, f"the archive is whole after {killed[0] + KILLS} ends of the server: {said[:600]}")
            restore_and_compare(archive, model, sample(model), "a set of one")
            client.close()
        finally:
            s.close()


def three():
    """The archiver is on one member, which leads and follows in turn; a command takes the segments away."""
    with Archive() as archive:
        s = ReplicaSet(3)
        try:
            m = s.members[0]
            local = f"{archive.folder}/local"
            os.makedirs(archive.path)
            m.stop()
            m.extra += ["--logArchivePath", local, *QUICK, "--logArchiveCommand", f"mv {{}} {archive.path}/"]
            m.start()
            m.wait_up()
            client, model = begin(s, 0)
            s.all_vote()
            beside = Beside(s.uri)
            beside.start()
            for i in range(KILLS + 1):
                for _ in range(25):
                    model.step()
                victim = [s.primary(), m, rnd.choice(s.members)][i % 3]
                if i == 1:  # a copy of another member is as good
                    other = rnd.choice(s.others(m))
                    other.stop()
                    archive.take_base(other, model.times[-1][0])
                    other.start()
                elif i % 2:
                    victim.kill()
                    for _ in range(5):
                        model.step()
                    victim.start()
                else:
                    try:
                        s.primary().client.admin.command("replSetStepDown", 5, force=True)
                    except PyMongoError:
                        pass
                for one in s.members:
                    one.wait_up()
            for _ in range(40):
                model.step()
            beside.stop = True
            beside.join()
            s.settled()
            archived(m)
            whole, said = archive.verify()
            check(whole, f"the archive of a member that led and followed is whole: {said[:600]}")
            check(not list(Path(local).glob("*.segment")), "the command has taken all segments away")
            check(beside.made > 0, f"{beside.made} transfers beside it")
            restore_and_compare(archive, model, sample(model, 30), "a set of three")
            client.close()
        finally:
            s.close()


def full_disk():
    """The archive's disk is full: the log waits, then does not, which is said everywhere; the archive names its gap."""
    with Archive() as archive:
        http = free_port()
        bound = ["--setParameter", "logArchiveMaxWaitMB=12", "--oplogSize", "1", "--httpPort", str(http)]
        s = ReplicaSet(1, archive.options(*bound), binary=FAULTY)
        try:
            m = s.members[0]
            status = lambda: m.client.admin.command("serverStatus")["logArchive"]
            model = begin_with_base(s, archive, 10, wait=True)
            for _ in range(30):
                model.step()
            archived(m)
            m.tell("archive full")
            model.step()
            check(until(lambda: status()["state"] == "failing", 30), "a full disk is seen")
            check("No space left" in status().get("error", ""), f"and told: {status().get('error')}")
            before = status()
            for i in range(3):
                m.client.test.c.insert_one({"text": "y" * 3_000_000})
            check(status()["lostEntries"] == 0, "the log waits")
            for i in range(20):
                m.client.test.c.insert_one({"text": "y" * 3_000_000})

            def lost():
                if status()["lostEntries"] > 0:
                    return True
                m.client.test.c.insert_one({"text": "y" * 3_000_000})

            check(until(lost, 60) is True, f"beyond the bound it does not: {status()}")
            check(status()["state"] == "givenUp", "its state says so")
            log = open(f"{m.folder}/log").read()
            check('"id":9000311' in log and '"id":9000314' in log, "and the log")
            r = subprocess.run(["curl", "-s", f"http://127.0.0.1:{http}/metrics"], capture_output=True, text=True)
            check('mayfly_log_archive_state{state="givenUp"} 1' in r.stdout, "and the metrics")
            m.tell("archive free")
            archived(m)
            check(status()["gaps"] == 1 and status()["lostEntries"] == 0, f"the gap is counted: {status()}")
            check('"id":9000313' in open(f"{m.folder}/log").read(), "and told")
            good = model.times[:40]
            for _ in range(10):
                model.step()
            archived(m)
            late = model.times[-1]
            folder, said = archive.replay(archive.bases[0][1], late[0])
            check(
                folder is None and "lacks entries" in said and "trimmed before they could be archived" in said,
                f"a restore across the gap is refused: {said}",
            )
            restore_and_compare(archive, model, rnd.sample(good[11:], 3), "before the gap")
            archive.bases = []
            rebase(s, archive, m, model)
            for _ in range(20):
                model.step()
            archived(m)
            restore_and_compare(archive, model, model.times[-3:], "with a backup behind the gap")
        finally:
            s.close()


def damage():
    """Whatever is wrong with a segment is found and named."""
    with Archive() as archive:
        s = ReplicaSet(1, archive.options())
        try:
            m = s.members[0]
            model = begin_with_base(s, archive)
            for _ in range(6):
                for _ in range(8):
                    model.step()
                archived(m)
            m.stop()
        finally:
            s.close()
        base, late = archive.bases[0][1], model.times[-1][0]
        segments = archive.segments()
        check(len(segments) > 5, f"{len(segments)} segments")
        folder, said = archive.replay(base, late)
        check(folder is not None, f"the archive is good: {said}")
        wrong = []
        for victim in segments[2:-1]:
            whole = victim.read_bytes()
            for kind in ("bit", "cut", "missing", "twice"):
                if kind == "bit":
                    at = rnd.randrange(len(whole))
                    victim.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rnd.randrange(8)]) + whole[at + 1 :])
                elif kind == "cut":
                    victim.write_bytes(whole[: rnd.randrange(len(whole))])
                elif kind == "missing":
                    victim.unlink()
                else:
                    shutil.copy(segments[-1], victim)
                folder, said = archive.replay(base, late)
                good, told = archive.verify()
                name = victim.name if kind != "missing" else "lacks entries"
                if folder is not None or name not in said or good or name not in told:
                    wrong.append((kind, victim.name, said, told))
                victim.write_bytes(whole)
        check(not wrong, f"every damage is found and named {wrong[:2]}")
        folder, said = archive.replay(base, late)
        check(folder is not None, f"and without it the archive is good again: {said}")


def encrypted():
    """With encryption at rest nothing in the archive can be read without the key, which can be replaced."""
    with Archive() as archive:
        keys = []
        for name in ("key", "other"):
            keys.append(f"{archive.folder}/{name}")
            with open(keys[-1], "wb") as out:
                subprocess.run(["openssl", "rand", "-base64", "32"], stdout=out, check=True)
            os.chmod(keys[-1], 0o600)
        s = ReplicaSet(1, archive.options("--enableEncryption", "--encryptionKeyFile", keys[0]))
        try:
            m = s.members[0]
            model = begin_with_base(s, archive)
            m.client.model.secret.insert_one({"word": "unmistakable" * 50})
            for _ in range(5):
                for _ in range(8):
                    model.step()
                archived(m)
            model.state.pop("secret", None)
            needed = archive.segments()[2:-1]
            readable = [f for f in archive.segments() if b"unmistakable" in f.read_bytes()]
            check(archive.segments() and not readable, "no word of it can be read there")
            late = model.times[-1][0]
            folder, said = archive.replay(archive.bases[0][1], late)
            check(folder is None and "encrypt" in said, f"without the key nothing is restored: {said}")
            archive.key = keys[0]
            folder, said = archive.replay(archive.bases[0][1], late)
            check(folder is not None, f"with the key it is: {said}")
            r = restored(folder, ["--enableEncryption", "--encryptionKeyFile", keys[0]])
            check(r.client.model.secret.count_documents({}) == 1, "with what was written")
            r.kill()
            # A copy of the directory has the keystore of then; the archive has the one of now.
            m.stop()
            m.extra[m.extra.index(keys[0])] = keys[1]
            m.extra += ["--encryptionRotateFrom", keys[0]]
            m.start()
            m.wait_up()
            s.primary()
            archived(m)
            shutil.copy(f"{m.folder}/data/encryption.keystore", f"{archive.bases[0][1]}/encryption.keystore")
            archive.key = keys[1]
            folder, said = archive.replay(archive.bases[0][1], late)
            check(folder is not None, f"and with the key that replaced it: {said}")
            # Damage is found where it is encrypted, too: bits that change change bits of what is read.
            keystores = sorted(Path(archive.path).glob("*.keystore"))
            check(len(keystores) == 1 and len(needed) > 1, f"{len(keystores)} keystores, {len(needed)} segments")
            wrong = []
            for victim in (*keystores, needed[0], needed[-1]):
                whole = victim.read_bytes()
                bit = lambda at: whole[:at] + bytes([whole[at] ^ 1 << rnd.randrange(8)]) + whole[at + 1 :]
                for damaged in (
                    *(bit(at) for at in (0, 8, 30, 70, len(whole) // 2, len(whole) - 1)),
                    *(whole[:size] for size in (0, 20, len(whole) // 2, len(whole) - 1)),
                    os.urandom(len(whole)),
                ):
                    victim.write_bytes(damaged)
                    folder, said = archive.replay(archive.bases[0][1], late)
                    if folder is not None or victim.name not in said:
                        wrong.append((victim.name, len(damaged), said))
                victim.write_bytes(whole)
            check(not wrong, f"every damage is found and named: {wrong[:2]}")
            folder, said = archive.replay(archive.bases[0][1], late)
            check(folder is not None, f"and without it the archive is good again: {said}")
        finally:
            s.close()


def standalone():
    """What a standalone has written is in no log: no restore may pass it by."""
    with Archive() as archive:
        s = ReplicaSet(1, archive.options())
        try:
            m = s.members[0]
            model = begin_with_base(s, archive)
            model.step()
            archived(m)
            early = model.times[-1]
            m.stop()
            at = m.extra.index("--logArchivePath")
            kept, m.extra = m.extra, m.extra[:at]
            m.start(replica_set=False)
            m.wait_up()
            m.client.test.c.insert_one({"in no log": True})
            m.stop()
            m.extra = kept
            m.start()
            m.wait_up()
            s.primary()
            for _ in range(5):
                model.step()
            archived(m)
            folder, said = archive.replay(archive.bases[0][1], model.times[-1][0])
            check(folder is None and "without the log" in said, f"a restore across it is refused: {said}")
            restore_and_compare(archive, model, [early], "before the standalone")
            archive.bases = []
            rebase(s, archive, m, model)
            for _ in range(5):
                model.step()
            archived(m)
            restore_and_compare(archive, model, model.times[-2:], "behind it")
        finally:
            s.close()


def options():
    """What cannot be is refused at the start."""
    with Archive() as archive:
        for extra, word in (
            (["--logArchivePath", archive.path], "replSet"),
            (["--replSet", "rs0", "--logArchiveCommand", "cp"], "logArchivePath"),
            (["--replSet", "rs0", "--logArchivePath", f"{archive.folder}/data"], "data directory"),
            (["--replSet", "rs0", "--logArchivePath", archive.path, "--logArchiveCommand", "cp 'x"], "quote"),
        ):
            r = subprocess.run(
                [BINARY, "--dbpath", f"{archive.folder}/data", "--port", str(free_port()), "--nounixsocket"]
                + ["--httpPort", "0", *extra],
                capture_output=True,
                text=True,
                timeout=Deadline().seconds,
            )
            check(r.returncode == 2 and word in r.stdout + r.stderr, f"{extra}: {r.returncode} {r.stderr[-300:]}")


run_parts("archive", [options, alone, by_restore, three, full_disk, damage, standalone, encrypted], check)
