"""Real traffic, decided by the module and by the script: the same to the digit."""

import pytest

import replay
from support.resp import Connection
from support.script import scripted, sha
from support.server import ROOT

LOGS = ROOT.parent / "shared/data"


@pytest.mark.parametrize("log", ["apache_access_10k.log.gz", "ssh_auth.log.gz"])
@pytest.mark.parametrize("limit, window, resolution, strict", [(20, "1h", "5m", []), (5, "10m", "10m", ["STRICT"]),
                                                               (30, "1d", "1m", [])])
def test_the_same_to_the_digit(server, plain, report, log, limit, window, resolution, strict):
    if not (LOGS / log).exists():
        pytest.skip(f"no {LOGS / log} here")
    requests = replay.read(str(LOGS / log), year=2015).requests
    commands = [["SWLIMIT.ALLOW", f"log:{request.key}", limit, window, resolution, "COST", request.cost,
                 "AT", request.at, *strict] for request in requests]
    with Connection(server.port) as module:
        decisions = list(module.stream(commands))
    assert list(plain.stream(scripted(words, sha()) for words in commands)) == decisions
    granted = sum(decision[0] > 0 for decision in decisions)
    assert 0 < granted < len(decisions) > 500
    report(f"{log}: {granted} of {len(decisions)} granted, the same five integers for each")
