"""One scenario with one client: plays the servers, has an adapter do what callers do, and judges."""

import asyncio
import json
import re
import time
from contextlib import suppress
from itertools import count

from conformance.fake import Server, matches, reply, trace

PATIENCE = 10  # s for what must come: only a failure waits for it
SOON = 3  # s until statistics, health or a log line say what a scenario expects, and connections are closed
NUMBERS = count(1)
SENTINELS = "NOP"  # servers of these names are sentinels


class Failed(Exception):
    """What a scenario expects is not so."""


class Adapter:
    """A program in a client's language that does what lines of JSON say, and judges nothing."""

    def __init__(self, process):
        self.process, self.futures, self.number, self.logs, self.has_ended = process, {}, 0, {}, False
        self.lines = []  # all that it said

    @classmethod
    async def start(cls, words, **options):
        pipe = asyncio.subprocess.PIPE
        self = cls(await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=1 << 20, **options))
        self.reading = asyncio.create_task(self.read())
        return self

    async def read(self):
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode())
            trace(f"    {line.decode().strip()}")
            try:
                said = json.loads(line)
            except ValueError:
                continue  # what a library prints
            if "log" in said:
                self.logs.setdefault(said.get("client"), []).append(said)
            elif (future := self.futures.pop(said["id"], None)) and not future.done():
                future.set_result(said)
        self.has_ended = True
        for future in self.futures.values():
            if not future.done():
                future.set_exception(Failed("the adapter has ended"))

    def ask(self, do, **words):
        if self.has_ended:
            raise Failed("the adapter has ended")
        self.number += 1
        future = self.futures[self.number] = asyncio.get_running_loop().create_future()
        future.number = self.number
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody else looks
        self.process.stdin.write(json.dumps({"id": self.number, "do": do, **words}).encode() + b"\n")
        return future

    def lines_with(self, text):
        return [line for line in self.lines if text in line]

    async def end(self):
        """Whether it ends by itself at the end of its input."""
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), PATIENCE)
        except TimeoutError:
            self.process.kill()
            return False
        return True


def value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def in_ms(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s)", text).groups()
    return int(number) * (1000 if unit == "s" else 1)


def is_so(got, wanted):
    """`absent`, `1..5`, `<3`, `>3`, or a value of the same type."""
    if wanted == "absent":
        return got is None
    if match := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", wanted):
        return isinstance(got, (int, float)) and int(match[1]) <= got <= int(match[2])
    if match := re.fullmatch(r"([<>])(-?\d+)", wanted):
        return isinstance(got, (int, float)) and (got < int(match[2]) if match[1] == "<" else got > int(match[2]))
    return got == value(wanted) and type(got) is type(value(wanted))


def compare(said, expected):
    """`granted 0, source failure, retry_after >0, 2.remaining absent`: the second limit's."""
    found = said["ok"] if said.get("ok") is not None else said
    for part in expected.split(", "):
        name, _, wanted = part.strip().partition(" ")
        got = found
        for word in name.split("."):  # `2.granted`: of the second limit
            got = got["each"][int(word) - 1] if word.isdigit() and got.get("each") else got.get(word)
        if not is_so(got, wanted.strip()):
            raise Failed(f"{name} is {got!r}, not {wanted.strip()}; all of it: {found}")


class Play:
    def __init__(self, scenario, adapter):
        self.scenario, self.adapter, self.name = scenario, adapter, f"{scenario['name']}@{next(NUMBERS)}"
        self.event, self.servers, self.calls, self.numbers, self.unanswered = asyncio.Event(), {}, {}, {}, {}
        self.latest, self.opened, self.is_made, self.at = None, 0, False, "the beginning"

    async def run(self):
        for name in self.scenario.get("servers", ["S"]):
            self.servers[name] = Server(name, self.event.set, self.servers if self.scenario.get("cluster") else None)
            self.servers[name].has_module = self.scenario.get("module", True)
            await self.servers[name].up()
        try:
            for line in self.scenario["steps"]:
                self.at = line
                trace(line)
                await self.step(line)
            self.at = "the end"
            await self.end()
        except Failed as failed:
            raise Failed(f"at «{self.at}»: {failed}") from None
        finally:
            with suppress(TimeoutError, Failed):
                await asyncio.wait_for(self.ask("drop"), 5)
            for server in self.servers.values():
                server.down()

    def ask(self, do, **words):
        return self.adapter.ask(do, client=self.name, **words)

    async def soon(self, future, what):
        try:
            return await asyncio.wait_for(asyncio.shield(future), PATIENCE)
        except TimeoutError:
            raise Failed(what) from None

    async def until(self, probe, what, patience=PATIENCE):
        """Wait until something is so, woken by what servers get."""
        deadline = time.monotonic() + patience
        while not probe():
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failed(what())
            self.event.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.event.wait(), min(left, 0.1))

    async def repeated(self, ask, expected, patience):
        """Ask until the outcome is so."""
        deadline = time.monotonic() + patience
        while True:
            said = await self.soon(ask(), "no answer")
            try:
                return compare(said, expected)
            except Failed:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.02)

    async def step(self, line):
        if match := re.fullmatch(r"([A-Z])(\d*)\s*([:>~!?])\s*(.*)", line):
            server, kind, text = self.servers[match[1]], match[3], match[4]
            if kind not in "~!":
                await self.make()
            await {":": self.gets, ">": self.answers, "~": self.rules, "!": self.does, "?": self.is_quiet}[kind](
                server, text, int(match[2] or 1))
            return
        await self.make()
        if match := re.fullmatch(r"([a-z]\d*):\s*(\w+)(?:\s+([^\s=]+))?((?:\s+\w+=\S+)*)", line):
            self.begin(*match.groups())
        elif match := re.fullmatch(r"until (\w+) (\S+) (.*)", line):
            await self.repeated(lambda: self.ask("call", method=match[1], keys=[match[2]], limiter=0, options={}),
                                match[3], PATIENCE)
        elif match := re.fullmatch(r"([a-z]\d*)\s*=\s*(.*)", line):
            compare(await self.soon(self.calls.pop(match[1]), f"no outcome after {PATIENCE} s"), match[2])
        elif match := re.fullmatch(r"([a-z]\d*) gives up", line):
            self.ask("cancel", call=self.calls[match[1]].number)
        elif match := re.fullmatch(r"([a-z]\d*) waits still", line):
            if self.calls[match[1]].done():
                raise Failed(f"it has ended: {self.calls[match[1]].result()}")
        elif match := re.fullmatch(r"wait (\S+)", line):
            await asyncio.sleep(in_ms(match[1]) / 1000)
        elif match := re.fullmatch(r"(statistics|health) (.*)", line):
            await self.repeated(lambda: self.ask(match[1]), match[2], SOON)
        elif match := re.fullmatch(r"log (.+)", line):
            words = self.filled(match[1]).split()
            await self.until(lambda: any(matches(words, one["log"].split()) for one in self.logged()),
                             lambda: f"not logged; but {self.logged()}", SOON)
        elif match := re.fullmatch(r"logged (\d+) (.+)", line):
            words = self.filled(match[2]).split()
            if sum(matches(words, one["log"].split()) for one in self.logged()) != int(match[1]):
                raise Failed(f"not logged so often: {self.logged()}")
        elif line == "close":
            await self.close()
        else:
            raise ValueError(f"no such step: {line}")

    def logged(self):
        return self.adapter.logs.get(self.name, []) + self.adapter.logs.get(None, [])

    async def make(self):
        """Make the limiter, before the first step that needs it: rules stand by then."""
        if self.is_made:
            return
        self.is_made = True
        topology, kind = self.scenario.get("topology", "standalone"), {"kind": self.scenario.get("kind", "rate")}
        limiters = self.scenario.get("limiters") or [self.scenario["limiter"]]
        asked = [name for name in self.servers if topology != "sentinel" or name in SENTINELS]
        made = await self.soon(self.ask(
            "limiters", addresses=[f"127.0.0.1:{self.servers[name].port}" for name in asked], topology=topology,
            secret=self.scenario.get("secret"), limiters=[kind | one for one in limiters]), "no limiter")
        if self.scenario.get("refused"):
            compare(made, self.scenario["refused"])
        elif "error" in made:
            raise Failed(f"no limiter: {made}")

    def begin(self, who, method, keys, rest):
        options = {name: value(text) for name, text in (word.split("=", 1) for word in rest.split())}
        if "of" in options:  # what an earlier call returned: a hold, an admission
            options["of"] = self.numbers[options["of"]]
        if self.scenario.get("cancellable") or f"{who} gives up" in self.scenario["steps"]:
            options["cancellable"] = True
        self.calls[who] = self.ask("close") if method == "close" else self.ask(
            "call", method=method, keys=keys.split(",") if keys else [], limiter=options.pop("limiter", 0),
            options=options)
        self.numbers[who] = self.calls[who].number

    async def gets(self, server, text, _at):
        """What a server gets next, of all that no rule answers."""
        await self.until(server.unclaimed, lambda: f"{server.name} got nothing")
        command = server.unclaimed()[0]
        if not matches(text.split(), command.words):
            raise Failed(f"{server.name} got {command}")
        command.is_claimed, self.latest = True, command
        self.unanswered.setdefault(server.name, []).append(command)

    async def answers(self, server, text, at):
        """The reply to the oldest command that it has not answered, or to a later one."""
        self.unanswered[server.name].pop(at - 1).answer(reply(self.filled(text)))

    async def rules(self, server, text, _at):
        pattern, _, answer = text.partition(" > ")
        pattern = pattern.split()
        if answer == "script":
            server.rules = [rule for rule in server.rules if rule.pattern != pattern]
        else:
            is_answered = answer != "nothing"
            server.rule(pattern, reply(self.filled(answer)) if is_answered else None, is_answered)

    async def is_quiet(self, server, text, _at):
        if match := re.fullmatch(r"counted (\S+) (\d+)", text):  # granted, and not given back
            await self.until(lambda: server.counted.get(match[1], 0) == int(match[2]),
                             lambda: f"{server.name} counted {server.counted}", SOON)
            return
        await asyncio.sleep(in_ms(text.removeprefix("quiet ")) / 1000)
        if server.unclaimed():
            raise Failed(f"{server.name} got {server.unclaimed()[0]}")

    async def does(self, server, text, _at):
        if text == "up":
            await server.up()
        elif text in ("cut", "down"):
            getattr(server, text)()
        elif text == "silent":
            server.is_silent = True
        elif text == "hears":
            server.hears()
        elif text == "new connections":
            self.opened = server.opened
        elif text == "is another connection":  # the latest command came over one that was made since
            if self.latest.connection.number <= self.opened:
                raise Failed(f"{self.latest} came over an old one")
        elif match := re.fullmatch(r"slow (.*)", text):
            server.delay = in_ms(match[1]) / 1000
        elif match := re.fullmatch(r"names ([A-Z]) (\d+) of (\d+)", text):  # a sentinel: its primary and its epoch
            server.names(match[1], self.servers[match[1]].port, int(match[2]), int(match[3]))
        elif match := re.fullmatch(r"push (.*)", text):
            for connection in server.connections:
                connection.invalidate(reply(match[1]))
        else:
            raise ValueError(f"no such step: {text}")

    def filled(self, text):
        for name, server in self.servers.items():
            text = text.replace(f"{{{name}}}", str(server.port))
        return text

    async def close(self):
        said = await self.soon(self.ask("close"), "close does not end")
        if "error" in said:
            raise Failed(f"close: {said}")

    async def end(self):
        """What holds for every scenario: all callers have their outcome, nothing else was sent, closing ends all."""
        await self.make()
        def waiting():
            return [who for who, call in self.calls.items() if not call.done()]
        await self.until(lambda: not waiting(), lambda: f"never answered: {', '.join(waiting())}", SOON)
        servers = self.servers.values()
        if besides := [f"{server.name} got {command}" for server in servers for command in server.unclaimed()]:
            raise Failed(f"besides: {'; '.join(besides)}")
        if self.adapter.has_ended:
            raise Failed("the adapter has ended")
        await self.close()
        await self.until(lambda: not any(server.connections for server in servers),
                         lambda: f"open after close: {[(one.name, len(one.connections)) for one in servers]}", SOON)
        for text in [*filter(None, [self.scenario.get("secret")]), *self.scenario.get("unsaid", ())]:
            if said := self.adapter.lines_with(text):
                raise Failed(f"it says {text}: {said[0]}")
