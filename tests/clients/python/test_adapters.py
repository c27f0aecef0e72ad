"""What all middleware has in common: rules by path and method, exemptions, an answer of one's own, chosen headers."""

import asyncio
import http.client
import importlib
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio

import swlimit
from clients.python.serving import serve_asgi, serve_wsgi
from support.http import fetch
from support.server import ROOT, free_port
from support.waiting import eventually
from swlimit.rules import Rules, client_network

told = []


def as_json(_request, decisions):
    told.append(decisions.retry_after)
    return "application/json", json.dumps({"wait": decisions.tightest.wait}).encode()


def rules(make, client, server, header):
    """Two of POST /orders, three of anything else, for each user; the one without a name is exempt."""
    ours = client(port=server.port)
    limiters = [make(ours, limit, "1h", timeout=5.0) for limit in (2, 3)]
    return (swlimit.Rule(limiters[0], lambda request: header(request) and f"orders:{header(request)}",
                         name="orders", methods=["POST"], path="/orders"),
            swlimit.Rule(limiters[1], lambda request: header(request) and f"all:{header(request)}", name="all"))


def of_user(request):
    return request.headers.get("user")


@contextmanager
def asgi(server, **options):
    from swlimit.asgi import RateLimit, header

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})
    limited = RateLimit(app, *rules(swlimit.AsyncLimiter, redis.asyncio.Redis, server,
                                    lambda scope: header(scope, "User")), **options)

    async def with_lifespan(scope, receive, send):
        if scope["type"] == "http":
            await limited(scope, receive, send)
    with serve_asgi(with_lifespan) as url:
        yield url


@contextmanager
def fastapi(server, **options):
    from fastapi import Depends, FastAPI

    from swlimit.fastapi import RateLimit
    limit = RateLimit(*rules(swlimit.AsyncLimiter, redis.asyncio.Redis, server, of_user), **options)
    app = FastAPI(dependencies=[Depends(limit)])
    app.add_api_route("/{path:path}", lambda path: "hello", methods=["GET", "POST"])
    with serve_asgi(app) as url:
        yield url


@contextmanager
def wsgi(server, **options):
    from swlimit.wsgi import RateLimit

    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"hello"]
    with serve_wsgi(RateLimit(app, *rules(swlimit.Limiter, redis.Redis, server,
                                          lambda environ: environ.get("HTTP_USER")), **options)) as url:
        yield url


@contextmanager
def flask(server, **options):
    from flask import Flask

    from swlimit.flask import RateLimit
    app = Flask(__name__)
    app.add_url_rule("/", "hello", lambda: "hello", methods=["GET", "POST"])
    app.add_url_rule("/<path>", "any", lambda path: "hello", methods=["GET", "POST"])
    RateLimit(*rules(swlimit.Limiter, redis.Redis, server, of_user), app=app, **options)
    with serve_wsgi(app) as url:
        yield url


@contextmanager
def flask_view(server, **options):
    from flask import Flask

    from swlimit.flask import limited
    app = Flask(__name__)
    decorate = limited(*rules(swlimit.Limiter, redis.Redis, server, of_user), **options)

    @app.route("/", methods=["GET", "POST"])
    @app.route("/<path>", methods=["GET", "POST"])
    @decorate
    def view(path=""):
        return "hello"
    with serve_wsgi(app) as url:
        yield url


@contextmanager
def aiohttp(server, **options):
    from aiohttp import web

    from swlimit.aiohttp import rate_limit

    async def hello(request):
        return web.Response(text="hello")

    async def serve():
        app = web.Application(middlewares=[rate_limit(
            *rules(swlimit.AsyncLimiter, redis.asyncio.Redis, server, of_user), **options)])
        app.router.add_route("*", "/{path:.*}", hello)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        started.append(asyncio.get_running_loop())
        await stop.wait()
        await runner.cleanup()

    import threading
    port, started, stop = free_port(), [], asyncio.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        eventually(lambda: started)
        yield f"http://127.0.0.1:{port}/"
    finally:
        started[0].call_soon_threadsafe(stop.set)
        thread.join()


ALL = pytest.mark.parametrize("serving", [asgi, fastapi, wsgi, flask, flask_view, aiohttp],
                              ids=lambda serving: serving.__name__)


@ALL
def test_rules_by_path_and_method(serving, server):
    ann = {"user": "ann"}
    with serving(server) as url:
        assert [fetch(f"{url}orders", b"", headers=ann).status for _ in range(3)] == [200, 200, 429]
        assert fetch(f"{url}orders", headers=ann).status == 200
        assert fetch(url, headers=ann).status == 429
        assert fetch(url, b"", headers={"user": "bob"}).headers["RateLimit-Policy"] == '"all";q=3;w=3600'
        assert {fetch(f"{url}orders", b"").status for _ in range(5)} == {200}


def test_which_methods_are_limited():
    limiter = swlimit.Limiter(None, 1, 60)
    for case in json.loads((ROOT / "tests/conformance/vectors/methods.json").read_text()):
        rule = swlimit.Rule(limiter, methods=case["methods"], method_exact=case["exact"])
        tried = case["matching"] + case["other"]
        assert [method for method in tried if rule.limits_method(method)] == case["matching"], case


def test_keys_of_addresses():
    for case in json.loads((ROOT / "tests/conformance/vectors/addresses.json").read_text()):
        assert client_network(case["address"]) == case["key"]


@ALL
def test_no_spelling_of_a_method_is_a_way_round(serving, server):
    with serving(server) as url:
        orders = [asked(url, method) for method in ("POST", "post", "PoSt", "post")]
        assert not [status for status in orders[2:] if status == 200]


def asked(url, method):
    """The status of the answer to a method as it is written."""
    found = urlsplit(url)
    connection = http.client.HTTPConnection(found.hostname, found.port, 20)
    connection.request(method, "/orders", body=b"", headers={"user": "ann"})
    return connection.getresponse().status


@ALL
@pytest.mark.parametrize("headers, names", [
    ("all", {"RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}),
    ("standard", {"RateLimit-Policy", "RateLimit"}),
    ("legacy", {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}), ("none", set()),
])
def test_an_answer_of_one_s_own(serving, server, headers, names):
    told.clear()
    with serving(server, headers=headers, denied=as_json) as url:
        answers = [fetch(url, headers={"user": "ann"}) for _ in range(4)]
    assert [one.status for one in answers] == [200, 200, 200, 429]
    denied = answers[-1]
    seen = {name.lower() for name in denied.headers if "ratelimit" in name.lower()}
    assert seen == {name.lower() for name in names}
    assert len(told) == 1
    wait = json.loads(denied.body)
    wait = json.loads(wait["detail"]) if "detail" in wait else wait
    assert wait == {"wait": int(denied.headers["Retry-After"])}


def limits(*rules, **options):
    return Rules(rules, None, swlimit.Limiter, **options)


@pytest.mark.parametrize("make, sentence", [
    (lambda limiter: swlimit.Rule(limiter, methods="POST"), "methods must be a collection"),
    (lambda limiter: swlimit.Rule(limiter, methods=[1]), "methods must be a collection"),
    (lambda limiter: swlimit.Rule(limiter, methods=1), "methods must be a collection"),
    (lambda limiter: swlimit.Rule(limiter, name='a"b'), "name must be printable ASCII without quotes"),
    (lambda limiter: swlimit.Rule(limiter, name=1), "name must be printable ASCII without quotes"),
    (lambda limiter: swlimit.Rule(limiter, path=1), "path must be a str"),
    (lambda limiter: swlimit.Rule(limiter, "user"), "key must be a function"),
    (lambda limiter: swlimit.Rule(limiter, cost=2), "cost must be a function"),
    (lambda limiter: limits(), "one or more swlimit.Rule"),
    (lambda limiter: limits(limiter), "one or more swlimit.Rule"),
    (lambda limiter: limits(swlimit.Rule("user")), "limiter must be a Limiter, not a str"),
    (lambda limiter: limits(swlimit.Rule(limiter), swlimit.Rule(swlimit.Limiter(None, 1, 60, strict=True))),
     "have one client, and are all strict or all not"),
    (lambda limiter: limits(swlimit.Rule(limiter), headers="ietf"), "headers must be one of all, standard"),
    (lambda limiter: limits(swlimit.Rule(limiter), headers=["all"]), "headers must be one of all, standard"),
    (lambda limiter: limits(swlimit.Rule(limiter), denied="no"), "denied must be a function"),
    (lambda limiter: limits(swlimit.Rule(limiter), header="all"), "unexpected keyword argument 'header'"),
])
def test_what_is_wrong_is_refused(make, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        make(swlimit.Limiter(None, 1, 60))


def adapters():
    """Each adapter, as a function that makes one of rules, and whether it is of asyncio."""
    import swlimit.aiohttp
    import swlimit.asgi
    import swlimit.django
    import swlimit.fastapi
    import swlimit.flask
    import swlimit.wsgi
    app = pytest.fail
    return {
        "asgi": (partial(swlimit.asgi.RateLimit, app), True), "wsgi": (partial(swlimit.wsgi.RateLimit, app), False),
        "fastapi": (swlimit.fastapi.RateLimit, True), "aiohttp": (swlimit.aiohttp.rate_limit, True),
        "flask": (swlimit.flask.RateLimit, False), "flask_view": (swlimit.flask.limited, False),
        "django_view": (swlimit.django.limited, False),
    }


@pytest.mark.parametrize("name", adapters())
def test_adapters_check_what_they_are_made_of(name):
    """Not at the first request, which may be weeks after that."""
    make, is_async = adapters()[name]
    kinds = [swlimit.Limiter, swlimit.AsyncLimiter]
    right, wrong = (swlimit.Rule(kind(None, 1, 60)) for kind in (kinds[is_async], kinds[not is_async]))
    make(right)
    for rules, options, sentence in [
        ([wrong], {}, f"limiter must be an? {kinds[is_async].__name__}, not a swlimit.*{kinds[not is_async].__name__}"),
        ([right, wrong], {}, "limiter must be"),
        ([swlimit.Rule(swlimit.HoldLimiter(None, 1))], {}, "limiter must be an? .*, not a swlimit.*HoldLimiter"),
        ([], {}, "one or more swlimit.Rule"), ([None], {}, "one or more swlimit.Rule"),
        ([right], {"headers": "ietf"}, "headers must be one of"), ([right], {"denied": 429}, "denied must be"),
    ]:
        with pytest.raises((TypeError, ValueError), match=sentence):
            make(*rules, **options)


@pytest.mark.parametrize("make, of", [("swlimit.asgi", swlimit.AsyncLimiter), ("swlimit.wsgi", swlimit.Limiter)])
def test_an_application_that_is_forgotten(make, of):
    rule = swlimit.Rule(of(None, 1, 60))
    with pytest.raises(TypeError, match="app must be an application"):
        importlib.import_module(make).RateLimit(rule, rule)


@pytest.mark.parametrize("decorate", ["swlimit.flask", "swlimit.django"])
@pytest.mark.parametrize("view", [type("View", (), {}), None], ids=["a class", "nothing"])
def test_what_is_no_view_is_not_decorated(decorate, view):
    limited = importlib.import_module(decorate).limited(swlimit.Rule(swlimit.Limiter(None, 1, 60)))
    with pytest.raises(TypeError, match="a view that is a function"):
        limited(view)


@pytest.mark.parametrize("told, sentence", [
    (None, "SWLIMIT must be a dictionary"), ({}, "needs RULES"), ({"RULES": "one.rule"}, "RULES must be"),
    ({"RULES": ["nowhere.rule"]}, "nowhere"), ({"RULES": ["json.dumps"]}, "one or more swlimit.Rule"),
    ({"RULES": [], "HEADER": "all"}, "HEADER"), ({"RULES": ["site_of_test.rule"], "HEADERS": "ietf"}, "one of all"),
    ({"RULES": ["site_of_test.rule"], "DENIED": "site_of_test.rule"}, "denied must be"),
])
def test_django_s_settings(told, sentence, tmp_path):
    """The middleware is made when the application is, before any request."""
    site_of_django(tmp_path, f"""
settings.configure(SWLIMIT={told!r}, MIDDLEWARE=["swlimit.django.RateLimitMiddleware"])
django.setup()
from django.core.wsgi import get_wsgi_application
get_wsgi_application()
""", sentence)


@pytest.mark.parametrize("told, sentence", [
    (None, "SWLIMIT must be a dictionary"), ({}, "LOCATION"), ({"LOCATION": "127.0.0.1"}, "must specify one of"),
    ({"LOCATION": "redis://127.0.0.1", "OPTIONS": {"on_failure": "shrug"}}, "on_failure must be"),
    ({"LOCATION": "redis://127.0.0.1", "OPTIONS": {"on_failures": "deny"}}, "on_failures"),
])
def test_settings_of_django_rest_framework(told, sentence, tmp_path):
    """Views name their throttles when they are made, before any request."""
    site_of_django(tmp_path, f"""
settings.configure(SWLIMIT={told!r}, REST_FRAMEWORK={{
    "DEFAULT_THROTTLE_CLASSES": ["swlimit.drf.AnonRateThrottle"], "DEFAULT_THROTTLE_RATES": {{"anon": "5/second"}}}})
django.setup()
import rest_framework.views
""", sentence)


def site_of_django(folder, program, sentence):
    """A program whose settings are wrong fails with that sentence."""
    (folder / "site_of_test.py").write_text(f"""
import django, swlimit
from django.conf import settings
rule = swlimit.Rule(swlimit.Limiter(None, 1, 60))
if __name__ == "__main__":
    {program.replace(chr(10), chr(10) + "    ")}
""")
    done = subprocess.run([sys.executable, "site_of_test.py"], cwd=folder, capture_output=True, text=True, timeout=60,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python"})
    assert done.returncode == 1 and sentence in done.stderr.splitlines()[-1], done.stderr


DJANGO = """
import sys
import django
import redis
import swlimit
from django.conf import settings

client = redis.Redis(port=int(sys.argv[1]))
per_user = swlimit.Rule(swlimit.Limiter(client, 3, "1h", timeout=5.0),
                        lambda request: request.headers.get("User") and f"all:{request.headers['User']}", name="all")


def denied(request, decisions):
    return "application/json", b'{"path": "%s"}' % request.path.encode()


settings.configure(SECRET_KEY="test", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SWLIMIT={
    "RULES": [f"{__name__}.per_user"], "DENIED": f"{__name__}.denied", "HEADERS": "standard"},
    MIDDLEWARE=["swlimit.django.RateLimitMiddleware"])
django.setup()

from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from swlimit.django import limited


@limited(swlimit.Rule(swlimit.Limiter(client, 1, "1h", timeout=5.0), lambda request: "search", name="search"))
def search(request):
    return HttpResponse("found")


@limited(swlimit.Rule(swlimit.Limiter(client, 2, "1h", timeout=5.0), lambda request: "later", name="later"))
async def later(request):
    return HttpResponse("at last")


urlpatterns = [path("", lambda request: HttpResponse("hello")), path("search", search), path("later", later)]

from wsgiref.simple_server import make_server
server = make_server("127.0.0.1", 0, get_wsgi_application())
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_django(server, tmp_path):
    """The middleware, and the decorator below it."""
    (tmp_path / "site_of_test.py").write_text(DJANGO)
    process = subprocess.Popen([sys.executable, "-m", "site_of_test", str(server.port)], text=True, cwd=tmp_path,
                               env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python:{tmp_path}"},
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/"
        ann = {"user": "ann"}
        answers = [fetch(url, headers=ann) for _ in range(4)]
        assert [one.status for one in answers] == [200, 200, 200, 429]
        assert (answers[-1].body, answers[-1].headers["Content-Type"]) == ('{"path": "/"}', "application/json")
        assert answers[0].headers["RateLimit-Policy"] == '"all";q=3;w=3600'
        assert "X-RateLimit-Limit" not in answers[0].headers
        assert [fetch(f"{url}search").status for _ in range(2)] == [200, 429]
        later = [fetch(f"{url}later") for _ in range(3)]
        assert [(one.status, one.headers["RateLimit"].split(";")[1]) for one in later] == [
            (200, "r=1"), (200, "r=0"), (429, "r=0")]
        assert fetch(url).status == 200
    finally:
        process.terminate()
        process.wait()


def test_asynchronous_views_of_flask():
    from flask import Flask

    from swlimit.flask import limited
    app = Flask("asynchronous")

    @app.get("/")
    @limited(swlimit.Rule(swlimit.Limiter(None, 2, "1h"), lambda request: "all"))
    async def view():
        return "hello"

    client = app.test_client()
    responses = [client.get("/") for _ in range(3)]
    assert [(one.status_code, one.headers["RateLimit"].split(";")[1]) for one in responses] == [
        (200, "r=1"), (200, "r=0"), (429, "r=0")]


def test_fastapi_by_text(server):
    """Each route counts for itself, and those that share a name together; a wrong rate is refused at once."""
    from fastapi import Depends, FastAPI

    from swlimit.fastapi import RateLimits
    limit = RateLimits(redis.asyncio.Redis(port=server.port), lambda request: request.headers.get("x-user"),
                       prefix="by-text:", timeout=5)
    app = FastAPI()
    for path, rates, shared in (("/a", "2/minute; 3/hour", None), ("/b/{item}", "1/minute", None),
                                ("/c", "1/hour", "both"), ("/d", "1/hour", "both")):
        app.add_api_route(path, lambda: "hello", dependencies=[Depends(limit(rates, shared=shared))])
    with serve_asgi(app) as url:
        def statuses(*paths, user="ann"):
            return [fetch(url + path[1:], headers={"x-user": user} if user else {}).status for path in paths]
        assert statuses("/a", "/a", "/a", "/b/1", "/b/2", "/c", "/d") == [200, 200, 429, 200, 429, 200, 429]
        assert statuses("/a", "/d", user="ben") == [200, 200]
        assert statuses("/d", "/d", user=None) == [200, 200]
    with pytest.raises(ValueError, match="'5' has no unit"):
        limit("5")
