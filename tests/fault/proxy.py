"""A network between the members of a set and their clients that can be cut, one direction at a time, and slowed down.

Each member is reached by others through a port of the proxy (it stands in the set's configuration, so drivers use it
too). Who speaks is told by the first bytes of a connection: a member's has its node id, a client's names its zone as
appName ("zone-a"). What is cut is held back and goes on when the cut ends, as TCP does it; connections that are made
meanwhile hang. Connections can also be lost: they stay open on both sides and nothing comes through them any more,
while new ones work. What passes can be changed on its way (`alter`).
"""

import asyncio, re, struct, threading

CLIENT = "zone-out"


class Network:
    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.nodes, self.servers, self.tasks = {}, [], set()  # node id -> name, learned where it answers
        self.cut, self.delays = set(), {}
        self.changed = asyncio.Event()
        self.losses = []  # of each lose(): the links
        # (bytes that pass, what names this direction of this connection, whether they are its greeting): those that go
        # on instead.
        self.alter = None

    def lose(self, links):
        """The connections between `links`, (from, to), that are open now carry nothing from here on, and are not closed
        either."""
        self.loop.call_soon_threadsafe(self.losses.append, set(links))

    def lost(self, born, src, dst):
        return any(self.link(src, dst) in links for links in self.losses[born:])

    def add(self, name, target):
        """A port that leads to the member `name`, which listens on `target`."""

        async def listen():
            server = await asyncio.start_server(lambda r, w: self.connected(name, target, r, w), "127.0.0.1", 0)
            self.servers.append(server)
            return server.sockets[0].getsockname()[1]

        return asyncio.run_coroutine_threadsafe(listen(), self.loop).result()

    def set(self, cut=(), delays=None):
        """From now on: `cut` holds (from, to) that get nothing through; `delays` seconds by (from, to)."""

        def apply():
            self.cut, self.delays = set(cut), dict(delays or {})
            self.changed.set()
            self.changed = asyncio.Event()

        self.loop.call_soon_threadsafe(apply)

    def heal(self):
        self.set()

    def close(self):
        async def stop():
            for s in self.servers:
                s.close()
            for t in list(self.tasks):
                t.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def link(self, src, dst):
        return self.nodes.get(src, src), self.nodes.get(dst, dst)

    async def open(self, src, dst):
        while self.link(src, dst) in self.cut:
            await self.changed.wait()

    async def connected(self, name, target, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        up, member = None, False
        try:
            up_reader, up = await asyncio.open_connection("127.0.0.1", target)
            first = await reader.read(65536)
            src = CLIENT
            if b"_mayflyMember" in first:
                # The answer to the command, then the dialler's challenge, which has its address.
                up.write(first)
                head = await up_reader.readexactly(4)
                writer.write(head + await up_reader.readexactly(struct.unpack("<i", head)[0] - 4))
                head = await reader.readexactly(4)
                first = head + await reader.readexactly(struct.unpack("<I", head)[0])
                src = struct.unpack_from("<Q", first, 4 + 1 + 2 + 32)[0]  # size type version purpose nonce node
                member = True
            else:
                zone = re.search(rb"zone-[a-z0-9]+", first)
                src = zone.group().decode() if zone else CLIENT
            await asyncio.gather(
                self.pass_on(reader, up, src, name, first), self.pass_on(up_reader, writer, name, src, b"", member)
            )
        except (OSError, EOFError, struct.error, IndexError, asyncio.CancelledError):
            pass
        finally:
            for w in (writer, up):
                if w:
                    w.close()
            self.tasks.discard(task)

    async def pass_on(self, reader, writer, src, dst, data, answer=False):
        born, begun = len(self.losses), False
        while True:
            if data and answer and data[4] == 2:
                self.nodes[struct.unpack_from("<Q", data, 4 + 1 + 32)[0]] = src  # size type nonce node
                answer = False
            if data:
                if self.alter:
                    data = self.alter(data, writer, not begun)
                begun = True
                await self.open(src, dst)
                if self.lost(born, src, dst):
                    await self.loop.create_future()  # until the node goes on
                delay = self.delays.get(self.link(src, dst), 0)
                if delay:
                    self.loop.call_later(delay, self.late, writer, data)
                else:
                    writer.write(data)
                    await writer.drain()
            data = await reader.read(65536)
            if not data:
                await self.open(src, dst)
                if self.lost(born, src, dst):
                    await self.loop.create_future()  # until the node goes on
                self.loop.call_later(self.delays.get(self.link(src, dst), 0), writer.close)
                return

    @staticmethod
    def late(writer, data):
        if not writer.is_closing():
            writer.write(data)
