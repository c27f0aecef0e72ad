"""What Envoy's protocol is answered, over gRPC and by a real server."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from support.contents import info_of
from support.daemon import OK, OVER_LIMIT, UNITS, descriptor, request, rls_pb2_grpc
from support.waiting import eventually


def counted(server, key):
    """How many units the server holds of a key."""
    return info_of(server, key, "total")


def test_a_limit_holds(daemon):
    assert [daemon.ask("three=x").overall_code for _ in range(5)] == [OK] * 3 + [OVER_LIMIT] * 2
    assert daemon.ask("three=y").overall_code == OK


def test_a_status_tells_of_its_limit(daemon):
    reply = daemon.ask("three=x", "other=x", "half=x", "tenant=t user=root")
    three, nothing, half, unlimited = reply.statuses
    assert (three.code, three.limit_remaining) == (OK, 2)
    limit = three.current_limit
    assert (limit.requests_per_unit, UNITS[limit.unit], limit.name) == (3, "DAY", "three")
    assert 86_400 - 1 <= three.duration_until_reset.seconds <= 86_400 + 7_200
    assert (nothing.code, nothing.HasField("current_limit"), nothing.limit_remaining) == (OK, False, 0)
    assert (half.current_limit.unit, half.current_limit.requests_per_unit) == (0, 3)
    assert (unlimited.code, unlimited.HasField("current_limit"), unlimited.limit_remaining) == (OK, False, 2**32 - 1)


def test_headers_tell_of_the_tightest_limit_and_when_to_come_back(daemon):
    def headers():
        return {header.key: header.value for header in daemon.ask("three=x", "five=x", hits=3).response_headers_to_add}

    told = headers()
    assert 86_399 <= int(told.pop("RateLimit-Reset")) <= 93_600
    assert told == {"RateLimit-Limit": "3", "RateLimit-Remaining": "0"}
    assert 79_200 <= int(headers()["Retry-After"]) <= 93_600
    none = daemon.ask("none=x").response_headers_to_add
    assert "Retry-After" not in [header.key for header in none]  # never


def test_a_denied_request_uses_nothing_up(daemon, server):
    assert daemon.codes("three=x", "none=x") == ("OVER_LIMIT", "OK", "OVER_LIMIT")
    assert daemon.codes("strict=x", "local=x", "background=x", "three=x", "none=x")[0] == "OVER_LIMIT"
    assert [counted(server, key) for key in ("{d}|three=x|1d", "{d}|strict=x|1d", "{d}|background=x|1d")] == [0, 0, 0]
    # What this process keeps is given back, too.
    assert [daemon.codes("local=x")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    # One that grants in another command before.
    assert daemon.codes("three=y", hits=3)[0] == "OK"
    assert daemon.codes("strict=y", "three=y")[0] == "OVER_LIMIT"
    assert counted(server, "{d}|strict=y|1d") == 0


def test_several_limits_of_one_descriptor(daemon, server):
    assert [daemon.codes("both=x") for _ in range(3)] == [("OK", "OK")] * 2 + [("OVER_LIMIT", "OVER_LIMIT")]
    assert (counted(server, "{d}|both=x|1d"), counted(server, "{d}|both=x|10d")) == (2, 2)
    assert daemon.ask("both=x").statuses[0].current_limit.requests_per_unit == 2


def test_equal_descriptors_count_together(daemon, server):
    assert daemon.codes("three=x", "three=x") == ("OK", "OK", "OK")
    assert daemon.codes("three=x", "three=x") == ("OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT")
    assert daemon.codes("path=/api/1", "path=/api/2", "path=/api/3")[0] == "OK"
    assert counted(server, "{d}|path=/api/*|1d") == 3


def test_hits(daemon, server):
    assert daemon.codes("three=x", descriptor("five=x", hits=5), hits=2) == ("OK", "OK", "OK")
    assert (counted(server, "{d}|three=x|1d"), counted(server, "{d}|five=x|1d")) == (2, 5)
    assert daemon.codes(descriptor("three=x", hits=2))[0] == "OVER_LIMIT"
    assert daemon.codes(descriptor("three=x", hits=1))[0] == "OK"


def test_no_hits_is_a_look(daemon, server):
    assert daemon.codes(descriptor("three=x", hits=0)) == ("OK", "OK")
    assert counted(server, "{d}|three=x|1d") == 0
    daemon.ask("three=x", hits=3)
    assert daemon.codes(descriptor("three=x", hits=0)) == ("OVER_LIMIT", "OVER_LIMIT")
    # What a look denies is denied before anything is counted.
    assert daemon.codes("five=x", descriptor("three=x", hits=0)) == ("OVER_LIMIT", "OK", "OVER_LIMIT")
    assert counted(server, "{d}|five=x|1d") == 0


def test_negative_hits_are_given_back(daemon, server):
    daemon.ask("three=x", hits=3)
    back = {"entries": [{"key": "three", "value": "x"}], "hitsAddend": 2, "isNegativeHits": True}
    status, reply = daemon.json({"domain": "d", "descriptors": [back]})
    assert (status, reply["overallCode"], reply["statuses"][0]["limitRemaining"]) == (200, "OK", 2)
    assert counted(server, "{d}|three=x|1d") == 1
    assert daemon.ask(descriptor("three=x", hits=1, is_negative=True)).statuses[0].limit_remaining == 3
    assert counted(server, "{d}|three=x|1d") == 0


def test_usage_that_is_reported_counts_whatever_the_limit(daemon, server):
    assert daemon.codes(descriptor("tokens=x", hits=0))[0] == "OK"
    assert daemon.codes(descriptor("tokens=x", hits=700))[0] == "OVER_LIMIT"
    assert counted(server, "{d}|tokens=x|1d") == 700
    assert daemon.codes(descriptor("tokens=x", hits=0))[0] == "OVER_LIMIT"


def test_a_rule_in_shadow_denies_nothing(daemon, server):
    before = daemon.metrics("swlimitd_shadowed_total").get(("d", "shadow"), 0)
    assert [daemon.codes("shadow=x", "three=x") for _ in range(2)] == [("OK", "OK", "OK")] * 2
    assert daemon.metrics("swlimitd_shadowed_total")["d", "shadow"] == before + 1
    daemon.ask("three=x")
    assert daemon.codes("shadow=y", "three=x") == ("OVER_LIMIT", "OK", "OVER_LIMIT")
    assert counted(server, "{d}|shadow=y|1d") == 0


def test_quotas_deny_when_all_of_them_do(daemon, server):
    assert daemon.codes("quota=x") == ("OK", "OK")
    assert daemon.codes("quota=x") == ("OVER_LIMIT", "OVER_LIMIT")
    assert daemon.codes("quota=x", "quota=y", "five=z") == ("OK", "OVER_LIMIT", "OK", "OK")
    assert daemon.codes("quota=x", "quota=y", "five=z")[0] == "OVER_LIMIT"
    assert counted(server, "{d}|five=z|1d") == 1  # the second time it was given back


def test_a_denial_blocks(daemon, server):
    assert [daemon.codes("penalty=x")[0] for _ in range(2)] == ["OK", "OVER_LIMIT"]
    blocked = server.cli("SWLIMIT.INFO", "{d}|penalty=x|1s").split("\n")
    assert int(blocked[blocked.index("blocked") + 1]) > 0
    # Behind a decision by several limits, too.
    assert [daemon.codes("penalty=y", "five=y")[0] for _ in range(2)] == ["OK", "OVER_LIMIT"]
    assert 3_500 < daemon.ask("penalty=y").statuses[0].duration_until_reset.seconds <= 3_600


def test_leased_and_eventual_decide_near_the_request(daemon, server):
    for _ in range(40):
        assert daemon.codes("leased=x")[0] == "OK"
    # It grants a tenth for a key that it does not know yet.
    assert daemon.codes("background=x", hits=10)[0] == "OK"
    eventually(lambda: counted(server, "{d}|background=x|1d") == 10)
    eventually(lambda: daemon.codes("background=x", hits=30)[0], "OK")
    by_source = daemon.metrics("swlimitd_decisions_total")
    assert by_source["d", "leased", "granted", "lease"] > 0
    assert by_source["d", "background", "granted", "eventual"] >= 2
    eventually(lambda: counted(server, "{d}|background=x|1d") == 40)


def test_leased_units_of_a_denied_request_go_back_by_their_lease(daemon, server):
    """They may count for longer than the request has lasted: an age would name others' units."""
    def by_lease():
        daemon.ask("leased=y")
        return daemon.metrics("swlimitd_decisions_total").get(("d", "leased", "granted", "lease"), 0)

    before = by_lease()
    eventually(lambda: by_lease() > before)
    server.cli("CONFIG", "SET", "slowlog-log-slower-than", "0")
    try:
        for _ in range(50):
            # Two groups: one of them is strict.
            assert daemon.codes("leased=y", "strict=y")[0] in ("OK", "OVER_LIMIT")
        refunds = [line for line in server.cli("SLOWLOG", "GET", "128").split("\n") if line in ("AGE", "SINCE")]
        assert "SINCE" in refunds, refunds
    finally:
        server.cli("CONFIG", "SET", "slowlog-log-slower-than", "10000")


def test_a_denied_request_leaves_nothing_to_be_told(daemon, server):
    """One background limit has granted, but nobody has the answer, when the other one denies."""
    for _ in range(20):
        assert daemon.codes("background=x", "small=x", hits=5) == ("OVER_LIMIT", "OK", "OVER_LIMIT")
    assert daemon.codes("background=x") == ("OK", "OK")
    eventually(lambda: counted(server, "{d}|background=x|1d"), 1)


def test_a_limit_that_the_request_brings_along(daemon):
    brought = descriptor("three=x", limit=(1, "HOUR"))
    assert [daemon.codes(brought)[0] for _ in range(2)] == ["OK", "OVER_LIMIT"]
    assert daemon.ask(brought).statuses[0].current_limit.requests_per_unit == 1
    assert daemon.codes(descriptor("elsewhere=x", limit=(1, "HOUR")), domain="unknown")[0] == "OK"


def test_a_replaced_limit_is_left_alone(daemon, server):
    assert daemon.codes("three=x", "exempt=x", hits=9) == ("OK", "OK", "OK")
    assert counted(server, "{d}|three=x|1d") == 0


@pytest.mark.parametrize("options, unmatched", [
    ({"domain": "unknown"}, "domain"),
    ({}, "rule"),
])
def test_what_nobody_limits_is_granted_and_counted(daemon, options, unmatched):
    before = daemon.metrics("swlimitd_unmatched_total").get((unmatched,), 0)
    assert daemon.codes("nothing=x", **options) == ("OK", "OK")
    assert daemon.metrics("swlimitd_unmatched_total")[unmatched,] == before + 1


@pytest.mark.parametrize("descriptors, domain, details", [
    (["three=x"], "", "the domain is empty"),
    ([], "d", "there are no descriptors"),
    ([descriptor("three=x", limit=(1, "UNKNOWN"))], "d", "the unit of a descriptor's limit is unknown"),
    ([descriptor("three=x", hits=2**53)], "d", "a descriptor's hits_addend is above 2^53 - 1"),
])
def test_a_request_that_says_too_little(daemon, descriptors, domain, details):
    with pytest.raises(grpc.RpcError) as error:
        daemon.ask(*descriptors, domain=domain)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, details)


def test_a_key_that_is_something_else(daemon, server):
    server.cli("SET", "{d}|three=x|1d", "a string")
    with pytest.raises(grpc.RpcError) as error:
        daemon.ask("three=x")
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error.value.details().startswith("WRONGTYPE")


def test_two_daemons_grant_what_one_would(start_daemon, server):
    """However many ask at once, exactly the limit is granted."""
    text = "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 300}}]}"
    daemons = [start_daemon(text, server) for _ in range(2)]

    def granted(daemon):
        with daemon.channel() as channel:
            stub = rls_pb2_grpc.RateLimitServiceStub(channel)
            return sum(stub.ShouldRateLimit(request("k=x"), timeout=10).overall_code == OK for _ in range(60))

    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(granted, daemons * 10)) == 300


def test_values_do_not_choose_keys(daemon, server):
    daemon.ask(descriptor("three={other}|three=x|1d%"))
    assert server.cli("KEYS", "*") == "{d}|three=%7Bother%7D%7Cthree%3Dx%7C1d%25|1d"


def test_shadow_mode_as_a_whole(start_daemon, server):
    daemon = start_daemon("{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]}", server,
                          shadow_mode=True, dynamic_metadata=True)
    assert [daemon.codes("k=x") for _ in range(2)] == [("OK", "OK"), ("OK", "OVER_LIMIT")]
    assert daemon.ask("k=x").dynamic_metadata["descriptors"][0]["entries"] == ["k=x"]


def test_quota_mode_as_a_whole(start_daemon, server):
    daemon = start_daemon("""{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}},
        {key: l, quota_mode: false, rate_limit: {unit: day, requests_per_unit: 1}}]}""", server, quota_mode=True)
    brought = descriptor("m=x", limit=(2, "DAY"))
    assert daemon.codes("k=x") == ("OK", "OK")
    assert daemon.codes("k=x") == ("OVER_LIMIT", "OVER_LIMIT")
    assert daemon.codes("k=x", "l=x", brought) == ("OK", "OVER_LIMIT", "OK", "OK")
    assert daemon.codes("k=x", "l=x", brought) == ("OK", "OVER_LIMIT", "OVER_LIMIT", "OK")
    assert daemon.codes("k=x", "l=x", brought)[0] == "OVER_LIMIT"
    assert daemon.codes("k=x", "unknown=x")[0] == "OVER_LIMIT"
    assert daemon.get("/rlconfig")[1].count("quota_mode") == 2
    daemon.write_settings(quota_mode=False)
    eventually(lambda: daemon.get("/rlconfig")[1].count("quota_mode"), 0)
    assert daemon.codes("k=x", "l=y")[0] == "OVER_LIMIT"
