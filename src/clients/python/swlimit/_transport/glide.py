"""Clients of valkey-glide for asyncio. They show no connection: what stands for one here sends by the client, and reads
the replies in the order of the commands."""

import asyncio
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis._parsers.base import BaseParser
from redis.crc import key_slot

from .._protocol.commands import Words
from .._protocol.script_fallback import CALLS
from .asyncio_pipeline import background
from .endpoint import Endpoint

REQUEST_TIMEOUT = 250
"""The library's default, in ms."""
_SIGNALLED = re.compile(r"(?:An error was signalled by the server: - )?(\w+): (.*)", re.DOTALL)
_CODES = {"Ask": "ASK", "BusyLoadingError": "LOADING", "ClusterDown": "CLUSTERDOWN", "CrossSlot": "CROSSSLOT",
          "ExecAbortError": "EXECABORT", "MasterDown": "MASTERDOWN", "Moved": "MOVED", "NoScriptError": "NOSCRIPT",
          "PermissionDenied": "NOPERM", "ReadOnly": "READONLY", "ResponseError": "ERR", "TryAgain": "TRYAGAIN"}
"""The codes of error replies by the names that the library gives them. It leaves other codes as they are."""
_PLACES = {"SWLIMIT.MALLOW": 2, "SWLIMIT.ADMIT": 2, "SWLIMIT.SETTLE": 2, **dict.fromkeys(CALLS, 3)}
"""Where the first key stands in commands whose first argument it is not."""


def is_cluster(client: Any) -> bool:
    return hasattr(client, "invoke_script_route")


def endpoint(client: Any) -> Endpoint:
    """One for all servers of a client."""
    name = ",".join(f"{one.host}:{one.port}" for one in client.config.addresses)
    return Endpoint(name, GlideConnection, {"client": client})


def check(client: Any, timeout: float) -> None:
    """Raise what such a client cannot do."""
    config = client.config
    if not is_cluster(client) and config.read_from.name != "PRIMARY":
        raise TypeError("the client reads from replicas, which decide nothing: make it with ReadFrom.PRIMARY")
    at_most = config.request_timeout or REQUEST_TIMEOUT
    if timeout * 1000 > at_most:
        raise ValueError(f"timeout must be at most {at_most} ms, after which the client drops replies, not "
                         f"{timeout * 1000:.0f}: give the client a longer request_timeout")


class GlideConnection:
    """Has the methods of redis-py's connections that limiters use."""

    is_shared = True

    def __init__(self, client: Any, **_: Any) -> None:
        self._client, self._is_cluster = client, is_cluster(client)
        self._replies: deque[asyncio.Task[Any]] = deque()
        self._sent = asyncio.Event()
        self.is_connected = False

    async def connect(self) -> None:
        self.is_connected = True

    async def disconnect(self, nowait: bool = False) -> None:
        self.is_connected = False
        for reply in self._replies:
            reply.cancel()
        self._replies.clear()

    async def can_read(self) -> bool:
        """Whether it has ended."""
        return False

    def pack_commands(self, commands: Sequence[Words]) -> Sequence[Words]:
        return commands

    async def send_packed_command(self, commands: Sequence[Words], check_health: bool = True) -> None:
        for words in commands:
            reply = background(self._reply(words))
            reply.add_done_callback(_is_known)
            self._replies.append(reply)
        self._sent.set()

    async def read_response(self, timeout: float | None = None, disconnect_on_error: bool = True) -> Any:
        while not self._replies:
            self._sent.clear()
            if not await _is_in_time(self._sent.wait(), timeout):
                return None
        if not (await asyncio.wait([self._replies[0]], timeout=timeout))[0]:
            return None
        return self._replies.popleft().result()

    async def _reply(self, words: Words) -> Any:
        arguments = [word if isinstance(word, bytes) else str(word) for word in words]
        try:
            reply = await (self._client.custom_command(arguments, self._route(words)) if self._is_cluster
                           else self._client.custom_command(arguments))
        except Exception as error:
            raise _as_redis_py(error) from error
        return [one for pair in reply.items() for one in pair] if isinstance(reply, dict) else reply

    def _route(self, words: Words) -> Any:
        """The primary of the key: the library knows no keys of a module's commands."""
        library, place = sys.modules["glide"], _PLACES.get(words[0], 1)
        key = words[place] if len(words) > place and isinstance(words[place], bytes) else b""
        return library.SlotIdRoute(library.SlotType.PRIMARY, key_slot(key))


def _is_known(reply: "asyncio.Task[Any]") -> None:
    """Its error may come when nothing reads it any longer."""
    if not reply.cancelled():
        reply.exception()


async def _is_in_time(waiting: Any, seconds: float | None) -> bool:
    try:
        await asyncio.wait_for(waiting, seconds)
    except asyncio.TimeoutError:
        return False
    return True


def _as_redis_py(error: Exception) -> Exception:
    """What redis-py raises for the same."""
    library = sys.modules["glide"]
    if isinstance(error, library.TimeoutError):
        return redis.TimeoutError(str(error))
    found = _SIGNALLED.fullmatch(str(error))
    code = found and _CODES.get(found[1], found[1] if found[1].isupper() else None)
    if found is None or code is None:
        return redis.ConnectionError(str(error))
    parse: Callable[[str], Exception] = BaseParser.parse_error
    return parse(f"{code} {found[2]}".removeprefix("ERR "))
