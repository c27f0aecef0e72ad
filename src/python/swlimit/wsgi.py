"""Middleware for WSGI: `app.wsgi_app = RateLimit(app.wsgi_app, Rule(limiter, key))`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .limiter import Limiter, allow_all
from .rules import Rule, asked, client_network

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    WSGIRule = Rule[Limiter, WSGIEnvironment]


def client_address(environ: "WSGIEnvironment") -> str | None:
    """The address of the peer, an IPv6 client's /64; a proxy's where there is one in between."""
    return client_network(environ.get("REMOTE_ADDR"))


class RateLimit:
    """Answers 429 to what a rule denies, and then none counts it; tells the limits in the headers of every response."""

    def __init__(self, app: "WSGIApplication", rule: "WSGIRule", *more: "WSGIRule") -> None:
        self._app, self._rules = app, (rule, *more)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        found = asked(self._rules, environ, client_address)
        if not found:
            return self._app(environ, start_response)
        decisions = allow_all(*(request for _, request in found))
        headers = list(decisions.headers(*(name for name, _ in found)).items())
        if not decisions:
            start_response("429 Too Many Requests", [*headers, ("Content-Type", "text/plain; charset=utf-8")])
            return [b"Too Many Requests\n"]

        def telling(status: str, own: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*own, *headers], *rest)

        return self._app(environ, telling)
