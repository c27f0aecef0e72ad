"""The page's recipe for Celery: places and tokens that all workers share, also when one is killed."""

import os
import subprocess
import sys

import celery
import pytest
import redis

import swlimit
from docs.pages import blocks, page_named
from support.server import ROOT
from support.waiting import eventually

MODEL = """

import os
import signal
import time

app.conf.result_backend = f"{REDIS}/1"


def ask_model(question):
    if question == "kills" and client.incr("killed") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    client.rpush("running", client.incr("now"))
    time.sleep(0.3)
    client.decr("now")
    return question, 50
"""


def recipe(server):
    """The page's file, with the port, the shortest time to live, and smaller estimates."""
    text, = (block.text for block in blocks(page_named("recipes.md")) if "from celery import" in block.text)
    for old, new in [("6379", str(server.port)), ('"15s"', '"3s", timeout="5s"'), ('"1m")', '"1h", timeout="5s")'),
                     (":tokens\", 400", ":tokens\", 100")]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text + MODEL


@pytest.mark.long
def test_a_fleet(server, tmp_path):
    (tmp_path / "tasks.py").write_text(recipe(server))
    command = [sys.executable, "-m", "celery", "--app", "tasks", "worker", "--pool=prefork", "--concurrency=4",
               "--without-gossip", "--without-mingle", "--without-heartbeat"]
    address = f"redis://127.0.0.1:{server.port}"
    with open(tmp_path / "log", "w") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log,
                                  env=os.environ | {"PYTHONPATH": f"{ROOT}/src/clients/python:{tmp_path}"})
    try:
        with (celery.Celery(broker=f"{address}/1", backend=f"{address}/1") as app,
              redis.Redis.from_url(address) as client,
              swlimit.Limiter(client, 1000, "1h", timeout=5.0) as tokens,
              swlimit.HoldLimiter(client, 2, timeout=5.0) as places):
            asked = ["kills", *map(str, range(6))]
            tasks = [app.send_task("tasks.answer", (question,)) for question in asked]
            assert [task.get(timeout=100) for task in tasks] == asked
            assert 1 <= max(map(int, client.lrange("running", 0, -1))) <= 2
            eventually(lambda: places.holders("{small}:places"), [])
            used = 1000 - tokens.peek("{small}:tokens").remaining
            assert used == 100 + 50 * len(asked), "of the one that was killed, the estimate"
            with places.hold("{small}:places", 2):
                waiting = app.send_task("tasks.answer", ("waits",))
                eventually(lambda: waiting.state, "RETRY")
            assert waiting.get(timeout=100) == "waits"
    finally:
        worker.terminate()
        worker.wait()
