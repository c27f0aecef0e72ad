"""Rates as text: limiters from a URL, and several rates that decide together."""

import inspect
import json

import pytest

import swlimit
from support.cluster import Cluster
from support.server import ROOT
from support.tls import encrypted
from support.waiting import eventually
from swlimit._core.decision import policy_names
from swlimit._core.rates import key_of_window, parse_rate, parse_rates
from swlimit._rate_base import Options

VECTORS = json.loads((ROOT / "tests/conformance/vectors/rates.json").read_text())
TWO = "5/hour; 3/minute"


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("part, parse", [("texts", parse_rates), ("single", parse_rate)])
def test_texts(part, parse):
    for case in VECTORS[part]:
        expected = case.get("error") or case.get("rate") or case["rates"]
        found = outcome(parse, case["text"])
        assert (found if isinstance(found, str) else json.loads(json.dumps(found))) == expected, case


def test_names_of_policies(kind):
    for case in VECTORS["policies"]:
        assert policy_names(case["policies"]) == case["shown"]
    limits = kind.limits(None, "10/hour; 2/10s")
    assert limits.allow("k").headers()["RateLimit"].startswith('"default-1h";r=9;t=')
    assert limits.allow("k").headers("a", "a")["RateLimit-Policy"] == '"a-1h";q=10;w=3600, "a-10s";q=2;w=10'


def test_names_of_keys():
    for case in VECTORS["names"]:
        found = outcome(key_of_window, case["prefix"].encode(), case["key"].encode(), case["window_ms"])
        assert found == (case.get("error") or case["name"].encode()), case


def test_what_is_no_text():
    for wrong in (100, b"100/minute", None):
        with pytest.raises(TypeError, match="a rate must be a text such as 100/minute, not"):
            swlimit.Limits(None, wrong)


def test_all_options_are_typed():
    parameters = inspect.signature(swlimit.Limiter).parameters.values()
    assert {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} == set(Options.__annotations__)


def from_url(kind, which, url, rates, **options):
    return kind.opened(getattr(swlimit, kind.prefix + which).from_url, url, rates, **{"timeout": 5.0} | options)


def test_a_limiter_from_a_url(kind, server, monkeypatch):
    closed = []
    monkeypatch.setattr(kind.redis, kind.closing, ending(kind, closed))
    limits = from_url(kind, "Limits", f"redis://127.0.0.1:{server.port}", TWO)
    client = id(limits.limiters[-1]._opened)
    assert client not in closed
    limits.close()
    assert client in closed
    limiter = from_url(kind, "Limiter", f"redis://127.0.0.1:{server.port}/0", "2/10 min", resolution="1m",
                       prefix="p:", max_untracked_age=5)
    assert limiter.quota.words == (2, "600000ms", "60000ms")
    assert [limiter.allow("k").granted for _ in range(3)] == [1, 1, 0]
    assert server.cli("KEYS", "*") == "p:k"
    client = id(limiter._opened)
    assert client not in closed
    limiter.close()
    limiter.close()
    assert client in closed


def ending(kind, closed):
    """The client's method that closes it, which tells."""
    close = getattr(kind.redis, kind.closing)

    def telling(self, *arguments):
        closed.append(id(self))
        return close(self, *arguments)
    return telling


def test_what_else_a_url_may_name(kind, start, tmp_path):
    start(options={"unixsocket": tmp_path / "socket"})
    _, port, authority, *_ = encrypted(start, tmp_path)
    for url in (f"unix://{tmp_path}/socket", f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority}"):
        limits = from_url(kind, "Limits", url, TWO)
        assert [member.source for member in limits.allow("k").members] == ["server"] * 2
        limits.close()


@pytest.mark.parametrize("url, rate, sentence", [
    ("redis://localhost", "5/second; 100/hour", "has 2 rates, and a limiter takes one: use Limits"),
    ("redis://localhost", "5/month", "has no fixed length: write days"),
    ("localhost:6379", "5/second", "Redis URL must specify one of the following schemes"),
])
def test_what_is_refused(kind, url, rate, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_url(kind, "Limiter", url, rate)


@pytest.fixture
def limits(kind, server):
    """Make limits of five an hour and three a minute."""
    made = []

    def limits(client="server", **options):
        client = kind.client(kind.redis, port=server.port) if client == "server" else client
        made.append(kind.limits(client, TWO, **{"timeout": 5.0} | options))
        return made[-1]
    yield limits
    for one in made:
        one.close()


@pytest.mark.parametrize("options", [{}, {"module": "never"}, {"client": None}], ids=["module", "script", "local"])
def test_several_rates(limits, options):
    limits = limits(**options)
    assert [member.limit for member in limits.allow("k", 2).members] == [5, 3]
    assert [member.remaining for member in limits.peek("k").members] == [3, 1]
    denied = limits.allow("k", 2)
    assert not denied and denied.tightest.limit == 3 and 0 < denied.retry_after <= 65
    assert [member.remaining for member in limits.peek("k").members] == [3, 1]
    recorded = limits.record("k", 4, age="1s")
    assert [member.remaining for member in recorded.members] == [0, 0]
    assert limits.refund("k", 9) == [6, 6]
    assert limits.peek("k", 3).granted and not limits.peek("k", 4)
    assert limits.reset("other") is False
    assert limits.allow("k") and limits.reset("k") is True


def test_one_decision_is_one_command(limits, server):
    limits = limits(prefix="p:")
    with server.client() as client:
        client.config_resetstat()
        assert limits.allow("k")
        assert [client.info("commandstats")[f"cmdstat_swlimit.{name}"]["calls"] for name in ("mallow",)] == [1]
        assert "cmdstat_swlimit.allow" not in client.info("commandstats")
    assert sorted(server.cli("KEYS", "*").split()) == ["p:{k}:3600000", "p:{k}:60000"]
    assert [one.statistics.server for one in limits.limiters] == [1, 1]


def test_a_known_denial(limits):
    limits = limits(max_untracked_age=5)
    assert limits.allow("k", 3) and not limits.allow("k")
    eventually(lambda: limits.allow("k").members[1].source == "cache")
    assert limits.refund("k", 1) == [1, 1]
    eventually(lambda: limits.allow("k").granted)


@pytest.mark.parametrize("policy, granted", [("allow", [1, 1, 1]), ("deny", [0, 0, 0]), ("local", [1, 0, 0])])
def test_while_the_server_is_away(kind, limits, start, policy, granted):
    server = start()
    limits = limits(kind.client(kind.redis, port=server.port), on_failure=policy, timeout=0.5)
    server.close()
    decisions = [limits.allow("k") for _ in range(3)]
    assert [int(one.granted) for one in decisions] == granted
    assert {member.source for one in decisions for member in one.members} == {"failure"}
    if policy == "local":
        assert not limits.peek("k")
    with pytest.raises(swlimit.UnavailableError):
        limits.record("k")


def test_the_server_is_away_and_that_is_an_error(kind, limits, start):
    server = start()
    limits = limits(kind.client(kind.redis, port=server.port), on_failure="error", timeout=0.5)
    server.close()
    with pytest.raises(swlimit.UnavailableError):
        limits.allow("k")


def test_a_cluster(kind, limits, start):
    cluster = Cluster(start)
    client = kind.client(kind.cluster, host="127.0.0.1", port=cluster.masters()[0].port)
    limits = limits(client, timeout=10.0)
    for key in ("a", "b", "c", "x{tag}y", "{}"):
        assert [bool(limits.allow(key)) for _ in range(4)] == [True, True, True, False]
    kind.call(getattr(client, "aclose", client.close))


def test_wrong_keys(limits):
    limits = limits()
    for ask in (limits.allow, limits.peek, limits.record, limits.refund, limits.reset):
        with pytest.raises(ValueError, match="^key must not be empty$"):
            ask("")
        with pytest.raises(TypeError, match="key must be str or bytes"):
            ask(7)


def test_each_limiter_counts_its_own_keys_without_a_server(kind):
    """What several limiters have granted together, each of them knows by itself."""
    first, second = kind.limiter(None, 5, "1h"), kind.limiter(None, 3, "1m")
    assert kind.allow_all(first.request("a", 2), second.request("b", 3))
    assert (first.peek("a").remaining, second.peek("b").remaining) == (3, 0)
    assert not kind.allow_all(first.request("a"), second.request("b"))
    assert first.peek("a").remaining == 3
