"""The adapters in the frameworks, over HTTP."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis
import redis.asyncio

import swlimit
import swlimit.asgi
import swlimit.wsgi
from clients.python.serving import serve_asgi, serve_wsgi
from support.contents import info
from support.http import fetch
from support.server import ROOT
from support.waiting import eventually


def user(header):
    return f"user:{header}" if header else None


def behaves(url, server):
    """A limit of 3 in 2 seconds for each user, 2 units for /twice; nobody's requests are not limited."""
    ann, bob = {"user": "ann"}, {"user": "bob"}
    granted = [fetch(url, headers=ann) for _ in range(3)]
    assert [(one.status, one.headers["RateLimit"].split(";")[1]) for one in granted] == [
        (200, "r=2"), (200, "r=1"), (200, "r=0")]
    assert granted[0].headers["RateLimit-Policy"] == '"default";q=3;w=2'
    denied = fetch(url, headers=ann)
    assert (denied.status, denied.body) == (429, "Too Many Requests\n")
    assert denied.headers["X-RateLimit-Remaining"] == "0"
    assert fetch(url, headers=bob).status == 200
    assert fetch(f"{url}twice", headers=bob).status == 200
    assert fetch(f"{url}twice", headers=bob).status == 429
    assert "RateLimit" not in fetch(url).headers
    time.sleep(int(denied.headers["Retry-After"]))
    assert fetch(url, headers=ann).status == 200
    assert server.cli("EXISTS", "user:ann") == "1"


def asgi_user(scope):
    return user(dict(scope["headers"]).get(b"user", b"").decode())


def asgi_cost(scope):
    return 2 if scope["path"] == "/twice" else 1


def rule(server):
    limiter = swlimit.AsyncLimiter(redis.asyncio.Redis(port=server.port), 3, "2s", "20ms", timeout=5.0)
    return swlimit.Rule(limiter, asgi_user, asgi_cost)


def test_plain_asgi(server):
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"1")]})
        await send({"type": "http.response.body", "body": b"hello"})

    with serve_asgi(swlimit.asgi.RateLimit(app, rule(server))) as url:
        behaves(url, server)


def test_starlette(server):
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    app = Starlette(routes=[Route("/{path:path}", lambda request: PlainTextResponse("hello"))])
    app.add_middleware(swlimit.asgi.RateLimit, rule(server))
    with serve_asgi(app) as url:
        behaves(url, server)


def test_fastapi(server):
    from fastapi import FastAPI

    app = FastAPI()
    app.add_middleware(swlimit.asgi.RateLimit, rule(server))

    @app.get("/{path:path}")
    async def hello(path: str):
        return {"path": path}

    with serve_asgi(app) as url:
        behaves(url, server)


@pytest.fixture
def threads_limiter(server):
    limiter = swlimit.Limiter(redis.Redis(port=server.port), 3, "2s", "20ms", timeout=5.0)
    yield limiter
    limiter.close()


def wsgi_limited(app, limiter):
    rule = swlimit.Rule(limiter, lambda environ: user(environ.get("HTTP_USER")),
                        lambda environ: 2 if environ["PATH_INFO"] == "/twice" else 1)
    return swlimit.wsgi.RateLimit(app, rule)


def test_plain_wsgi(server, threads_limiter):
    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"hello"]

    with serve_wsgi(wsgi_limited(app, threads_limiter)) as url:
        behaves(url, server)


def test_flask(server, threads_limiter):
    from flask import Flask

    app = Flask(__name__)
    app.add_url_rule("/", "hello", lambda: "hello")
    app.add_url_rule("/twice", "twice", lambda: "hello")
    app.wsgi_app = wsgi_limited(app.wsgi_app, threads_limiter)
    with serve_wsgi(app) as url:
        behaves(url, server)


@contextmanager
def starlette(rules):
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("hello"))])
    app.add_middleware(swlimit.asgi.RateLimit, *rules)
    with serve_asgi(app) as url:
        yield url


@contextmanager
def flask(rules):
    from flask import Flask

    app = Flask(__name__)
    app.add_url_rule("/", "hello", lambda: "hello")
    app.wsgi_app = swlimit.wsgi.RateLimit(app.wsgi_app, *rules)
    with serve_wsgi(app) as url:
        yield url


@pytest.mark.parametrize("serve, make, client, header_of", [
    (starlette, swlimit.AsyncLimiter, redis.asyncio.Redis,
     lambda scope, name: dict(scope["headers"]).get(name.encode(), b"").decode()),
    (flask, swlimit.Limiter, redis.Redis, lambda environ, name: environ.get(f"HTTP_{name.upper()}")),
], ids=["starlette", "flask"])
def test_several_limits(serve, make, client, header_of, server):
    """All or nothing, in one decision; a limit that has no key for a request has no say in it."""
    def rule(name, limit, window, header):
        def key(request):
            found = header_of(request, header)
            return f"{name}:{found}" if found else None
        return swlimit.Rule(make(client, limit, window, "100ms", timeout=5.0), key, name=name)

    client = client(port=server.port)
    with serve([rule("burst", 2, "2s", "user"), rule("minute", 3, "1m", "user"), rule("shop", 9, "1m", "shop")]) as url:
        ann = {"user": "ann"}
        granted, _, denied, known = (fetch(url, headers=ann) for _ in range(4))
        assert granted.headers["RateLimit-Policy"] == '"burst";q=2;w=2, "minute";q=3;w=60'
        assert re.fullmatch('"burst";r=1;t=[23], "minute";r=2;t=6[01]', granted.headers["RateLimit"])
        assert granted.headers["X-RateLimit-Limit"] == "2"
        assert (denied.status, known.status) == (429, 429)
        assert 1 <= int(denied.headers["Retry-After"]) <= 3
        assert known.headers["RateLimit"].startswith('"burst";r=0')
        # What one denies, no other one counts.
        assert server.cli("SWLIMIT.PEEK", "minute:ann", 3, "1m", "100ms").splitlines()[2] == "1"
        shopping = fetch(url, headers=ann | {"user": "bob", "shop": "a"})
        assert re.sub(";t=[0-9]+", "", shopping.headers["RateLimit"]) == '"burst";r=1, "minute";r=2, "shop";r=8'
        assert "RateLimit" not in fetch(url).headers
        time.sleep(int(denied.headers["Retry-After"]))
        last, over = fetch(url, headers=ann), fetch(url, headers=ann)
        assert (last.status, over.status) == (200, 429)
        assert 50 < int(over.headers["Retry-After"]) <= 61 and over.headers["X-RateLimit-Limit"] == "3"


@pytest.mark.parametrize("address, found", [
    ("10.0.0.7", "10.0.0.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
    ("::ffff:10.0.0.7", "10.0.0.7"), ("fe80::1%eth0", "fe80::/64"), ("unix:", "unix:"), (None, None),
])
def test_who_asks_is_the_peer_unless_said_otherwise(address, found):
    """An IPv6 client has a network of 64 bits to itself, and would else have as many limits as addresses."""
    assert swlimit.asgi.client_address({"client": address and (address, 4)}) == found
    assert swlimit.wsgi.client_address({"REMOTE_ADDR": address} if address else {}) == found


DJANGO = """
import sys
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="test", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], INSTALLED_APPS=["rest_framework"],
    SWLIMIT={"LOCATION": sys.argv[1], "OPTIONS": {"timeout": 5.0}},
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None,
        "DEFAULT_THROTTLE_CLASSES": ["swlimit.drf.AnonRateThrottle", "swlimit.drf.ScopedRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "5/second", "user": None, "expensive": "2/minute"}})
django.setup()

from django.core.wsgi import get_wsgi_application
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView


class Hello(APIView):
    def get(self, request):
        return Response("hello")


class Expensive(Hello):
    throttle_scope = "expensive"


urlpatterns = [path("", Hello.as_view()), path("expensive", Expensive.as_view())]

from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server


class Threads(ThreadingMixIn, WSGIServer):
    request_queue_size = 64
    daemon_threads = True


server = make_server("127.0.0.1", 0, get_wsgi_application(), Threads)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def django(server, tmp_path):
    """The address of a Django site, which has a process of its own, because its settings are the process's."""
    site = tmp_path / "site.py"
    site.write_text(DJANGO)
    process = subprocess.Popen([sys.executable, site, f"redis://127.0.0.1:{server.port}"], text=True,
                               env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python"},
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
    process.terminate()
    process.wait()


def test_django_rest_framework(django, server):
    with ThreadPoolExecutor(8) as pool:
        at_once = list(pool.map(lambda _: fetch(f"{django}expensive").status, range(40)))
    assert sorted(at_once) == [200] * 2 + [429] * 38
    denied = fetch(f"{django}expensive")
    assert 50 < int(denied.headers["Retry-After"]) <= 65
    assert "throttled" in json.loads(denied.body)["detail"]
    time.sleep(1.1)
    responses = [fetch(django) for _ in range(7)]
    assert [one.status for one in responses if one.status != 429] == [200] * 5
    waiting = responses[-1]
    assert waiting.headers["Retry-After"] in ("1", "2")
    time.sleep(int(waiting.headers["Retry-After"]))
    assert fetch(django).status == 200
    keys = server.cli("KEYS", "swlimit:throttle_*").split()
    assert sorted(key.split("_")[1] for key in keys) == ["anon", "expensive"]


def test_celery(server, tmp_path):
    """Tasks in two workers, one of threads and one of processes, wait for a quota that they share.

    The processes are forked from one that has used the limiter.
    """
    (tmp_path / "tasks.py").write_text(f"""
import os
import redis
import swlimit
from celery import Celery

app = Celery(broker="redis://127.0.0.1:{server.port}/1", backend="redis://127.0.0.1:{server.port}/1")
quota = swlimit.Limiter(redis.Redis(port={server.port}), 4, "1s", "50ms", strict=True, timeout=20.0,
                        on_failure="error")
assert quota.allow(f"own:{{os.getpid()}}") and quota.acquire(f"own:{{os.getpid()}}", timeout=10)


@app.task
def call(number):
    if not quota.acquire("api", timeout=30):
        raise call.retry()
    return redis.Redis(port={server.port}).time()
""")
    env = os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python:{tmp_path}"}
    workers = [subprocess.Popen([sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", pool,
                                 "--concurrency", "3", "--hostname", f"{pool}@localhost", "--without-gossip",
                                 "--without-mingle", "--loglevel", "ERROR"], cwd=tmp_path, env=env,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for pool in ("threads", "prefork")]
    try:
        program = "import tasks; print([one.get(timeout=60) for one in [tasks.call.delay(n) for n in range(12)]])"
        sent = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True,
                              timeout=90)
        assert sent.returncode == 0, sent.stderr
        times = sorted(seconds + microseconds / 1e6 for seconds, microseconds in json.loads(
            sent.stdout.replace("(", "[").replace(")", "]")))
        assert len(times) == 12
        # A fifth call is never within a second of a first; what is measured is when the answer was read.
        assert all(later - first > 0.8 for first, later in zip(times, times[4:]))
        eventually(lambda: int(info(server, "swlimit")["swlimit_waiting"]), 0)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
