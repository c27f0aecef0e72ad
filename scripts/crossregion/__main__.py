"""Share one limit between three regions in four ways, each with its own swlimitd in every region, and print what
requests wait, how much of the limit is used, and the most granted in any window: before two regions are cut off from
the server, meanwhile, and afterwards. All ways run at the same time, at the same demand.

Ends with 1 if more was granted than is promised.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

from support.daemon import Daemon
from support.server import Server

from .link import Link
from .outcome import LEASE, LIMIT, RESOLUTION, SHARE, WINDOW, Outcome, Phase, Request, broken, shares, table

RATES = (40, 20, 4)  # requests a second, of each region
HOME, *CUT_OFF = 0, 1, 2  # regions
TIMES = {False: (5, 25, 20, 25), True: (2, 9, 6, 9)}  # s: until it is steady, then before, during and after the cut
BEFORE = 100  # moments, spread over one window, at which the units of the steady state were counted
TRIPS = 4  # round trips, that a request waits for the server at most
LEAST_TIMEOUT = 50  # ms
BODY = json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": "ann"}]}]})
ASKED = f"POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}".encode()
STATUSES = {b"200": True, b"429": False}  # whether the request is granted


@dataclass(frozen=True)
class Way:
    """How regions share the limit; split, each has an equal part of it on a server of its own."""

    name: str
    mode: str
    on_failure: str
    is_split: bool = False


WAYS = [
    Way("direct, `deny`", "direct", "deny"),
    Way("leased, `deny`", "leased", "deny"),
    Way("leased, `local`", "leased", "local"),
    Way("static split", "direct", "deny", is_split=True),
]


def main():
    options = arguments().parse_args()
    try:
        wrong = asyncio.run(run(options))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    for one in wrong:
        print(f"regions: {one}", file=sys.stderr)
    return 1 if wrong else 0


def arguments():
    parser = argparse.ArgumentParser(prog="regions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute, not a minute and a half")
    parser.add_argument("--round-trip", type=float, default=150, metavar="MS",
                        help="how long a request and its reply travel (default: %(default)s ms)")
    parser.add_argument("--home", action="store_true", help="the server is in the busiest region")
    parser.add_argument("--demand", type=float, default=sum(RATES) * WINDOW / LIMIT, metavar="N",
                        help="how many times the limit is asked for (default: %(default).2f)")
    parser.add_argument("--strict", action="store_true", help="never more than the limit in any window")
    return parser


async def run(options):
    """Start all, ask, print; the promises that were broken."""
    scale = options.demand * LIMIT / WINDOW / sum(RATES)
    rates = [rate * scale for rate in RATES]
    trips = [0 if options.home and region == HOME else options.round_trip for region in range(len(rates))]
    starts = [sum(TIMES[options.quick][:at]) for at in range(1, 5)]
    phases = [Phase(name, *between) for name, *between in zip(("before", "during", "after"), starts, starts[1:])]
    print(f"{LIMIT} in {WINDOW:g} s, resolution {RESOLUTION:g} s; asked {sum(rates):.3g} times a second from regions "
          f"{', '.join(f'{trip:g}' for trip in trips)} ms from the server; the last two are cut off for "
          f"{phases[1].end - phases[1].begin:g} s\n", flush=True)
    outcomes = [Outcome(way) for way in WAYS]
    # Cancelled, so that all servers are ended.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    async with AsyncExitStack() as stack:
        server = await asyncio.to_thread(stack.enter_context, Server())
        links = [await stack.enter_async_context(Link(server.port, trip / 2000)) for trip in trips]
        daemons = [await start(stack, way, server, links, options) for way in WAYS]
        for way in WAYS:
            fill(server, way, rates)
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_at(began + phases[1].begin, lambda: [links[region].cut() for region in CUT_OFF])
        loop.call_at(began + phases[1].end, lambda: [links[region].mend() for region in CUT_OFF])
        async with asyncio.TaskGroup() as group:
            for outcome, of_way in zip(outcomes, daemons):
                for region, daemon in enumerate(of_way):
                    group.create_task(ask(daemon.http_port, region, rates[region], began, phases[-1].end, outcome))
        for outcome, of_way in zip(outcomes, daemons):
            for daemon in of_way:
                decisions = await asyncio.to_thread(daemon.metrics, "swlimitd_decisions_total")
                outcome.failures.append(sum(number for labels, number in decisions.items() if "failure" in labels))
    print("\n".join([*table(outcomes, phases), "", *shares(outcomes, phases[0], rates)]))
    return [one for outcome in outcomes for one in broken(outcome, options.strict)]


async def start(stack, way, server, links, options):
    """The swlimitd of each region."""
    timeout = f"{max(LEAST_TIMEOUT, TRIPS * options.round_trip):.0f}ms"
    # In threads: swlimitd reaches its server by links of this loop.
    return [await asyncio.to_thread(stack.enter_context, Daemon(
        limits(way, options.strict), server if way.is_split else link, timeout=timeout, prefix=prefix(way, region)))
        for region, link in enumerate(links)]


def limits(way, is_strict):
    """The limit, in a file of limits."""
    limit = {"window": f"{WINDOW:g}s", "resolution": f"{RESOLUTION:g}s", "strict": is_strict, "mode": way.mode,
             "requests_per_unit": part(way), "on_failure": way.on_failure, "local_share": SHARE}
    if way.mode == "leased":
        limit["lease_length"] = f"{LEASE:g}s"
    return json.dumps({"domain": "shop", "descriptors": [{"key": "tenant", "rate_limit": limit}]})


def part(way):
    """The limit of one region's counts."""
    return LIMIT // len(RATES) if way.is_split else LIMIT


def prefix(way, region):
    """What keys begin with: who counts together has the same."""
    return f"way{WAYS.index(way)}:" + (f"region{region}:" if way.is_split else "")


def fill(server, way, rates):
    """Count what would have been granted in the window before, so that units come free all the time from the start."""
    demands = [rate * WINDOW for rate in rates] if way.is_split else [sum(rates) * WINDOW]
    with server.client() as client:
        for region, demand in enumerate(demands):
            units, pipeline = min(part(way), int(demand)), client.pipeline(transaction=False)
            for at in range(BEFORE):
                cost, age = units * (at + 1) // BEFORE - units * at // BEFORE, WINDOW * (1 - (at + 0.5) / BEFORE)
                if cost:
                    key = f"{prefix(way, region)}{{shop}}|tenant=ann|{WINDOW:g}s"
                    pipeline.execute_command("SWLIMIT.RECORD", key, part(way), f"{WINDOW:g}s", f"{RESOLUTION:g}s",
                                             "COST", cost, "AGE", f"{age * 1000:.0f}ms")
            pipeline.execute()


async def ask(port, region, rate, began, end, outcome):
    """Ask one region's swlimitd at random instants, whether earlier requests have their replies or not."""
    now, chance, due, idle = asyncio.get_running_loop().time, random.Random(region), 0.0, []

    async def one():
        sent = now() - began
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASKED)
        head = await reader.readuntil(b"\r\n\r\n")
        outcome.requests.append(Request(region, sent, now() - began, STATUSES[head.split()[1]]))
        await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
        idle.append((reader, writer))

    async with asyncio.TaskGroup() as group:
        while (due := due + chance.expovariate(rate)) < end:
            await asyncio.sleep(began + due - now())
            group.create_task(one())
    for _, writer in idle:
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
