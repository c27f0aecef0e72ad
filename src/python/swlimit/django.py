"""Middleware and a decorator for Django."""

from .contrib.django import RateLimitMiddleware, limited

__all__ = ["RateLimitMiddleware", "limited"]
