#!/usr/bin/env python3
"""The archive of the log and restores to a point in time: a client writes one thing after another (documents with and
without deadlines, transactions, units in chunks, changes of the schema) and keeps what there was at each operation's
time, while others write beside it and the server is killed at any moment; in a set of three its primaries, too, and the
member that archives. Copies of data directories with the archive behind them must then be what there was at each of
many times. An archive on a full disk, segments that are damaged, missing or twice, encryption, commands.
MAYFLY_SEED, MAYFLY_ARCHIVE_TIMES (100; the times to look at, per part), MAYFLY_ARCHIVE_STARTS (6; those of them for
which a server is started), MAYFLY_ARCHIVE_KILLS (3). Parts as arguments.
"""

import datetime, os, shlex, shutil, subprocess, tempfile, threading
from pathlib import Path

import bson
import pymongo
from pymongo.errors import PyMongoError

from archive_model import UNCOMPARED, Beside, Model, differences, open_bank, seen_by
from fault_test import BINARY, ROOT, Deadline, discard, free_port, random_moment, rnd, run_parts, until
from replica_set import FAULTY, Checks, Member, ReplicaSet

REPLAY = str(ROOT / "build/release/tests/archive_replay")
TIMES = int(os.environ.get("MAYFLY_ARCHIVE_TIMES", "100"))
STARTS = int(os.environ.get("MAYFLY_ARCHIVE_STARTS", "6"))
KILLS = int(os.environ.get("MAYFLY_ARCHIVE_KILLS", "3"))
check = Checks()
QUICK = ["--setParameter", "logArchiveSegmentSecs=1", "--setParameter", "logArchiveSegmentMB=1"]


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

    def moments(self, base, times):
        """One replay on a copy of the base comes past the times, which are in order: what there is at each, as
        differences() takes it, and what was wrong. Fewer than asked for where it cannot go on."""
        to = tempfile.mkdtemp(prefix="restored-", dir=self.folder)
        shutil.copytree(base, f"{to}/data")
        r = subprocess.run(
            [REPLAY, "each", f"{to}/data", self.path, *UNCOMPARED],
            input="".join(f"{at.time}:{at.inc}\n" for at in times).encode(),
            capture_output=True,
        )
        shutil.rmtree(to)
        seen, contents = [], {}
        for shown in bson.decode_all(r.stdout, codec_options=bson.CodecOptions(tz_aware=True)):
            if "faults" in shown:
                seen.append((contents, shown["faults"]))
                contents = {}
            else:
                documents = contents.setdefault(shown["ns"], {})
                if "doc" in shown:
                    documents[shown["doc"]["_id"]] = shown
        return seen, r.stderr.decode(errors="replace") if r.returncode != 0 else ""

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


def bases_before(archive, at):
    """The one of that very time may have more: what expired between the model's last step and the end."""
    return [base for begun, base in archive.bases if (begun.time, begun.inc) < (at.time, at.inc)]


def compare_moments(archive, model, times):
    """How many of the times, which are in order, a replay came past, and what was not as it was."""
    wrong, left = [], times
    while left:
        seen, said = archive.moments(rnd.choice(bases_before(archive, left[0][0])), [at for at, _, _ in left])
        for (contents, faults), (at, state, n) in zip(seen, left):
            deadlines = dict(list(model.deadlines.items())[:n])
            wrong += [f"{at}: {d}" for d in differences(contents, faults, at, state, deadlines)]
        left = left[len(seen) :]
        if said or not seen:
            wrong.append(said or "nothing was replayed")
            break
    return len(times) - len(left), wrong


def restore_and_compare(archive, model, times, what):
    """A replay comes past all of the times and is looked at there; for some of them a directory is restored, and a
    server started on it."""
    times = sorted((t for t in times if bases_before(archive, t[0])), key=lambda t: (t[0].time, t[0].inc))
    done, wrong = compare_moments(archive, model, times)
    started = rnd.sample(times, min(STARTS, len(times)))
    for at, state, n in started:
        folder, said = archive.replay(rnd.choice(bases_before(archive, at)), at)
        if folder is None:
            wrong.append(f"{at}: {said}")
            continue
        m = restored(folder)
        try:
            deadlines = dict(list(model.deadlines.items())[:n])
            wrong += [f"{at}: {d}" for d in differences(*seen_by(m.client), at, state, deadlines)]
        finally:
            m.kill()
            discard(folder)
    check(
        done > 0 and started and not wrong,
        f"{what}: at {done} times, {len(started)} of them seen by a client, all is as it was {wrong[:4]}",
    )


def sample(model, least=0, most=TIMES):
    times = model.times[least:]
    return rnd.sample(times, min(most, len(times)))


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

        for at, state, n in sample(model, first, STARTS):
            to, code, said = restore("--until", f"{at.time},{at.inc}")
            check(code == 0, f"restored until {at}: {said[-500:]}")
            m = restored(to)
            try:
                odd = differences(*seen_by(m.client), at, state, dict(list(model.deadlines.items())[:n]))
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
        odd = differences(*seen_by(m.client), at, state, dict(model.deadlines))
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
