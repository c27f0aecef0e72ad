"""One decision about rates, budgets and holds: all of them are granted, or none is counted."""

import math
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, overload

from ._admission_base import AdmissionBase, OnError, Options
from ._admission_members import member_of
from ._core.quota import Duration
from ._hold_base import HoldRequest
from ._rate_base import Request
from ._sync_async import AwaitableContext, Awaited
from ._transport.thread_backend import run
from .budget_limiter import AsyncBudgetLimiter, BudgetLimiter, BudgetRequest
from .errors import DeniedError
from .hold_limiter import AsyncHold, AsyncHoldLimiter, Hold, HoldLimiter
from .rate_limiter import AsyncLimiter, Limiter

if TYPE_CHECKING:
    from typing_extensions import Self

ThreadRequest = Request[Limiter] | BudgetRequest[BudgetLimiter] | HoldRequest[HoldLimiter]
AsyncRequest = Request[AsyncLimiter] | BudgetRequest[AsyncBudgetLimiter] | HoldRequest[AsyncHoldLimiter]


class Admission(AdmissionBase):
    """The outcome of `admit`; entering a denied one raises DeniedError.

    Leaving it ends the holds; what was neither settled nor seen stays counted as it was asked for.
    """

    holds: tuple[Hold, ...]

    @property
    def hold(self) -> Hold | None:
        """The guard of the first hold; None without one, and for a denial."""
        return self.holds[0] if self.holds else None

    def settle(self, /, *used: int, **named: int) -> list[int] | None:
        return run(self._settle(used, named))

    def release(self) -> None:
        run(self._release())

    settle.__doc__, release.__doc__ = AdmissionBase._settle.__doc__, AdmissionBase._release.__doc__

    def __enter__(self) -> "Self":
        _check_granted(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run(self._leave(error))


class AsyncAdmission(AdmissionBase):
    """The outcome of `admit` with limiters of asyncio; entering a denied one raises DeniedError.

    Leaving it ends the holds; what was neither settled nor seen stays counted as it was asked for.
    """

    holds: tuple[AsyncHold, ...]

    @property
    def hold(self) -> AsyncHold | None:
        """The guard of the first hold; None without one, and for a denial."""
        return self.holds[0] if self.holds else None

    async def settle(self, /, *used: int, **named: int) -> list[int] | None:
        return await self._settle(used, named)

    async def release(self) -> None:
        await self._release()

    settle.__doc__, release.__doc__ = AdmissionBase._settle.__doc__, AdmissionBase._release.__doc__

    async def __aenter__(self) -> "Self":
        _check_granted(self)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave(error)


def _check_granted(admission: AdmissionBase) -> None:
    if not admission:
        denied = admission.denied_by
        raise DeniedError(denied.key if denied else admission._members[0].key, admission)


@overload
def admit(requests: Sequence[ThreadRequest], *, id: bytes | None = None, max_age: Duration | None = None,
          on_error: OnError = "keep", wait: Duration = 0, deadline: Duration | None = None) -> Admission: ...


@overload
def admit(requests: Sequence[AsyncRequest], *, id: bytes | None = None, max_age: Duration | None = None,
          on_error: OnError = "keep", wait: Duration = 0,
          deadline: Duration | None = None) -> AwaitableContext[AsyncAdmission]: ...


def admit(requests: Sequence[Any], *, id: bytes | None = None, max_age: Duration | None = None,
          on_error: OnError = "keep", wait: Duration = 0, deadline: Duration | None = None) -> Any:
    """Grant what all of these limiters grant, or count nothing: `admit([rate.request("k"), budget.request("l", 500)])`.

    Requests are what `limiter.request(key)` returns, of one client; keys differ, and in a cluster have one slot. While
    the server is unavailable, each limiter's own `on_failure` decides for it: where one raises, `admit` does.

    id: of the holds and the reservation, if the caller chooses it: asked again with the same id, the server counts
        nothing twice.
    max_age: for how long the admission is renewed at most; then holds and reservation end by their ttl, and the holds
        are lost. With it, or with a hold, what rates and budgets count is a reservation, which `settle` corrects once.
    on_error: when an error leaves the block before anything was seen, "keep" what was asked for, or "give_back" all.
    wait: how long to ask again at most, unless a rate or budget denies for longer. deadline: how long the caller waits
        at most, the decision is made a little before; who has waited gets the last denial.

    Returns an `Admission`; with the limiters of asyncio an `AsyncAdmission`, to be awaited or entered by `async with`.
    """
    return _admitted(requests, id, max_age, on_error, wait, deadline, spends=False)


def _admitted(requests: Sequence[Any], id: bytes | None, max_age: Duration | None, on_error: OnError, wait: Duration,
              deadline: Duration | None, *, spends: bool) -> Any:
    if not requests:
        raise TypeError("admit takes one or more of what `limiter.request(key)` returns")
    kinds = {isinstance(member_of(request, math.inf).limiter, Awaited) for request in requests}
    if len(kinds) > 1:
        raise TypeError("limits that are decided together are all for threads, or all for asyncio")
    options = Options.checked(id, max_age, on_error, wait, deadline, spends)
    if kinds == {True}:
        return AwaitableContext(_admit(AsyncAdmission(requests, options)))
    return run(_admit(Admission(requests, options)))


@overload
def spending(requests: Sequence[ThreadRequest], *, max_age: Duration | None = None, on_error: OnError = "keep",
             wait: Duration = 0, deadline: Duration | None = None) -> Admission: ...


@overload
def spending(requests: Sequence[AsyncRequest], *, max_age: Duration | None = None, on_error: OnError = "keep",
             wait: Duration = 0, deadline: Duration | None = None) -> AwaitableContext[AsyncAdmission]: ...


def spending(requests: Sequence[Any], *, max_age: Duration | None = None, on_error: OnError = "keep",
             wait: Duration = 0, deadline: Duration | None = None) -> Any:
    """A block whose usage is known at its end: `with spending([tokens.request("k", 500, name="tokens")]) as s:`.

    Say in it `s.saw(tokens=n)` as often as the usage is known better. Leaving settles once, whatever replies are lost:
    there is always a reservation. The options are those of `admit`.
    """
    return _admitted(requests, None, max_age, on_error, wait, deadline, spends=True)


def _admit(admission: Any) -> Coroutine[Any, Any, Any]:
    """The admission, once it is decided; traced if the first limiter is."""
    deciding, tracing = _decided(admission), admission._first._tracing
    return deciding if tracing is None else tracing("admit", [one.limiter for one in admission._members], deciding)


async def _decided(admission: Any) -> Any:
    await admission._decide()
    return admission
