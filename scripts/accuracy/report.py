"""Figures as Markdown tables, and the pages that hold them."""

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
    rows = []
    for strict in (False, True):
        for subintervals in survey.subintervals:
            figures = survey.together(subintervals, strict)
            attack = survey.worst_attack(subintervals, strict)
            rows.append([_name(subintervals, strict), _percent(figures.share("wrongly_granted")),
                         _percent(figures.share("wrongly_denied")), _percent(figures.mean_wait, 2),
                         _percent(figures.throughput, 1), _multiple(figures.worst), _multiple(attack) if attack else "",
                         _percent(figures.mean_difference, 2), _percent(figures.rate_difference, 2),
                         f"{figures.mean_memory:.0f}"])
    rows.append(["exact log, as a sorted set", "0", "0", "", "100.0 %", _multiple(1), _multiple(1), "0", "0",
                 f"{survey.log_memory():.0f}"])
    head = ["subintervals N", "wrongly granted", "wrongly denied", "mean wait then, of W", "units granted", "most in W",
            "most in W, attacked", "mean error, of L", "of the rate", "bytes per key"]
    decisions = sum(len(survey.requests[load.name]) for load in survey.traffic)
    note = (f"{_count(decisions)} decisions a line, on traffic of which the exact log denies "
            f"{_percent(survey.denied(), 0)}.")
    return _table(head, "l" + "r" * 9, rows) + "\n\n" + note


def _loads(survey):
    return "\n\n".join(_load(survey, load) for load in survey.loads)


def _load(survey, load):
    rows = []
    for subintervals, strict in survey.ways(load):
        figures = survey.figures[load.name, subintervals, strict]
        rows.append([
            _name(subintervals, strict), _span(load.window // subintervals),
            _percent(figures.share("wrongly_granted")), _percent(figures.share("wrongly_denied")),
            _percent(figures.mean_wait, 2), _span(figures.longest_wait),
            _percent(figures.share("granted_only_here")), _percent(figures.share("denied_only_here")),
            _percent(figures.throughput, 1), _multiple(figures.worst), _percent(figures.mean_difference, 2),
            _percent(figures.rate_difference, 2), f"{figures.mean_memory:.0f}"])
    sorted_set, timestamps = survey.log_bytes[load.name]
    rows.append(["exact log", "", "0", "0", "", "", "0", "0", "100.0 %", _multiple(1), "0", "0",
                 f"{sorted_set:.0f} ({timestamps:.0f})"])
    head = ["N", "R", "wrongly granted", "wrongly denied", "mean wait then, of W", "longest wait",
            "alone: only it grants", "only the log grants", "units granted", "most in W", "mean error, of L",
            "of the rate", "bytes per key"]
    return f"### {load.name}: {load.about}\n\n" + _table(head, "lr" + "r" * 11, rows)


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
        rows.append([str(subintervals), _span(resolution), *(f"{one.units} ({one.bound})" for one in found)])
    head = ["N", "R", "within W − R", "within W − R/2", "within W", "STRICT, within W", "STRICT, within W + 2 ms"]
    return _table(head, "rrrrrrr", rows)


def _table(head, alignment, rows):
    rule = [{"l": "---", "r": "---:"}[side] for side in alignment]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def _name(subintervals, strict):
    classic = " (two counters)" if subintervals == 1 and not strict else ""
    return f"{subintervals}{', STRICT' if strict else ''}{classic}"


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
