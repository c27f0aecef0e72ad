"""The façade of budgets."""

from .budgeting import Budgeting
from .facade import Awaited, Threaded, command


class _BudgetCommands(Budgeting):
    """What limiters of budgets offer."""

    allow = command(Budgeting._allowing)
    record = command(Budgeting._recording)
    refund = command(Budgeting._refunding)
    reset = command(Budgeting._resetting)
    close = command(Budgeting._closing)


class BudgetLimiter(Threaded, _BudgetCommands):
    """So many units in each period of the calendar, for any number of keys. May be used by many threads."""


class AsyncBudgetLimiter(Awaited, _BudgetCommands):
    """So many units in each period of the calendar, for any number of keys, on a client of redis.asyncio."""
