"""A server whose scripts run in another Lua than Redis's: an interpreter in front of a real server.

Replies are those of Dragonfly and Garnet: a number that Lua holds as a double leaves as text, `5.0`.
"""

import hashlib
import importlib
import os
import socket
import sys
import threading

from .resp import INCOMPLETE, Connection, Failed, parser

MISSING = """
setmetatable(_G, {__index = function(_, name) error("nonexistent global variable '" .. name .. "'") end})
"""


def interpreter(version):
    """The package's module. It prefers its own symbols: fakeredis makes those of another version global."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
    try:
        return importlib.import_module(f"lupa.{version}")
    finally:
        sys.setdlopenflags(flags)


class Interpreter:
    """One interpreter, `lua51` to `lua54` of the package lupa, before a server. Use as a context manager."""

    def __init__(self, server, version):
        self.server = server
        self._lupa = interpreter(version)
        self._lua = self._lupa.LuaRuntime(encoding=None, unpack_returned_tuples=False)
        self._load = self._lua.eval(b"loadstring or load")
        self._lock, self._scripts = threading.Lock(), {}
        self._connection = Connection(server.port)
        table = self._lua.globals()
        table[b"redis"] = self._lua.table_from({b"pcall": self._pcall})
        table[b"KEYS"] = table[b"ARGV"] = False
        self._lua.execute(MISSING.encode())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()
        self._connection.close()

    def client(self):
        """A client of the server itself."""
        return self.server.client()

    def _accept(self):
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted):
        commands = parser()
        with accepted:
            while more := accepted.recv(1 << 20):
                commands.feed(more)
                replies = []
                while (words := commands.gets()) is not INCOMPLETE:
                    with self._lock:
                        replies.append(encoded(self._reply(words)))
                accepted.sendall(b"".join(replies))

    def _reply(self, words):
        name = words[0].upper()
        if name == b"SCRIPT" and words[1].upper() == b"LOAD":
            digest = hashlib.sha1(words[2]).hexdigest().encode()
            self._scripts[digest] = self._load(words[2])
            return digest
        if name not in (b"EVALSHA", b"EVALSHA_RO"):
            return self._connection.call(*words)
        count = int(words[2])
        table = self._lua.globals()
        table[b"KEYS"] = self._lua.table_from(words[3:3 + count])
        table[b"ARGV"] = self._lua.table_from(words[3 + count:])
        return self._value(self._scripts[words[1].lower()]())

    def _pcall(self, *words):
        """Numbers are written as Lua writes them."""
        return self._in_lua(self._connection.call(*(word if isinstance(word, bytes) else str(word) for word in words)))

    def _in_lua(self, reply):
        if reply is None:
            return False
        if isinstance(reply, Failed):
            return self._lua.table_from({b"err": reply.encode()})
        return self._lua.table_from([self._in_lua(one) for one in reply]) if isinstance(reply, list) else reply

    def _value(self, reply):
        if self._lupa.lua_type(reply) != "table":
            return reply
        if (error := reply[b"err"]) is not None:
            return Failed(error.decode(errors="surrogateescape"))
        return [self._value(reply[place]) for place in range(1, len(reply) + 1)]


def encoded(reply):
    """A reply in RESP2."""
    if isinstance(reply, Failed):
        return b"-%s\r\n" % reply.encode(errors="surrogateescape")
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    text = b"%r" % reply if isinstance(reply, float) else reply
    return b"$-1\r\n" if text is None else b"$%d\r\n%s\r\n" % (len(text), text)
