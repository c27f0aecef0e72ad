"""Serve applications over HTTP, in a thread."""

import threading
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, make_server

import uvicorn

from support.server import free_port
from support.waiting import eventually


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def serve_wsgi(app):
    """The address of a WSGI application."""
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serve_asgi(app):
    """The address of an ASGI application."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=free_port(), log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{server.config.port}/"
    finally:
        server.should_exit = True
        thread.join()
