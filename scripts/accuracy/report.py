"""Figures as Markdown tables, and the pages that hold them."""

import itertools
import re

MARKED = re.compile(r"(<!-- accuracy:(\w+) -->\n).*?(<!-- /accuracy:\2 -->)", re.DOTALL)


def fill(page, tables):
    """The page with each marked block (`<!-- accuracy:NAME -->` … `<!-- /accuracy:NAME -->`) replaced."""
    def replace(match):
        opening, name, closing = match.groups()
        return f"{opening}\n{tables[name]}\n\n{closing}" if name in tables else match[0]
    return MARKED.sub(replace, page)


def tables(survey):
    """All the tables, by the name of their block."""
    return {"inputs": _inputs(survey), "summary": _summary(survey), "loads": _loads(survey), "bounds": _bounds(survey)}


def _inputs(survey):
    rows = [[load.name, load.about, _count(len(survey.requests[load.name])), _count(survey.clients(load)),
             f"{load.limit} per {_span(load.window)}", _percent(survey.denied(load), 1)] for load in survey.loads]
    table = _table(["load", "what it is", "requests", "clients", "limit", "denied by the exact log"], "llrrlr", rows)
    missing = [f"**Not measured, because it is not on this machine: `{file}`.**" for file in survey.missing]
    return "\n\n".join([table, *missing, f"Server: {survey.server}."])


def _summary(survey):
    """One line for each way to limit, over all loads but the adversaries."""
    decisions, estimates = [], []
    for strict, subintervals in itertools.product((False, True), survey.subintervals):
        figures, name = survey.together(subintervals, strict), _name(subintervals, strict)
        attack = survey.worst_attack(subintervals, strict)
        decisions.append([name, *_wrong(figures), _percent(figures.mean_wait, 2),
                          _multiple(figures.worst) + (f" ({_multiple(attack)})" if attack else ""), _bytes(figures)])
        estimates.append([name, *_estimate(figures)])
    decisions.append(["exact log, as a sorted set", "0", "0", "", f"{_multiple(1)} ({_multiple(1)})",
                      f"{survey.log_memory():.0f}"])
    head = ["subintervals N", "wrongly granted", "wrongly denied", "mean wait then, of W", "most in W (attacked)",
            "bytes per key"]
    count = sum(len(survey.requests[load.name]) for load in survey.traffic)
    note = (f"{_count(count)} decisions a line, on traffic of which the exact log denies "
            f"{_percent(survey.denied(), 0)}.")
    return "\n\n".join([_table(head, "lrrrrr", decisions), note,
                        _table(["subintervals N", *ESTIMATE], "lrrr", estimates)])


def _loads(survey):
    return "\n\n".join(_load(survey, load) for load in survey.loads)


def _load(survey, load):
    decisions, alone = [], []
    for subintervals, strict in survey.ways(load):
        figures = survey.figures[load.name, subintervals, strict]
        name = _name(subintervals, strict, load.window)
        wait = f"{_percent(figures.mean_wait, 2)} ({_span(figures.longest_wait)})" if figures.longest_wait else "0"
        decisions.append([name, *_wrong(figures), wait, _multiple(figures.worst), _bytes(figures)])
        alone.append([name, *(_percent(figures.share(one)) for one in ("granted_only_here", "denied_only_here")),
                      *_estimate(figures)])
    sorted_set, timestamps = survey.log_bytes[load.name]
    decisions.append(["exact log", "0", "0", "", _multiple(1), f"{sorted_set:.0f} ({timestamps:.0f})"])
    head = ["N × R", "wrongly granted", "wrongly denied", "mean wait then, of W (longest)", "most in W",
            "bytes per key"]
    return "\n\n".join([f"### {load.name}: {load.about}", _table(head, "lrrrrr", decisions), _table(
        ["N × R", "alone: only it grants", "only the log grants", *ESTIMATE], "lrrrrr", alone)])


ESTIMATE = ["units granted", "mean error, of L", "of the rate"]


def _estimate(figures):
    return (_percent(figures.throughput, 1), _percent(figures.mean_difference, 2),
            _percent(figures.rate_difference, 2))


def _wrong(figures):
    return _percent(figures.share("wrongly_granted")), _percent(figures.share("wrongly_denied"))


def _bytes(figures):
    return f"{figures.mean_memory:.0f}"


def _bounds(survey):
    reached = {(limiter.subintervals, limiter.strict, one.instants): one
               for limiter, found in survey.bounds for one in found}
    rows = []
    for limiter, _ in survey.bounds:
        if limiter.strict:
            continue
        window, resolution, subintervals = limiter.window, limiter.resolution, limiter.subintervals
        spans = [(False, window - resolution + 1), (False, window - resolution // 2), (False, window), (True, window),
                 (True, window + 2)]
        found = [reached[subintervals, strict, span] for strict, span in spans]
        rows.append([_name(subintervals, False, window), *(f"{one.units} ({one.bound})" for one in found)])
    head = ["N × R", "within W − R", "within W − R/2", "within W", "STRICT, within W", "STRICT, within W + 2 ms"]
    return _table(head, "lrrrrr", rows)


def _table(head, alignment, rows):
    rule = [{"l": "---", "r": "---:"}[side] for side in alignment]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def _name(subintervals, strict, window=None):
    """How a limiter is called: by its subintervals and, if there is one window, their length."""
    length = f" × {_span(window // subintervals)}" if window else ""
    classic = " (two counters)" if subintervals == 1 and not strict else ""
    return f"{subintervals}{length}{', STRICT' if strict else ''}{classic}"


def _percent(share, digits=3):
    return f"{100 * share:.{digits}f} %" if share else "0"


def _multiple(number):
    return f"{number:.2f} · L"


def _count(number):
    """Thousands apart, with no-break spaces."""
    return f"{number:,}".replace(",", "\N{NO-BREAK SPACE}")


def _span(ms):
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size and ms % (size // 10) == 0:
            return f"{ms / size:g} {unit}"
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms} ms" if ms else "0"
