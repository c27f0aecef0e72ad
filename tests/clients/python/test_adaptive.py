"""Limits of how many at once that follow response times."""

import asyncio
import dataclasses
import http.server
import json
import os
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import patch

import aiohttp
import fastapi
import grpc
import pytest

import swlimit
from support.server import ROOT
from swlimit import DeniedError
from swlimit._core.adaptive import Sample, Settings, State, step
from swlimit.adaptive import is_drop

VECTORS = json.loads((ROOT / "tests/conformance/vectors/adaptive.json").read_text())


def beginning(options):
    return Settings(**{name.removesuffix("_us"): value for name, value in options.items()}), State(options["min"])


@pytest.mark.parametrize("case", VECTORS["samples"], ids=lambda case: case["name"])
def test_samples(case):
    settings, state = beginning(case["options"])
    for one in case["steps"]:
        step(settings, state, Sample(*one["sample"]))
        assert of_state(state) == one["state"], one


@pytest.mark.parametrize("case", VECTORS["phases"], ids=lambda case: case["name"])
def test_phases(case):
    """Many windows, whose samples are made as the vectors' page says."""
    settings, state = beginning(case["options"])
    expected = {one["windows"]: one["state"] for one in case["states"]}
    windows = now = 0
    for phase in case["phases"]:
        for number in range(phase["windows"]):
            for sample in window_of(phase, number, now, state.limit, settings.window):
                step(settings, state, sample)
            now += settings.window + 1
            windows += 1
            if windows in expected:
                assert of_state(state) == expected.pop(windows), windows
    assert not expected


def window_of(phase, number, now, limit, window):
    numerator, denominator, plus = phase["share"]
    inflight = limit * numerator // denominator + plus
    rtt, capacity = phase["rtt_us"] + number * phase["ramp_us"], phase["capacity"]
    if capacity:
        rtt = rtt * max(inflight, capacity) // capacity
    samples = phase["samples"]
    for i in range(samples):
        yield Sample(now + (window + 1) * (i + 1) // samples, rtt + i, inflight, i < phase["drops"])


def of_state(state):
    """As the vectors name it."""
    names = {"ends": "ends_us", "sum": "sum_us", "windows_sum": "windows_us", "long": "long_us"}
    return {names.get(name, name): value for name, value in dataclasses.asdict(state).items()}


class Clock:
    """The clock of permits, in µs."""

    now = 0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("swlimit.adaptive._now", clock)
    return clock


class Overloaded:
    """An HTTP server that answers once the test says so, with the status that it says."""

    def __init__(self):
        self.arrived, self.may_answer, self.status = threading.Semaphore(0), threading.Semaphore(0), 200
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                test.arrived.release()
                test.may_answer.acquire()
                self.send_response(test.status)
                self.end_headers()

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 100

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def get(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.server_port}/") as response:
            return response.status

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def overloaded():
    server = Overloaded()
    yield server
    server.close()


class TestWithServer:
    def windows(self, adaptive, clock, server, number, latency, status=200):
        """So many windows in each of which the server is as busy as the limit allows, and takes so many µs."""
        server.status = status

        def request():
            with suppress(urllib.error.HTTPError), adaptive.permit():
                server.get()

        with ThreadPoolExecutor(adaptive.limit + number) as pool:
            for _ in range(number):
                wanted = adaptive.limit
                requests = [pool.submit(request) for _ in range(wanted)]
                for _ in range(wanted):
                    assert server.arrived.acquire(timeout=60)
                assert not adaptive.permit()
                clock.now += max(latency, 1_000_001)
                server.may_answer.release(wanted)
                for one in requests:
                    one.result(60)
                assert adaptive.inflight == 0

    def test_drops_lower_it(self, clock, overloaded):
        adaptive = swlimit.Adaptive(10, 40, "aimd")
        self.windows(adaptive, clock, overloaded, 10, 1_000_001)
        assert adaptive.limit == 19
        self.windows(adaptive, clock, overloaded, 1, 1_000_001, status=503)
        assert adaptive.limit == 17
        self.windows(adaptive, clock, overloaded, 8, 1_000_001, status=429)
        assert adaptive.limit == 10

    def test_slowness_lowers_it(self, clock, overloaded):
        adaptive = swlimit.Adaptive(10, 40)
        self.windows(adaptive, clock, overloaded, 12, 1_000_001)
        raised = adaptive.limit
        assert raised > 15
        self.windows(adaptive, clock, overloaded, 6, 20_000_000)
        assert adaptive.limit < raised
        self.windows(adaptive, clock, overloaded, 2, 1_000_001, status=500)  # neither good nor bad
        lowered = adaptive.limit
        self.windows(adaptive, clock, overloaded, 6, 1_000_001)
        assert adaptive.limit > lowered


class TestPermits:
    def sampled(self, adaptive):
        return adaptive._state.samples, adaptive._state.drops > 0

    def test_at_most_so_many(self):
        adaptive = swlimit.Adaptive(2, 2)
        with adaptive.permit() as first, adaptive.permit():
            assert first and first.decision.remaining == 1
            assert repr(adaptive) == "<Adaptive 2 of 2>"
            with pytest.raises(DeniedError, match="limited") as denied, adaptive.permit():
                raise AssertionError
            assert (denied.value.decision.limit, denied.value.decision.retry_after) == (2, None)
        assert adaptive.inflight == 0
        adaptive.permit().done()

    def test_of_asyncio(self, clock):
        adaptive = swlimit.Adaptive(1, 1)

        async def main():
            async with adaptive.permit():
                with pytest.raises(DeniedError):
                    async with adaptive.permit():
                        raise AssertionError
                clock.now += 1000
            with suppress(asyncio.TimeoutError):  # noqa: UP041  (another one in Python 3.10)
                async with adaptive.permit():
                    clock.now += 1000
                    await asyncio.wait_for(asyncio.Event().wait(), 0.001)
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async def work():
            async with adaptive.permit():
                await asyncio.Event().wait()

        asyncio.run(main())
        assert (adaptive.inflight, *self.sampled(adaptive)) == (0, 2, True)

    def test_once(self, clock):
        adaptive = swlimit.Adaptive()
        with adaptive.permit() as permit:
            clock.now += 1000
            permit.done()
            permit.done()
        assert (adaptive.inflight, *self.sampled(adaptive)) == (0, 1, False)

    def test_drop(self, clock):
        adaptive = swlimit.Adaptive()
        with adaptive.permit() as permit:
            clock.now += 1000
            permit.drop()
            assert adaptive.inflight == 1
        assert self.sampled(adaptive) == (1, True)

    def test_ignored(self, clock):
        adaptive = swlimit.Adaptive()
        with adaptive.permit() as permit:
            clock.now += 1000
            permit.ignore()
        assert (adaptive.inflight, *self.sampled(adaptive)) == (0, 0, False)

    def test_beside_a_limiter(self, clock):
        """The permit first: without one, the limiter counts nothing; a denial of the limiter is no sample."""
        adaptive, limiter = swlimit.Adaptive(1, 1), swlimit.Limiter(None, 1, "1m")
        with adaptive.permit(), limiter.limit("k"):
            clock.now += 1000
            with pytest.raises(DeniedError), adaptive.permit(), limiter.limit("other"):
                raise AssertionError
        assert limiter.peek("other").remaining == 1
        with pytest.raises(DeniedError), adaptive.permit(), limiter.limit("k"):
            raise AssertionError
        assert (adaptive.inflight, *self.sampled(adaptive)) == (0, 1, False)

    def test_threads(self):
        adaptive = swlimit.Adaptive(4, 4, window="10ms")
        most = []

        def work(_):
            for _ in range(500):
                if permit := adaptive.permit():
                    most.append(adaptive.inflight)
                    permit.done()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert adaptive.inflight == 0 and max(most) <= 4

    def test_a_forked_child_has_none_of_its_parent_s(self):
        adaptive = swlimit.Adaptive(1, 1)
        permit = adaptive.permit()
        child = os.fork()
        if not child:
            permit.done()
            os._exit(0 if adaptive.inflight == 0 and adaptive.permit() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert adaptive.inflight == 1

    @pytest.mark.parametrize("options", [
        {"min": 0}, {"min": 10, "max": 9}, {"max": 2.5}, {"algorithm": "vegas"}, {"window": 0}, {"timeout": "long"}])
    def test_wrong_options(self, options):
        with pytest.raises(ValueError, match=next(reversed(options))):
            swlimit.Adaptive(**options)


class HTTPError(Exception):
    """Of httpx and requests."""

    def __init__(self, status):
        self.response = SimpleNamespace(status_code=status)


class ReadTimeout(Exception):
    """Of httpx and requests."""


class RpcError(Exception):
    """Of grpcio."""

    def __init__(self, name):
        super().__init__(name)

    def code(self):
        return grpc.StatusCode[self.args[0]]


class Odd(Exception):
    """Nothing is known of what it says."""

    def __init__(self):
        self.status = []

    def code(self, needed):
        raise AssertionError


class OddStatus(Exception):
    status = {}


def caused_by(cause):
    error = ValueError()
    error.__cause__ = error if cause is None else cause
    return error


def client_response_error(status):
    return aiohttp.ClientResponseError(None, (), status=status)


@pytest.mark.parametrize("error, expected", [
    (TimeoutError(), True), (ReadTimeout(), True), (aiohttp.ServerTimeoutError(), True),
    *[(make(status), expected) for status, expected in [(429, True), (503, True), (504, True), (500, False)]
      for make in (HTTPError, client_response_error, fastapi.HTTPException,
                   lambda status: urllib.error.HTTPError("", status, "", {}, None))],
    *[(RpcError(name), True) for name in ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")],
    (caused_by(TimeoutError()), True), (caused_by(caused_by(HTTPError(503))), True), (caused_by(None), False),
    (caused_by(HTTPError(500)), False), (Odd(), False), (OddStatus(), False),
    (RpcError("NOT_FOUND"), False), (ValueError(503), False), (ConnectionResetError(), False),
    (asyncio.CancelledError(), False), (DeniedError("k", swlimit.Limiter(None, 0, "1m").allow("k")), False),
], ids=repr)
def test_which_errors_are_drops(error, expected):
    assert is_drop(error) is expected
    adaptive = swlimit.Adaptive()
    with patch("swlimit.adaptive._now", iter(range(0, 10_000, 1000)).__next__), \
            pytest.raises(type(error)), adaptive.permit():
        raise error
    assert (adaptive.inflight, adaptive._state.samples, adaptive._state.drops) == (0, int(expected), int(expected))
