"""Dependencies for FastAPI: `@app.get("/", dependencies=[Depends(RateLimit(Rule(limiter, key)))])`.

What they limit is a route, a router or the whole application, as FastAPI's own dependencies.
"""

from typing import Any

from fastapi import HTTPException, Request, Response

from .._all_of import allow_all
from .._core.decision import Decisions
from ..rate_limiter import AsyncLimiter
from ..rules import Reading, Rule, Rules
from .asgi import READING

_READING = Reading(*(lambda request, read=read: read(request.scope) for read in READING))


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
