"""Middleware for ASGI: plain, or in Starlette and FastAPI with `app.add_middleware(RateLimit, Rule(limiter, key))`."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from .._all_of import allow_all
from .._base import Key
from .._core.quota import Duration
from ..hold_limiter import AsyncHold, AsyncHoldLimiter
from ..rate_limiter import AsyncLimiter
from ..rules import Reading, Rule, Rules, checked_function, checked_limiter, client_network, too_many

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
ASGIRule = Rule[AsyncLimiter, Scope]
ASGIHoldRule = Rule[AsyncHoldLimiter, Scope]
A = TypeVar("A", AsyncLimiter, AsyncHoldLimiter)

TRY_AGAIN_LATER, POLICY_VIOLATION = 1013, 1008
"""The codes that close a WebSocket: too many connections, too many messages."""


def client_address(scope: Scope) -> str | None:
    """The address of the peer, an IPv6 client's /64; a proxy's where there is one in between."""
    client = scope.get("client")
    return client_network(client[0]) if client else None


def header(scope: Scope, name: str) -> str | None:
    """A header of a request, for keys: `lambda scope: header(scope, "x-api-key")`."""
    wanted = name.lower().encode("latin-1")
    return next((value.decode("latin-1") for found, value in scope["headers"] if found == wanted), None)


READING = Reading(client_address, lambda scope: str(scope["method"]), lambda scope: str(scope["path"]))


class RateLimit:
    """Answers 429 when a rule denies a request, which none counts then; shows the limits in every response's headers.

    Only HTTP is limited.

    denied: a function of the scope and the decisions that returns the content type and the body of a 429.
    headers: "all", "standard" (RateLimit, RateLimit-Policy), "legacy" (X-RateLimit-…) or "none" but Retry-After.
    """

    def __init__(self, app: App, *rules: ASGIRule, **options: Any) -> None:
        checked_function("app", app, "an application")
        self._app, self._rules = app, Rules(rules, READING, AsyncLimiter, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._rules.asked(scope) if scope["type"] == "http" else None
        if not asked:
            await self._app(scope, receive, send)
            return
        answer = self._rules.answer(scope, asked, await allow_all(*(request for _, request in asked)))
        headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
        if not answer.decisions:
            await _send_429(send, headers, answer.content_type, answer.body)
            return

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._app(scope, receive, telling)


class ConcurrencyLimit:
    """Holds a place for each request until its response's body has ended, the client has gone, or its task is
    cancelled; streams included. Answers 429 when no place is free.

    rule: its limiter is an AsyncHoldLimiter. wait: how long a request waits for a place, unless its client leaves.
    denied: a function of the scope and the HoldDecision that returns the content type and the body of a 429.
    """

    def __init__(self, app: App, rule: ASGIHoldRule, *, wait: Duration = 0,
                 denied: Callable[[Scope, Any], tuple[str, bytes]] = too_many) -> None:
        checked_function("app", app, "an application")
        checked_function("denied", denied)
        checked_limiter(rule, AsyncHoldLimiter)
        self._app, self._rule, self._wait, self._denied = app, rule, wait, denied

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = None
        if scope["type"] == "http" and self._rule.limits_method(scope["method"]):
            key = _key(self._rule, scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        client = _WaitingClient(receive)
        taking = self._rule.limiter.hold(key, self._rule.cost(scope), wait=self._wait)
        hold = await (client.unless_it_leaves(taking) if self._wait else taking)
        if hold:
            await while_sending(hold, self._app, scope, client.receive, send)
        elif hold is not None:
            await _send_429(send, [], *self._denied(scope, hold.decision))


class _WaitingClient:
    """A client that may leave while it waits for a place. The application receives what it has sent meanwhile."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._sent: list[Message] = []

    async def receive(self) -> Message:
        return self._sent.pop(0) if self._sent else await self._receive()

    async def unless_it_leaves(self, taking: Awaitable[AsyncHold]) -> AsyncHold | None:
        """The hold; None if the client has left before."""
        hold, leaving = asyncio.ensure_future(taking), asyncio.ensure_future(self._leaves())
        try:
            await asyncio.wait([hold, leaving], return_when=asyncio.FIRST_COMPLETED)
            return None if leaving.done() and leaving.result() else await hold
        finally:  # a hold that nobody gets is released
            hold.cancel()
            leaving.cancel()
            await asyncio.wait([leaving])

    async def _leaves(self) -> bool:
        """Wait until it leaves; False where more of a body is to come, which only the application may read."""
        while not self._sent or not self._sent[-1].get("more_body", False):
            self._sent.append(await self._receive())
            if self._sent[-1]["type"] == "http.disconnect":
                return True
        return False


async def while_sending(hold: AsyncHold, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Let an application answer; the hold ends with the body or the client, before what the application does then."""
    async def listening() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            await hold.release()
        return message

    async def telling(message: Message) -> None:
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            await hold.release()

    async with hold:
        await app(scope, listening, telling)


class WebSocketLimit:
    """Limits WebSockets: how many are connected at once, and how many messages they send.

    A connection that finds no place is accepted, so that browsers see why, and closed with code 1013 (try again later).
    A message beyond the limit closes its connection with code 1008 (policy violation); the application does not get
    it, but a `websocket.disconnect` with that code.

    connections: a rule whose limiter is an AsyncHoldLimiter. messages: a rule whose limiter is an AsyncLimiter.
    """

    def __init__(self, app: App, *, connections: ASGIHoldRule | None = None, messages: ASGIRule | None = None) -> None:
        checked_function("app", app, "an application")
        if connections is None and messages is None:
            raise TypeError("WebSocketLimit needs connections, messages, or both")
        self._app = app
        self._connections = _of_websockets(connections, AsyncHoldLimiter)
        self._messages = _of_websockets(messages, AsyncLimiter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        async with AsyncExitStack() as until_left:
            hold = None
            if self._connections is not None and (key := _key(self._connections, scope)) is not None:
                hold = await self._connections.limiter.hold(key, self._connections.cost(scope))
                if not hold:
                    await _refuse(scope, receive, send)
                    return
                await until_left.enter_async_context(hold)
            key = None if self._messages is None else _key(self._messages, scope)
            connection = _Connection(scope, receive, send, hold, self._messages, key)
            await self._app(scope, connection.receive, connection.send)


class _Connection:
    """A WebSocket whose messages are limited, and whose hold ends when it is closed."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, hold: AsyncHold | None, messages: ASGIRule | None,
                 key: Key | None) -> None:
        self._scope, self._receive, self._send, self._hold = scope, receive, send, hold
        self._messages, self._key = messages, key
        self._is_refused = self._is_closed = False
        self._unread: Message | None = None
        """A message whose reader was cancelled while it was decided."""

    async def receive(self) -> Message:
        message = self._unread = self._unread or await self._receive()
        if message["type"] == "websocket.receive" and self._messages is not None and self._key is not None:
            decision = await self._messages.limiter.allow(self._key, self._messages.cost(self._scope))
            if not decision:
                wait = "" if decision.wait is None else f", retry after {decision.wait} s"
                message = await self._close(f"too many messages{wait}")
        if message["type"] == "websocket.disconnect" and self._hold is not None:
            await self._hold.release()
        self._unread = None
        return message

    async def send(self, message: Message) -> None:
        if self._is_refused:
            raise OSError("the connection was closed because of too many messages")
        self._is_closed = self._is_closed or message["type"] == "websocket.close"
        await self._send(message)
        if message["type"] == "websocket.close" and self._hold is not None:
            await self._hold.release()

    async def _close(self, reason: str) -> Message:
        """Close the connection. Returns what the application gets to know."""
        closing: Message = {"code": POLICY_VIOLATION, "reason": reason}
        if not self._is_closed:
            self._is_refused = self._is_closed = True
            with suppress(OSError):  # the client has left
                await self._send({"type": "websocket.close", **closing})
        return {"type": "websocket.disconnect", **closing}


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Close a connection with a code, which needs that it is accepted; a browser wants one of its subprotocols."""
    await receive()  # websocket.connect
    await send({"type": "websocket.accept", "subprotocol": next(iter(scope.get("subprotocols") or ()), None)})
    await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": "too many connections"})


async def _send_429(send: Send, headers: list[tuple[bytes, bytes]], content_type: str, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 429,
                "headers": [*headers, (b"content-type", content_type.encode())]})
    await send({"type": "http.response.body", "body": body})


def _key(rule: Rule[Any, Scope], scope: Scope) -> Key | None:
    """The key for a rule that applies to this path; else None."""
    return rule.key_for(scope, client_address(scope)) if READING.path(scope).startswith(rule.path) else None


def _of_websockets(rule: Rule[A, Scope] | None, kind: type[A]) -> Rule[A, Scope] | None:
    """The rule, checked."""
    if rule is not None:
        checked_limiter(rule, kind)
        if rule.methods:
            raise ValueError("a WebSocket has no method: leave methods out of its rule")
    return rule
