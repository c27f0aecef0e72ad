"""An extension and a decorator for Flask."""

from .contrib.flask import RateLimit as RateLimit
from .contrib.flask import limited as limited
