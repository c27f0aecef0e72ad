"""What `SWLIMIT.TOP` costs: denials on a server that counts them for it, beside one that doesn't."""

from . import beside
from .contenders import KEYS, WINDOW, Contender, denied, names
from .load import start_server

SERVERS = {  # by how many keys the sketch has
    "off": lambda stack: stack.enter_context(start_server(**{"swlimit.top-keys": 0})),
    "on": lambda stack: stack.enter_context(start_server(**{"swlimit.top-keys": 100})),
}
MISSING = [("SWLIMIT.ALLOW", name, 0, WINDOW, WINDOW) for name in names("missing")]
CONTENDERS = [
    Contender("one", "one key again and again", MISSING[:1], denied),
    Contender("within", "100 keys in turn, all of them in the sketch", MISSING[:100], denied),
    Contender("others", f"{KEYS:,} keys in turn, each of which pushes another one out", MISSING, denied),
]


def measure(rounds, turns, commands):
    """Nanoseconds per command: see `beside`."""
    return beside.measure("top", SERVERS, CONTENDERS, rounds, turns, commands)


def table(spent):
    """As a Markdown table."""
    return beside.table(spent, CONTENDERS, "denials of", "off", "on")
