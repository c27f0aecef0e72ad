"""One scenario with one client: plays the servers, has an adapter do what callers do, and judges."""

import asyncio
import json
import re
import time
from contextlib import suppress
from itertools import count

from conformance.fake import Rule, Server, matches, reply, trace

PATIENCE = 10  # s for what must come: only a failure waits for it
SOON = 3  # s until statistics, health or a log line say what a scenario expects, and connections are closed
NUMBERS = count(1)


class Failed(Exception):
    """What a scenario expects is not so."""


class Adapter:
    """A program in a client's language that does what lines of JSON say, and judges nothing."""

    def __init__(self, process):
        self.process, self.futures, self.number, self.logs, self.has_ended = process, {}, 0, {}, False

    @classmethod
    async def start(cls, words, **options):
        pipe = asyncio.subprocess.PIPE
        self = cls(await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=1 << 20, **options))
        self.reading = asyncio.create_task(self.read())
        return self

    async def read(self):
        while line := await self.process.stdout.readline():
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
    """`granted 0, source failure, retry_after >0, remaining absent`."""
    found = said["ok"] if said.get("ok") is not None else said
    for part in expected.split(","):
        name, _, wanted = part.strip().partition(" ")
        if not is_so(found.get(name), wanted.strip()):
            raise Failed(f"{name} is {found.get(name)!r}, not {wanted.strip()}; all of it: {found}")


class Play:
    def __init__(self, scenario, adapter):
        self.scenario, self.adapter, self.name = scenario, adapter, f"{scenario['name']}@{next(NUMBERS)}"
        self.event, self.servers, self.calls, self.unanswered = asyncio.Event(), {}, {}, {}
        self.latest, self.opened, self.is_made, self.at = None, 0, False, "the beginning"

    async def run(self):
        for name in self.scenario.get("servers", ["S"]):
            self.servers[name] = Server(name, self.event.set)
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
            await self.repeated(lambda: self.ask("call", method=match[1], key=match[2]), match[3], PATIENCE)
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
        elif match := re.fullmatch(r"log (\w+)", line):
            await self.until(lambda: any(one["log"] == match[1] for one in self.logged()),
                             lambda: f"not logged; but {self.logged()}", SOON)
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
        said = await self.soon(self.ask(
            "limiter", addresses={name: f"127.0.0.1:{server.port}" for name, server in self.servers.items()},
            kind=self.scenario.get("kind", "rate"), topology=self.scenario.get("topology", "standalone"),
            options=self.scenario.get("limiter", {})), "no limiter")
        if "error" in said:
            raise Failed(f"no limiter: {said}")

    def begin(self, who, method, key, rest):
        options = {name: value(text) for name, text in (word.split("=", 1) for word in rest.split())}
        if self.scenario.get("cancellable") or f"{who} gives up" in self.scenario["steps"]:
            options["cancellable"] = True
        self.calls[who] = self.ask("call", method=method, key=key, **options)

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
        server.rules = [rule for rule in server.rules if rule.pattern != pattern]
        if answer == "nothing":
            server.rules.insert(0, Rule(pattern, None, False))
        elif answer != "script":
            server.rules.insert(0, Rule(pattern, reply(self.filled(answer)), True))

    async def is_quiet(self, server, text, _at):
        await asyncio.sleep(in_ms(text.removeprefix("quiet ")) / 1000)
        if server.unclaimed():
            raise Failed(f"{server.name} got {server.unclaimed()[0]}")

    async def does(self, server, text, _at):
        if text == "up":
            await server.up()
        elif text in ("cut", "down"):
            getattr(server, text)()
        elif text in ("silent", "hears"):
            server.is_silent = text == "silent"
        elif text == "new connections":
            self.opened = server.opened
        elif text == "is another connection":  # the latest command came over one that was made since
            if self.latest.connection.number <= self.opened:
                raise Failed(f"{self.latest} came over an old one")
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
        if waiting := [who for who, call in self.calls.items() if not call.done()]:
            raise Failed(f"never answered: {', '.join(waiting)}")
        servers = self.servers.values()
        if besides := [f"{server.name} got {command}" for server in servers for command in server.unclaimed()]:
            raise Failed(f"besides: {'; '.join(besides)}")
        await self.close()
        await self.until(lambda: not any(server.connections for server in servers),
                         lambda: f"open after close: {[(one.name, len(one.connections)) for one in servers]}", SOON)
