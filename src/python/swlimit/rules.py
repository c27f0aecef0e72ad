"""What middleware decides by."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Generic, TypeVar, cast

from .deciding import Key, Request
from .limiter import AsyncLimiter, Limiter

L = TypeVar("L", bound=Limiter | AsyncLimiter)
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Rule(Generic[L, S]):
    """A limit that requests are to keep, `S` being what the framework tells of one: a scope, or an environment."""

    limiter: L
    key: Callable[[S], Key | None] | None = None
    """Who asks, as a rule the client's address. A request without a key is not limited."""
    cost: Callable[[S], int] = lambda _: 1
    name: str = "default"
    """In the headers."""


def asked(rules: Iterable[Rule[L, S]], scope: S, usual_key: Callable[[S], Key | None]) -> list[tuple[str, Request[L]]]:
    """The names of the rules that have a key for this request, and what it asks of each."""
    keys = ((rule, (rule.key or usual_key)(scope)) for rule in rules)
    return [(rule.name, cast(Request[L], rule.limiter.request(key, rule.cost(scope))))
            for rule, key in keys if key is not None]


def client_network(address: str | None) -> str | None:
    """Who sits at an address: an IPv6 client's network of 64 bits, all of which is its own, else the address itself."""
    if address is None or ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((found, 64), strict=False))
