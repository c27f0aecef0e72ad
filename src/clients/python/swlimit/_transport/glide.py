"""Clients of valkey-glide. They show no connection: what stands for one here sends by the client, and reads the replies
in the order of the commands."""

import asyncio
import re
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import redis
from redis._parsers.base import BaseParser
from redis.crc import key_slot

from .._protocol.commands import Words
from .._protocol.replies import ERROR_REPLIES
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
_PLACES = {b"SWLIMIT.MALLOW": 2, b"SWLIMIT.ADMIT": 2, b"SWLIMIT.SETTLE": 2,
           **dict.fromkeys((one.encode() for one in CALLS), 3)}
"""Where the first key stands in commands whose first argument it is not."""


def is_cluster(client: Any) -> bool:
    return hasattr(client, "invoke_script_route")


def endpoint(client: Any) -> Endpoint:
    """One for all servers of a client."""
    name = ",".join(f"{one.host}:{one.port}" for one in _config(client).addresses)
    return Endpoint(name, GlideConnection if hasattr(client, "config") else ThreadsConnection, {"client": client})


def _config(client: Any) -> Any:
    return client.config if hasattr(client, "config") else client._config  # for threads


def check(client: Any, timeout: float) -> None:
    """Raise what such a client cannot do."""
    config = _config(client)
    if not is_cluster(client) and config.read_from.name != "PRIMARY":
        raise TypeError("the client reads from replicas, which decide nothing: make it with ReadFrom.PRIMARY")
    at_most = config.request_timeout or REQUEST_TIMEOUT
    if timeout >= at_most / 1000:
        raise ValueError(f"timeout must be less than {at_most} ms, after which the client drops replies, not "
                         f"{timeout * 1000:.0f}: give the client a longer request_timeout")


class GlideConnection:
    """Has the methods of redis-py's connections that limiters use."""

    is_shared = True

    def __init__(self, client: Any, **_: Any) -> None:
        self._client = client
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
        try:
            reply = await _ask(self._client, [one if isinstance(one, bytes) else str(one).encode() for one in words])
        except Exception as error:
            raise _as_redis_py(error) from error
        return [one for pair in reply.items() for one in pair] if isinstance(reply, dict) else reply


class ThreadsConnection(redis.Connection):
    """A connection of redis-py's to a thread of this process, which asks by the client."""

    is_shared = True

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            redis_connect_func=lambda connection: connection._parser.on_connect(connection), **options)
        self._client = client

    def _connect(self) -> socket.socket:
        near, far = socket.socketpair()
        near.settimeout(self.socket_timeout)
        threading.Thread(target=_serve, args=(self._client, far), name="swlimit-glide", daemon=True).start()
        return near


def _serve(client: Any, far: socket.socket) -> None:
    """Ask what comes, until the other end closes, or a reply is lost."""
    with far, far.makefile("rb") as reader, suppress(EOFError, OSError, redis.RedisError):
        while True:
            words = [_data(reader, _number(reader)) for _ in range(_number(reader))]
            try:
                reply = _encoded(_ask(client, words))
            except Exception as error:
                known = _as_redis_py(error)
                if not isinstance(known, ERROR_REPLIES):
                    raise known from error
                reply = f"-{_signalled(error)}\r\n".encode()
            far.sendall(reply)


def _number(reader: BinaryIO) -> int:
    line = reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return int(line[1:])


def _data(reader: BinaryIO, length: int) -> bytes:
    data = reader.read(length + 2)
    if len(data) < length + 2:
        raise EOFError
    return data[:-2]


def _encoded(reply: Any) -> bytes:
    """A reply as servers send it."""
    if isinstance(reply, dict):
        reply = [one for pair in reply.items() for one in pair]
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(_encoded, reply))
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    data = reply if isinstance(reply, bytes) else str(reply).encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


def _library(client: Any) -> Any:
    return sys.modules["glide" if hasattr(client, "config") else "glide_sync"]


def _ask(client: Any, words: list[bytes]) -> Any:
    """The reply to a command, in a cluster of the key's primary: the library knows no keys of a module's commands."""
    if not is_cluster(client):
        return client.custom_command(words)
    library, place = _library(client), _PLACES.get(words[0], 1)
    slot = key_slot(words[place] if len(words) > place else b"")
    return client.custom_command(words, library.SlotIdRoute(library.SlotType.PRIMARY, slot))


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


def _signalled(error: Exception) -> str | None:
    """An error reply in the server's own words; None for all other errors."""
    found = _SIGNALLED.fullmatch(" ".join(str(error).splitlines()))
    code = found and _CODES.get(found[1], found[1] if found[1].isupper() else None)
    return f"{code} {found[2]}" if found and code else None


def _as_redis_py(error: Exception) -> Exception:
    """What redis-py raises for the same."""
    if type(error).__name__ == "TimeoutError":
        return redis.TimeoutError(str(error))
    text = _signalled(error)
    if text is None:
        return redis.ConnectionError(str(error))
    parse: Callable[[str], Exception] = BaseParser.parse_error
    return parse(text.removeprefix("ERR "))
