"""Places that are held while a response streams, and WebSockets: with a real server, and clients that leave."""

import asyncio
import http.client
import socket
import threading
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest
import redis.asyncio
import websocket
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

import swlimit
from clients.python.serving import serve_asgi
from support.waiting import eventually
from swlimit.asgi import ConcurrencyLimit, RateLimit, WebSocketLimit, header
from swlimit.starlette import HeldResponse


class Gate:
    """What the test opens, and a coroutine waits for."""

    def __init__(self):
        self.is_open = threading.Event()

    async def wait(self):
        while not self.is_open.is_set():
            await asyncio.sleep(0.01)


class Streaming:
    """An application whose one place streams until the test lets it end."""

    def __init__(self, server):
        self.server = server
        self.more, self.afterwards = Gate(), Gate()
        self.ended = []
        self.holds = swlimit.AsyncHoldLimiter(redis.asyncio.Redis(port=server.port), 1, timeout=10.0)

    async def tokens(self):
        try:
            yield "first "
            await self.more.wait()
            yield "last"
        finally:
            self.ended.append("stream")

    async def respond(self):
        async def background():
            await self.afterwards.wait()
            self.ended.append("background")
        return StreamingResponse(self.tokens(), headers={"x-kind": "stream"}, background=BackgroundTask(background))

    async def fail(self):
        raise ValueError("broken")
        yield

    def by_middleware(self):
        app = FastAPI()
        app.get("/stream", response_model=None)(self.respond)
        app.get("/fail", response_model=None)(lambda: StreamingResponse(self.fail()))
        app.get("/free", response_model=None)(lambda: "free")
        app.add_middleware(ConcurrencyLimit, rule=swlimit.Rule(
            self.holds, lambda scope: header(scope, "user"), methods=["GET"]))
        return app

    def by_response(self):
        app = FastAPI()

        async def hold():
            hold = await self.holds.hold("ann")
            if not hold:
                raise HTTPException(429, "Too Many Requests")
            return hold

        @app.get("/stream", response_model=None)
        async def stream():
            return HeldResponse(await self.respond(), await hold())

        @app.get("/fail", response_model=None)
        async def fail():
            return HeldResponse(StreamingResponse(self.fail()), await hold())
        return app

    @contextmanager
    def serving(self):
        with serve_asgi(self.app) as url:
            try:
                yield url
            finally:  # the server waits for what still runs
                self.more.is_open.set()
                self.afterwards.is_open.set()

    def holders(self):
        return self.server.cli("SWLIMIT.HOLDERS", "ann")


@pytest.fixture(params=["by_middleware", "by_response"])
def streaming(request, server):
    streaming = Streaming(server)
    streaming.app = getattr(streaming, request.param)()
    return streaming


@contextmanager
def begun(url, path="/stream"):
    """A response that has begun."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    with closing(connection):
        connection.request("GET", path, headers={"user": "ann"})
        yield connection.getresponse()


def test_a_place_is_held_while_the_body_is_sent(streaming):
    with streaming.serving() as url:
        with begun(url) as response:
            assert (response.status, response.headers["x-kind"], response.read(6)) == (200, "stream", b"first ")
            with begun(url) as other:
                assert other.status == 429 and b"Too Many Requests" in other.read()
            assert streaming.holders()
            streaming.more.is_open.set()
            assert response.read() == b"last"
            eventually(lambda: not streaming.holders())
        assert streaming.ended == ["stream"]
        with begun(url) as response:
            assert response.read() == b"first last"
        streaming.afterwards.is_open.set()
        eventually(lambda: streaming.ended.count("background") == 2)


def test_a_client_that_leaves_in_the_middle(streaming):
    """The stream is silent meanwhile."""
    with streaming.serving() as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(b"GET /stream HTTP/1.1\r\nHost: test\r\nuser: ann\r\n\r\n")
            received = b""
            while b"first" not in received:
                received += client.recv(4096)
            assert streaming.holders()
        eventually(lambda: not streaming.holders())
        assert streaming.ended == ["stream"]


def test_a_stream_that_fails(streaming):
    with streaming.serving() as url:
        with pytest.raises(http.client.IncompleteRead), begun(url, "/fail") as response:
            response.read()
        eventually(lambda: not streaming.holders())
        streaming.more.is_open.set()
        streaming.afterwards.is_open.set()
        with begun(url) as response:
            assert response.status == 200


async def streams(streaming, then):
    """Stream to a server that says nothing of its client, as newer ones do, and do something in the middle."""
    sent = []

    async def receive():
        if sent:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": "/stream", "raw_path": b"/stream", "query_string": b"",
             "headers": [(b"user", b"ann")], "client": ("127.0.0.1", 1), "asgi": {"spec_version": "2.4"}}
    task = asyncio.create_task(streaming.app(scope, receive, send))
    while len(sent) < 2:
        await asyncio.sleep(0.01)
    assert streaming.holders()
    then(task)
    while streaming.holders():
        await asyncio.sleep(0.01)
    assert streaming.ended == ["stream"]
    streaming.afterwards.is_open.set()
    await asyncio.wait([task])
    await streaming.holds.close()
    return task


def test_a_task_that_is_cancelled(streaming):
    assert asyncio.run(asyncio.wait_for(streams(streaming, lambda task: task.cancel()), 60)).cancelled()


def test_the_body_has_ended_and_the_application_goes_on(streaming):
    asyncio.run(asyncio.wait_for(streams(streaming, lambda task: streaming.more.is_open.set()), 60))
    assert streaming.ended == ["stream", "background"]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_waits_for_a_place(leaves):
    """One that leaves takes none; what another has sent meanwhile is the application's."""
    got = []

    async def main():
        holds, messages, heard = swlimit.AsyncHoldLimiter(None, 1), asyncio.Queue(), asyncio.Event()
        first = await holds.hold("k")

        async def app(scope, receive, send):
            got.append(await receive())
            messages.put_nowait({"type": "http.disconnect"})
            got.append(await receive())

        async def receive():
            message = await messages.get()
            heard.set()
            return message

        limited = ConcurrencyLimit(app, swlimit.Rule(holds, lambda scope: "k"), wait="1h")
        waiting = asyncio.create_task(limited({"type": "http", "method": "POST", "path": "/"}, receive, None))
        messages.put_nowait({"type": "http.request", "body": b"question", "more_body": False})
        await heard.wait()
        if leaves:
            messages.put_nowait({"type": "http.disconnect"})
            await waiting
            await first.release()
            assert await holds.hold("k")
        else:
            await first.release()
            await waiting
    asyncio.run(asyncio.wait_for(main(), 60))
    assert [message["type"] for message in got] == ([] if leaves else ["http.request", "http.disconnect"])


def test_requests_that_need_no_place(server):
    streaming = Streaming(server)
    streaming.app = streaming.by_middleware()
    with streaming.serving() as url, begun(url), closing(
            http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)) as connection:
        connection.request("GET", "/free")
        assert connection.getresponse().read() == b'"free"'


@pytest.fixture
def chat(server):
    """Serve an application that echoes, with limits: one connection for each user, two messages a minute."""
    client = redis.asyncio.Redis(port=server.port)
    closed, lingering = [], Gate()

    async def echo(scope, receive, send):
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept", "subprotocol": next(iter(scope["subprotocols"]), None)})
        while (message := await receive())["type"] == "websocket.receive":
            if message["text"] == "bye":
                await send({"type": "websocket.close", "code": 4000})
            else:
                await send({"type": "websocket.send", "text": message["text"]})
        if scope["path"] == "/linger":
            await lingering.wait()
        closed.append((message["code"], message.get("reason")))
        if message["code"] == 1008:
            with pytest.raises(OSError, match="closed because of too many messages"):
                await send({"type": "websocket.send", "text": "late"})
            closed.append((await receive())["type"])

    def of_user(part):
        return lambda scope: header(scope, "user") and f"{part}:{header(scope, 'user')}"
    limited = WebSocketLimit(
        echo, connections=swlimit.Rule(swlimit.AsyncHoldLimiter(client, 1, timeout=10.0), of_user("at once")),
        messages=swlimit.Rule(swlimit.AsyncLimiter(client, 2, "1m", timeout=10.0), of_user("messages"), path="/chat"))

    async def app(scope, receive, send):
        if scope["type"] == "websocket":
            await limited(scope, receive, send)
    with serve_asgi(app) as url:
        def connected(path="chat", user="ann", **options):
            return websocket.create_connection(f"{url.replace('http', 'ws')}{path}", timeout=30,
                                               header={"user": user} if user else {}, **options)
        connected.closed = closed
        yield connected
        lingering.is_open.set()


def closing_of(connection):
    """The code and reason with which the server closes."""
    opcode, data = connection.recv_data(control_frame=True)
    assert opcode == websocket.ABNF.OPCODE_CLOSE
    return int.from_bytes(data[:2], "big"), data[2:].decode()


def test_connections_at_once(chat):
    with closing(chat()) as first, closing(chat(user="bob")) as bob:
        for one in (first, bob):
            one.send("hello")
            assert one.recv() == "hello"
        with closing(chat(subprotocols=["soap", "wamp"])) as second:
            assert second.subprotocol == "soap"
            assert closing_of(second) == (1013, "too many connections")
    eventually(lambda: is_accepted(chat()))


def is_accepted(connection):
    with closing(connection):
        connection.send("hello")
        opcode, _ = connection.recv_data(control_frame=True)
        return opcode == websocket.ABNF.OPCODE_TEXT


def test_places_end_however_connections_end(chat):
    leaving = chat("linger", user="ann")
    leaving.sock.close()  # without a word, and the application goes on
    eventually(lambda: is_accepted(chat("other")))
    with closing(chat("linger", user="bob")) as polite:
        polite.send("bye")
        assert closing_of(polite)[0] == 4000
        eventually(lambda: is_accepted(chat("other", user="bob")))


def test_too_many_messages(chat):
    with closing(chat()) as connection:
        for text in ("one", "two"):
            connection.send(text)
            assert connection.recv() == text
        connection.send("three")
        code, reason = closing_of(connection)
    assert code == 1008 and reason.startswith("too many messages, retry after ")
    eventually(lambda: len(chat.closed) == 2)
    assert chat.closed == [(1008, reason), "websocket.disconnect"]
    with closing(chat("other")) as connection:
        for _ in range(4):
            connection.send("free")
            assert connection.recv() == "free"


@pytest.mark.parametrize("closer", ["application", "client"])
def test_too_many_messages_of_a_connection_that_is_closed(closer):
    """What had come before is still read, and is denied; a server sends nothing any more."""
    sent = []

    async def receive():
        return {"type": "websocket.receive", "text": "hello"}

    async def send(message):
        if closer == "client":
            raise OSError("the client has left")
        assert not sent, "closed twice"
        sent.append(message)

    async def app(scope, receive, send):
        if closer == "application":
            await send({"type": "websocket.close", "code": 4000})
        assert (await receive())["type"] == "websocket.disconnect"
        sent.append("told")

    limited = WebSocketLimit(app, messages=swlimit.Rule(swlimit.AsyncLimiter(None, 0, "1m"), lambda scope: "k"))
    asyncio.run(limited({"type": "websocket", "path": "/"}, receive, send))
    assert sent[-1] == "told"


def test_a_message_whose_reader_gives_up_while_it_is_decided():
    """The next one gets it."""
    got = []

    async def main():
        deciding, decided = asyncio.Event(), asyncio.Event()
        messages = iter(["one", "two"])

        async def receive():
            return {"type": "websocket.receive", "text": next(messages)}

        class Slow(swlimit.AsyncLimiter):
            async def allow(self, *args):
                deciding.set()
                await decided.wait()
                return await super().allow(*args)

        async def app(scope, receive, send):
            reading = asyncio.create_task(receive())
            await deciding.wait()
            reading.cancel()
            await asyncio.wait([reading])
            decided.set()
            got.extend([(await receive())["text"], (await receive())["text"]])

        limited = WebSocketLimit(app, messages=swlimit.Rule(Slow(None, 2, "1m"), lambda scope: "k"))
        await limited({"type": "websocket", "path": "/"}, receive, None)

    asyncio.run(main())
    assert got == ["one", "two"]


def test_those_without_a_key_are_free(chat):
    with closing(chat(user=None)) as first, closing(chat(user=None)) as second:
        for one in (first, second):
            for _ in range(4):
                one.send("free")
                assert one.recv() == "free"


def test_what_is_refused():
    rates, holds = swlimit.AsyncLimiter(None, 1, "1m"), swlimit.AsyncHoldLimiter(None, 1)

    async def app(scope, receive, send):
        pass
    for make, sentence in [
        (lambda: WebSocketLimit(app), "needs connections, messages, or both"),
        (lambda: WebSocketLimit(app, connections=swlimit.Rule(rates)), "must be an AsyncHoldLimiter"),
        (lambda: WebSocketLimit(app, messages=swlimit.Rule(holds)), "must be an AsyncLimiter"),
        (lambda: WebSocketLimit(app, messages=swlimit.Rule(rates, methods=["GET"])), "a WebSocket has no method"),
        (lambda: ConcurrencyLimit(app, swlimit.Rule(rates)), "must be an AsyncHoldLimiter"),
        (lambda: ConcurrencyLimit(app, swlimit.Rule(holds), denied="no"), "denied must be a function"),
        (lambda: RateLimit(app, swlimit.Rule(holds)), "must be an AsyncLimiter, not a swlimit"),
        (lambda: HeldResponse("text", None), "takes a response and an AsyncHold, not a str and a NoneType"),
    ]:
        with pytest.raises((TypeError, ValueError), match=sentence):
            make()
