"""Serve POST /login, GET /page and DELETE /item by each of Python's frameworks as it comes, until stdin ends.

Prints their ports.
"""

import asyncio
import json
import sys
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

import django
import flask
import uvicorn
from aiohttp import web
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["django.middleware.common.CommonMiddleware"])
django.setup()


def django_view(method):
    return csrf_exempt(type("Of", (View,), {method: lambda self, request: HttpResponse("ok")}).as_view())


urlpatterns = [path(at, django_view(method)) for at, method in (("login", "post"), ("page", "get"), ("item", "delete"))]

of_flask = flask.Flask("app")
of_flask.post("/login", endpoint="login")(lambda: "ok")
of_flask.get("/page", endpoint="page")(lambda: "ok")
of_flask.delete("/item", endpoint="item")(lambda: "ok")
of_fastapi = FastAPI()
of_fastapi.post("/login")(lambda: "ok")
of_fastapi.get("/page")(lambda: "ok")
of_fastapi.delete("/item")(lambda: "ok")
of_starlette = Starlette(routes=[Route(at, lambda request: PlainTextResponse("ok"), methods=[method])
                                 for method, at in (("POST", "/login"), ("GET", "/page"), ("DELETE", "/item"))])


async def ok(_):
    return web.Response(text="ok")


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def wsgi(application):
    server = make_server("127.0.0.1", 0, application, handler_class=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


async def asgi(application):
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan="off"))
    asyncio.get_running_loop().create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    return server.servers[0].sockets[0].getsockname()[1]


async def of_aiohttp():
    application = web.Application()
    application.add_routes([web.post("/login", ok), web.get("/page", ok), web.delete("/item", ok)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return site._server.sockets[0].getsockname()[1]


async def main():
    ports = {"Flask": wsgi(of_flask), "Django": wsgi(get_wsgi_application()), "FastAPI": await asgi(of_fastapi),
             "Starlette": await asgi(of_starlette), "aiohttp": await of_aiohttp()}
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
