"""The line to one server, made anew when it is needed, in the loop that runs."""

import asyncio
import contextlib
from typing import Any

from .. import fork
from ..breaker import PROBE_TIMEOUT, probe
from ..errors import ServerAway
from ..link import Send
from ..servers import Server
from .line import Line


class Wire:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._line: Line | None = None

    async def send(self, send: Send) -> Any:
        line = self._line
        if line is None or not line.takes_more or line.loop is not asyncio.get_running_loop():
            self.close()
            line = self._line = Line(self._server)
        return await line.send(send)

    async def probe(self, key: bytes) -> None:
        """Ask over a new line, which is the server's from then on if it answers."""
        line = Line(self._server, connect_within=PROBE_TIMEOUT)
        try:
            await line.send(Send(self._server, key, probe(key), PROBE_TIMEOUT, PROBE_TIMEOUT))
        except ServerAway:
            line.close()
            raise
        except BaseException:
            line.retire()
            raise
        self.close()
        self._line = line

    def close(self) -> None:
        """Take nothing new on this line; from any thread."""
        line, self._line = self._line, None
        if line is not None and not line.loop.is_closed():
            with contextlib.suppress(RuntimeError):
                line.loop.call_soon_threadsafe(line.retire)
