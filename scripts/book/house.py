"""Draw the picture of docs/understand/design.md, design.svg: the parts and their rooms. `python -m book.house`"""

from pathlib import Path

from . import drawing
from .drawing import rectangle, text

FILE = Path(__file__).resolve().parents[2] / "docs/understand/design.svg"
# Each part's name and folder, then its rooms and what each is for. A room imports only from those below it.
PARTS = [
    ("swlimitd", "src/daemon", [
        ("serve", "gRPC, HTTP, TLS"), ("page", "status for people"), ("protocol", "plans, replies"),
        ("observe", "metrics, traces"), ("core", "asks the client"), ("config", "limits, settings")]),
    ("Rust client", "src/clients/rust", [
        ("tower", "for services"), ("limiter", "and hold/, …"), ("deciding", "the modes"),
        ("upstream", "health"), ("protocol", "commands"), ("transport", "connections")]),
    ("Python client", "src/clients/python/swlimit", [
        ("contrib", "frameworks"), ("rate_limiter.py", "rates, …"), ("_transport", "connections"),
        ("_protocol", "commands"), ("_core", "windows, denials")]),
    ("Node.js client", "src/clients/node", [
        ("adapters", "frameworks"), ("limiters", "rates, holds, …"), ("clients", "ioredis, redis"),
        ("transport", "health"), ("protocol", "commands"), ("core", "windows, options")]),
    ("Go client", "src/clients/go", [
        ("goredis", "go-redis"), ("limiter.go", "rates, …"), ("client.go", "finds servers"),
        ("server.go", "health"), ("commands.go", "words"), ("window.go", "windows")]),
]
SERVER = [("src/server/module/commands", "one file a command"), ("src/server/module/waiting", "queues of waiters"),
          ("src/server/module/server", "the server's API: all that is unsafe"),
          ("src/server/script", "or: the same as a script")]
ARITHMETIC = [("src/server/window", "rates"), ("src/server/hold", "holds"), ("src/server/budget", "budgets"),
              ("src/server/effect", "what replicas get")]

EDGE, COLUMN, GAP, ROOM, HEAD = 16, 190, 14, 30, 48
WIDTH = 2 * EDGE + len(PARTS) * COLUMN + (len(PARTS) - 1) * GAP
TOP = 56
PART = HEAD + max(len(rooms) for *_, rooms in PARTS) * ROOM + 8
BELOW = TOP + PART + 56
HEIGHT = BELOW + 168
STYLE = """
.name { font-weight: 600 } .room { fill: #ddf4ff } .pure { fill: #dafbe1 }
.arrow { stroke: #59636e } .tip { fill: #59636e }
@media (prefers-color-scheme: dark) {
.room { fill: #122d4a } .pure { fill: #12351f } .arrow { stroke: #9198a1 } .tip { fill: #9198a1 } }
"""


def left(number):
    return EDGE + number * (COLUMN + GAP)


def room(x, y, width, name, about, kind="room"):
    return [rectangle(kind, x, y, width, ROOM - 6), text(x + 8, y + 17, name),
            text(x + width - 8, y + 17, about, "small", "end")]


def arrow(x, y, to_x, to_y):
    """To the right, or down."""
    tip = f"M{to_x} {to_y}" + ("l-8 -4v8z" if y == to_y else "l-4 -8h8z")
    return [f'<path class="arrow" d="M{x} {y}L{to_x} {to_y}"/>', f'<path class="tip" d="{tip}"/>']


def part(number, name, folder, rooms):
    x = left(number)
    shapes = [rectangle("axis", x, TOP, COLUMN, PART), text(x + 10, TOP + 20, name, "name"),
              text(x + 10, TOP + 37, f"{folder}/", "small")]
    for place, (called, about) in enumerate(rooms):
        shapes += room(x + 8, TOP + HEAD + place * ROOM, COLUMN - 16, called if "." in called else f"{called}/", about)
    return shapes


def server():
    """The server below its clients, and the arithmetic that the module and the Rust client share."""
    width = WIDTH - 2 * EDGE
    shapes = [rectangle("axis", EDGE, BELOW, width, HEIGHT - BELOW - EDGE),
              text(EDGE + 10, BELOW + 20, "Redis or Valkey", "name")]
    half = (width - 24) / 2
    for place, (folder, about) in enumerate(SERVER):
        x, y = EDGE + 8 + place % 2 * (half + 8), BELOW + 32 + place // 2 * ROOM
        shapes += room(x, y, half, f"{folder}/", about)
    share = (width - 8) / len(ARITHMETIC) - 8
    about = "Arithmetic without a clock or a server; the Rust client shares all but effects"
    shapes.append(text(EDGE + 10, BELOW + 32 + 2 * ROOM + 15, about, "small"))
    for place, (folder, about) in enumerate(ARITHMETIC):
        shapes += room(EDGE + 8 + place * (share + 8), BELOW + 56 + 2 * ROOM, share, f"{folder}/", about, "pure")
    return shapes


def picture():
    """The text of the file."""
    shapes = [text(left(0) + COLUMN / 2, 24, "proxies, any HTTP client", "small", "middle"),
              text(left(2) + COLUMN / 2, 24, "programs", "small", "middle")]
    for number, (name, folder, rooms) in enumerate(PARTS):
        shapes += arrow(left(number) + COLUMN / 2, 32, left(number) + COLUMN / 2, TOP)
        shapes += part(number, name, folder, rooms)
        if number:
            shapes += arrow(left(number) + COLUMN / 2, TOP + PART, left(number) + COLUMN / 2, BELOW)
    core = TOP + HEAD + 4.4 * ROOM
    shapes += arrow(left(0) + COLUMN - 8, core, left(1), core)
    shapes.append(text(left(2) - GAP / 2, BELOW - 24, "one command a decision", "small", "middle"))
    title = "The parts of swlimit: each room imports only from those below it"
    return drawing.picture(title, WIDTH, HEIGHT, shapes + server(), STYLE)


if __name__ == "__main__":
    FILE.write_text(picture())
