"""The Python client for scenarios, `threads`, `asyncio`, or `fakes` for tests: does what the runner says, and judges
nothing."""

import asyncio
import inspect
import json
import logging
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import redis
import redis.asyncio

import swlimit
from swlimit.testing import FakeLimiter

CLIENTS, CALLS, RETURNED = {}, {}, {}
BLOCKS = {}  # by limiter, what its requests block
IS_ASYNC, IS_FAKE = sys.argv[1] == "asyncio", sys.argv[1] == "fakes"
OUT = threading.Lock()


def say(**words):
    with OUT:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


def ms(seconds):
    return None if seconds is None else round(seconds * 1000)


def wait(decision):
    return "never" if decision.never else ms(decision.retry_after)


def told(found):
    if isinstance(found, (int, float, list, str)) or found is None:
        return {"value": found}
    if hasattr(found, "each") or hasattr(found, "members"):
        each = found.each if hasattr(found, "each") else found.members
        return {"granted": bool(found), "retry_after": wait(found), "each": [told(one) for one in each]}
    decision = getattr(found, "decision", found)
    return {"granted": decision.granted, "limit": decision.limit, "remaining": decision.remaining,
            "retry_after": wait(decision), "source": decision.source,
            "reset_after": ms(getattr(decision, "reset_after", None))}


def failed(error):
    kinds = {swlimit.UnavailableError: "unavailable", swlimit.ModuleMissing: "module_missing",
             swlimit.WrongClientError: "wrong_client",
             swlimit.DeniedError: "denied", asyncio.CancelledError: "cancelled", TypeError: "invalid",
             ValueError: "invalid", swlimit.RefusedError: "refused"}
    kind = next((word for one, word in kinds.items() if isinstance(error, one)), "other")
    found = {"error": kind, "reason": getattr(error, "reason", None), "message": f"{type(error).__name__}: {error}"}
    if isinstance(error, swlimit.DeniedError):
        found |= told(error.decision)
    return found


def opened(asked):
    """A client as a program makes one; for `url` only its URL."""
    module = redis.asyncio if IS_ASYNC else redis
    login = {"username": "ann", "password": asked["secret"]} if asked["secret"] else {}
    places = [(host, int(port)) for host, _, port in (address.partition(":") for address in asked["addresses"])]
    if asked["topology"] == "url":
        return f"redis://{'ann:' + asked['secret'] + '@' if login else ''}{asked['addresses'][0]}"
    if asked["topology"] == "sentinel":
        sentinels = module.Sentinel(places)
        client = sentinels.master_for("main", **login)
        client.sentinels = sentinels.sentinels  # a program closes those itself
        return client
    return (module.RedisCluster if asked["topology"] == "cluster" else module.Redis)(
        host=places[0][0], port=places[0][1], **login)


def made(client, options):
    kind, limit, prefix = options.pop("kind"), options.pop("limit"), "Async" if IS_ASYNC else ""
    if kind == "hold":
        return getattr(swlimit, prefix + "HoldLimiter")(client, limit, **options)
    if kind == "budget":
        return getattr(swlimit, prefix + "BudgetLimiter")(client, limit, options.pop("period"), **options)
    limiter, window = getattr(swlimit, prefix + "Limiter"), options.pop("window")
    if IS_FAKE:
        return FakeLimiter(limit, window)
    if "block_for" in options:
        block = options.pop("block_for")
        BLOCKS[found := limiter(client, limit, window, **options)] = block
        return found
    if options.get("mode") == "local":
        return limiter(None, limit, window, **options)
    if isinstance(client, str):
        return limiter.from_url(client, f"{limit}/{window}", **options)
    return limiter(client, limit, window, **options)


def call(asked):
    """What the asked method returns: of an AsyncLimiter to be awaited."""
    limiters, method, keys = CLIENTS[asked["client"]][1], asked["method"], asked["keys"]
    options = {name: value for name, value in asked["options"].items() if name not in ("of", "cancellable", "times")}
    if method in ("deny", "grant"):
        after = {"retry_after": float("inf") if options["retry_after"] == "never" else options["retry_after"]
                 } if options else {}
        return getattr(limiters[asked["limiter"]], method)(key=keys[0] if keys else None, **after)
    cost = {name: options.pop(name) for name in ("cost",) if name in options}
    if method in ("release", "settle"):
        return getattr(RETURNED[asked["options"]["of"]], method)(*options.get("used", []))
    if method == "is_live":
        return RETURNED[asked["options"]["of"]].is_live
    if method in ("allow_all", "admit"):
        requests = [limiter.request(key, **cost) for limiter, key in zip(limiters, keys)]
        return swlimit.admit(requests, **options) if method == "admit" else swlimit.allow_all(*requests, **options)
    limiter = limiters[asked["limiter"]]
    if limiter in BLOCKS:  # here it is a request that blocks, and not a limiter
        return limiters[0].allow(*keys, *cost.values(), **options, block=BLOCKS[limiter])
    return getattr(limiter, method)(*keys, *cost.values(), **options)


def answer(number, call):
    try:
        say(id=number, ok=call())
    except BaseException as error:
        say(id=number, **failed(error))


def health(limiter):
    states = sorted(limiter.servers(), key=lambda one: one.state == "up")
    return {"state": states[0].state, "reason": states[0].reason} if states else {"state": None, "reason": None}


def statistics(limiters):
    words = ("server", "cache", "failure", "local", "evicted")
    return {word: sum(getattr(limiter.statistics, word) for limiter in limiters) for word in words}


def common(asked):
    """What is the same in both kinds; None: something else."""
    do, number = asked["do"], asked["id"]
    if do == "hello":
        say(id=number, ok=["sentinel", "cluster", "url", "statistics", "reasons", "logs", "brought", "cluster_on",
                           "partial", "deadline", "timeouts", "tracking", "guards", "local_blocks", "settle", "keep",
                           "record"]
            + ["burst", "cancel", "cancel_refund", "undo"] * IS_ASYNC + ["deny"] * IS_FAKE)
    elif do == "statistics":
        answer(number, lambda: statistics(CLIENTS[asked["client"]][1]))
    elif do == "health":
        answer(number, lambda: health(CLIENTS[asked["client"]][1][0]))
    else:
        return False
    return True


class Log(logging.Handler):
    def emit(self, record):
        say(log=record.getMessage())


logging.getLogger("swlimit").addHandler(Log())


def make(asked):
    client = opened(asked)
    CLIENTS[asked["client"]] = client, [made(client, options) for options in asked["limiters"]]


def threads():
    def run(asked):
        do = asked["do"]
        if do == "limiters":
            return make(asked)
        if do == "call":
            if times := asked["options"].get("times"):
                return at_once(asked, times)
            RETURNED[asked["id"]] = call(asked)
            return told(RETURNED[asked["id"]])
        if asked["client"] in CLIENTS:
            client, limiters = CLIENTS.pop(asked["client"])
            for limiter in limiters:
                limiter.close()
            for one in [] if isinstance(client, str) else [client, *getattr(client, "sentinels", ())]:
                one.close()
        return None

    def at_once(asked, times):
        with ThreadPoolExecutor(100) as pool:
            return Counter(one.source for one in pool.map(lambda _: call(asked), range(times)))

    for line in sys.stdin:
        asked = json.loads(line)
        if not common(asked):
            threading.Thread(target=answer, args=(asked["id"], partial(run, asked)), daemon=True).start()


async def tasks():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def called(asked):
        if times := asked["options"].get("times"):
            return Counter(one.source for one in await asyncio.gather(*(call(asked) for _ in range(times))))
        found = call(asked)
        RETURNED[asked["id"]] = await found if inspect.isawaitable(found) else found
        return told(RETURNED[asked["id"]])

    async def run(asked):
        found = None
        try:
            if asked["do"] == "limiters":
                make(asked)
            elif asked["do"] == "call":
                found = await called(asked)
            elif asked["client"] in CLIENTS:
                client, limiters = CLIENTS.pop(asked["client"])
                for limiter in limiters:
                    await limiter.close()
                for one in [] if isinstance(client, str) else [client, *getattr(client, "sentinels", ())]:
                    await one.aclose()
            say(id=asked["id"], ok=found)
        except BaseException as error:
            say(id=asked["id"], **failed(error))
    while line := await reader.readline():
        asked = json.loads(line)
        if asked["do"] == "cancel":
            CALLS[asked["call"]].cancel()
        elif not common(asked):
            CALLS[asked["id"]] = asyncio.create_task(run(asked))


asyncio.run(tasks()) if IS_ASYNC else threads()
