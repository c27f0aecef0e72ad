"""Rules whose limit rises after idleness."""

import pytest

from docs.pages import blocks, page_named
from support.contents import info_of

HOURLY = "unit: hour, requests_per_unit: 60, warm_up: 10h"


def granted(daemon, entries, hits):
    return sum(daemon.codes(entries)[0] == "OK" for _ in range(hits))


def test_the_page(start_daemon, server):
    block, = [block for block in blocks(page_named("swlimitd.md")) if "test_warm_up" in block.comment]
    # The step at which it rises is not reached, however long the test takes.
    daemon = start_daemon(block.text.replace("shop", "d").replace("10m", "10d").replace("minute", "day"), server)
    assert granted(daemon, "page=search", 303) == 300


@pytest.mark.parametrize("has_server", [True, False])
def test_a_cold_limit(start_daemon, server, has_server):
    limits = f"domain: d\ndescriptors: [{{key: k, rate_limit: {{{HOURLY}}}}}]"
    daemon = start_daemon(limits, server) if has_server else start_daemon(limits)
    assert granted(daemon, "k=a", 25) == 20
    assert granted(daemon, "k=b", 1) == 1


def test_an_instance_that_starts_late_goes_on_where_the_others_are(start_daemon, server):
    daemon = start_daemon(f"""
domain: d
descriptors:
  - key: k
    rate_limits: [{{{HOURLY}, mode: direct}}, {{unit: day, requests_per_unit: 1000}}]
""", server)
    assert granted(daemon, "k=a", 1) == 1
    # Others have used all there is when it is warm, and give some back.
    server.client().execute_command("SWLIMIT.RECORD", "{d}|k=a|1h", 60, "1h", "5m", "COST", 59)
    assert granted(daemon, "k=a", 1) == 0
    server.client().execute_command("SWLIMIT.REFUND", "{d}|k=a|1h", 3)
    assert granted(daemon, "k=a", 5) == 3


def test_beside_a_budget(start_daemon, server):
    daemon = start_daemon(f"""
domain: d
descriptors:
  - key: k
    rate_limits: [{{{HOURLY}}}, {{period: month, requests_per_unit: 1000}}]
""", server)
    assert granted(daemon, "k=a", 25) == 20
    assert info_of(server, "{d}|k=a|1h", "total") == 20


def test_what_does_not_go_together(start_daemon, server):
    daemon = start_daemon("domain: d", server)
    for written, error in ((HOURLY.replace("10h", "9h"), "warm_up must be at least ten times the window"),
                           (HOURLY + ", mode: eventual", "warm_up does not go with mode eventual"),
                           (HOURLY + ", cold: 0.5", "cold must be above 1 and at most 1000, not 0.5")):
        daemon.write_limits(f"domain: d\ndescriptors: [{{key: k, rate_limit: {{{written}}}}}]")
        status, printed = daemon.run("--check")
        assert status != 0 and error in printed, printed
