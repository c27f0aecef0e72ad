"""Middleware for ASGI: plain, or in Starlette and FastAPI with `app.add_middleware(RateLimit, limiter=…, key=…)`."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .aio import AsyncLimiter
from .core import Key

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def client_address(scope: Scope) -> str | None:
    """The address of the peer, which is a proxy's where there is one in between."""
    client = scope.get("client")
    return str(client[0]) if client else None


class RateLimit:
    """Answers 429 to what is denied, and tells the limit in the headers of every response.

    `key` says who asks, `cost` how much; a request without a key is not limited, nor is anything but HTTP.
    """

    def __init__(self, app: App, limiter: AsyncLimiter, key: Callable[[Scope], Key | None] = client_address,
                 cost: Callable[[Scope], int] = lambda _: 1, name: str = "default") -> None:
        self._app, self._limiter, self._key, self._cost, self._name = app, limiter, key, cost, name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._key(scope) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        decision = await self._limiter.allow(key, self._cost(scope))
        headers = [(name.lower().encode(), value.encode()) for name, value in decision.headers(self._name).items()]
        if not decision:
            await send({"type": "http.response.start", "status": 429,
                        "headers": [*headers, (b"content-type", b"text/plain; charset=utf-8")]})
            await send({"type": "http.response.body", "body": b"Too Many Requests\n"})
            return

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._app(scope, receive, telling)
