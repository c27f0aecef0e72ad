"""Middleware for aiohttp's server."""

from .contrib.aiohttp import rate_limit as rate_limit
