"""Middleware and a decorator for Django."""

from .contrib.django import RateLimitMiddleware as RateLimitMiddleware
from .contrib.django import limited as limited
