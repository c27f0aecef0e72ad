"""For Flask: an extension for the whole application, and a decorator for a view.

    RateLimit(Rule(limiter, lambda request: request.headers.get("X-Api-Key"))).init_app(app)

    @app.get("/search")
    @limited(Rule(limiter, name="search"))
    def search(): …
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from flask import Flask, Request, Response, current_app, g, make_response, request

from .._all_of import allow_all
from ..rate_limiter import Limiter
from ..rules import Reading, Rule, Rules, checked_view, client_network

P = ParamSpec("P")
R = TypeVar("R")
READING = Reading(lambda request: client_network(request.remote_addr), lambda request: str(request.method),
                  lambda request: str(request.path))


class RateLimit:
    """Answers 429 when a rule denies a request, which none counts then; shows the limits in every response's headers.

    Keys, costs and `denied` are functions of Flask's request.
    """

    def __init__(self, *rules: Rule[Limiter, Request], app: Flask | None = None, **options: Any) -> None:
        self._rules = Rules(rules, READING, Limiter, **options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit all requests of this application; several may be limited by one extension."""
        app.before_request(self.check)
        app.after_request(_add_headers)

    def check(self) -> Response | None:
        """The answer to the current request if it is denied."""
        asked = self._rules.asked(request)
        if not asked:
            return None
        answer = self._rules.answer(request, asked, allow_all(*(one for _, one in asked)))
        if answer.decisions:
            g.swlimit_headers = {**g.get("swlimit_headers", {}), **answer.headers}
            return None
        return Response(answer.body, 429, answer.headers, content_type=answer.content_type)


def limited(*rules: Rule[Limiter, Request], **options: Any) -> Callable[[Callable[P, R]], Callable[P, Any]]:
    """Decorates a view, also an asynchronous one: below the route, above what is not to be run for a request that is
    denied."""
    limits = RateLimit(*rules, **options)

    def decorate(view: Callable[P, R]) -> Callable[P, Any]:
        checked_view(view)

        @functools.wraps(view)
        def limited_view(*args: P.args, **kwargs: P.kwargs) -> Any:
            called = current_app.ensure_sync(view)  # before anything is counted, as it fails without asgiref
            denied = limits.check()
            return denied if denied is not None else _add_headers(make_response(called(*args, **kwargs)))
        return limited_view
    return decorate


def _add_headers(response: Response) -> Response:
    for name, value in g.pop("swlimit_headers", {}).items():
        response.headers[name] = value
    return response
