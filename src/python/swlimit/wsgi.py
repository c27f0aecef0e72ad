"""Middleware for WSGI: `app.wsgi_app = RateLimit(app.wsgi_app, limiter, key)`."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .core import Key
from .limiter import Limiter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def client_address(environ: "WSGIEnvironment") -> str | None:
    """The address of the peer, which is a proxy's where there is one in between."""
    address: str | None = environ.get("REMOTE_ADDR")
    return address


class RateLimit:
    """Answers 429 to what is denied, and tells the limit in the headers of every response.

    `key` says who asks, `cost` how much; a request without a key is not limited.
    """

    def __init__(self, app: "WSGIApplication", limiter: Limiter,
                 key: "Callable[[WSGIEnvironment], Key | None]" = client_address,
                 cost: "Callable[[WSGIEnvironment], int]" = lambda _: 1, name: str = "default") -> None:
        self._app, self._limiter, self._key, self._cost, self._name = app, limiter, key, cost, name

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        key = self._key(environ)
        if key is None:
            return self._app(environ, start_response)
        decision = self._limiter.allow(key, self._cost(environ))
        headers = list(decision.headers(self._name).items())
        if not decision:
            start_response("429 Too Many Requests", [*headers, ("Content-Type", "text/plain; charset=utf-8")])
            return [b"Too Many Requests\n"]

        def telling(status: str, own: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*own, *headers], *rest)

        return self._app(environ, telling)
