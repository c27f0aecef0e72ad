"""What scripts/measure-accuracy measures with, and the bounds that ACCURACY.md proves, searched for by brute force."""

import os
import random
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest

from accuracy import bounds, measure, report
from accuracy.__main__ import main
from accuracy.exact_log import ExactLog, decide
from accuracy.loads import START, Request, generated
from accuracy.play import Limiter, Player
from support.server import ROOT

PAGE = ROOT / "scripts/accuracy/ACCURACY.md"


@pytest.fixture
def player(server):
    with server.client() as client:
        yield Player(client)


def most_within(grants, instants):
    """The most units granted within any span of this many ms; by definition, one span after the other."""
    return max((sum(units for at, units in grants if start <= at < start + instants) for start, _ in grants), default=0)


class TestExactLog:
    def test_counts_what_its_definition_says(self):
        dice = random.Random(1)
        for _ in range(200):
            window, now, grants = dice.randint(1, 9), 0, []
            log = ExactLog(window)
            for _ in range(40):
                now += dice.choice((0, 0, 1, 1, 2, 5))
                assert log.count(now) == sum(units for at, units in grants if now - window < at <= now)
                if dice.random() < 0.6:
                    grants.append((now, dice.randint(1, 4)))
                    log.add(*grants[-1])

    def test_a_grant_counts_until_just_before_a_window_later(self):
        log = ExactLog(1000)
        assert log.add(5000, 3) == 3
        assert log.count(5999) == 3
        assert log.count(6000) == 0
        assert len(log) == 0

    def test_decides_so_that_no_span_of_a_window_sees_more_than_the_limit_and_wastes_nothing(self):
        dice = random.Random(2)
        for _ in range(50):
            requests = sorted(Request(dice.randint(0, 60), dice.randint(0, 1), dice.randint(1, 3)) for _ in range(60))
            granted = {0: [], 1: []}
            for request, decision in zip(requests, decide(requests, limit=5, window=10)):
                own = granted[request.client]
                with_it = [*own, (request.at, request.cost)]
                assert decision.granted == (most_within(with_it, 10) <= 5)
                if decision.granted:
                    granted[request.client] = with_it


class TestBounds:
    GEOMETRIES = [(1, 1, 3), (1, 2, 3), (1, 3, 3), (1, 4, 2), (1, 5, 2), (2, 1, 3), (2, 2, 2), (2, 3, 3), (3, 1, 3),
                  (3, 2, 2), (4, 2, 2)]

    @pytest.mark.parametrize("strict", (False, True), ids=("default", "strict"))
    @pytest.mark.parametrize(("subintervals", "resolution", "limit"), GEOMETRIES)
    def test_no_sequence_of_grants_passes_them_and_some_sequence_reaches_each(self, subintervals, resolution, limit,
                                                                              strict):
        limiter = Limiter(limit, subintervals * resolution, resolution, strict)
        found = most_by_search(limiter)
        assert found == {span: bounds.most(limiter, span) for span in found}

    def test_the_guarantees_of_the_specification_follow(self):
        for subintervals, resolution, limit in [*self.GEOMETRIES, (1, 60_000, 100), (12, 5000, 7), (600, 100, 1000)]:
            window = subintervals * resolution
            default, strict = (Limiter(limit, window, resolution, strict) for strict in (False, True))
            assert bounds.most(default, window - resolution + 1) == limit
            assert bounds.most(default, window) < 2 * limit
            assert bounds.most(strict, window) == limit
            if resolution > 1:
                assert bounds.most(default, window) == 2 * limit - -(-2 * limit // resolution)

    @pytest.mark.parametrize("strict", (False, True), ids=("default", "strict"))
    @pytest.mark.parametrize("subintervals", (1, 2, 6, 12, 60, 600))
    def test_an_adversary_reaches_them_on_a_server(self, player, subintervals, strict):
        limiter = Limiter(1000, 60_000, 60_000 // subintervals, strict)
        for one in bounds.attack(player, limiter, bounds.spans_to_attack(limiter)):
            assert one.units == one.bound

    @pytest.mark.parametrize("strict", (False, True), ids=("default", "strict"))
    def test_random_traffic_never_passes_them_on_a_server(self, player, strict):
        dice = random.Random(f"bounds {strict}")
        for _ in range(60):
            resolution = dice.choice((1, 2, 3, 5, 10))
            limiter = Limiter(dice.choice((1, 2, 3, 7, 20)), resolution * dice.randint(1, 5), resolution, strict)
            requests = random_requests(dice, limiter)
            partial = dice.choice(((), ("PARTIAL",)))
            answers = player.allow(limiter, requests, *partial)
            grants = [(request.at, answer.granted) for request, answer in zip(requests, answers) if answer.granted]
            for span in range(1, limiter.window + 2):
                assert most_within(grants, span) <= bounds.most(limiter, span), (limiter, span, grants)
            if not partial:
                figures = measure.compare(limiter, requests, answers, decide(requests, limiter.limit, limiter.window))
                assert not list(bounds.broken(limiter, figures))
                assert round(figures.worst * limiter.limit) == most_within(grants, limiter.window)


def most_by_search(limiter):
    """The most units that spans of 1 … W + 2 ms can see, whatever is granted when, by the rule of the specification.

    Every state that grants can lead to is visited: what was granted at each of the last ms, and where in its
    subinterval the instant is. Several grants at one instant are like one of their sum, so costs need no search.
    """
    resolution, window = limiter.resolution, limiter.window
    length = window + 2 * resolution
    most = Counter()
    nothing = (0,) * length
    seen = {(resolution - 1, nothing)}
    waiting = list(seen)
    while waiting:
        offset, grants = waiting.pop()
        offset = (offset + 1) % resolution
        before = grants[1:]
        oldest_full = length - 1 - (offset + window - resolution)
        full = sum(before[oldest_full:])
        trailing = sum(before[oldest_full - resolution:oldest_full])
        estimate = full + (trailing if limiter.strict else Fraction(trailing * (resolution - offset), resolution))
        for units in range(max(0, int(limiter.limit - estimate)) + 1):
            state = offset, (*before, units)
            if state not in seen:
                seen.add(state)
                waiting.append(state)
                within = 0
                for span in range(1, window + 3):
                    within += state[1][-span] if span <= length else 0
                    most[span] = max(most[span], within)
    return dict(most)


def random_requests(dice, limiter):
    """Requests of one client, some in bursts at both ends of subintervals."""
    requests, at = [], START
    for _ in range(80):
        step = dice.random()
        if step < 0.3:
            at += dice.randint(0, limiter.resolution)
        elif step < 0.5:
            at += limiter.window - dice.randint(0, limiter.resolution) + dice.randint(0, 2)
        elif step < 0.7:
            at += limiter.resolution - 1 - at % limiter.resolution
        requests += [Request(at, 0, dice.randint(1, limiter.limit))] * dice.randint(1, 3)
    return requests


class TestComparison:
    def test_judges_decisions_by_the_log_of_what_was_granted(self, player):
        limiter = Limiter(10, 60_000, 60_000)
        late, early = START + 59_999, START + 120_000 + 60_000
        requests = [Request(late, 0, 10), Request(late + 30_001, 0), Request(early, 1, 10), Request(early + 60_000, 1)]
        figures = measure.compare(limiter, requests, player.allow(limiter, requests), decide(requests, 10, 60_000))
        assert (figures.requests, figures.wrongly_granted, figures.wrongly_denied) == (4, 1, 1)
        assert (figures.granted_only_here, figures.denied_only_here) == (1, 1)
        assert (figures.granted_units, figures.log_units) == (21, 21)
        assert figures.worst == 1.1
        assert figures.longest_wait == 6000  # a tenth of the ten has slid out then
        assert figures.difference_units == 5 + 10  # estimates: half of ten, and all ten; the log: ten, and nothing
        assert figures.memory > 0

    def test_generated_loads_are_the_same_each_time(self):
        for one, other in zip(generated(0.02), generated(0.02), strict=True):
            assert one.make(1000) == other.make(1000)
            assert one.make(1000) == sorted(one.make(1000), key=lambda request: request.at)

    def test_a_page_keeps_what_is_not_marked(self):
        blocks = (f"<!-- accuracy:{name} -->\nold\n<!-- /accuracy:{name} -->\n" for name in ("one", "two"))
        page = "a\n" + "b\n".join(blocks)
        assert report.fill(page, {"one": "new"}) == page.replace("\nold\n", "\n\nnew\n\n", 1)


class TestCommand:
    def run(self, *words):
        return subprocess.run([sys.executable, "-m", "accuracy", *map(str, words)], capture_output=True, text=True,
                              timeout=300, env=os.environ | {"PYTHONPATH": f"{ROOT}/scripts:{ROOT}/tests"})

    @pytest.mark.long
    def test_quick(self, tmp_path):
        done = self.run("--quick", "--output", tmp_path)
        assert done.returncode == 0, done.stderr
        page = "".join((tmp_path / name).read_text() for name in ("ACCURACY.md", "LOADS.md"))
        for table in re.findall(r"^\|.*?(?=\n\n)", done.stdout, re.DOTALL | re.MULTILINE):
            assert table in page
        for picture in re.findall(r"\((\w+\.svg)\)", page):
            assert "<svg" in (tmp_path / picture).read_text()
        for subintervals in (1, 6, 12, 60, 600):
            assert re.search(rf"^\| {subintervals}, STRICT \| 0 \|", done.stdout, re.MULTILINE)

    def test_a_log_of_ones_own(self, tmp_path):
        log = tmp_path / "access.log"
        stamps = enumerate(f"01/Jan/2024:00:00:{second:02} +0000" for second in range(60))
        log.write_text("".join(f'192.0.2.{number % 2} - - [{stamp}] "GET / HTTP/1.1" 200 1\n'
                               for number, stamp in stamps))
        done = self.run("--log", log, "--limit", 5, "--window", "10s")
        assert done.returncode == 0, done.stderr
        assert "N = 600 is left out" in done.stderr
        assert "| access.log | by address | 60 | 2 | 5 per 10 s |" in done.stdout
        assert not [path for path in tmp_path.iterdir() if path != log]

    @pytest.mark.parametrize("words", (["--log", "no-such-file"], ["--log", "/dev/null"], ["--window", "soon"],
                                       ["--limit", "0"], ["--quick", "--log", "x"]))
    def test_refuses(self, words, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["measure-accuracy", *words])
        with pytest.raises(SystemExit, match="2"):
            sys.exit(main())
        assert "accuracy: " in capsys.readouterr().err

    @pytest.mark.long
    def test_repeats_itself(self, tmp_path):
        for folder in ("one", "other"):
            assert self.run("--output", tmp_path / folder).returncode == 0
        for path in (tmp_path / "one").iterdir():
            assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def test_the_page_has_every_table_and_none_is_wide():
    page = PAGE.read_text()
    assert {match[2] for match in report.MARKED.finditer(page)} == {"summary", "bounds", "inputs"}
    assert max(line.count(" |") for line in page.splitlines() if line.startswith("|")) == 6
