"""Run the clients of all languages and swlimitd for hours, beside a server and a replica with faults that a seed draws.

Fails if less is counted than a client was granted, if more is counted than it was granted or is in doubt about, and if
the replica counts otherwise than its primary. Memory is shown: the programs of the scenarios, which drive the clients,
keep what they were asked. `scripts/soak` judges that of swlimitd.
"""

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from conformance.adapters import ADAPTERS
from conformance.play import Adapter
from support.relay import Relay
from support.server import Server

LIMITER = {"kind": "rate", "limit": 1_000_000_000, "window": "2592000s", "mode": "direct",
           "timeout": "250ms", "on_failure": "deny"}
PEEK = ("1000000000", "2592000", "216000")
KEYS, CALLERS = 100, 10  # of each client
PAUSES = (3, 15)  # s between faults
STEP = 30  # s between looks at memory
APPENDING = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


class Client:
    """A client of one language, whose callers ask all the time."""

    def __init__(self, name, adapter):
        self.name, self.adapter, self.outcomes = name, adapter, Counter()

    async def call(self, number, over):
        draw = random.Random(number)
        while not over.is_set():
            said = await self.adapter.ask("call", client=self.name, method="allow", limiter=0, options={},
                                          keys=[f"{self.name}:{draw.randrange(KEYS)}"])
            decided = said.get("ok", {})
            self.outcomes[decided.get("source", "error")] += 1
            self.outcomes["granted"] += decided.get("granted") or 0
            self.adapter.lines.clear()
            await asyncio.sleep(0.01)

    @property
    def in_doubt(self):
        return self.outcomes["failure"] + self.outcomes["error"]

    def is_right(self, counted):
        granted = self.outcomes["granted"]
        return 0 < granted <= counted <= granted + self.in_doubt


def resident(pid):
    """The memory of a process and of what it has started, in MiB."""
    status, below = Path(f"/proc/{pid}/statm"), Path(f"/proc/{pid}/task/{pid}/children")
    return int(status.read_text().split()[1]) * 4096 // 2**20 + sum(map(resident, below.read_text().split()))


async def standing_still(server, _relay, seconds):
    server.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    server.process.send_signal(signal.SIGCONT)


async def killed(server, _relay, seconds):
    server.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.start)


async def cut(server, _relay, _seconds):
    await asyncio.to_thread(server.cli, "CLIENT", "KILL", "TYPE", "normal")


async def slow(_server, relay, seconds):
    relay.delay = 0.4
    await asyncio.sleep(seconds)
    relay.delay = 0.0


async def swallowing(_server, relay, seconds):
    relay.swallows = True
    await asyncio.sleep(seconds)
    relay.swallows = False


async def disturb(draw, server, relay, over):
    """Faults, one after another."""
    while not over.is_set():
        await asyncio.sleep(draw.uniform(*PAUSES))
        fault, seconds = draw.choice([standing_still, killed, cut, slow, swallowing]), draw.uniform(0.1, 3)
        print(f"{time.strftime('%H:%M:%S')} {fault.__name__.replace('_', ' ')} for {seconds:.1f} s", flush=True)
        await fault(server, relay, seconds)


async def run(seconds, seed, server, relay, names):
    """The clients, once they have ended what they owe."""
    clients, over = [], asyncio.Event()
    for name in names:
        words, options = ADAPTERS[name]()
        adapter = await Adapter.start(words, **options)
        clients.append(Client(name, adapter))
        said = await adapter.ask("limiters", client=name, addresses=[f"127.0.0.1:{relay.port}"], topology="standalone",
                                 secret=None, limiters=[LIMITER])
        assert "error" not in said, said
    calls = [asyncio.create_task(client.call(number, over)) for client in clients for number in range(CALLERS)]
    faults = asyncio.create_task(disturb(random.Random(seed), server, relay, over))
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(STEP, left))
        for client in clients:
            memory = resident(client.adapter.process.pid)
            print(f"{time.strftime('%H:%M:%S')} {client.name}: {memory} MiB, {dict(client.outcomes)}", flush=True)
    over.set()
    await faults
    await asyncio.gather(*calls)
    await asyncio.gather(*(client.adapter.ask("close", client=client.name) for client in clients))
    for client in clients:
        await client.adapter.end()
    return clients


def counted(server, name):
    """How many units a client's keys have."""
    with server.client() as client:
        peeks = [client.execute_command("SWLIMIT.PEEK", f"{name}:{key}", *PEEK) for key in range(KEYS)]
    return sum(limit - remaining for _, limit, remaining, *_ in peeks)


def main():
    parser = argparse.ArgumentParser(prog="longrun", description=__doc__)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--clients", nargs="+", choices=ADAPTERS, default=list(ADAPTERS))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.hours:g} hours", flush=True)
    with Server(options=APPENDING) as server, Relay(server.port, chosen.seed) as relay, \
            Server() as replica:
        replica.cli("REPLICAOF", "127.0.0.1", server.port)
        clients = asyncio.run(run(chosen.hours * 3600, chosen.seed, server, relay, chosen.clients))
        server.cli("WAIT", 1, 10_000)
        wrong = []
        for client in clients:
            here, there = counted(server, client.name), counted(replica, client.name)
            granted = client.outcomes["granted"]
            print(f"{client.name}: {granted:,} granted, {client.in_doubt:,} in doubt, {here:,} counted")
            wrong += [] if client.is_right(here) else [f"{client.name} is counted wrongly"]
            wrong += [] if here == there else [f"{client.name}: the replica counts {there:,}"]
    for one in wrong:
        print(f"longrun: {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
