"""The page's model and limiter for pydantic-ai, beside the library's own limiter."""

import subprocess
from pathlib import Path

import pytest

from support.waiting import eventually

from .conftest import Account, environment, file_of, variables

PROGRAM = Path(__file__).with_name("with_pydantic_ai.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pydantic-ai")
    (folder / "limited.py").write_text(file_of("class LimitedModel("))
    return folder


@pytest.fixture(scope="module")
def run(folder, one_server, model):
    started = []

    def run(*cases):
        started.append(subprocess.Popen(
            [environment(), PROGRAM, model.url, f"redis://127.0.0.1:{one_server.port}", *cases],
            env=variables(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


ENDS = {"usage": (50, 50), "stream": (60, 60), "denied": (1000, 1000),
        **dict.fromkeys(["unread", "broken", "failed", "cancelled"], (100, 250))}


@pytest.fixture(scope="module")
def output(run):
    process = run(*ENDS)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("case", ENDS)
def test_settled_by_the_usage_or_left_as_estimated(output, one_server, case):
    account, (least, most) = Account(one_server, f"{{{case}}}"), ENDS[case]
    assert account.places == 0 and least <= account.used <= most and not output


def test_a_process_that_is_killed(run, one_server):
    """Its place is free after its ttl of 3 s, and what was reserved stays counted."""
    account, process = Account(one_server, "{killed}"), run("killed")
    eventually(lambda: account.places, 1, seconds=300)
    process.kill()
    assert account.places == 1
    eventually(lambda: account.places, 0)
    assert 100 <= account.used <= 250


@pytest.mark.parametrize("limiter, at_once", [("places", 3), ("own", 6)])
def test_places_of_two_processes(run, model, limiter, at_once):
    """The library's own limiter counts in each process."""
    before = sum(model.attempts.values())
    processes = [run(limiter) for _ in range(2)]
    eventually(lambda: sum(model.attempts.values()) - before >= at_once or None, seconds=300)
    for process in processes:
        assert process.poll() is None, process.stdout.read()
    assert sum(model.attempts.values()) - before == at_once or limiter == "own"
