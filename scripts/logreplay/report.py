"""What a replay found, as a table for people and as JSON for programs."""

import json
from datetime import timedelta
from pathlib import Path

from rich import box
from rich.table import Table

from .stamps import EPOCH

LONGEST = 240  # characters of a line that could not be read


def printable(text):
    """A key as it may be shown: logs hold what strangers sent, and that can be control characters."""
    escaped = (letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return "".join(escaped) or '""'


def _short(text):
    return text if len(text) <= LONGEST else text[:LONGEST - 1] + "…"


def moment(at, zone):
    """The instant in this time zone."""
    return (EPOCH + timedelta(milliseconds=at)).astimezone(zone)


def _stamp(at, zone):
    return "" if at is None else f"{moment(at, zone):%Y-%m-%d %H:%M:%S}"


def describe_lines(log):
    """The account of the lines of a log, as text."""
    account = log.account
    counted = account.lines - account.other.total() - account.unreadable
    yield f"{printable(log.name)}: {account.lines:,} lines"
    yield f"  {counted:,} with {len(log.requests):,} {log.format.event}s"
    for reason, count in account.other.most_common():
        yield f"  {count:,} {reason}"
    yield f"  {account.unreadable:,} unreadable" + (", such as" if account.examples else "")
    for number, line in account.examples:
        yield f"    line {number:,}: {_short(printable(line))}"
    for note in account.notes:
        yield f"  {note}"


def describe_limit(limit, key):
    return f"{limit} " + ("for all together" if key == "all" else f"for each {key}")


def table(outcome, key, by_bytes, zone, top):
    """The most limited keys and the totals."""
    rows = outcome.most_limited(top)
    view = Table(box=box.SIMPLE_HEAVY, padding=(0, 1), collapse_padding=True, pad_edge=False)
    view.add_column(key, overflow="fold", min_width=len("255.255.255.255"))
    for name in ("offered", "granted", "denied", "share"):
        view.add_column(name, justify="right", no_wrap=True)
    for name in ("first denial", "last denial"):
        view.add_column(name, min_width=len("2024-12-31"))  # on narrow terminals the date stands above the time
    for name, tally in rows:
        view.add_row(printable(name), *_figures(tally, by_bytes, zone))
    others = len(outcome.keys) - len(rows)
    if others > 0:
        view.add_row(f"… {others:,} more", style="dim")
    view.add_section()
    view.add_row(f"all {len(outcome.keys):,}", *_figures(outcome.total, by_bytes, zone), style="bold")
    return view


def _figures(tally, by_bytes, zone):
    if by_bytes:
        numbers = tally.offered_units, tally.granted_units, tally.denied_units
    else:
        numbers = tally.offered, tally.granted, tally.denied
    share = f"{100 * numbers[2] / numbers[0]:.1f} %"  # nobody is in the table who offered nothing
    denials = _stamp(tally.first_denial, zone), _stamp(tally.last_denial, zone)
    return *(f"{number:,}" for number in numbers), share, *denials


def write_json(path, log, limit, outcome, cost):
    """Everything, instants in Unix milliseconds."""
    account = log.account
    content = {
        "log": log.name,
        "format": log.format.name,
        "lines": {
            "total": account.lines,
            "other": dict(account.other),
            "unreadable": account.unreadable,
            "examples": [{"line": number, "text": line} for number, line in account.examples],
            "notes": account.notes,
        },
        "limit": limit._asdict(),
        "key": log.key,
        "cost": cost,
        "total": _as_dict(outcome.total),
        "keys": [{"key": name} | _as_dict(tally) for name, tally in outcome.most_limited(None)],
        "timeline": {"start": outcome.start, "step": outcome.step, "offered_units": outcome.offered,
                     "granted_units": outcome.granted},
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def _as_dict(tally):
    names = ("offered", "granted", "denied", "offered_units", "granted_units", "denied_units", "first_denial",
             "last_denial")
    return {name: getattr(tally, name) for name in names}
