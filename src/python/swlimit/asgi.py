"""Middleware for ASGI applications."""

from .contrib.asgi import ASGIRule, RateLimit, client_address, header

__all__ = ["ASGIRule", "RateLimit", "client_address", "header"]
