"""What reads bytes that are not trusted, fuzzed by coverage: seconds each here, `make fuzz` for longer."""

import shutil

import pytest

import fuzzing

pytestmark = pytest.mark.long
SECONDS = 10  # CI has little time
# The edges that the corpus reaches, about: fewer of them, and it or the counting is broken.
REACHED = {"arguments": 600, "effects": 780, "payloads": 1400}


@pytest.fixture(scope="module")
def programs():
    if not shutil.which("c++"):
        pytest.skip("NO C++ COMPILER, which libFuzzer needs")
    return fuzzing.built()


def test_all_are_known():
    assert sorted(REACHED) == fuzzing.TARGETS


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_it_finds_nothing(target, programs, tmp_path, monkeypatch, report):
    monkeypatch.setattr(fuzzing, "KEPT", tmp_path)
    outcome = fuzzing.fuzz(programs / target, SECONDS)
    assert outcome.failure is None, outcome.failure
    assert outcome.edges >= REACHED[target]
    report(f"{outcome.runs} runs, {outcome.edges} edges reached by {outcome.inputs} inputs")


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_the_corpus_is_small_and_has_nothing_twice(target):
    inputs = fuzzing.corpus(target)
    assert len(inputs) == len(set(inputs)) > 20
    assert sum(map(len, inputs)) < 100_000
