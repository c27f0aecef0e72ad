"""Throttles for Django REST framework."""

from .contrib.drf import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "UserRateThrottle"]
