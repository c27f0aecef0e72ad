"""Middleware for aiohttp's server: `web.Application(middlewares=[rate_limit(Rule(limiter, key))])`."""

from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .._all_of import allow_all
from ..rate_limiter import AsyncLimiter
from ..rules import Reading, Rule, Rules, client_network

READING = Reading(lambda request: client_network(request.remote), lambda request: str(request.method),
                  lambda request: str(request.path))


def rate_limit(*rules: Rule[AsyncLimiter, web.Request], **options: Any) -> Middleware:
    """Answers 429 when a rule denies a request, which none counts then; shows the limits in every response's headers.

    Keys, costs and `denied` are functions of aiohttp's request.
    """
    limits = Rules(rules, READING, AsyncLimiter, **options)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = limits.asked(request)
        if not asked:
            return await handler(request)
        answer = limits.answer(request, asked, await allow_all(*(one for _, one in asked)))
        if not answer.decisions:
            return web.Response(status=429, body=answer.body,
                                headers=answer.headers | {"Content-Type": answer.content_type})
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(answer.headers)
            raise
        if not response.prepared:
            response.headers.update(answer.headers)
        return response
    return middleware
