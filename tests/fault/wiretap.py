"""Somebody who sits on the wire in front of a member: sees every byte that the others send to it and that it answers,
knows where messages begin and end, and does to one of them what a test wants.

A unit is what cannot be divided on the wire: a TLS record; without TLS the message that asks for the member stream, its
reply, and then each frame (replication/member_link.h). Units are counted from 0 in each direction.
"""

import asyncio, ssl, threading

DIALLER, ACCEPTOR = "dialler", "acceptor"  # who sends
# Without TLS: what a unit is.
STAGES = {DIALLER: ("ask", "challenge", "proof"), ACCEPTOR: ("reply", "nonce", "answer", "verdict")}
CHANGE_CIPHER_SPEC = 20


class Ended(Exception):
    """Nothing comes any more."""


class OwnTls:
    """One end of a TLS connection that is ours, over streams that are not: somebody else's bytes come on them first."""

    def __init__(self, reader, writer, context, server):
        self.reader, self.writer = reader, writer
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if server else "127.0.0.1"
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=server, server_hostname=name)

    async def step(self, what, *arguments):
        while True:
            try:
                result = what(*arguments)
                break
            except ssl.SSLWantReadError:
                self.flush()
                data = await self.reader.read(65536)
                if not data:
                    raise Ended from None
                self.incoming.write(data)
            except ssl.SSLError as e:
                self.flush()  # the alert
                raise Ended from e
            except OSError as e:
                raise Ended from e
        self.flush()
        await self.writer.drain()
        return result

    def flush(self):
        if self.outgoing.pending:
            self.writer.write(self.outgoing.read())

    async def greet(self):
        await self.step(self.tls.do_handshake)

    async def read(self):
        return await self.step(self.tls.read, 65536)

    async def write(self, data):
        await self.step(self.tls.write, data)


class Side:
    """What comes from one side of a connection, in units."""

    def __init__(self, reader, writer, link):
        self.reader, self.writer, self.link = reader, writer, link
        self.seen = 0  # units that have come
        self.heard = []  # the first of them, whole
        self.begun = False

    async def unit(self):
        """The next one with its length; what has come of it when the connection ends is lost."""
        try:
            head = await self.reader.readexactly(5 if self.link.encrypted is not False else 4)
            if self.link.encrypted is None:
                # TLS begins with a record of its handshake.
                self.link.encrypted = head[0] == 22
            if self.link.encrypted:
                size = int.from_bytes(head[3:5], "big") - (len(head) - 5)
            else:
                size = int.from_bytes(head[:4], "little") - (len(head) - 4) - (0 if self.begun else 4)
            self.begun = True
            unit = head + await self.reader.readexactly(size)
        except (OSError, EOFError, ValueError):
            raise Ended from None
        self.seen += 1
        if len(self.heard) < 12:
            self.heard.append(unit)
        return unit


class Link:
    """A connection to the member: `plan`, what is done to it, is asked for every unit."""

    def __init__(self, plan):
        self.plan, self.encrypted = plan, None
        self.dialler = self.acceptor = None
        self.acted = None  # when, in the loop's time
        self.sent_since = {DIALLER: 0, ACCEPTOR: 0}  # units that came after that
        self.ends = asyncio.Event()

    def side(self, name):
        return self.dialler if name == DIALLER else self.acceptor

    def close(self):
        for s in (self.dialler, self.acceptor):
            if s is not None and s.writer is not None:
                s.writer.close()


class Wiretap:
    """Listens in front of a member. `chosen(link)` says what is done to a connection: an object with
    `async meet(link, who, index, unit, to)`, which writes what goes on instead of this unit to `to`; or None."""

    def __init__(self, target, chosen=lambda link: None):
        self.target, self.chosen = target, chosen
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.captured, self.links, self.tasks = [], [], set()
        self.port = self.run(self.listen())

    def run(self, coroutine, seconds=60):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(seconds)

    async def listen(self):
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    def close(self):
        async def stop():
            self.server.close()
            for t in list(self.tasks):
                t.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        self.run(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def cut(self):
        """All connections end, as when a cable is pulled and put back."""

        async def each():
            for link in self.links:
                link.close()

        self.run(each())

    async def connected(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        link = Link(None)
        link.plan = self.chosen(link)
        self.links.append(link)
        link.dialler = Side(reader, writer, link)
        try:
            whole = getattr(link.plan, "whole", None)
            if whole is not None:
                await whole(link, self)
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
            link.acceptor = Side(up_reader, up_writer, link)
            await asyncio.gather(self.pump(link, DIALLER, ACCEPTOR), self.pump(link, ACCEPTOR, DIALLER))
        except (OSError, Ended, asyncio.CancelledError):
            pass
        finally:
            link.close()
            link.ends.set()
            self.links.remove(link)
            self.tasks.discard(task)

    async def pump(self, link, who, other):
        came, to = link.side(who), link.side(other)
        try:
            while True:
                unit = await came.unit()
                self.captured.append(unit)
                if link.acted is not None:
                    link.sent_since[who] += 1
                if link.plan is not None:
                    await link.plan.meet(link, who, came.seen - 1, unit, to)
                else:
                    to.writer.write(unit)
                await to.writer.drain()
        except (OSError, Ended):
            pass
        # The other one hears of it at once: whoever still sends, sends to nobody.
        to.writer.close()
