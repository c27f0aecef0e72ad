"""The command line of scripts/replay."""

import argparse
import os
import signal
import stat
import sys
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import redis
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from . import formats, player, reading, report
from .errors import UserError
from .outcome import Outcome

DESCRIPTION = """\
Play a log through a real server with the module: who would have been limited, how often, and when.

Access logs (common and combined format): every line is a request. sshd's auth.log: every failed attempt to log in.
Any other: --pattern says where a line has its time and its key. Plain or gzip; - reads standard input.
LIMIT, WINDOW and RESOLUTION are those of SWLIMIT.ALLOW."""

KEYS = "\n".join(f"  {name:8}{', '.join(format.keys)}" for name, format in formats.PRESETS.items())
EXAMPLES = f"""\
keys (several may be joined with commas; "all" is one key for everything):
{KEYS}
  pattern its groups but time and bytes

examples:
  replay access.log.gz 60 1m 1s                                 60 requests a minute for each client address
  replay access.log 10000000 1h 1m --cost bytes                 10 MB an hour for each client address
  replay access.log 5 1s 100ms --key address,path --strict      5 a second for each address on each path
  replay auth.log 5 10m 1m --key user --picture attack.png      5 failed attempts in ten minutes for each user
  replay app.log 5 1s 1s --pattern '^(?P<time>\\S+) .* user=(?P<user>\\w+)'    5 a second for each user of any log"""

PIPED_WIDTH = 120  # of a table that goes into a file or a pipe


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        raise UserError(f"{message} (--help tells more)")


def main(words=None):
    """Run and return the exit code. (A closed pipe ends it too: rich sees to that.)"""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # an exception, so that the server is ended
    try:
        run(_options(words))
    except UserError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    except redis.RedisError as error:
        print(f"replay: the server failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _options(words):
    parser = Parser(prog="replay", description=DESCRIPTION, epilog=EXAMPLES, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", metavar="LOG")
    parser.add_argument("limit", metavar="LIMIT", help="units admitted per window")
    parser.add_argument("window", metavar="WINDOW", help="length of the sliding window: 60, 500ms, 5m, 1h, 7d")
    parser.add_argument("resolution", metavar="RESOLUTION", help="length of its subintervals")
    parser.add_argument("--strict", action="store_true", help="never more than LIMIT in any window")
    parser.add_argument("--cost", type=_cost, default=1, metavar="N|bytes",
                        help="what one request takes: a number, or the bytes of its response (default: 1)")
    parser.add_argument("--key", metavar="FIELD",
                        help="what is limited (default: address; with --pattern, all its groups)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--format", choices=formats.PRESETS, help="what the log is (default: as its lines look)")
    kind.add_argument("--pattern", metavar="REGEX", help="a regular expression, in Python's spelling, to be found in a "
                      "line; its group (?P<time>…) is a stamp as of access logs, syslog or ISO 8601, or Unix seconds; "
                      "(?P<bytes>…) is for --cost bytes; others make the key")
    parser.add_argument("--timezone", type=_zone, default=UTC, metavar="NAME",
                        help="of stamps that name none, and of the times shown, such as Europe/Paris (default: UTC)")
    parser.add_argument("--year", type=_year, metavar="YYYY", help="of the first stamp, where stamps have no year")
    parser.add_argument("--server", metavar="HOST:PORT",
                        help="a running server with the module; the keys used are removed from it again "
                             "(default: start one for the purpose)")
    parser.add_argument("--top", type=_count, default=10, metavar="N", help="keys to show (default: 10)")
    parser.add_argument("--picture", type=_picture, default="replay.svg", metavar="FILE",
                        help="an .svg or .png of it, or none (default: replay.svg)")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="everything, for programs")
    return parser.parse_args(words)


def run(options):
    """Read, replay, report."""
    limit = player.Limit(options.limit, options.window, options.resolution, options.strict)
    format = formats.given(options.pattern) if options.pattern else formats.PRESETS.get(options.format)
    by_bytes = options.cost == "bytes"
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    errors = Console(stderr=True)
    errors.quiet = not errors.is_terminal
    progress = Progress(*columns, console=errors, transient=True)
    with player.connected(options.server) as client, progress:
        player.check(client, limit, 1 if by_bytes else options.cost)
        log = reading.read(options.log, options.key, options.cost, format, options.timezone, options.year,
                           watch=lambda file: _watched(file, progress))
        outcome = None
        if log.requests:
            outcome = Outcome(log.requests[0].at, log.requests[-1].at)
            player.replay(client, log.requests, limit, outcome,
                          lambda requests: progress.track(requests, description="replaying"))

    output = Console(markup=False, highlight=False, emoji=False)
    if not output.is_terminal and "COLUMNS" not in os.environ:
        output.width = PIPED_WIDTH
    for line in report.describe_lines(log):
        output.print(line, soft_wrap=True)
    if outcome is None:
        output.print("Nothing to replay.")
        return
    unit = "bytes" if by_bytes else f"{log.format.event}s"
    output.print(f"\n{report.describe_limit(limit, log.key)}: {outcome.limited:,} of {len(outcome.keys):,} limited"
                 f" (in {unit}; times in {options.timezone})", soft_wrap=True)
    output.print(report.table(outcome, log.key, by_bytes, options.timezone, options.top))
    try:
        if options.json:
            report.write_json(options.json, log, limit, outcome, options.cost)
        if options.picture:
            from . import picture  # matplotlib takes its time to load
            title = f"{Path(log.name).name}: {report.describe_limit(limit, log.key)}"
            picture.draw(options.picture, title, outcome, unit, options.timezone)
            output.print(f"picture: {options.picture}", soft_wrap=True)
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}") from error


def _watched(file, progress):
    """The same file, moving a progress bar if its size is known."""
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode):
        return file
    return progress.wrap_file(file, total=about.st_size, description="reading")


# What an option takes; argparse reports the text of an ArgumentTypeError.

def _cost(text):
    if text == "bytes":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("takes a number of units or 'bytes'")
    return int(text)


def _count(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("takes a number from 1 on")
    return int(text)


def _year(text):
    if not text.isdecimal() or not 1970 <= int(text) <= 9998:
        raise argparse.ArgumentTypeError("takes a year from 1970 on")
    return int(text)


def _zone(name):
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise argparse.ArgumentTypeError(f"knows no time zone '{name}'") from error


def _picture(name):
    if name == "none":
        return None
    if Path(name).suffix.lower() not in (".svg", ".png"):
        raise argparse.ArgumentTypeError("takes a file that ends in .svg or .png, or none")
    return _writable(name)


def _writable(name):
    if not Path(name).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder for {name}")
    return name


if __name__ == "__main__":
    sys.exit(main())
