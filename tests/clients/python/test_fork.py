"""Programs that fork: a child takes none of its parent's connections, threads or locks with it."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import celery
import pytest
import redis
import redis.asyncio

import swlimit
from support.http import fetch
from support.server import ROOT, free_port
from support.waiting import eventually


@pytest.fixture
def limiter(server):
    with swlimit.Limiter(redis.Redis(port=server.port), 10_000, "1h", timeout=5.0) as limiter:
        yield limiter


def in_children(number, work):
    """Run a function in so many forked children at once; each has to return in ten seconds without an error."""
    children = []
    for _ in range(number):
        child = os.fork()
        if child == 0:
            try:
                work()
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
        children.append(child)
    ends = time.monotonic() + 10
    codes = {}
    while len(codes) < number and time.monotonic() < ends:
        for child in set(children) - set(codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for child in set(children) - set(codes):
        os.kill(child, 9)
        os.waitpid(child, 0)
        codes[child] = "hangs"
    assert list(codes.values()) == [0] * number


def use(limiter, times=50):
    for _ in range(times):
        decision = limiter.allow("k")
        assert (decision.source, decision.granted) == ("server", 1), decision
        acquired = limiter.acquire("k", timeout=5)
        assert (acquired.source, acquired.granted) == ("server", 1), acquired


def test_a_child_counts_its_own_decisions(limiter):
    """What its parent has counted is shown by its parent."""
    def count():
        assert limiter.statistics.of("server") == (0, 0) == limiter.statistics.of("local")
        use(limiter, 1)
        assert limiter.statistics.of("server") == (2, 0)

    use(limiter, 3)
    in_children(1, count)
    assert limiter.statistics.of("server") == (6, 0)


def test_who_has_acquired_before(limiter):
    """No replies are crossed, and nothing stalls."""
    use(limiter, 2)
    in_children(4, lambda: use(limiter))
    use(limiter, 2)
    assert limiter.peek("k").remaining == 10_000 - 2 * 2 * 2 - 4 * 100


def test_forking_while_threads_use_it(server):
    """Whatever lock a thread of the parent held: nobody holds it in the child."""
    limiter = swlimit.Limiter(redis.Redis(port=server.port), 2, "1h", timeout=5.0)
    stop = threading.Event()

    def work(number):
        while not stop.is_set():
            limiter.allow(f"k:{number}")
            limiter.peek(f"l:{number}")
            swlimit.Limiter(None, 5, "1h").allow("k")

    with ThreadPoolExecutor() as pool:
        working = [pool.submit(work, number) for number in range(4)]
        try:
            for turn in range(15):
                def ask(turn=turn):
                    assert limiter.allow(f"child:{turn}").source == "server"
                    assert [limiter.allow(f"child:{turn}").granted for _ in range(2)] == [1, 0]
                in_children(1, ask)
        finally:
            stop.set()
        for one in working:
            one.result()
    limiter.close()


def test_a_breaker_that_was_open(start):
    """The child has no prober of its parent's, so it finds out for itself."""
    server = start()
    limiter = swlimit.Limiter(redis.Redis(port=server.port), 1000, "1h", timeout=1.0, on_failure="deny")
    server.kill()
    for _ in range(5):
        assert not limiter.allow("k")
    server.start()

    def ask():
        eventually(lambda: limiter.allow("k").source == "server", seconds=5)
    in_children(2, ask)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(server, method):
    context = multiprocessing.get_context(method)
    if method == "fork":
        limiter = swlimit.Limiter(redis.Redis(port=server.port), 100, "1h", timeout=5.0)
        assert limiter.allow("k")
        with context.Pool(3) as pool:
            assert sum(pool.starmap(_granted, [("k", None, server.port)] * 4)) == 4
            del limiter
    else:
        with context.Pool(2) as pool:
            assert sum(pool.starmap(_granted, [("k", None, server.port)] * 4)) == 4


def _granted(key, _, port):
    with swlimit.Limiter(redis.Redis(port=port), 100, "1h", timeout=10.0) as limiter:
        return limiter.allow(key).granted


def test_an_asyncio_limiter_of_the_parent(server):
    import asyncio
    limiter = swlimit.AsyncLimiter(redis.asyncio.Redis(port=server.port), 100, "1h", timeout=5.0)

    async def ask():
        decision = await limiter.allow("k")
        assert decision.source == "server"
        return decision

    asyncio.run(ask())
    in_children(3, lambda: asyncio.run(ask()))
    assert asyncio.run(ask()).remaining == 100 - 5


WSGI = """
import os, redis, swlimit

limiter = swlimit.Limiter(redis.Redis(port={port}), 40, "1h", timeout=5.0, on_failure="error")
assert limiter.allow("warm") and limiter.acquire("warm", timeout=1)


def app(environ, start_response):
    decision = limiter.acquire("k", timeout=1) if environ["PATH_INFO"] == "/wait" else limiter.allow("k")
    start_response("200 OK" if decision else "429 Too Many", [("Pid", str(os.getpid())), ("Source", decision.source)])
    return [b""]
"""

ASGI = """
import os, redis.asyncio, swlimit

limiter = swlimit.AsyncLimiter(redis.asyncio.Redis(port={port}), 40, "1h", timeout=5.0, on_failure="error")


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({{"type": "lifespan.startup.complete"}})
        await send({{"type": "lifespan.shutdown.complete"}})
        return
    decision = await (limiter.acquire("k", timeout=1) if scope["path"] == "/wait" else limiter.allow("k"))
    headers = [(b"pid", str(os.getpid()).encode()), (b"source", decision.source.encode())]
    await send({{"type": "http.response.start", "status": 200 if decision else 429, "headers": headers}})
    await send({{"type": "http.response.body", "body": b""}})
"""


@contextmanager
def serving(command, program, server, folder):
    """The address of a program that is served by this command."""
    (folder / "site_of_test.py").write_text(program.format(port=server.port))
    port = free_port()
    with open(folder / "log", "w") as log:
        process = subprocess.Popen([part.format(port=port) for part in command], cwd=folder, stdout=log, stderr=log,
                                   env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python:{folder}"})
    try:
        eventually(lambda: (folder / "log").read_text().count("Booting worker") >= 2
                   or (folder / "log").read_text().count("startup complete") >= 2, seconds=30)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


GUNICORN = [sys.executable, "-m", "gunicorn", "site_of_test:app", "--workers", "2", "--bind", "127.0.0.1:{port}"]


@pytest.mark.parametrize("command, program", [
    (GUNICORN, WSGI), ([*GUNICORN, "--preload"], WSGI), ([*GUNICORN, "--threads", "4", "--preload"], WSGI),
    ([sys.executable, "-m", "uvicorn", "site_of_test:app", "--workers", "2", "--port", "{port}"], ASGI),
], ids=["gunicorn", "gunicorn, preloaded", "gunicorn, preloaded, threads", "uvicorn"])
def test_workers_that_share_a_limit(command, program, server, tmp_path):
    """Exactly the limit is granted by all of them, and all of it by the server."""
    def ask(number):
        return fetch(f"{url}/{'wait' if number % 5 == 0 else ''}")

    answers = []
    with serving(command, program, server, tmp_path) as url, ThreadPoolExecutor(8) as pool:
        def asked():
            """Which worker takes a connection is the system's affair: until each has been asked."""
            answers.extend(pool.map(ask, range(50)))
            return len(answers) >= 100 and {one.headers["Pid"] for one in answers}
        assert len(eventually(lambda: len(pids := asked() or ()) == 2 and pids)) == 2
    assert [one.status for one in answers].count(200) == 40
    assert {one.status for one in answers} == {200, 429}
    assert {one.headers["Source"] for one in answers} <= {"server", "cache"}


TASKS = """
import functools, os, celery, redis, swlimit

app = celery.Celery("tasks_of_test", broker="redis://127.0.0.1:{port}/1", backend="redis://127.0.0.1:{port}/1")


def made():
    return swlimit.Limiter(redis.Redis(port={port}), 20, "1h", timeout=5.0, on_failure="error")


before = made()  # as all that a module makes: by the parent, that forks
assert before.allow("warm") and before.acquire("warm", timeout=1)
after = functools.cache(made)  # by each child, at its first task


@app.task(name="ask")
def ask(key, waits):
    limiter = before if key == "before" else after()
    decision = limiter.acquire(key, timeout=1) if waits else limiter.allow(key)
    return os.getpid(), decision.granted, decision.source
"""


def test_celery(server, tmp_path):
    """Children of the prefork pool grant exactly the limit, of a limiter that their parent used and of their own."""
    (tmp_path / "tasks_of_test.py").write_text(TASKS.format(port=server.port))
    command = [sys.executable, "-m", "celery", "--app", "tasks_of_test", "worker", "--pool=prefork", "--concurrency=2",
               "-O", "fair", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    address = f"redis://127.0.0.1:{server.port}/1"
    with open(tmp_path / "log", "w") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log,
                                  env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python:{tmp_path}"})
    try:
        with celery.Celery(broker=address, backend=address) as app:
            for key in ("before", "after"):
                found = []

                def asked(key=key, found=found):
                    """Which child takes a task is Celery's affair: until each has been asked."""
                    tasks = [app.send_task("ask", (key, number % 5 == 0)) for number in range(30)]
                    found += [task.get(timeout=100) for task in tasks]
                    return len({pid for pid, _, _ in found}) == 2

                eventually(asked, seconds=100)
                assert sum(granted for _, granted, _ in found) == 20
                assert {source for _, _, source in found} <= {"server", "cache"}
    finally:
        worker.terminate()
        worker.wait()
