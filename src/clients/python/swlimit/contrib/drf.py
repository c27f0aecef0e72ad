"""Throttles for Django REST framework, which replace its own of the same names. In the settings:

    SWLIMIT = {"LOCATION": "redis://127.0.0.1:6379", "OPTIONS": {"on_failure": "allow"}}
    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["swlimit.drf.UserRateThrottle"], …}

Rates, scopes and keys are the framework's. `OPTIONS` are those of `swlimit.Limiter`, beside the window's.
"""

import functools
from typing import Any

import redis
from django.conf import settings
from rest_framework import throttling

from .._core.decision import Decision
from ..rate_limiter import Limiter
from .django import configured


@functools.cache
def _client() -> Any:
    return redis.Redis.from_url(configured("LOCATION")["LOCATION"])


@functools.cache
def _limiter(limit: int, seconds: int) -> Limiter:
    return Limiter(_client(), limit, seconds, **settings.SWLIMIT.get("OPTIONS", {}))


_limiter.__wrapped__(1, 1)  # errors in the settings show when the program starts
_client.cache_clear()  # tests, say, may use another database later


class SimpleRateThrottle(throttling.SimpleRateThrottle):  # type: ignore[misc]
    """A base class with `get_cache_key`, as the framework's own."""

    decision: Decision

    def allow_request(self, request: Any, view: Any) -> bool:
        key = self.get_cache_key(request, view) if self.rate is not None else None
        if key is None:
            return True
        self.decision = _limiter(self.num_requests, self.duration).allow(f"swlimit:{key}")
        return bool(self.decision)

    def wait(self) -> float | None:
        return self.decision.retry_after


class AnonRateThrottle(throttling.AnonRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limits anonymous clients, by address."""


class UserRateThrottle(throttling.UserRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limits users; anonymous clients by address."""


class ScopedRateThrottle(throttling.ScopedRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limits users by the view's `throttle_scope`."""
