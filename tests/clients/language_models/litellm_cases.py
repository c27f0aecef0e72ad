"""The page's callback in LiteLLM's proxy, beside the proxy's own limiter."""

import http.client
import json
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from support.http import fetch
from support.server import free_port
from support.waiting import eventually

from .conftest import Account, environment, file_of, hashed, variables

WINDOW, TTL = 10, 15
CONFIG = """
model_list:
  - model_name: small
    litellm_params: {{model: openai/small, api_base: "{url}", api_key: none, max_retries: 0}}
router_settings: {{num_retries: 2, retry_after: 0}}
general_settings: {{custom_auth: keys.who}}
"""
KEYS = """
from litellm.proxy._types import UserAPIKeyAuth


async def who(request, api_key):
    return UserAPIKeyAuth(api_key=api_key, **({"tpm_limit": 1000} if api_key.startswith("sk-own") else {}))
"""

OWN = """
ours = Limits.async_pre_call_hook


async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
    return data if user_api_key_dict.tpm_limit else await ours(self, user_api_key_dict, cache, data, call_type)

Limits.async_pre_call_hook = async_pre_call_hook
"""


class Proxy:
    def __init__(self, folder, server, model):
        shorter = {'WINDOW = 60, 1000, 3, "1m"': f'WINDOW = 60, 1000, 3, "{WINDOW}s"'}
        (folder / "limits.py").write_text(file_of("class Limits(", **shorter) + OWN)
        (folder / "keys.py").write_text(KEYS)
        (folder / "config.yaml").write_text(CONFIG.format(url=model.url) + file_of("callbacks:"))
        self.port, self.server, self.log = free_port(), server, folder / "log"
        more = {"REDIS_URL": f"redis://127.0.0.1:{server.port}", "LITELLM_MASTER_KEY": "sk-" + "5e1f" * 12,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_RATE_LIMIT_WINDOW_SIZE": str(WINDOW)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [environment().parent / "litellm", "--config", "config.yaml", "--host", "127.0.0.1",
                 "--port", str(self.port)], cwd=folder, env=variables(folder, **more), stdout=log, stderr=log)
        eventually(lambda: fetch(f"{self.url}/health/liveliness").status == 200, seconds=300, log=self.log.read_text)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def ask(self, key, text, headers=(), **more):
        return fetch(f"{self.url}/v1/chat/completions", self.body(text, **more), "POST", self.headers(key, headers))

    def stream(self, key, text):
        """A response that is not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(self.body(text, stream=True)), self.headers(key))
        return connection, connection.getresponse()

    @staticmethod
    def body(text, **more):
        return {"model": "small", "messages": [{"role": "user", "content": text}]} | more

    @staticmethod
    def headers(key, more=()):
        return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"} | dict(more)

    def account(self, key):
        return Account(self.server, f"{{{hashed(key)}:small}}", f"{WINDOW}s")

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def proxy(one_server, model, tmp_path_factory):
    proxy = Proxy(tmp_path_factory.mktemp("proxy"), one_server, model)
    yield proxy
    proxy.close()


@pytest.fixture
def key(numbers=count()):  # noqa: B008
    return f"sk-{next(numbers)}"


def settled(proxy, key):
    account = proxy.account(key)
    eventually(lambda: account.places, 0)
    return account.used


@pytest.mark.parametrize("stream", [False, True])
def test_settled_by_the_usage_after_an_attempt_that_failed(proxy, key, stream):
    assert proxy.ask(key, f"uses=50 fails=1 {key}", stream=stream).status == 200
    eventually(lambda: settled(proxy, key), 50)


def test_a_request_takes_two_commands(proxy, key):
    proxy.ask(key, f"uses=50 first {key}")  # that there is a module is known then
    eventually(lambda: settled(proxy, key), 50)
    with proxy.server.client() as client:
        client.config_resetstat()
        assert proxy.ask(key, f"uses=50 second {key}").status == 200

        def sent():
            return {name: of["calls"] for name, of in client.info("commandstats").items() if "swlimit" in name}
        eventually(sent, {"cmdstat_swlimit.admit": 1, "cmdstat_swlimit.settle": 1})


@pytest.mark.parametrize("text", ["fails=9", "uses=500 breaks=1"])
def test_an_unknown_end_leaves_the_estimate(proxy, key, text):
    text = f"{text} {key}"
    proxy.ask(key, text, stream="breaks" in text)
    assert 100 <= settled(proxy, key) <= 130


def test_a_client_that_goes_away(proxy, model, key):
    """It has read one chunk of a stream, or nothing: its place is held until then."""
    for number in (1, 2):
        connection, response = proxy.stream(key, f"uses=500 waits=1 {key}")
        if number == 1:
            response.read(10)
        assert proxy.account(key).places == 1
        connection.sock.close() if connection.sock else response.close()
        connection.close()
        response.close()
        assert number * 100 <= settled(proxy, key) <= number * 130
    model.go.set()
    model.go.clear()


def test_clients_that_repeat_their_id(proxy, key):
    """Of twenty requests with one id, about as many as the tokens suffice for: three at once are still estimated."""
    same = {"x-litellm-call-id": "same"}
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda number: proxy.ask(key, f"uses=250 {number}", same).status, range(20)))
    assert set(answers) == {200, 429} and 4 <= answers.count(200) <= 10


def test_what_clients_get(proxy, key):
    assert proxy.ask(key, "too much", max_tokens=2000).status == 400
    assert proxy.ask(key, f"uses=990 {key}").status == 200
    eventually(lambda: settled(proxy, key), 990)
    denied = proxy.ask(key, "again")
    assert denied.status == 429 and "too many tokens" in denied.body
    assert 0 < int(denied.headers["retry-after-ms"]) <= WINDOW * 1000


def served(proxy, key, times):
    return 100 * sum(proxy.ask(key, f"uses=100 {key}", max_tokens=60).status == 200 for _ in range(times))


def test_over_the_edge_of_a_window(proxy, capsys):
    """Nearly all at a window's end, and again at the next one's start: the own limiter serves both."""
    keys = ("sk-own", "sk-ours")
    first = time.monotonic()
    for key in keys:
        assert served(proxy, key, 1) == 100
    time.sleep(max(0.0, first + WINDOW - 2 - time.monotonic()))
    began = time.monotonic()
    before = {key: served(proxy, key, 9) for key in keys}
    time.sleep(max(0.0, first + WINDOW + 1.5 - time.monotonic()))
    after = {key: served(proxy, key, 10) for key in keys}
    passed = time.monotonic() - began
    with capsys.disabled():
        print(f"\nin {passed:.1f} s, of 1000 tokens in {WINDOW} s: {before} then {after}")
    assert 900 <= before["sk-ours"] + after["sk-ours"] <= 1000 or passed >= WINDOW


def test_a_proxy_that_is_killed(proxy, model, key):
    """Its places are free after their ttl, and what was reserved stays counted. The last test: it kills the proxy."""
    streams = [proxy.stream(key, f"uses=500 waits=1 {number}") for number in range(3)]
    account = proxy.account(key)
    assert account.places == 3 and proxy.ask(key, "one more").status == 429
    proxy.process.send_signal(signal.SIGKILL)
    began = time.monotonic()
    for connection, response in streams:
        response.close()
        connection.close()
    eventually(lambda: account.places, 0, seconds=TTL + 10)
    assert time.monotonic() - began < TTL + 5
