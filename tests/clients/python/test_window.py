"""The window in Python decides as the module does: by the test vectors, and by the tests' own model."""

import dataclasses
import inspect
import json
import random

import pytest

from support.bounds import MAX
from support.server import ROOT
from support.workload import OVERFLOW, Workload
from swlimit import Decision, _admission_base, hold_limiter
from swlimit._base import POLLING, time_before
from swlimit._core import quota as quotas
from swlimit._core.denial_cache import LOOK_DENIALS, Demand, DenialCache
from swlimit._core.local_windows import LocalWindows, allow_all
from swlimit._core.quota import (
    DEFAULT_COLD,
    Geometry,
    Quota,
    WarmUp,
    checked_share,
    default_resolution,
    milliseconds,
    part,
)
from swlimit._core.window import CountOverflow, Key, Window
from swlimit._hold_attempt import LEAST_POLL, MOST_POLL
from swlimit._hold_base import LEAST_TTL
from swlimit._protocol.script_fallback import MOST_SUBINTERVALS, MOST_TRIES
from swlimit._rate_base import RateLimiterBase
from swlimit._transport import asyncio_pipeline, core, endpoint, hold_renewer, sentinels
from swlimit._transport import breaker as breaker

VECTORS = ROOT / "tests/conformance/vectors"


def vectors(name):
    return json.loads((VECTORS / name).read_text())


def test_durations():
    for case in vectors("durations.json"):
        try:
            assert milliseconds(case["text"]) == case["ms"], case
        except ValueError:
            assert case["ms"] is None, case


def test_decisions():
    for case in vectors("decisions.json"):
        stored, request = case["stored"], case["request"]
        window = None
        if stored and stored["counts"]:
            geometry = Geometry(stored["window"], stored["resolution"])
            counts = {start // geometry.resolution: units for start, units in stored["counts"]}
            window = Window(geometry, counts, case.get("since", 0))
        warm_up = WarmUp(request["warm_up"], request["cold"]) if "warm_up" in request else None
        quota = Quota(request["limit"], Geometry(request["window"], request["resolution"]), request["strict"], warm_up)
        key = Key(window, case["blocked_until"])
        assert key.peek(quota, case["now"], request["cost"], request["partial"]) == case["decision"], case


def options_of(words):
    """The options of a command, by name; durations in ms."""
    options, rest = {}, iter(words)
    for name in rest:
        if name in ("PARTIAL", "STRICT", "NX"):
            options[{"NX": "unless_blocked"}.get(name, name.lower())] = True
        else:
            word = next(rest)
            options[name.lower()] = milliseconds(word, least=0) if name in ("AGE", "BLOCK", "WARMUP") else int(word)
    return options


def quota_of(words, options):
    """The quota of `limit window resolution`, and of a warm-up of any length."""
    quota = Quota.of(int(words[0]), *words[1:3], options.pop("strict", False))
    warm_up = WarmUp(options.pop("warmup"), options.pop("cold", DEFAULT_COLD)) if "warmup" in options else None
    return dataclasses.replace(quota, warm_up=warm_up)


def answer(local, words):
    """What is decided in the process for a command that says its instant with AT."""
    words = [str(word) for word in words]
    command, first = words[0].removeprefix("SWLIMIT."), 5
    if command in ("REFUND", "BLOCK", "UNBLOCK"):
        first = {"REFUND": 3, "BLOCK": 3, "UNBLOCK": 2}[command]
        options = options_of(words[first:])
        now = options.pop("at")
        if command == "REFUND":
            options["units"] = int(words[2])
        elif command == "BLOCK":
            options["duration"] = milliseconds(words[2], least=0)
        return local.change(command, words[1].encode(), now, **options)
    if command == "MALLOW":
        number = int(words[1])
        keys, rest = words[2:2 + number], words[2 + number:]
        members, is_strict = [], "STRICT" in rest
        for key in keys:
            length = 4 + 2 * (rest[4:5] == ["WARMUP"]) + 2 * (rest[6:7] == ["COLD"])
            quota = quota_of(rest, {"strict": is_strict} | options_of(rest[4:length]))
            members.append((local, key.encode(), quota, int(rest[3])))
            rest = rest[length:]
        replies = allow_all(members, options_of(rest)["at"])
        return [int(all(reply[0] for reply in replies)), *replies]
    options = options_of(words[first:])
    quota = quota_of(words[2:], options)
    try:
        return local.execute(command, words[1].encode(), quota, options.pop("at"), **options)
    except CountOverflow as error:
        return {"error": f"ERR {error}"}


@pytest.mark.parametrize("sequence", [one for one in vectors("replies.json") if one["name"] != "errors"],
                         ids=lambda sequence: sequence["name"])
def test_replies(sequence):
    local = LocalWindows()
    for step in sequence["steps"]:
        assert answer(local, step["command"]) == step["reply"], step["command"]


@pytest.mark.parametrize("seed", range(20))
def test_the_model(seed):
    workload, local = Workload(seed), LocalWindows()
    for _ in range(400):
        words, expected = workload.next()
        if words[0] != "SWLIMIT.INFO":
            reply = answer(local, words)
            assert (reply if isinstance(reply, (list, dict)) else [reply]) == (
                {"error": OVERFLOW} if expected == OVERFLOW else expected), words


def test_a_share_of_the_limit():
    local = LocalWindows(share=100_000)
    minute = Quota.of(25, "1m", "1s")
    assert local.execute("ALLOW", b"k", minute, 0) == [1, 3, 2, 0, 61_000]
    assert local.execute("ALLOW", b"k", minute.at(5), 0)[:2] == [0, 1]
    assert local.execute("ALLOW", b"other", minute.at(0), 0) == [0, 0, 0, -1, 0]


def test_memory_is_bounded():
    local, quota = LocalWindows(max_keys=10), Quota.of(1, "1m", "1s")
    names = [f"key:{number}".encode() for number in range(100)]
    random.Random(1).shuffle(names)
    for name in names:
        local.execute("ALLOW", name, quota, 0)
    assert len(local) == 10
    assert [local.execute("PEEK", name, quota, 0)[0] for name in names[-11:]] == [1] + [0] * 10


def test_defaults():
    """The same in every language."""
    found = vectors("defaults.json")
    signature = inspect.signature(RateLimiterBase)
    options = found["options"]
    for name in ("on_failure", "local_share", "max_keys", "max_waiting"):
        assert signature.parameters[name].default == options[name], name
    for name in ("timeout", "max_untracked_age"):
        assert signature.parameters[name].default * 1000 == options[name], name
    assert signature.parameters["prefix"].default == options["prefix"].encode()
    assert breaker_defaults() == found["breaker"]
    assert numbers() == {name: value for name, value in found["numbers"].items() if name not in OTHERS}
    for case in found["resolutions"]:
        assert default_resolution(case["window"]) == case["resolution"], case
    for case in found["shares"]:
        assert part(case["limit"], checked_share(case["share"], "share")) == case["units"], case
    for case in found["reservations"]:
        assert _admission_base.reservation_of(case["key"].encode()) == case["name"].encode(), case
    for case in found["refusals"]:
        assert case["error"] == case["reply"] + core.ONE_TAG
    for case in found["deadlines"]:
        assert time_before(case["left_us"] / 1e6) == pytest.approx(case["wait_us"] / 1e6, abs=2e-6), case
    for case in found["denials"]:
        denials, quota, us = DenialCache(), Quota.of(1, "1m"), case["denied_for_us"]
        demand = Demand(b"k", quota, 1)
        denials.learn(denials.ticket(demand, 0.0), Decision.of([0, 1, 0, case["retry_after"], 0], quota), 0.0)
        known = [denials.known(demand, at) is not None for at in ((us - 1) / 1e6, (us + 1) / 1e6)]
        assert known == [us > 0, False], case


@pytest.mark.parametrize("case", vectors("defaults.json")["looks"], ids=str)
def test_a_look_pays_where_many_are_denied(case):
    denials, demand, wait = DenialCache(), Demand(b"k", Quota.of(1, "1h"), 1), case["retry_after"] / 1000
    denials.learn(denials.ticket(demand, 0.0), Decision.of([0, 1, 0, 3_600_000, 0], demand.quota), 0.0)
    for denial in case["denials"]:
        at = denial["at"] / 1000
        if denial["pays"] is None:
            assert denials.known(demand, at) is not None
        else:
            assert denials.pays_to_look(b"k", at, wait) is denial["pays"], denial


OTHERS = {"max_admitted"}
"""Numbers that this client does not have."""


def numbers():
    return {
        "poll": POLLING * 1000, "silence": endpoint.SILENCE * 1000, "connect": endpoint.SILENCE * 1000,
        "late": endpoint.LATEST * 1000, "max_unanswered": asyncio_pipeline.MOST_UNANSWERED,
        "sentinel_interval": sentinels.ASKED_EVERY * 1000, "loop_turns": asyncio_pipeline.LOOP_TURNS,
        "script_tries": MOST_TRIES, "script_subintervals": MOST_SUBINTERVALS,
        "look_from": core.LOOK_FROM * 1000, "look_round_trips": core.LOOK_ROUND_TRIPS,
        "look_denials": LOOK_DENIALS,
        "closing": core.CLOSING * 1000, "closing_round_trips": core.CLOSING_ROUND_TRIPS,
        "max_kept": core.MOST_RECORDS, "min_hold_ttl": LEAST_TTL,
        "hold_ttl": milliseconds(inspect.signature(hold_limiter.HoldLimiter).parameters["ttl"].default),
        "min_hold_poll": LEAST_POLL * 1000, "max_hold_poll": MOST_POLL * 1000,
        "max_hold_wait": hold_limiter.LONGEST_HOLD_WAIT * 1000, "max_hold_id": _admission_base.MOST_ID_BYTES,
        "ids_per_renewal": hold_renewer.MOST_IDS, "renewals_per_ttl": hold_renewer.RENEWALS_PER_TTL,
        "retries_per_ttl": hold_renewer.RETRIES_PER_TTL, "drift": hold_renewer.DRIFT, "max_limit": quotas.MAX_EXACT,
        "admission_poll": POLLING * 1000, "admission_jitter": _admission_base.ADMISSION_JITTER,
        "reservation_ttl": _admission_base.RESERVATION_TTL,
        "hold_retry_after": _admission_base.LONGEST_HOLD_RETRY * 1000,
        "max_window": quotas.MAX_WINDOW, "max_subintervals": quotas.MAX_SUBINTERVALS}


def breaker_defaults():
    return {"failures": breaker.FAILURES, "silent_timeouts": breaker.SILENT_TIMEOUTS,
            "first_probe": breaker.FIRST_PROBE * 1000, "last_probe": breaker.LAST_PROBE * 1000,
            "jitter": breaker.JITTER, "probe_timeout": breaker.PROBE_TIMEOUT * 1000}


@pytest.mark.parametrize("limit", [-1, MAX + 1, 1.5, "10", True])
def test_what_is_no_limit(limit):
    with pytest.raises(ValueError, match="limit must be an integer"):
        Quota.of(limit, 60, 5)


@pytest.mark.parametrize("window, resolution", [(0, 1), ("5w", 1), (60, 7), (5, 60), (0.0001, 0.0001), ("1h", "1us")])
def test_what_is_no_window(window, resolution):
    with pytest.raises(ValueError, match="must"):
        Quota.of(10, window, resolution)
