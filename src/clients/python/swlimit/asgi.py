"""Middleware for ASGI applications."""

from .contrib.asgi import ASGIHoldRule as ASGIHoldRule
from .contrib.asgi import ASGIRule as ASGIRule
from .contrib.asgi import ConcurrencyLimit as ConcurrencyLimit
from .contrib.asgi import RateLimit as RateLimit
from .contrib.asgi import WebSocketLimit as WebSocketLimit
from .contrib.asgi import client_address as client_address
from .contrib.asgi import header as header
