"""Middleware for WSGI applications."""

from .contrib.wsgi import RateLimit, client_address

__all__ = ["RateLimit", "client_address"]
