"""What middleware decides by."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .core import Deciding, Key, Request

L = TypeVar("L", bound=Deciding)
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


def asked(rules: Iterable[Rule[L, S]], scope: S, usual_key: Callable[[S], Key | None]) -> list[tuple[str, Request]]:
    """The names of the rules that have a key for this request, and what it asks of each."""
    keys = ((rule, (rule.key or usual_key)(scope)) for rule in rules)
    return [(rule.name, rule.limiter.request(key, rule.cost(scope))) for rule, key in keys if key is not None]
