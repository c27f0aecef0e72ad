"""Middleware for ASGI: plain, or in Starlette and FastAPI with `app.add_middleware(RateLimit, Rule(limiter, key))`."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .._all_of import allow_all
from ..rate_limiter import AsyncLimiter
from ..rules import Reading, Rule, Rules, checked_function, client_network

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
            await send({"type": "http.response.start", "status": 429,
                        "headers": [*headers, (b"content-type", answer.content_type.encode())]})
            await send({"type": "http.response.body", "body": answer.body})
            return

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._app(scope, receive, telling)
