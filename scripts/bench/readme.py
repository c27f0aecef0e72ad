"""The table of the README, from RESULTS.md. `make bench` renews it; so does `python -m bench.readme`."""

import re

from support.server import ROOT

RESULTS = ROOT / "scripts/bench/RESULTS.md"
README = ROOT / "README.md"
TABLE = re.compile(r"(?<=<!-- from RESULTS\.md -->\n).*?(?=\n\n)", re.DOTALL)

# What it is called in README, what it keeps, and how its rows begin: of a grant, of a denial, of its memory.
LIMITERS = [
    ("**swlimit**", "a count for each subinterval", "`ALLOW` granted, N = 60", "`ALLOW` denied, N = 60",
     "`ALLOW`, 1 count, N = 60"),
    *((name, keeps, f"{row} granted", f"{row} denied", f"{row} after one request") for name, keeps, row in (
        ("redis-cell", "one instant (GCRA)", r"`redis-cell` [\d.]+ (module)"),
        ("@upstash/ratelimit", "two counters", r"`@upstash/ratelimit` [\d.]+ (Lua)"),
        ("throttled-py", "two counters", r"`throttled-py` [\d.]+ (Lua)"),
        ("limits, in Flask-Limiter and slowapi", "two counters", r"`limits` [\d.]+ (Lua)"))),
    ("`INCR` and `EXPIRE`, no limiter", "one counter", "`INCR`", None, "`INCR`, `EXPIRE`"),
]


def table(results):
    """The lines of the table, from the text of RESULTS.md."""
    lines = ["| limiter | keeps | a grant | a denial | bytes per key |", "|---|---|---:|---:|---:|"]
    for name, keeps, grant, denial, memory in LIMITERS:
        cells = [microseconds(results, grant), microseconds(results, denial) if denial else "–", cell(results, memory)]
        lines.append(f"| {name} | {keeps} | {' | '.join(cells)} |")
    return "\n".join(lines)


def microseconds(results, row):
    return f"{int(cell(results, row)) / 1000:.1f} µs"


def cell(results, row):
    """The first figure of the row that begins so; versions in it are a pattern, and nothing else is."""
    pattern = r"[\d.]+".join(re.escape(part) for part in row.split(r"[\d.]+"))
    return re.search(rf"^\| {pattern}(?:,[^|]*)? \| ([\d,]+)", results, re.MULTILINE)[1].replace(",", "")


def renewed(readme, results):
    """The text of README with the table of these results."""
    return TABLE.sub(lambda _: table(results), readme, count=1)


def main():
    README.write_text(renewed(README.read_text(), RESULTS.read_text()))


if __name__ == "__main__":
    main()
