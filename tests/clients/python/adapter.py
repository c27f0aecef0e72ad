"""The Python client for scenarios, `threads` or `asyncio`: does what the runner says, and judges nothing."""

import asyncio
import json
import logging
import math
import sys
import threading

import redis
import redis.asyncio

import swlimit

CLIENTS, CALLS = {}, {}
IS_ASYNC = sys.argv[1] == "asyncio"
OUT = threading.Lock()


def say(**words):
    with OUT:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


def ms(seconds):
    return None if seconds is None else "never" if seconds == math.inf else round(seconds * 1000)


def told(found):
    if isinstance(found, (int, bool)) or found is None:
        return {"value": found}
    decision = getattr(found, "decision", found)
    return {"granted": decision.granted, "limit": decision.limit, "remaining": decision.remaining,
            "retry_after": ms(decision.retry_after), "source": decision.source,
            "reset_after": ms(getattr(decision, "reset_after", None))}


def failed(error):
    kinds = {swlimit.ServerAway: "unavailable", swlimit.ModuleMissing: "module_missing", swlimit.DeniedError: "denied",
             asyncio.CancelledError: "cancelled", TypeError: "invalid", ValueError: "invalid"}
    kind = next((word for one, word in kinds.items() if isinstance(error, one)), "refused")
    found = {"error": kind, "message": f"{type(error).__name__}: {error}"}
    if isinstance(error, swlimit.DeniedError):
        found |= told(error.decision)
    return found


def made(asked):
    options = dict(asked["options"])
    module = redis.asyncio if IS_ASYNC else redis
    addresses = [address.rsplit(":", 1) for name, address in asked["addresses"].items()]
    if asked["topology"] == "sentinel":
        named = [(host, int(port)) for (host, port), name in zip(addresses, asked["addresses"]) if name.startswith("N")]
        client = module.Sentinel(named).master_for("main")
    else:
        client = module.Redis(port=int(addresses[0][1]))
    prefix = "Async" if IS_ASYNC else ""
    if asked["kind"] == "hold":
        kind, words = "HoldLimiter", [options.pop("limit")]
    elif asked["kind"] == "budget":
        kind, words = "BudgetLimiter", [options.pop("limit"), options.pop("period")]
    else:
        kind, words = "Limiter", [options.pop("limit"), options.pop("window")]
    return client, getattr(swlimit, prefix + kind)(client, *words, **options)


def arguments(asked):
    others = ("id", "do", "client", "method", "key", "cancellable")
    words = {name: value for name, value in asked.items() if name not in others}
    return [] if asked["key"] is None else [asked["key"]], words


def answer(number, call):
    try:
        say(id=number, ok=call())
    except BaseException as error:
        say(id=number, **failed(error))


def health(limiter):
    states = limiter.servers()
    return {"state": states[0].state, "reason": states[0].reason} if states else {"state": None, "reason": None}


def common(asked):
    """What is the same in both kinds; None: something else."""
    do, number = asked["do"], asked["id"]
    if do == "hello":
        say(id=number, ok=["sentinel", "statistics", "reasons"] + ["cancel", "undo"] * IS_ASYNC)
    elif do == "statistics":
        answer(number, lambda: {name: getattr(CLIENTS[asked["client"]][1].statistics, name)
                                for name in ("server", "cache", "failure", "local")})
    elif do == "health":
        answer(number, lambda: health(CLIENTS[asked["client"]][1]))
    else:
        return False
    return True


class Log(logging.Handler):
    def emit(self, record):
        say(log=getattr(record, "event", record.levelname.lower()), text=record.getMessage())


logging.getLogger("swlimit").addHandler(Log())


def threads():
    for line in sys.stdin:
        asked = json.loads(line)
        do, number = asked["do"], asked["id"]
        if common(asked):
            continue

        def run(asked=asked, do=do):
            if do == "limiter":
                CLIENTS[asked["client"]] = made(asked)
            if do == "call":
                words, options = arguments(asked)
                return told(getattr(CLIENTS[asked["client"]][1], asked["method"])(*words, **options))
            if do in ("close", "drop") and asked["client"] in CLIENTS:
                client, limiter = CLIENTS.pop(asked["client"])
                limiter.close()
                client.close()
            return None
        if do == "limiter":
            answer(number, run)
        else:
            threading.Thread(target=answer, args=(number, run), daemon=True).start()


async def tasks():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def run(asked):
        try:
            if asked["do"] == "limiter":
                CLIENTS[asked["client"]] = made(asked)
                found = None
            elif asked["do"] == "call":
                words, options = arguments(asked)
                found = told(await getattr(CLIENTS[asked["client"]][1], asked["method"])(*words, **options))
            else:
                found = None
                if asked["client"] in CLIENTS:
                    client, limiter = CLIENTS.pop(asked["client"])
                    await limiter.close()
                    await client.aclose()
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
