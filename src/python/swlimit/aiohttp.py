"""Middleware for aiohttp's server."""

from .contrib.aiohttp import rate_limit

__all__ = ["rate_limit"]
