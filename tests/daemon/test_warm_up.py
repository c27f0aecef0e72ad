"""Rules whose limit rises after idleness."""

import pytest

from docs.pages import blocks, page_named
from support.contents import info_of

HOURLY = "unit: hour, requests_per_unit: 60, warm_up: 10h"


def granted(daemon, entries, hits):
    return sum(daemon.codes(entries)[0] == "OK" for _ in range(hits))


def test_the_page(start_daemon, server):
    block, = [block for block in blocks(page_named("swlimitd.md")) if "test_warm_up" in block.comment]
    # It does not rise by one, however long the test takes.
    daemon = start_daemon(block.text.replace("shop", "d").replace("10m", "10d").replace("minute", "day"), server)
    assert granted(daemon, "page=search", 303) == 300


@pytest.mark.parametrize("has_server", [True, False])
def test_a_cold_limit(start_daemon, server, has_server):
    limits = f"domain: d\ndescriptors: [{{key: k, rate_limit: {{{HOURLY}}}}}]"
    daemon = start_daemon(limits, server) if has_server else start_daemon(limits)
    assert granted(daemon, "k=a", 25) == 20
    assert granted(daemon, "k=b", 1) == 1


def test_beside_a_budget(start_daemon, server):
    daemon = start_daemon(f"""
domain: d
descriptors:
  - key: k
    rate_limits: [{{{HOURLY}}}, {{period: month, requests_per_unit: 1000}}]
""", server)
    assert granted(daemon, "k=a", 25) == 20
    assert info_of(server, "{d}|k=a|1h", "total") == 20


def test_what_is_refused(start_daemon, server):
    daemon = start_daemon("domain: d", server)
    for written, error in ((HOURLY.replace("10h", "9h"), "warm_up must be at least ten times the window"),
                           (HOURLY + ", cold: 2.5", "cold must be an integer between 2 and 1000")):
        daemon.write_limits(f"domain: d\ndescriptors: [{{key: k, rate_limit: {{{written}}}}}]")
        status, printed = daemon.run("--check")
        assert status != 0 and error in printed, printed
