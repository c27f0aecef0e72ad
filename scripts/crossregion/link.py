"""A link to a port of this machine that is as slow as one to another continent, and can be cut."""

import asyncio
from contextlib import suppress


class Link:
    """Passes connections on to `target`. Every byte takes `delay` seconds. Use as an asynchronous context manager.

    While it is cut, nothing arrives. All of it arrives when the link is mended, as TCP sends again what was lost.
    """

    def __init__(self, target, delay):
        self.target, self.delay, self.connections = target, delay, set()
        self.is_whole = asyncio.Event()
        self.mend()

    def cut(self):
        self.is_whole.clear()

    def mend(self):
        self.is_whole.set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        """Waits for those who are connected to end their connections."""
        self.mend()
        self.server.close()
        await asyncio.gather(*self.connections)

    async def _connect(self, reader, writer):
        self.connections.add(asyncio.current_task())
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        self.connections.remove(asyncio.current_task())

    async def _pass(self, source, sink):
        under_way = asyncio.Queue()
        arriving = asyncio.create_task(self._arrive(under_way, sink))
        now, data = asyncio.get_running_loop().time, b"?"
        while data:
            try:
                data = await source.read(65536)
            except OSError:
                data = b""  # a connection that breaks ends, too
            under_way.put_nowait((now() + self.delay, data))
        await arriving

    async def _arrive(self, under_way, sink):
        now, data = asyncio.get_running_loop().time, b"?"
        while data:
            due, data = await under_way.get()
            await asyncio.sleep(due - now())
            await self.is_whole.wait()
            if not sink.is_closing():
                sink.write(data)
        with suppress(OSError):
            sink.close()
            await sink.wait_closed()
