"""The sections of the benchmark: how each is measured, and how what came out is shown.

A section needs nothing of the others. A new one is a file that measures, and an entry here.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from . import (
    client,
    contenders,
    cpu,
    daemon,
    envoy,
    from_limits,
    go,
    holds,
    instructions,
    latency,
    listeners,
    memory,
    node,
    plots,
    replicated,
    scale,
    script,
    sizing,
    stores,
    strain,
    sweeps,
    top,
    waiting,
)


@dataclass(frozen=True)
class Section:
    """One section."""

    title: str
    note: str
    measure: Callable             # (options of the command line) -> result
    table: Callable               # (result) -> lines of Markdown
    draw: Callable | None = None  # (result) -> figure
    needs: tuple = ()             # programs


SECTIONS = {
    "cpu": Section(
        "CPU per command",
        "CPU time of the server's main thread (`schedstat`) per command, 32 commands a pipeline, 8 clients, 1000 keys. "
        "All contenders take turns on one server, round after round; ratios are taken within a round. The floor is a "
        "module command with the arguments and the reply of `ALLOW` that does nothing.\n\n"
        "The Lua windows are what each library itself sends (`EVALSHA` with its keys and arguments). The scripts of "
        "`@upstash/ratelimit` begin with the flag `allow-key-locking`, which Redis 7.0 refuses; it is removed, the "
        "rest is unchanged.",
        lambda options: cpu.measure(contenders.everything, *((7, 0.1) if options.quick else (15, 0.3))),
        lambda result: cpu.table(*result), plots.draw_cpu),
    "latency": Section(
        "Latency",
        "No pipelining; medians over the rounds. One connection is a Python client's, some µs slower than a compiled "
        "one's; 50 are `redis-benchmark`'s, in steps of 8 µs, and keep the server busy all the time: latency is then "
        "the time that the others' commands take. A 99.9th percentile says as much about the machine as about the "
        "command.",
        lambda options: latency.measure(contenders.everything, *((3, 0.2) if options.quick else (7, 1.0))),
        lambda result: latency.table(*result), plots.draw_latency, needs=("redis-benchmark",)),
    "memory": Section(
        "Memory per key",
        f"Growth of `used_memory` per key, {memory.KEYS:,} keys with names of 16 bytes and a TTL (fewer keys with 60 "
        "and 4096 counts). A sorted-set log keeps one member a request, swlimit one count a subinterval, however many "
        "requests that counts. Two counters are what a two-counter window keeps from its second window on, with names "
        "as short.",
        lambda options: memory.measure(),
        lambda result: memory.table(*result), plots.draw_memory),
    "scale": Section(
        "From a thousand keys to millions",
        f"CPU per command with keys in random order (seed {scale.SEED}), one count a key; `INCR` on keys with a TTL. "
        "What grows is the price of memory that no cache holds, whatever the command.",
        lambda options: scale.measure(*((scale.SIZES[:-1], 3, 20_000) if options.quick else (scale.SIZES, 9, 100_000))),
        scale.table, plots.draw_scale),
    "top": Section(
        "Denials, counted for `SWLIMIT.TOP` or not",
        "CPU per denial as above, of a server with `top-keys 100` (the default) and one with `top-keys 0`, on one core "
        "in turn; the keys do not exist, so that a denial costs the least it can. The sketch has 100 entries.",
        lambda options: top.measure(*((6, 5, 10_000) if options.quick else (30, 10, 50_000))),
        top.table),
    "waiting": Section(
        "Waiting for one's turn",
        f"{waiting.WAITERS:,} clients wait in `ACQUIRE` on one key with `{waiting.LIMIT} {waiting.WINDOW} "
        f"{waiting.RESOLUTION}`. Late is what comes after the first ms at which the window lets a client, given all "
        "grants before; the answer is what a Python client has read, one of all that read at the same time.",
        lambda options: waiting.measure(1 if options.quick else 3),
        lambda result: waiting.table(*result)),
    "holds": Section(
        "How many at once",
        "CPU as above, of a place taken and given back, beside the least that a semaphore of a sorted set can be, "
        "Redisson's way (its commands, sent by the same load generator) and a counter, which knows neither holders nor "
        f"ends. Then {holds.HOLDERS} processes that come and go at {holds.PLACES} places are killed by SIGKILL, and a "
        f"place is given back twice, as by a retry. Last, {holds.WAITERS:,} clients wait in `HOLD … WAIT` on one key, "
        f"and {holds.KEYS:,} on as many keys.",
        lambda options: holds.measure(*((3, 2_000, 8, 200, 1_000) if options.quick
                                        else (15, 20_000, holds.HOLDERS, holds.WAITERS, holds.KEYS))),
        holds.table),
    "client": Section(
        "Deciding near the request",
        "The Rust client on a core of its own. The first table is about requests that need no answer. What is granted "
        f"in a span is measured with `{client.LIMIT} {client.WINDOW}ms {client.RESOLUTION}ms`, one key and "
        f"{client.RATE:,} requests a second by clients that each have their own connections. The bounds are those that "
        "[are proved](../../docs/in-my-code/near-the-request.md#proofs), with the longest round trip and the latest "
        "timer of each run.",
        lambda options: client.measure(*((1, 0.2) if options.quick else (5, 1.0))),
        client.table, plots.draw_client, needs=(client.PROGRAM,)),
    "daemon": Section(
        "A rate limit service",
        f"Envoy's `ShouldRateLimit` over one connection, one descriptor, {daemon.KEYS:,} keys. Services have one core "
        "and one thread; Redis and the load generator share the other core, so that latency and requests a second are "
        "those of a busy machine. CPU is that of all threads of the service, and of the main thread of Redis, per "
        "request: medians, and ratios within a round with quartiles. The floor answers every request with the same "
        "reply, as long as the others'. `limitador` is the library, with the smallest service around it that reads "
        "requests as its own server does.",
        lambda options: daemon.measure(*((2, 1.0) if options.quick else (7, 2.0))),
        lambda result: daemon.table(*result), plots.draw_daemon, needs=(daemon.PROGRAM,)),
    "envoy": Section(
        "Beside envoyproxy/ratelimit",
        "Measured as above, in turns on one server. `envoyproxy/ratelimit` is its service of January 2026 (3fb7025), "
        "built from its module, with its settings as they are; its local cache, where it has one, has 1 MiB. The runs "
        "with two services do not cross the turn of a minute, at which its windows begin again.",
        lambda options: envoy.measure(*((2, 1.0) if options.quick else (7, 2.0))),
        lambda result: envoy.table(*result), needs=(daemon.PROGRAM, daemon.RATELIMIT)),
    "node": Section(
        "Stores of Express applications",
        f"Each library as an application calls it, through node-redis, {stores.KEYS} keys with {stores.TIMES} requests "
        "each, 32 requests under way: CPU of the server's main thread per request that the library was asked to decide "
        "(median and quartiles), and commands per request, those of scripts included. Decisions that need no server "
        "are awaited one after another, and take turns within a round. Memory as above, with the names that each "
        "library makes. The log is played by the server's clock, and compared with an exact log of timestamps.",
        lambda options: node.measure(3 if options.quick else 9, options.log),
        lambda result: node.table(*result)),
    "go": Section(
        "Programs in Go",
        "A decision beside the same command by go-redis, and decisions that need no server beside a limiter of one "
        "process: CPU of all threads of a process with one core. Then each library as a program calls it, on a server "
        f"of its own, {stores.KEYS} keys with {stores.TIMES} requests each, 32 requests under way: CPU of the server's "
        "main thread per request that the library was asked to decide, and commands per request, as above.",
        lambda options: go.measure(3 if options.quick else 9),
        lambda result: go.table(*result), needs=(go.PROGRAM,)),
    "script": Section(
        "The script for servers without modules",
        "CPU as above, of `src/server/script/swlimit.lua` on keys with a count in every subinterval, and of what "
        "other libraries send. The packed call is measured unless it says *in words*. Instructions are all those "
        "that the server takes for one command at a time, its event loop included. Ratios are to the same decision "
        "of the first library.",
        lambda options: script.measure(*((7, 0.1) if options.quick else (15, 0.3))),
        script.table),
    "limits": Section(
        "Coming from `limits`",
        "What the server does for PyPI `limits`, which Flask-Limiter and slowapi are built on, and for swlimit's "
        "storage in its place: CPU per request as above, and memory per key, with a window of an hour and 50 "
        "subintervals. At ten times the limit (10 keys, 50 a second each, one process), swlimit's storage does not send"
        " what it knows to be denied; commands are the server's count, those of scripts included. On the log, all are "
        f"limited to {from_limits.LOG_LIMIT} in {from_limits.LOG_WINDOW} s for each address.",
        lambda options: from_limits.measure(*((5, 0.1) if options.quick else (15, 0.3)), options.log),
        lambda result: from_limits.table(*result)),
    "listeners": Section(
        "Effects that nobody gets",
        "CPU as above, of a server without replicas, backlog and append-only file, to which nobody listens, and of one "
        "with a backlog, on one core in turn. All other sections are of servers to which nobody listens.",
        lambda options: listeners.measure(*((3, 3, 5_000) if options.quick else (15, 5, 20_000))),
        lambda result: listeners.table(*result)),
    "replicated": Section(
        "Bytes replicated",
        "What a command adds to the replication stream, and so to the append-only file; keys have 13 bytes.",
        lambda options: replicated.measure(),
        replicated.table),
    "sweeps": Section(
        "Holds that have ended",
        "They stay stored until the next change of their key sweeps them. How long a client waits for that `HOLD`, "
        "beside one that sweeps nothing.",
        lambda options: sweeps.measure(1 if options.quick else 5),
        sweeps.table),
    "sizing": Section(
        "Memory of swlimitd",
        "Growth of its resident memory, for each of many; keys have values of 16 bytes. Keys are forgotten beyond "
        "`max_keys`, so memory has an end.",
        lambda options: sizing.measure(),
        sizing.table),
    "strain": Section(
        "swlimitd under strain",
        "It counts by itself, without a server, and shares two cores with all others. Decisions are asked for over "
        f"gRPC, one at a time, by {strain.RULES} rules, while {strain.READERS} processes of the lowest priority read "
        "`/metrics` without a pause. CPU is that of all threads; requests match the last rule. Few and many take "
        "turns, and ratios are taken within a round, with quartiles. A descriptor's CPU is its share of the request's.",
        lambda options: strain.measure(*((2, 1000) if options.quick else (7, 5000))),
        lambda result: strain.table(*result)),
    "instructions": Section(
        "Instructions per command",
        "Counted by valgrind's callgrind, one key, no pipeline: hardly any time plays a part. The module's own count "
        "repeats to one instruction on a quiet machine; what the server does for the module differs by up to 1 %, and "
        "so is only shown.",
        lambda options: instructions.measure(options.against),
        lambda result: result.table(), needs=("valgrind", "vgdb")),
}


def lacking(name):
    """The programs that a section needs and this machine lacks."""
    return [program for program in SECTIONS[name].needs if not shutil.which(program)]
