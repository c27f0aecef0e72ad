"""Middleware for ASGI: plain, or in Starlette and FastAPI with `app.add_middleware(RateLimit, Rule(limiter, key))`."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .limiter import AsyncLimiter, allow_all
from .rules import Rule, asked, client_network

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
ASGIRule = Rule[AsyncLimiter, Scope]


def client_address(scope: Scope) -> str | None:
    """The address of the peer, an IPv6 client's /64; a proxy's where there is one in between."""
    client = scope.get("client")
    return client_network(client[0]) if client else None


class RateLimit:
    """Answers 429 to what a rule denies, and then none counts it; tells the limits in the headers of every response.

    Only HTTP is limited.
    """

    def __init__(self, app: App, rule: ASGIRule, *more: ASGIRule) -> None:
        self._app, self._rules = app, (rule, *more)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = asked(self._rules, scope, client_address) if scope["type"] == "http" else None
        if not found:
            await self._app(scope, receive, send)
            return
        decisions = await allow_all(*(request for _, request in found))
        told = decisions.headers(*(name for name, _ in found))
        headers = [(name.lower().encode(), value.encode()) for name, value in told.items()]
        if not decisions:
            await send({"type": "http.response.start", "status": 429,
                        "headers": [*headers, (b"content-type", b"text/plain; charset=utf-8")]})
            await send({"type": "http.response.body", "body": b"Too Many Requests\n"})
            return

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._app(scope, receive, telling)
