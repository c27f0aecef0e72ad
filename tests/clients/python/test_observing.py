"""Exporters: what they show of limiters and servers, and the spans of decisions."""

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest
import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

import swlimit
from support.server import ROOT
from support.waiting import eventually
from swlimit._transport.server_health import ServerState
from swlimit.opentelemetry import observe, trace
from swlimit.prometheus import LimiterCollector


def scraped(limits):
    """The samples that Prometheus gets: values by name and labels."""
    registry = CollectorRegistry()
    LimiterCollector(limits, registry)
    return lambda name, **labels: registry.get_sample_value(f"swlimit_client_{name}", labels)


def read(limits):
    """The same of OpenTelemetry's instruments."""
    reader = InMemoryMetricReader()
    observe(limits, MeterProvider([reader]))

    def value(name, **labels):
        name = f"swlimit_client_{name.removesuffix('_total')}"
        metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        points = [point for metric in metrics if metric.name == name for point in metric.data.data_points]
        return next((point.value for point in points if dict(point.attributes) == labels), None)
    return value


@pytest.fixture(params=[scraped, read], ids=["prometheus", "opentelemetry"])
def export(request):
    return request.param


def plain(limiter):
    return getattr(limiter, "limiter", limiter)


def test_decisions(kind, server, export):
    client = kind.client(kind.redis, port=server.port)
    limits = {"rate": kind.limiter(client, 2, "1m", timeout=5.0, mode="direct"),
              "both": kind.limits(client, "5/hour; 1/minute", timeout=5.0, mode="direct"),
              "hold": kind.hold_limiter(client, 1, timeout=5.0),
              "budget": kind.budget_limiter(client, 1, "month", timeout=5.0)}
    value = export({name: plain(limiter) for name, limiter in limits.items()})

    def counts(name):
        return [value("decisions_total", limit=name, source="server", granted=granted) for granted in ("yes", "no")]

    assert [counts(name) for name in ("rate", "both:3600000", "hold", "budget")] == [[0, 0]] * 4
    for _ in range(3):
        limits["rate"].allow("r")
    for _ in range(2):
        limits["both"].allow("b")
        limits["budget"].allow("m")
    guard, denied = limits["hold"].hold("h"), limits["hold"].hold("h")
    assert guard and not denied
    assert counts("rate") == [2, 1]
    assert (counts("both:3600000"), counts("both:60000")) == ([2, 0], [1, 1])
    assert (counts("hold"), counts("budget")) == ([1, 1], [1, 1])
    assert value("decisions_total", limit="rate", source="cache", granted="no") == 0
    admission = kind.admit([limits["rate"].request("new"), limits["hold"].request("place")])
    assert admission.granted and (counts("rate"), counts("hold")) == ([3, 1], [2, 1])
    for limiter in limits.values():
        limiter.close()


def test_a_denial_while_decisions_are_read(export):
    """A counter never goes back."""
    limiter = swlimit.Limiter(None, 0, "1m")
    denying = []

    class Denied(dict):
        def __getitem__(self, source):
            found = super().__getitem__(source)
            if source == "local" and not denying:
                denying.append(threading.Thread(target=limiter.allow, args=("k",)))
                denying[0].start()
                denying[0].join(0.2)
            return found

    limiter.statistics.denied = Denied(limiter.statistics.denied)
    value = export({"rate": limiter})
    assert value("decisions_total", limit="rate", source="local", granted="yes") == 0
    denying[0].join()


def test_servers(kind, start, export):
    server = start()
    limiter = kind.limiter(kind.client(kind.redis, port=server.port), 2, "1m", timeout=2.0)
    local = kind.limiter(None, 2, "1m")
    limits = {"local": plain(local)}
    value = export(limits)
    limits["rate"] = plain(limiter)
    address = f"localhost:{server.port}"
    limiter.allow("k")
    assert value("server_unavailable", server=address) == value("server_slow", server=address) == 0
    assert value("server_script", server=address) == 0
    assert 0 < value("server_round_trip_seconds", server=address) < 10
    assert value("failovers_total", server=address) == value("taken_over_total") == 0
    server.close()
    eventually(lambda: [limiter.allow("k"), value("server_unavailable", server=address)][1] == 1)
    assert value("decisions_total", limit="rate", source="failure", granted="yes") >= 1
    limiter.close()


def test_the_script_and_rights(server, start, export):
    other = start(module=None)
    other.cli("ACL", "SETUSER", "poor", "on", ">secret", "~*", "&*", "+@all", "-client|tracking")
    limiter = swlimit.Limiter(redis.Redis(port=other.port, username="poor", password="secret"), 1, "1h", timeout=5.0)
    value = export({"rate": limiter})
    address = f"localhost:{other.port}"
    for _ in range(5):  # a few denials would need no tracking
        limiter.allow("k")
    eventually(lambda: value("lacks", server=address, right="client|tracking") == 1)
    assert value("server_script", server=address) == 1
    limiter.close()


def test_failovers_of_a_server_that_two_clients_see(export):
    """The one that has more trouble with it may have seen fewer: a counter never goes back."""
    def seeing(state, failovers):
        limiter, since = swlimit.Limiter(None, 1, "1m"), datetime.now(UTC)
        limiter.servers = lambda: (ServerState("db", state, None, "", since, (), None, None, failovers),)
        return limiter

    for order in (1, -1):
        value = export(dict([("old", seeing("up", 3)), ("new", seeing("unavailable", 1))][::order]))
        assert value("failovers_total", server="db") == 3
        assert value("server_unavailable", server="db") == 1


def test_a_limiter_that_is_added_while_others_are_read(export):
    """By another thread."""
    class Name(str):
        def __format__(self, spec):
            limits.setdefault("other", swlimit.Limiter(None, 1, "1m"))
            return str(self)

    limits = {}
    value = export(limits)
    limits[Name("both")] = swlimit.Limits(None, "5/hour; 1/minute")
    assert value("decisions_total", limit="both:60000", source="local", granted="no") == 0


def test_what_is_no_limiter(export):
    with pytest.raises(TypeError, match="search must be a limiter, not a redis.client.Redis"):
        export({"search": redis.Redis()})


@pytest.fixture
def traced():
    """Trace limiters; returns what shows the spans since."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def traced(**limits):
        trace({name: plain(limiter) for name, limiter in limits.items()}, provider)

        def spans():
            found = [(span.name, dict(span.attributes)) for span in exporter.get_finished_spans()]
            exporter.clear()
            return found
        return spans
    traced.exporter = exporter
    return traced


def test_spans(kind, traced):
    search, other = kind.limiter(None, 2, "1m"), kind.limiter(None, 1, "1m")
    holds = kind.hold_limiter(None, 1)
    spans = traced(search=search, other=other, holds=holds)
    search.peek("k"), search.allow("k"), search.record("k", 2), search.acquire("k", timeout=0)
    ok, over = ({"rules": "search", "result": result, "source": "local"} for result in ("ok", "over_limit"))
    over["denied_by"] = "search"
    assert spans() == [("swlimit peek", ok), ("swlimit allow", ok), ("swlimit record", over), ("swlimit acquire", over)]
    guard, denied = holds.hold("h"), holds.hold("h")
    assert guard and not denied
    assert [(name, of["result"]) for name, of in spans()] == [("swlimit hold", "ok"), ("swlimit hold", "over_limit")]
    assert kind.allow_all(search.request("a"), other.request("b"))
    assert not kind.allow_all(search.request("a"), other.request("b"))
    assert spans() == [
        ("swlimit allow_all", {"rules": "search other", "result": "ok", "source": "local"}),
        ("swlimit allow_all", {"rules": "search other", "result": "over_limit", "source": "local",
                               "denied_by": "other"})]
    admission = kind.admit([search.request("c"), holds.request("place")])
    assert admission.granted and not kind.admit([search.request("d"), holds.request("place")]).granted
    assert spans() == [
        ("swlimit admit", {"rules": "search holds", "result": "ok", "source": "local"}),
        ("swlimit admit", {"rules": "search holds", "result": "over_limit", "source": "local", "denied_by": "holds"})]
    traced(search=search)
    search.allow("new")
    assert len(spans()) == 1
    other.refund("b")
    assert spans() == []


def test_spans_of_decorators_and_limits(traced):
    limiter, limits = swlimit.Limiter(None, 1, "1m"), swlimit.Limits(None, "5/hour; 1/minute")
    spans = traced(search=limiter, both=limits)

    @limiter.limit("k")
    def work():
        assert limits.allow("k")

    work()
    assert spans() == [("swlimit allow", {"rules": "search", "result": "ok", "source": "local"}),
                       ("swlimit allow_all", {"rules": "both:3600000 both:60000", "result": "ok", "source": "local"})]


def test_spans_of_errors(kind, start, traced):
    server = start()
    limiter = kind.limiter(kind.client(kind.redis, port=server.port), 2, "1m", timeout=0.5, on_failure="error")
    spans = traced(search=limiter)
    server.close()
    with pytest.raises(swlimit.UnavailableError):
        limiter.allow("k")
    span, = traced.exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert spans() == [("swlimit allow", {"rules": "search", "result": "error"})]
    limiter.close()


def test_a_span_of_what_is_cancelled(traced):
    async def main():
        limiter = swlimit.AsyncLimiter(None, 1, "1m")
        spans = traced(search=limiter)
        await limiter.allow("k")
        waiting = asyncio.create_task(limiter.acquire("k"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return spans()
    assert [of["result"] for _, of in asyncio.run(main())] == ["ok", "cancelled"]


def test_nothing_is_imported_unasked():
    """Neither library, nor the tests' helpers."""
    program = ("import sys, swlimit; found = {name.partition('.')[0] for name in sys.modules}; "
               "print(found & {'prometheus_client', 'opentelemetry', 'pytest'}, 'swlimit.testing' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "src/clients/python", capture_output=True,
                          text=True)
    assert done.stdout == "set() False\n", done.stderr
