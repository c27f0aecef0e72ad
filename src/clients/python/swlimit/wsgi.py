"""Middleware for WSGI applications."""

from .contrib.wsgi import RateLimit as RateLimit
from .contrib.wsgi import client_address as client_address
