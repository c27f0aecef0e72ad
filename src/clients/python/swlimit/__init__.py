"""Sliding-window rate limiting that a Redis or Valkey server with the module swlimit decides."""

from ._admission_base import Member
from ._all_of import allow_all
from ._base import Statistics
from ._core.calendar import Calendar
from ._core.decision import Decision, Decisions, HoldDecision, Holder
from ._rate_base import Request
from ._transport.server_health import ServerState
from .adaptive import Adaptive, Permit
from .admission import Admission, AsyncAdmission, admit, spending
from .budget_limiter import AsyncBudgetLimiter, BudgetLimiter
from .errors import DeniedError, ModuleMissing, RefusedError, SwlimitError, UnavailableError, WrongClientError
from .hold_limiter import AsyncHold, AsyncHoldLimiter, Hold, HoldLimiter
from .rate_limiter import AsyncLimiter, Limiter
from .rate_limits import AsyncLimits, Limits
from .rules import Rule

__all__ = ["Adaptive", "Admission", "AsyncAdmission", "AsyncBudgetLimiter", "AsyncHold", "AsyncHoldLimiter",
           "AsyncLimiter", "AsyncLimits", "BudgetLimiter", "Calendar", "Decision", "Decisions", "DeniedError", "Hold",
           "HoldDecision", "HoldLimiter", "Holder", "Limiter", "Limits", "Member", "ModuleMissing", "Permit",
           "RefusedError", "Request", "Rule", "ServerState", "Statistics", "SwlimitError", "UnavailableError",
           "WrongClientError", "admit", "allow_all", "spending"]
__version__ = "0.2.0"
