"""What changes for who has PyPI `limits` on Redis, and takes swlimit's storage instead.

CPU and memory are those of the server, for the commands that each storage sends. Exactness is that of their decisions
on a real log, beside a log of every request: how many were otherwise, and the most granted in any span of the window.
"""

import time
from collections import defaultdict
from unittest.mock import Mock, patch

import redis

from accuracy.exact_log import ExactLog, decide
from accuracy.loads import log as read

from . import cpu, memory
from .contenders import Contender, granted, names
from .load import Load, cpu_nanoseconds, start_server
from .peers import RecordingConnection, recorded

SUBINTERVALS = 50  # finer than the storage's default, which costs memory
PLENTY, WINDOW = 1_000_000, 3600
FEW = 100  # so that a moving window can be full
LOG_LIMIT, LOG_WINDOW = 10, 30
STRATEGIES = {
    "moving": "`limits`, moving-window", "fixed": "`limits`, fixed-window",
    "counter": "`limits`, sliding-window-counter", "swlimit": "swlimit's storage",
}
ANSWERS = {  # whether a reply grants, by the strategy
    "moving": lambda reply, _: reply == 1, "counter": lambda reply, _: reply == 1,
    "fixed": lambda reply, limit: reply <= limit, "swlimit": lambda reply, _: granted(reply),
}


def strategy(name, storage):
    """The strategy of `limits` that has this name here."""
    from limits import strategies
    return {"moving": strategies.MovingWindowRateLimiter, "fixed": strategies.FixedWindowRateLimiter,
            "counter": strategies.SlidingWindowCounterRateLimiter}[name](storage)


def commands(name, server, keys, limit, cost):
    """What is sent for one decision on each of these keys."""
    if name == "swlimit":
        words = ("COST", cost) if cost > 1 else ()
        return [("SWLIMIT.ALLOW", key, limit, WINDOW, WINDOW // SUBINTERVALS, *words) for key in keys]
    from limits import RateLimitItemPerSecond
    from limits.storage import RedisStorage
    pool = redis.ConnectionPool(connection_class=RecordingConnection, port=server.port)
    limiter = strategy(name, RedisStorage(f"redis://127.0.0.1:{server.port}", connection_pool=pool))
    item = RateLimitItemPerSecond(limit, WINDOW)
    return recorded(lambda key: limiter.hit(item, key, cost=cost), keys)


def contenders(server):
    """Every strategy, granted and denied."""
    found = []
    for name, label in STRATEGIES.items():
        fresh, spent = names(f"g{name[:4]}"), names(f"d{name[:4]}")
        answers = ANSWERS[name]
        found.append(Contender(f"{name}-granted", label, commands(name, server, fresh, PLENTY, 1),
                               lambda reply, answers=answers: answers(reply, PLENTY)))
        exhaust = commands(name, server, spent, FEW, FEW)  # a library has done it then
        found.append(Contender(f"{name}-denied", label, commands(name, server, spent, FEW, 1),
                               lambda reply, answers=answers: not answers(reply, FEW), set_up=(exhaust,)))
    return found


def bytes_per_key(requests):
    """Growth of `used_memory` per key by strategy, after so many requests to each of many keys within a window."""
    used, keys = {}, memory.KEYS // 10
    with start_server() as server, server.client() as client:
        for name in STRATEGIES:
            client.flushall()  # the strategies give different types the same names
            fill = [commands(name, server, names("m", keys), PLENTY, 1)] * requests
            if name == "swlimit":  # spread over the window, which costs it the most
                now = client.time()[0] * 1000
                step = 1000 * WINDOW // max(requests, SUBINTERVALS)
                fill = [[(*words, "AT", now - step * age) for words in fill[0]] for age in reversed(range(requests))]
            client.flushall()
            before = memory.settled(client)
            with Load(server) as load:
                for one in fill:
                    load.run_all(one)
            used[name] = (memory.settled(client) - before) / keys
    return used


def overloaded(seconds):
    """Ten times the limit, through each library: nanoseconds and commands that a request costs the server."""
    from limits import RateLimitItemPerSecond
    from limits.storage import storage_from_string

    import swlimit.limits  # noqa: F401  (the storage registers)
    item, keys, a_tick = RateLimitItemPerSecond(50), names("o", 10), 0.01
    found = {}
    for name in STRATEGIES:
        with start_server() as server, server.client() as client:
            scheme = "swlimit+redis" if name == "swlimit" else "redis"
            limiter = strategy("moving" if name == "swlimit" else name,
                               storage_from_string(f"{scheme}://127.0.0.1:{server.port}"))
            for key in keys:
                limiter.hit(item, key)
            cpu_before, sent_before = cpu_nanoseconds(server), client.info("stats")["total_commands_processed"]
            begun, ticks = time.monotonic(), int(seconds / a_tick)
            for tick in range(ticks):
                for key in keys * 5:
                    limiter.hit(item, key)
                time.sleep(max(0.0, begun + (tick + 1) * a_tick - time.monotonic()))
            sent = client.info("stats")["total_commands_processed"] - sent_before
            requests = 5 * len(keys) * ticks
            found[name] = (cpu_nanoseconds(server) - cpu_before) / requests, sent / requests
    return found


def exactness(log):
    """By strategy: decisions otherwise than an exact log's, and the most that any span of the window saw granted."""
    requests = read(log).make(0)
    exact = [one.granted for one in decide(requests, LOG_LIMIT, 1000 * LOG_WINDOW)]
    found = {"requests": len(requests), "denied": exact.count(False)}
    for name in ("moving", "fixed", "swlimit"):
        decisions = replayed(name, requests)
        logs = defaultdict(lambda: ExactLog(1000 * LOG_WINDOW))
        most = max(logs[client].add(at, 1) for (at, client, _), one in zip(requests, decisions) if one)
        found[name] = sum(one != other for one, other in zip(decisions, exact)), most
    return found


def replayed(name, requests):
    """What a strategy decides, with the log's instants as its clock."""
    from limits import RateLimitItemPerSecond
    from limits.storage import MemoryStorage, RedisStorage
    with start_server() as server, server.client() as client:
        if name == "swlimit":
            resolution = f"{1000 * LOG_WINDOW // SUBINTERVALS}ms"
            return [client.execute_command("SWLIMIT.ALLOW", key, LOG_LIMIT, LOG_WINDOW, resolution, "AT", at)[0] > 0
                    for at, key, _ in requests]
        # Fixed windows on Redis end by the server's clock, which nobody can replay with; in memory they are the same.
        storage = MemoryStorage() if name == "fixed" else RedisStorage(f"redis://127.0.0.1:{server.port}")
        limiter, item, decisions = strategy(name, storage), RateLimitItemPerSecond(LOG_LIMIT, LOG_WINDOW), []
        clock = Mock()
        with patch("time.time", clock):
            for at, key, _ in requests:
                clock.return_value = at / 1000
                decisions.append(limiter.hit(item, str(key)))
        return decisions


def measure(rounds, seconds, log):
    """CPU, commands and memory by strategy, and exactness if there is a log."""
    spent, _ = cpu.measure(contenders, rounds, seconds)
    used = {requests: bytes_per_key(requests) for requests in (2, 20, 100)}
    return spent, overloaded(10 * seconds), used, exactness(log) if log else None


def table(spent, overload, used, exact):
    """As Markdown tables."""
    rows = ["| strategy | granted, ns | ÷ swlimit | denied, ns | ÷ swlimit |", "|---|---:|---:|---:|---:|"]
    for name, label in STRATEGIES.items():
        cells = []
        for end in ("granted", "denied"):
            low, middle, high = cpu.spread(spent[f"{name}-{end}"])
            _, ratio, _ = cpu.ratio(spent, f"{name}-{end}", f"swlimit-{end}")
            cells += [f"{middle:.0f} ({low:.0f}–{high:.0f})", f"{ratio:.2f}"]
        rows.append(f"| {label} | {' | '.join(cells)} |")
    rows += ["", "| at ten times the limit, a request costs the server | ns | commands |", "|---|---:|---:|"]
    rows += [f"| {label} | {overload[name][0]:,.0f} | {overload[name][1]:.2f} |" for name, label in STRATEGIES.items()]
    rows += ["", f"| bytes per key after | {' | '.join(f'{requests} requests' for requests in used)} |",
             f"|---|{'---:|' * len(used)}"]
    rows += [f"| {label} | {' | '.join(f'{by_strategy[name]:,.0f}' for by_strategy in used.values())} |"
             for name, label in STRATEGIES.items()]
    if exact is None:
        return [*rows, "", "No log was given."]
    rows += ["", f"| of {exact['requests']:,} requests, {exact['denied']:,} denied by an exact log | decided otherwise "
             f"| most in {LOG_WINDOW} s |", "|---|---:|---:|"]
    return rows + [f"| {STRATEGIES[name]} | {exact[name][0]:,} | {exact[name][1]} |"
                   for name in ("moving", "fixed", "swlimit")]
