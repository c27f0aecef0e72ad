"""Sliding-window rate limiting that a Redis or Valkey server with the module swlimit decides."""

from .deciding import Request, Statistics
from .decision import Decision, Decisions
from .errors import Limited, ModuleMissing, ServerAway, SwlimitError
from .limiter import AsyncLimiter, Limiter, allow_all
from .rules import Rule
from .servers import ServerState

__all__ = ["AsyncLimiter", "Decision", "Decisions", "Limited", "Limiter", "ModuleMissing", "Request", "Rule",
           "ServerAway", "ServerState", "Statistics", "SwlimitError", "allow_all"]
__version__ = "0.2.0"
