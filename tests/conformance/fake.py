"""A server that says what a scenario says: real sockets, RESP2 and RESP3.

It answers what libraries and swlimitd ask by themselves, unless a rule does. All else waits for the scenario.
"""

import asyncio
import json
import re
import struct
import sys
import time
from dataclasses import dataclass

# What libraries ask by themselves.
AMBIENT = {
    "CLIENT": "+OK", "SELECT": "+OK", "AUTH": "+OK", "PING": "+PONG", "READONLY": "+OK", "QUIT": "+OK", "ASKING": "+OK",
    "COMMAND": [], "CLUSTER": "-ERR This instance has cluster support disabled", "PTTL": -1,
    "ROLE": ["master", 0, []], "SCRIPT": "+OK", "TOP": [],
}
INFO = ("# Server\r\nredis_version:7.0.15\r\nredis_mode:{mode}\r\nrun_id:{run}\r\n# Memory\r\nmaxmemory:0\r\n"
        "maxmemory_policy:noeviction\r\n# Replication\r\nrole:master\r\nmaster_replid:{run}\r\n# Stats\r\n"
        "evicted_keys:0\r\n# Clients\r\n# Keyspace\r\n")
REFUSED = "-ERR limit must be an integer between 0 and 9007199254740991"
TRACED = "--trace" in sys.argv


def trace(text):
    if TRACED:
        print(f"{time.monotonic() % 1000:.3f} {text}", file=sys.stderr)


def reply(text):
    """A reply as a scenario spells it: `+OK`, `-ERR …`, a double as `,1.0`, else JSON."""
    text = text.strip()
    if text.startswith("packed "):  # as the script answers: doubles
        return struct.pack(f"<{text.count(' ')}d", *map(float, text.split()[1:]))
    return text if re.match(r"[+-][A-Za-z]|,", text) else json.loads(text)


def encode(value, resp3):
    if isinstance(value, bool) or value is None:
        return b"_\r\n" if resp3 else b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, float):
        return b",%s\r\n" % repr(value).encode() if resp3 else encode(repr(value), False)
    if isinstance(value, str):
        if value[:1] in "+-" and value[1:2].isalpha():
            return value.encode() + b"\r\n"
        data = value.encode()
        return b"$%d\r\n%s\r\n" % (len(data), data)
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    if isinstance(value, dict):
        flat = [one for pair in value.items() for one in pair]
        head = b"%%%d\r\n" % len(value) if resp3 else b"*%d\r\n" % len(flat)
        return head + b"".join(encode(one, resp3) for one in flat)
    return b"*%d\r\n" % len(value) + b"".join(encode(one, resp3) for one in value)


def matches(pattern, words):
    """`*` is any word, a `*` behind its beginning any such word, a last `...` any more words, or none."""
    for at, wanted in enumerate(pattern):
        if wanted == "...":
            return len(words) > 1 or len(pattern) == 1  # a name without arguments is asked to find out about it
        if at >= len(words):
            return False
        word, wanted = words[at].lower(), wanted.lower()
        if word != wanted and not (wanted.endswith("*") and word.startswith(wanted[:-1])):
            return False
    return len(pattern) == len(words)


class Command:
    """One command that came, and the place of its reply in its connection's order."""

    def __init__(self, connection, words):
        self.connection, self.reply, self.is_claimed = connection, None, False
        self.words = [words[0].upper().removeprefix("SWLIMIT."), *words[1:]]
        self.is_ours = words[0].upper().startswith("SWLIMIT.")

    def answer(self, value):
        self.reply = encode(value, self.connection.resp3)
        if self.words[0] in ("ALLOW", "ACQUIRE", "BUDGET") and isinstance(value, list):
            self.connection.server.count(self.connection, self.words[1], int(value[0]))
        elif self.words[0] == "REFUND" and self.words[2:] and self.words[2].isdigit():
            self.connection.server.count(self.connection, self.words[1], -int(self.words[2]))
        self.connection.flush()

    def __str__(self):
        return f"{' '.join(self.words)} (connection {self.connection.number})"


class Connection:
    def __init__(self, number, writer, server):
        self.number, self.writer, self.server = number, writer, server
        self.owed, self.resp3, self.is_closed, self.subscribed = [], False, False, False

    def flush(self):
        while self.owed and self.owed[0].reply is not None and not self.is_closed:
            said = self.owed.pop(0).reply
            if self.server.delay:  # the same for all, so that they keep their order
                asyncio.get_running_loop().call_later(self.server.delay, self.write, said)
            else:
                self.writer.write(said)

    def write(self, data):
        if not self.is_closed:
            self.writer.write(data)

    def invalidate(self, keys):
        """Say that keys have changed: as RESP3 pushes it, or as RESP2 redirects it."""
        if self.subscribed:
            self.writer.write(encode(["message", "__redis__:invalidate", keys], False))
        elif self.resp3:
            self.writer.write(b">2\r\n" + encode("invalidate", True) + encode(keys, True))

    def cut(self):
        self.is_closed = True
        self.writer.transport.abort()


@dataclass
class Rule:
    pattern: list
    reply: object
    is_answered: bool


class Server:
    """One address. What no rule answers, and what no library asks by itself, waits in `arrived`."""

    def __init__(self, name, changed, cluster=None):
        self.name, self.changed, self.cluster, self.delay = name, changed, cluster, 0
        self.port, self.listener, self.connections, self.opened = 0, None, [], 0
        self.arrived, self.rules, self.is_silent, self.unsaid = [], [], False, []
        self.has_module, self.counted = True, {}
        self.run = f"{name}-1".ljust(40, "0")

    async def up(self):
        self.listener = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.listener.sockets[0].getsockname()[1]

    def cut(self):
        for connection in self.connections:
            connection.cut()
        self.connections = []

    def down(self):
        if self.listener:
            self.listener.close()
            self.listener = None
            self.run = f"{self.name}-{self.opened + 2}".ljust(40, "0")  # what is up again is another process
        self.cut()

    async def serve(self, reader, writer):
        if self.listener is None:  # accepted while it went down
            return writer.transport.abort()
        self.opened += 1
        connection = Connection(self.opened, writer, self)
        self.connections.append(connection)
        try:
            while (line := await reader.readline()).startswith(b"*"):
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2].decode(errors="backslashreplace"))
                self.take(Command(connection, words))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if connection in self.connections:
                self.connections.remove(connection)
            connection.is_closed = True
            writer.transport.abort()
            self.changed()

    def take(self, command):
        trace(f"    {self.name} <- {command}")
        command.connection.owed.append(command)
        if command.words[0] == "HELLO":
            command.connection.resp3 = command.words[1:2] == ["3"]
        rule = next((rule for rule in self.rules if matches(rule.pattern, command.words)), None)
        if rule is not None:
            command.is_claimed = True
            if rule.is_answered:
                self.say(command, rule.reply)
        elif self.is_ambient(command):
            command.is_claimed = True
            self.say(command, self.ambient(command))
        else:
            self.arrived.append(command)
        self.changed()

    def say(self, command, reply):
        if self.is_silent:
            self.unsaid.append((command, reply))
        else:
            command.answer(reply)

    def hears(self):
        """What it was asked while it was silent it answers now."""
        self.is_silent = False
        for command, reply in self.unsaid:
            command.answer(reply)
        self.unsaid = []

    def is_ambient(self, command):
        name = command.words[0]
        return (command.is_ours and not self.has_module or name in AMBIENT
                or name in ("HELLO", "TIME", "INFO", "SUBSCRIBE") or len(command.words) == 1
                or "swlimit:connected" in command.words[1:4])

    def ambient(self, command):
        name, connection = command.words[0], command.connection
        if command.is_ours and not self.has_module:
            return f"-ERR unknown command 'SWLIMIT.{name}', with args beginning with: "
        if "swlimit:connected" in command.words[1:4]:  # what swlimitd asks of its own, on connecting
            return [1, 1, 1, 0, 0] if name in ("PEEK", "EVALSHA_RO") else REFUSED
        if name == "HELLO":
            return {"server": "redis", "version": "7.0.15", "proto": 3 if connection.resp3 else 2,
                    "id": connection.number, "mode": "cluster" if self.cluster else "standalone", "role": "master",
                    "modules": []}
        if name == "TIME":
            seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
            return [str(seconds), str(microseconds)]
        if name == "INFO":
            return INFO.format(run=self.run, mode="cluster" if self.cluster else "standalone")
        if name == "CLUSTER" and self.cluster:
            return self.slots(command.words[1].upper())
        if name == "CLIENT" and command.words[1].upper() == "ID":
            return connection.number
        if name == "CLIENT" and command.words[1].upper() == "TRACKINGINFO":
            return {"flags": ["on"], "redirect": -1, "prefixes": []}
        if name == "SUBSCRIBE":
            connection.subscribed = True
            return ["subscribe", command.words[1], 1]
        if name not in AMBIENT:  # a client that asks by a bare name whether there is the command
            return f"-ERR wrong number of arguments for '{name.lower()}' command"
        return AMBIENT[name]

    def count(self, connection, key, units):
        if connection.is_closed:
            return
        self.counted[key] = self.counted.get(key, 0) + units

    def slots(self, what):
        """Equal parts of the slots for all servers, in order."""
        share, parts = 16384 // len(self.cluster), []
        for at, server in enumerate(self.cluster.values()):
            parts.append((at * share, 16383 if at == len(self.cluster) - 1 else (at + 1) * share - 1, server))
        if what == "SHARDS":
            return [{"slots": [first, last], "nodes": [
                {"id": server.run, "port": server.port, "ip": "127.0.0.1", "endpoint": "127.0.0.1", "role": "master",
                 "replication-offset": 0, "health": "online"}]} for first, last, server in parts]
        if what == "SLOTS":
            return [[first, last, ["127.0.0.1", server.port, server.run]] for first, last, server in parts]
        return "+OK"

    def names(self, primary, port, epoch, of):
        """What a sentinel says, one of so many, of the primary `main`."""
        said = ["name", "main", "ip", "127.0.0.1", "port", str(port), "flags", "master", "num-other-sentinels",
                str(of - 1), "config-epoch", str(epoch), "quorum", str(of // 2 + 1)]
        trace(f"{self.name} names {primary}")
        for words, answer in [("SENTINEL * main", []), ("SENTINEL MASTER main", said), ("SENTINEL MASTERS", [said]),
                              ("SENTINEL GET-MASTER-ADDR-BY-NAME main", ["127.0.0.1", str(port)])]:
            self.rule(words.split(), answer)

    def rule(self, pattern, answer, is_answered=True):
        """From now on; the newest wins, and takes the place of one with the same words."""
        self.rules = [rule for rule in self.rules if rule.pattern != pattern]
        self.rules.insert(0, Rule(pattern, answer, is_answered))

    def unclaimed(self):
        return [command for command in self.arrived if not command.is_claimed]
