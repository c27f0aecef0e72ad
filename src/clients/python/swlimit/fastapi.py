"""Dependencies for FastAPI."""

from .contrib.fastapi import RateLimit as RateLimit
from .contrib.fastapi import RateLimits as RateLimits
