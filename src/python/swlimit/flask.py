"""An extension and a decorator for Flask."""

from .contrib.flask import RateLimit, limited

__all__ = ["RateLimit", "limited"]
