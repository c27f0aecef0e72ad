"""For Django: a middleware, and a decorator for a view.

    SWLIMIT = {"RULES": ["shop.limits.per_user"]}  # the names of Rules, for the middleware
    MIDDLEWARE = [..., "swlimit.django.RateLimitMiddleware"]

Their limiters, each a `Limiter`, are made where the rules are. Keys, costs and `denied` are functions of Django's
request.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from .._all_of import allow_all
from ..rate_limiter import Limiter
from ..rules import Answer, Reading, Rule, Rules, checked_view, client_network

READING = Reading(lambda request: client_network(request.META.get("REMOTE_ADDR")), lambda request: str(request.method),
                  lambda request: str(request.path))


NAMES = ("RULES", "DENIED", "HEADERS", "LOCATION", "OPTIONS")


def configured(needed: str) -> dict[str, Any]:
    """The setting SWLIMIT, which must have that name."""
    setting = getattr(settings, "SWLIMIT", None)
    if not isinstance(setting, dict):
        raise ImproperlyConfigured(f"the setting SWLIMIT must be a dictionary, not {setting!r}")
    if unknown := [name for name in setting if name not in NAMES]:
        raise ImproperlyConfigured(f"SWLIMIT knows {', '.join(NAMES)}, not {unknown[0]!r}")
    if needed not in setting:
        raise ImproperlyConfigured(f"SWLIMIT needs {needed}")
    return setting


class RateLimitMiddleware:
    """Answers 429 when a rule denies a request, which none counts then; shows the limits in every response's headers.

    Beside RULES, SWLIMIT may have DENIED, the name of a function of the request and the decisions that returns the
    content type and the body of a 429, and HEADERS: "all", "standard", "legacy" or "none" but Retry-After.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        setting = configured("RULES")
        options = {name.lower(): value for name, value in setting.items() if name in ("DENIED", "HEADERS")}
        if isinstance(setting["RULES"], str):
            raise ImproperlyConfigured(f"RULES must be the names of rules, not {setting['RULES']!r}")
        if "denied" in options:
            options["denied"] = import_string(options["denied"])
        self._rules: Rules[Limiter, Any] = Rules(
            tuple(import_string(name) for name in setting["RULES"]), READING, Limiter, **options)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return _respond(self._rules, request, lambda: self._get_response(request))


def limited(*rules: Rule[Limiter, Any], **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a view that is a function, also an asynchronous one; its rules are asked in a thread then."""
    limits: Rules[Limiter, Any] = Rules(rules, READING, Limiter, **options)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        checked_view(view)
        if inspect.iscoroutinefunction(view):
            @functools.wraps(view)
            async def limited_async_view(request: Any, *args: Any, **kwargs: Any) -> Any:
                answer = await sync_to_async(_answer)(limits, request)
                denied = _denied(answer)
                return _add_headers(answer, await view(request, *args, **kwargs) if denied is None else denied)
            return limited_async_view

        @functools.wraps(view)
        def limited_view(request: Any, *args: Any, **kwargs: Any) -> Any:
            return _respond(limits, request, lambda: view(request, *args, **kwargs))
        return limited_view
    return decorate


def _respond(rules: Rules[Limiter, Any], request: Any, view: Callable[[], Any]) -> Any:
    answer = _answer(rules, request)
    denied = _denied(answer)
    return _add_headers(answer, view() if denied is None else denied)


def _answer(rules: Rules[Limiter, Any], request: Any) -> Answer | None:
    """None where no rule applies."""
    asked = rules.asked(request)
    return rules.answer(request, asked, allow_all(*(one for _, one in asked))) if asked else None


def _denied(answer: Answer | None) -> HttpResponse | None:
    if answer is None or answer.decisions:
        return None
    return HttpResponse(answer.body, answer.content_type, 429)


def _add_headers(answer: Answer | None, response: Any) -> Any:
    for name, value in (answer.headers if answer is not None else {}).items():
        response[name] = value
    return response
