"""Middleware for WSGI: `app.wsgi_app = RateLimit(app.wsgi_app, Rule(limiter, key))`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .._all_of import allow_all
from ..rate_limiter import Limiter
from ..rules import Reading, Rule, Rules, checked_function, client_network

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    WSGIRule = Rule[Limiter, WSGIEnvironment]


def client_address(environ: "WSGIEnvironment") -> str | None:
    """The address of the peer, an IPv6 client's /64; a proxy's where there is one in between."""
    return client_network(environ.get("REMOTE_ADDR"))


READING = Reading(client_address, lambda environ: str(environ["REQUEST_METHOD"]),
                  lambda environ: str(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")))


class RateLimit:
    """Answers 429 when a rule denies a request, which none counts then; shows the limits in every response's headers.

    denied: a function of the environment and the decisions that returns the content type and the body of a 429.
    headers: "all", "standard" (RateLimit, RateLimit-Policy), "legacy" (X-RateLimit-…) or "none" but Retry-After.
    """

    def __init__(self, app: "WSGIApplication", *rules: "WSGIRule", **options: Any) -> None:
        checked_function("app", app, "an application")
        self._app, self._rules = app, Rules(rules, READING, Limiter, **options)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        asked = self._rules.asked(environ)
        if not asked:
            return self._app(environ, start_response)
        answer = self._rules.answer(environ, asked, allow_all(*(request for _, request in asked)))
        headers = list(answer.headers.items())
        if not answer.decisions:
            start_response("429 Too Many Requests", [*headers, ("Content-Type", answer.content_type)])
            return [answer.body]

        def telling(status: str, own: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*own, *headers], *rest)

        return self._app(environ, telling)
