"""Dependencies for FastAPI."""

from .contrib.fastapi import RateLimit

__all__ = ["RateLimit"]
