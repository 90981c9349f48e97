#!/usr/bin/env python3
"""Somebody in the middle of the connections that the members of a set make to one of them, as docs/security.md draws
him ("What is protected from whom"): with a key file alone, with a key file and TLS, and with certificates.

He reads everything, and at every stage of the greeting and behind it he turns bits, lies about lengths, cuts, leaves
out, repeats, sends back to the sender, says again what he heard earlier on another connection, and splices two
connections; he passes one member off as another, plays either side by himself, and wants older or weaker protocols.
Each time the connection ends and nothing of what he did is taken; he never has a key, nor with TLS a document; the set
goes on meanwhile and afterwards, and all hold what was acknowledged. The last line says "N passed, N failed".

Each connection that he ends makes its member wait, so a run takes a quarter of his deeds, chosen by the seed: each kind
at half of the stages, on one side. MAYFLY_MIDDLEMAN=all takes all of them. What is altered at random, and on all links
at once, is in altered_links_run.py.
"""

import asyncio, hashlib, hmac, os, socket, ssl, struct, threading

import bson
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from fault_test import Deadline, rnd, run_parts, until
from replica_set import Member, ReplicaSet
from tls_server import CA, CLIENT, FOREIGN, OWN, certificate, check, folder
from wiretap import ACCEPTOR, CHANGE_CIPHER_SPEC, DIALLER, STAGES, Ended, OwnTls, Wiretap

SECRET = "0123456789abcdefghijklmnopqrstuvwxyz"
KEY = f"{folder}/key"
with open(KEY, "w") as key:
    key.write(SECRET)
os.chmod(KEY, 0o600)
MEMBER_KEY = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), b"mayfly member link 2", 200_000)
CANARY = "a canary that sings on the wire"
# A greeting may take 5 s, a link may be silent for 15 s: each ends before that.
PATIENCE = Deadline().seconds
ALL = os.environ.get("MAYFLY_MIDDLEMAN") == "all"
KINDS = ("flip", "length", "cut", "drop", "twice", "back", "again", "splice")


def places(stages):
    """(side, stage) of the deeds of one kind."""
    both = [(who, i) for i in range(stages) for who in (DIALLER, ACCEPTOR)]
    return both if ALL else [rnd.choice(both[2 * i : 2 * i + 2]) for i in rnd.sample(range(stages), stages // 2)]


class Deed:
    """One thing that is done to one unit of one direction."""

    def __init__(self, man, kind, who, index):
        self.man, self.kind, self.who, self.index = man, kind, who, index
        self.done = None  # how it ended: "" as it should

    def __str__(self):
        return f"{self.kind} {self.who}'s unit {self.index}"

    def harmless(self, unit, link):
        """What need not end the connection, because it says nothing that anybody believes: the request for the stream
        and its reply without TLS, and of TLS what the protocol leaves without a signature."""
        if link.encrypted:
            return unit[0] == CHANGE_CIPHER_SPEC
        return self.index == 0

    async def meet(self, link, who, index, unit, to):
        if link.acted is not None or who != self.who or index != self.index:
            to.writer.write(unit)
            return
        back = link.side(who).writer
        instead = [unit]
        if self.kind == "flip":
            at = rnd.randrange(5, len(unit))
            instead = [unit[:at] + bytes([unit[at] ^ 1 << rnd.randrange(8)]) + unit[at + 1 :]]
        elif self.kind == "length":
            at = 4 if link.encrypted else 0
            instead = [unit[:at] + bytes([unit[at] ^ 1 << rnd.randrange(4)]) + unit[at + 1 :]]
        elif self.kind == "cut":
            instead = [unit[: rnd.randrange(len(unit))]]
        elif self.kind == "drop":
            instead = []
        elif self.kind == "twice":
            instead = [unit, unit]
        elif self.kind == "back":
            back.write(unit)
            instead = []
        elif self.kind == "again":
            instead = [rnd.choice(self.man.earlier[who, index])]
        elif self.kind == "splice":
            other = await self.man.partner(self, unit)
            if other is None:  # nobody came that far meanwhile: not this time
                to.writer.write(unit)
                return
            instead = [other]
        if instead == [unit] or self.harmless(unit, link):
            self.done = ""
        link.acted = self.man.tap.loop.time()
        self.man.tap.loop.create_task(self.watch(link))
        for data in instead:
            to.writer.write(data)
        if self.kind == "cut":
            await to.writer.drain()
            link.close()

    async def watch(self, link):
        try:
            await asyncio.wait_for(link.ends.wait(), PATIENCE)
            # Without TLS one sees whether the dialler takes the greeting for good: it sends messages then.
            if not link.encrypted and self.index < len(STAGES[self.who]) and link.dialler.seen > len(STAGES[DIALLER]):
                if self.done is None and not (self.who == ACCEPTOR and self.kind in ("twice", "cut")):
                    self.done = f"messages were sent after it: {link.dialler.seen}"
            if self.done is None:
                self.done = ""
        except asyncio.TimeoutError:
            if self.done is None:
                self.done = f"the connection went on, with {link.sent_since} units"
            link.close()


class Man:
    """In the middle: in front of one member."""

    def __init__(self, target):
        self.deeds, self.busy, self.earlier, self.waiting = [], [], {}, {}
        self.next_whole = None
        self.tap = Wiretap(target, self.choose)

    def choose(self, link):
        if self.next_whole is not None:
            return self.next_whole
        # One whose unit did not come on its connection is tried again.
        free = [d for d in self.deeds if d.done is None and not any(p is d for p in self.busy)]
        if not free:
            return None
        deed = free[0]
        self.busy.append(deed)

        async def freed():
            await link.ends.wait()
            if link.acted is None:
                self.busy.remove(deed)
                self.deeds.remove(deed)  # behind the others
                self.deeds.append(deed)

        self.tap.loop.create_task(freed())
        return deed

    def remember(self):
        """Keeps what good connections say, for later."""
        for link in list(self.tap.links):
            for who in (DIALLER, ACCEPTOR):
                side = link.side(who)
                for index, unit in enumerate(side.heard if side else []):
                    self.earlier.setdefault((who, index), []).append(unit)

    async def partner(self, deed, unit):
        """The unit of another connection at the same stage, which gets this one: both come together or not at all."""
        at = (deed.who, deed.index)
        if at in self.waiting:
            future, theirs = self.waiting.pop(at)
            if not future.done():
                future.set_result(unit)
                return theirs
        future = self.tap.loop.create_future()
        self.waiting[at] = future, unit
        try:
            return await asyncio.wait_for(future, 3)
        except asyncio.TimeoutError:
            self.waiting.pop(at, None)
            return None


class TlsMember(Member):
    """A member that clients reach by TLS as well, and others through the man in the middle."""

    tls = {}

    def new_client(self, **more):
        return super().new_client(**self.tls, **more)


class Set:
    """Three members of which the last one is reached through the man in the middle; somebody writes all the time."""

    def __init__(self, options, tls):
        self.set = ReplicaSet(0)
        self.kept, self.ends = [], threading.Event()
        for i in range(3):
            m = object.__new__(TlsMember)
            m.tls = tls
            m.__init__(f"{self.set.folder}/{i}", options(i))
            m.start()
            m.wait_up()
            self.set.members.append(m)
        self.victim = self.set.members[-1]
        self.man = Man(self.victim.port)
        self.victim.reached = self.man.tap.port
        self.writer = threading.Thread(target=self.write)

    def begin(self):
        self.set.initiate()
        self.set.all_vote()
        self.primary().client.test.canary.insert_one({"text": CANARY})
        self.writer.start()
        check(until(lambda: len(self.kept) > 20, 60), "writes before")
        self.set.settled()
        self.man.remember()
        # Of links that are opened again, so that there is more than one of each to say again.
        self.man.tap.cut()
        self.set.wait(lambda: self.complete(), "links that are made again")
        self.man.remember()

    def complete(self):
        good = [l for l in self.man.tap.links if l.acceptor and len(l.dialler.heard) > 5 and len(l.acceptor.heard) > 3]
        return len(good) >= 2

    def primary(self):
        return self.set.primary()

    def write(self):
        n = 0
        while not self.ends.wait(0.01):  # clock: a pace, since others have to come to their turn
            n += 1
            try:
                to = self.primary().client.test.get_collection("kept", write_concern=WriteConcern("majority", 5000))
                to.insert_one({"_id": n, "text": f"as it was written {n}"})
                self.kept.append(n)
            except (PyMongoError, AssertionError):
                pass  # not acknowledged

    def finish(self, what):
        """All go on, with what was acknowledged and nothing else."""
        before = len(self.kept)
        check(until(lambda: len(self.kept) > before + 20, 90), f"{what}: writes go on")
        self.ends.set()
        self.writer.join(Deadline(120).seconds)
        s = self.set
        s.in_place()
        check(all(m.running() for m in s.members), f"{what}: no member has ended")
        check(s.same(), f"{what}: all hold the same")
        found = {d["_id"]: d["text"] for d in self.primary().client.test.kept.find()}
        lost = [n for n in self.kept if n not in found]
        check(not lost, f"{what}: of {len(self.kept)} acknowledged writes none is lost: {lost[:5]}")
        wrong = [n for n, text in found.items() if text != f"as it was written {n}"]
        check(not wrong, f"{what}: and none is another one: {wrong[:5]}")
        config = self.primary().client.admin.command("replSetGetConfig")["config"]
        hosts = [m["host"] for m in config["members"]]
        check(hosts == [m.host for m in s.members], f"{what}: the members are those of before: {hosts}")
        logs = [open(f"{m.folder}/log", errors="replace").read() for m in s.members]
        check(not any('"s":"F"' in log for log in logs), f"{what}: nothing fatal is in the logs")
        check(not any(SECRET in log for log in logs), f"{what}: nor a key")

    def close(self):
        self.ends.set()
        if self.writer.ident:
            self.writer.join(Deadline(120).seconds)
        self.set.close()
        self.man.tap.close()

    def do(self, what, stages, kinds=KINDS):
        """Each kind of deed at every stage, or a quarter of all that (see above), until each has been done once."""
        man = self.man
        deeds = [Deed(man, k, who, i) for k in kinds for who, i in places(stages)]
        # Two are needed for this, at the same time.
        deeds += [Deed(man, "splice", d.who, d.index) for d in deeds if d.kind == "splice"]
        deeds.sort(key=lambda d: (d.kind == "splice", d.index, d.who))
        man.deeds = list(deeds)
        man.tap.cut()
        until(lambda: self.turn(deeds), 420)
        open_ones = [str(d) for d in deeds if d.done is None]
        check(not open_ones, f"{what}: each was done: {open_ones[:8]}")
        wrong = [f"{d}: {d.done}" for d in deeds if d.done]
        check(not wrong, f"{what}: {len(deeds)} deeds, and each ended its connection: {wrong[:8]}")
        man.deeds, man.busy = [], []

    def turn(self, deeds):
        """Whether all is done. A connection on which nothing was left to do, or that goes on without what was looked
        for, makes room for the next."""
        if all(d.done is not None for d in deeds):
            return True
        for link in list(self.man.tap.links):
            if link.plan is None or (link.acted is None and link.dialler.seen > 40):
                self.man.tap.loop.call_soon_threadsafe(link.close)
        return False

    def whole(self, what, deed, times=2):
        """The next connections are all his: `deed(link, tap)` says at the end what went wrong, "" for nothing."""
        results = []

        class Plan:
            @staticmethod
            async def whole(link, tap):
                try:
                    results.append(await asyncio.wait_for(deed(link, tap), PATIENCE))
                except asyncio.TimeoutError:
                    results.append("the other side does not end it")

        self.man.next_whole = Plan
        self.man.tap.cut()
        check(until(lambda: len(results) >= times, 90), f"{what}: members come")
        self.man.next_whole = None
        self.man.tap.cut()
        check(not any(results), f"{what}: {[r for r in results if r][:2]}")


# --- He plays one side ----------------------------------------------------------------------------


async def rest_of(reader):
    """Whatever comes until the end."""
    data = b""
    try:
        while more := await reader.read(65536):
            data += more
    except OSError:
        pass
    return data


def as_another(port):
    """The dialler is led to another member, or to itself."""

    async def deed(link, tap):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        seen = 0

        async def pump(source, to, counts):
            nonlocal seen
            try:
                while more := await source.read(65536):
                    seen += counts * len(more)
                    to.write(more)
                    await to.drain()
            except OSError:
                pass
            to.close()

        await asyncio.gather(pump(link.dialler.reader, writer, 1), pump(reader, link.dialler.writer, 0))
        # A greeting with a handshake of TLS is shorter than that; a link that goes on sends more in a moment.
        return "" if seen < 12_000 else f"{seen} bytes were sent to it"

    return deed


def said_again(units):
    """What the member answered on an earlier connection is answered once more."""

    async def deed(link, tap):
        for unit in units:
            link.dialler.writer.write(unit)
        came = await rest_of(link.dialler.reader)
        return leaks(came, "to who says again what the member said")

    return deed


def server_context(file):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    context.load_verify_locations(CA)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(file=None):
    context = ssl.create_default_context(cafile=CA)
    if file:
        context.load_cert_chain(file)
    return context


def with_certificate(file):
    """He takes the TLS connection himself, with this certificate, and is told nothing."""

    async def deed(link, tap):
        ours = OwnTls(link.dialler.reader, link.dialler.writer, server_context(file), True)
        try:
            await ours.greet()
            # With TLS 1.3 a server hears of a refusal only when it reads.
            return f"it was told {(await ours.read())[:60]!r}"
        except Ended:
            return ""

    return deed


def standing_between(file, heard, change):
    """He takes the TLS connection with this certificate, makes one with it to the member, and passes on what he reads;
    `change`: a bit of it is another one, once the two know each other. They have to notice."""

    async def deed(link, tap):
        left = OwnTls(link.dialler.reader, link.dialler.writer, server_context(file), True)
        writer, changed = None, False
        try:
            await left.greet()
            reader, writer = await asyncio.open_connection("127.0.0.1", tap.target)
            right = OwnTls(reader, writer, client_context(file), False)
            await right.greet()

            async def pump(source, to, sender):
                nonlocal changed
                size = 0
                while True:
                    data = await source.read()
                    heard.append((sender, data))
                    size += len(data)
                    if change and sender is DIALLER and not changed and size > 2000:
                        changed, at = True, rnd.randrange(len(data))
                        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                    await to.write(data)

            both = [asyncio.create_task(pump(left, right, DIALLER)), asyncio.create_task(pump(right, left, ACCEPTOR))]
            # One that is only read ends when he has seen enough.
            patience = PATIENCE - 5 if change else 3
            done, _ = await asyncio.wait(both, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            return "" if done or not changed else "what was changed was not noticed"
        except Ended:
            return ""
        finally:
            if writer:
                writer.close()

    return deed


def leaks(data, whom):
    for secret in (SECRET.encode(), MEMBER_KEY, CANARY.encode()):
        if secret in data:
            return f"{whom}: {secret[:10]!r} is in it"
    return ""


ASK = bson.encode({"_mayflyMember": 1, "$db": "admin"})
ASK = struct.pack("<iiiiIB", 21 + len(ASK), 1, 0, 2013, 0, 0) + ASK
TEXT = lambda t: struct.pack("<H", len(t)) + t


def challenge(version, purpose=1, wanted=0):
    body = bytes([version, purpose]) + os.urandom(32) + struct.pack("<QQ", 4711, wanted)
    body += TEXT(b"rs0") + TEXT(b"") + TEXT(b"127.0.0.1:1")
    return frame(1, body), body


def frame(kind, body):
    return struct.pack("<IB", 1 + len(body), kind) + body


def talk(port, *pieces, tls=None):
    """Sends these to the member itself, and reads until it ends the connection."""
    data = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as s:
        try:
            if tls:
                s = tls.wrap_socket(s, server_hostname="127.0.0.1")
            for p in pieces:
                s.sendall(p)
            while more := s.recv(65536):
                data += more
        except TimeoutError:
            return None
        except OSError:
            pass
        finally:
            s.close()
    return data


def frames_of(data):
    """Types of the frames behind the reply to ASK."""
    kinds = []
    at = struct.unpack_from("<i", data)[0] if len(data) >= 4 else 0
    while at and at + 5 <= len(data):
        kinds.append(data[at + 4])
        at += 4 + struct.unpack_from("<I", data, at)[0]
    return kinds


def strangers(what, port, tls=None):
    """Who dials without a key: told nothing that the key was used for, and let in by nobody."""
    for version in (0, 1, 2, 3, 4, 255):
        for proof in (b"", os.urandom(32), os.urandom(96), hmac.digest(b"", b"dialler 2", "sha256")):
            data = talk(port, ASK, challenge(version)[0], frame(3, proof), frame(10, b"x" * 100), tls=tls)
            kinds = frames_of(data) if data is not None else ["no end"]
            check(set(kinds) <= {4, 5} and not leaks(data or b"", what), f"{what}, version {version}: {kinds}")


# --- The three ways in which members know one another ---------------------------------------------


def replayed(s, what):
    """Both sides of an earlier connection are said again."""
    earlier = s.man.earlier
    whole = {who: [earlier[who, i][0] for i in range(12) if (who, i) in earlier] for who in (DIALLER, ACCEPTOR)}
    data = talk(s.victim.port, *whole[DIALLER])
    check(data is not None and not leaks(data, what), f"{what}: what a dialler said is worth nothing")
    if data and not whole[DIALLER][0].startswith(b"\x16"):
        check(set(frames_of(data)) <= {4, 5}, f"{what}: it is refused: {frames_of(data)}")
    s.whole(f"{what}: what the member said is worth nothing", said_again(whole[ACCEPTOR]))


def led_astray(s, what):
    for port, whom in ((s.set.members[0].port, "the first member"), (s.set.members[1].port, "the second member")):
        s.whole(f"{what}: led to {whom}", as_another(port), times=4)


def by_key_file():
    s = Set(lambda i: ["--keyFile", KEY, "--noauth"], {})
    try:
        s.begin()
        s.do("a key file", 6)
        replayed(s, "a key file")
        led_astray(s, "a key file")
        strangers("a key file", s.victim.port)
        s.finish("a key file")
        captured = s.man.tap.captured
        everything = b"".join(captured)
        # The page says so: without TLS documents can be read.
        check(CANARY.encode() in everything, "a key file: he reads documents, as the page says")
        check(SECRET.encode() not in everything and MEMBER_KEY not in everything, "a key file: and no key")
        challenges = [u for u in captured if len(u) > 60 and u[4] == 1 and u[:4] == struct.pack("<I", len(u) - 4)]
        nonces = [u[7:39] for u in challenges]
        check(len(nonces) > 20 and len(set(nonces)) == len(nonces), f"{len(nonces)} challenges, each another one")
        check({u[5] for u in challenges} == {2}, "and whatever he did, nobody went back to an older greeting")
    finally:
        s.close()


def tls_options(*more):
    def options(i):
        file = certificate(OWN, "server", f"m{i}", "localhost", "127.0.0.1")
        return ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", file, "--tlsCAFile", CA, "--noauth", *more]

    return options


def encrypted(what, *more):
    client = dict(tls=True, tlsCAFile=CA, tlsCertificateKeyFile=CLIENT)
    s = Set(tls_options(*more), client)
    try:
        s.begin()
        s.do(what, 8, [k for k in KINDS if k != "splice"])
        s.do(f"{what}, two at a time", 6, ["splice"])
        replayed(s, what)
        led_astray(s, what)
        foreign = certificate(FOREIGN, "server", "m2", "localhost", "127.0.0.1")
        past = dict(FROM="20200101000000Z", UNTIL="20210101000000Z")
        for kind, file in (
            ("by another authority", foreign),
            ("for another name", certificate(OWN, "server", "elsewhere", "elsewhere.example")),
            ("that has expired", certificate(OWN, "server", "old", "127.0.0.1", **past)),
            ("of a client", CLIENT),
        ):
            s.whole(f"{what}: he shows a certificate {kind}", with_certificate(file))
        s.whole(f"{what}: he answers in plain text", said_again([ASK]))
        s.whole(f"{what}: he says that he has no TLS", said_again([b"\x15\x03\x01\x00\x02\x02\x46"]))
        # To the member itself: without TLS, with older versions of it, with a client's certificate.
        for words in (ASK, b"", os.urandom(300)):
            data = talk(s.victim.port, words + challenge(2)[0])
            check(data is not None and 5 not in frames_of(data), f"{what}: nobody is greeted without TLS")
        for file in (None, CLIENT, foreign):
            named = os.path.basename(file or "nothing")
            strangers(f"{what}, a stranger with {named}", s.victim.port, client_context(file))
        by_others(s, what)
        s.finish(what)
        captured = b"".join(s.man.tap.captured)
        check(len(captured) > 50_000, f"{what}: he has heard {len(captured)} bytes")
        check(not leaks(captured, what) and b"as it was written" not in captured, f"{what}: and learned nothing")
        check(b"_mayflyMember" not in captured, f"{what}: whatever he did, nobody went on without TLS")
    finally:
        s.close()


def by_others(s, what):
    """A certificate for the member's name by the same authority, which is not a member's."""
    file, heard = certificate(OWN, "server", "others", "localhost", "127.0.0.1", ORGANISATION="Others"), []
    s.whole(f"{what}: a certificate of others, who read", standing_between(file, heard, False))
    said = b"".join(data for sender, data in heard if sender is DIALLER)
    if what == "TLS":
        # The page says so: TLS lets them in, and the key file lets them change nothing.
        check(len(said) > 500, f"{what}: they read what members say: {len(said)} bytes")
    else:
        check(said.count(b"_mayflyMember") * len(ASK) == len(said), f"{what}: they are told nothing: {said[:200]!r}")
    s.whole(f"{what}: a certificate of others, who change a bit", standing_between(file, heard, True))
    check(not leaks(b"".join(d for _, d in heard).replace(CANARY.encode(), b""), what), f"{what}: and see no key")


def by_tls():
    encrypted("TLS", "--keyFile", KEY)


def by_certificate():
    encrypted("certificates", "--clusterAuthMode", "x509")


run_parts("middleman", [by_key_file, by_tls, by_certificate], check)
