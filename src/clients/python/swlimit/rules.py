"""Rules of middleware and decorators for all frameworks, and the answer to a denied request."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast, get_args

from ._all_of import check_together
from ._base import Key
from ._core.decision import Decisions
from ._rate_base import Request
from ._sync_async import kind_of
from .hold_limiter import AsyncHoldLimiter
from .rate_limiter import AsyncLimiter, Limiter

A = TypeVar("A", bound=Limiter | AsyncLimiter | AsyncHoldLimiter)
L = TypeVar("L", bound=Limiter | AsyncLimiter)
S = TypeVar("S")
Headers = Literal["all", "standard", "legacy", "none"]
NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Rule(Generic[A, S]):
    """A limit for requests. `S` is the framework's type for a request: a scope, say, or an environment."""

    limiter: A
    key: Callable[[S], Key | None] | None = None
    """The key of a request, by default the client's address. A request without a key is not limited."""
    cost: Callable[[S], int] = lambda _: 1
    name: str = "default"
    """In the headers."""
    methods: Collection[str] = ()
    """Methods to limit, in any case; GET limits HEAD, too. Empty: all."""
    path: str = ""
    """The beginning of paths to limit."""
    method_exact: bool = False
    """Methods of requests are compared with those in capitals, and GET does not limit HEAD."""

    def __post_init__(self) -> None:
        if (isinstance(self.methods, str) or not isinstance(self.methods, Collection)
                or not all(isinstance(one, str) for one in self.methods)):
            raise ValueError(f"methods must be a collection of names, not {self.methods!r}")
        if self.key is not None:
            checked_function("key", self.key)
        checked_function("cost", self.cost)
        if not isinstance(self.path, str):
            raise TypeError(f"path must be a str, not {kind_of(self.path)}")
        if (not isinstance(self.name, str) or not self.name or not self.name.isascii() or not self.name.isprintable()
                or '"' in self.name):
            raise ValueError(f"name must be printable ASCII without quotes, not {self.name!r}")

    def key_for(self, request: S, address: str | None) -> Key | None:
        """The key of a request from this address."""
        return self.key(request) if self.key else client_network(address)

    def limits_method(self, method: str) -> bool:
        """Whether requests with this method are limited."""
        named = {one.upper() for one in self.methods}
        if not named or self.method_exact:
            return not named or method in named
        # Werkzeug and Django take `post` for POST, and run GET's handler for HEAD.
        folded = method.upper()
        return folded in named or (folded == "HEAD" and "GET" in named)


class Reading(NamedTuple):
    """How to read a framework's request."""

    address: Callable[[Any], str | None]
    method: Callable[[Any], str]
    path: Callable[[Any], str]


class Answer(NamedTuple):
    """What to send with, or instead of, the response."""

    decisions: Decisions
    headers: dict[str, str]
    content_type: str = ""
    body: bytes = b""


def too_many(_request: Any, _decisions: Decisions) -> tuple[str, bytes]:
    """The content type and the body of the answer to a request that is denied."""
    return "text/plain; charset=utf-8", b"Too Many Requests\n"


@dataclass(frozen=True, slots=True)
class Rules(Generic[L, S]):
    """The rules for a request. When one denies it, none counts it."""

    rules: tuple[Rule[L, S], ...]
    reading: Reading
    kind: type[L]
    """The type of all limiters: Limiter when threads answer requests, AsyncLimiter when tasks do."""
    denied: Callable[[S, Decisions], tuple[str, bytes]] = too_many
    """Makes the body of each 429."""
    headers: Headers = "all"

    def __post_init__(self) -> None:
        if not self.rules or not all(isinstance(rule, Rule) for rule in self.rules):
            raise TypeError("what limits requests is one or more swlimit.Rule")
        for rule in self.rules:
            checked_limiter(rule, self.kind)
        check_together([rule.limiter for rule in self.rules])
        checked_function("denied", self.denied)
        if self.headers not in get_args(Headers):
            raise ValueError(f"headers must be one of {', '.join(get_args(Headers))}, not {self.headers!r}")

    def asked(self, request: S) -> list[tuple[str, Request[L]]]:
        """The names of the rules that apply to this request, with the request to each limiter."""
        method, path = self.reading.method(request), self.reading.path(request)
        found = []
        for rule in self.rules:
            if path.startswith(rule.path) and rule.limits_method(method):
                key = rule.key_for(request, self.reading.address(request))
                if key is not None:
                    found.append((rule.name, cast(Request[L], rule.limiter.request(key, rule.cost(request)))))
        return found

    def answer(self, request: S, asked: list[tuple[str, Request[L]]], decisions: Decisions) -> Answer:
        """The answer that these decisions lead to."""
        all_headers = decisions.headers(*(name for name, _ in asked))
        headers = {name: value for name, value in all_headers.items() if self._sends(name)}
        if decisions:
            return Answer(decisions, headers)
        return Answer(decisions, headers, *self.denied(request, decisions))

    def _sends(self, name: str) -> bool:
        if name == "Retry-After" or self.headers == "all":
            return True
        return self.headers != "none" and name.startswith("X-") == (self.headers == "legacy")


def checked_limiter(rule: Rule[Any, Any], kind: type) -> None:
    """Raise TypeError unless the rule's limiter is of this kind."""
    if not isinstance(rule.limiter, kind):
        article = "a" if kind is Limiter else "an"
        raise TypeError(f"a rule's limiter must be {article} {kind.__name__}, not {kind_of(rule.limiter)}")


def checked_function(name: str, function: object, what: str = "a function") -> None:
    """Raise TypeError unless it can be called."""
    if not callable(function):
        raise TypeError(f"{name} must be {what}, not {kind_of(function)}")


def checked_view(view: object) -> None:
    """Raise TypeError unless `limited` can decorate it: calling a class makes a view, and answers nothing."""
    if isinstance(view, type) or not callable(view):
        raise TypeError(f"limited decorates a view that is a function, not {view!r}")


def client_network(address: str | None) -> str | None:
    """The key of a client's address: of IPv6 the network of 64 bits, within which a client may take any address. One
    that stands for an IPv4 address is that address: behind NAT64 all clients would otherwise share a key."""
    if address is None or ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    behind_nat64 = IPv4Address(int(found) & 0xFFFF_FFFF) if found in NAT64 else None
    return str(found.ipv4_mapped or behind_nat64 or IPv6Network((found, 64), strict=False))
