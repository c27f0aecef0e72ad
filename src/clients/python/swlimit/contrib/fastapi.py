"""Dependencies for FastAPI: with `limit = RateLimits(client)`, `@app.get("/", dependencies=[Depends(limit("9/m"))])`.

What they limit is a route, a router or the whole application, as FastAPI's own dependencies.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request, Response

from .._all_of import allow_all
from .._base import Key, as_bytes
from .._core.decision import Decisions
from .._core.rates import key_of_window
from .._rate_base import Options
from .._sync_async import AsyncClient
from ..rate_limiter import AsyncLimiter
from ..rate_limits import AsyncLimits
from ..rules import Reading, Rule, Rules, checked_function
from .asgi import READING

if TYPE_CHECKING:
    from typing_extensions import Unpack

_READING = Reading(*(lambda request, read=read: read(request.scope) for read in READING))
_NO_TAG = str.maketrans("{}", "<>")
"""A parameter of a route would be what a cluster finds the slot by, the same for all clients."""


class RateLimit:
    """Raises an HTTPException of status 429 when a rule denies a request, which none counts then; shows the limits in
    the response's headers. Keys and costs are functions of the Request. As a parameter, it is the Decisions, or None
    when no rule applies."""

    def __init__(self, *rules: Rule[AsyncLimiter, Request], **options: Any) -> None:
        self._rules = Rules(rules, _READING, AsyncLimiter, **options)

    async def __call__(self, request: Request, response: Response) -> Decisions | None:
        asked = self._rules.asked(request)
        if not asked:
            return None
        answer = self._rules.answer(request, asked, await allow_all(*(one for _, one in asked)))
        if not answer.decisions:
            raise HTTPException(429, answer.body.decode().rstrip("\n"), answer.headers)
        response.headers.update(answer.headers)
        return answer.decisions


class RateLimits:
    """Makes dependencies of rates as text, each with a key of its own for each route and client:

        limit = RateLimits(redis.asyncio.Redis())

        @app.get("/search", dependencies=[Depends(limit("10/minute; 100/hour"))])
    """

    def __init__(self, client: AsyncClient, key: Callable[[Request], Key | None] | None = None,
                 **options: "Unpack[Options]") -> None:
        """key: the key of a request, by default the client's address. A request without a key is not limited.

        options: as of an AsyncLimiter.
        """
        if key is not None:
            checked_function("key", key)
        self._client, self._key, self._options = client, key, options

    def __call__(self, rates: str, *, cost: Callable[[Request], int] = lambda _: 1, name: str = "default",
                 shared: str | None = None, **options: Any) -> RateLimit:
        """cost, name: as of a Rule. shared: a name for routes that count together. options: as of a RateLimit.

        Raises ValueError when a rate is wrong.
        """
        limiters = AsyncLimits(self._client, rates, **self._options).limiters
        return RateLimit(*(Rule(one, self._key_of(one, shared), cost, name) for one in limiters), **options)

    def _key_of(self, limiter: AsyncLimiter, shared: str | None) -> Callable[[Request], Key | None]:
        prefix, window = limiter._prefix, limiter.quota.geometry.window

        def key_of(request: Request) -> Key | None:
            found = self._key(request) if self._key else _READING.address(request)
            if found is None:
                return None
            place = shared if shared is not None else request.scope["route"].path.translate(_NO_TAG)
            return key_of_window(prefix, as_bytes(place) + b":" + as_bytes(found), window)[len(prefix):]
        return key_of
