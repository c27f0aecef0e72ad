"""Servers without the module, which tests ask in the module's words."""

from support.resp import Connection
from support.script import load, scripted, sha


class Scripted:
    """A server without the module, whose `cli` takes the module's words."""

    def __init__(self, server):
        self.server = server

    def __getattr__(self, name):
        return getattr(self.server, name)

    def cli(self, *words):
        if str(words[0]).startswith("SWLIMIT."):
            with speaking(self):
                pass  # the server has the script now
        return self.server.cli(*scripted(words, sha()))


class ScriptedConnection(Connection):
    def calls(self, commands):
        return super().calls([scripted(words, sha()) for words in commands])


def speaking(server):
    """A connection that takes the module's words."""
    if not isinstance(server, Scripted):
        return Connection(server.port)
    connection = ScriptedConnection(server.port)
    load(connection)
    return connection
