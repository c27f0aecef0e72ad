"""Sliding-window rate limiting that a Redis or Valkey server with the module swlimit decides."""

from .admitting import Admission, AsyncAdmission, admit
from .asking import Statistics
from .budgets import AsyncBudgetLimiter, BudgetLimiter
from .deciding import Request
from .decision import Decision, Decisions
from .errors import DeniedError, ModuleMissing, NeedsModule, ServerAway, SwlimitError
from .holding import HoldDecision, Holder
from .holds import AsyncHold, AsyncHoldLimiter, Hold, HoldLimiter
from .limiter import AsyncLimiter, Limiter, allow_all
from .periods import Calendar
from .rules import Rule
from .servers import ServerState

__all__ = ["Admission", "AsyncAdmission", "AsyncBudgetLimiter", "AsyncHold", "AsyncHoldLimiter", "AsyncLimiter",
           "BudgetLimiter", "Calendar", "Decision", "Decisions", "DeniedError", "Hold", "HoldDecision", "HoldLimiter",
           "Holder", "Limiter", "ModuleMissing", "NeedsModule", "Request", "Rule", "ServerAway", "ServerState",
           "Statistics", "SwlimitError", "admit", "allow_all"]
__version__ = "0.2.0"
