"""Rules with a priority: one count, of which requests that can wait use up a part only."""

import json

from docs.pages import blocks, page_named
from support.contents import info_of


def test_requests_that_can_wait_leave_some(start_daemon, server):
    block, = [block for block in blocks(page_named("swlimitd.md")) if "test_priority" in block.comment]
    daemon = start_daemon(block.text.replace("domain: shop", "domain: d").replace("minute", "day"), server)
    high, low = "tenant=a urgency=high", "tenant=a urgency=low"
    assert daemon.codes(high, hits=50)[0] == "OK"
    assert daemon.codes(low, hits=31)[0] == "OVER_LIMIT"
    assert daemon.codes(low, hits=30)[0] == "OK"
    assert daemon.codes(low)[0] == "OVER_LIMIT"
    assert daemon.codes(high, hits=20)[0] == "OK"
    assert daemon.codes(high)[0] == "OVER_LIMIT"
    assert daemon.codes("tenant=b urgency=low", hits=80)[0] == "OK"
    assert info_of(server, "{d}|tenant=a|1d", "total") == 100
    entries = [{"key": "tenant", "value": "a"}, {"key": "urgency", "value": "low"}]
    status, _, text = daemon.http("/explain", {"domain": "d", "descriptors": [{"entries": entries}]},
                                  headers={"Content-Type": "application/json"})
    limit, = json.loads(text)["rules"][0]["limits"]
    assert (status, limit["key"], limit["limit"]) == (200, "{d}|tenant=a|1d", "80 per 1d, resolution 2h")


def test_no_share_is_zero(start_daemon):
    daemon = start_daemon("domain: d")
    daemon.write_limits("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, priority: 0}}]")
    status, printed = daemon.run("--check")
    assert status != 0 and "a share is above 0" in printed, printed


def test_policies_with_one_key_count_together(start_daemon, server):
    daemon = start_daemon("""
domain: d
policies:
  - {name: all, key: "page {client}", rate_limit: {unit: day, requests_per_unit: 10, priority: 1}}
  - name: reports
    match: {path: /reports/*}
    key: "page {client}"
    rate_limit: {unit: day, requests_per_unit: 10, priority: 0.5}
""", server)

    def statuses(path, count):
        headers = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Uri": path}
        return [daemon.http("/auth", headers=headers)[0] for _ in range(count)]

    # Both policies match a report, which counts once.
    assert statuses("/reports/1", 6) == [200] * 5 + [429]
    assert statuses("/", 6) == [200] * 5 + [429]
    assert info_of(server, "{d}||=page 192.0.2.1|1d", "total") == 10
