"""Dependencies for FastAPI."""

from .contrib.fastapi import RateLimit as RateLimit
