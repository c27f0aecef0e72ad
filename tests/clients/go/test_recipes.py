"""The programs for chi, gin, echo and gRPC serve, and limit their clients."""

import subprocess
import time
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from docs.pages import blocks, page_named
from support import golang
from support.http import fetch
from support.server import free_port

PROGRAMS, (GRPC,) = ([block.text for block in blocks(page_named("go.md")) if name in block.text]
                     for name in ('httplimit"', 'grpclimit"'))


@pytest.mark.parametrize("program", PROGRAMS, ids=["chi", "gin", "echo"])
@contextmanager
def serving(program, server, folder):
    """The program as it serves, and its port."""
    golang.copy_module(folder)
    port = free_port()
    program = program.replace("127.0.0.1:6379", f"127.0.0.1:{server.port}").replace(":8080", f":{port}")
    (folder / "main.go").write_text(golang.patient(program))
    built = golang.run("build", "-o", "recipe", ".", cwd=folder)
    assert built.returncode == 0, built.stderr
    server.cli("FLUSHALL")  # all of them count the same address
    with subprocess.Popen([folder / "recipe"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as serving:
        try:
            yield serving, port
        finally:
            serving.kill()


@pytest.mark.parametrize("program", PROGRAMS, ids=["chi", "gin", "echo"])
def test_recipe(program, server, tmp_path):
    with serving(program, server, tmp_path) as (process, port):
        responses = [answer(process, f"http://127.0.0.1:{port}/") for _ in range(4)]
    assert [(response.status, response.body.strip()) for response in responses] == [
        *[(200, "welcome")] * 3, (429, "Too Many Requests")]
    assert [response.headers["RateLimit"].split(";")[1] for response in responses] == ["r=2", "r=1", "r=0", "r=0"]
    assert 0 < int(responses[3].headers["Retry-After"]) <= 65 and not responses[0].headers["Retry-After"]


def test_grpc(server, tmp_path):
    """Three calls and two streams, which are denied by what they hold, not by how often they begin."""
    with serving(GRPC, server, tmp_path) as (_, port), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        health, request = HealthStub(channel), HealthCheckRequest()
        for _ in range(3):
            health.Check(request, wait_for_ready=True, timeout=60)
        with pytest.raises(grpc.RpcError) as denied:
            health.Check(request)
        assert denied.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 0 < int(dict(denied.value.initial_metadata())["retry-after"]) <= 65
        watching = [health.Watch(request) for _ in range(2)]
        assert all(next(stream) for stream in watching)
        with pytest.raises(grpc.RpcError) as denied:
            next(health.Watch(request))
        assert denied.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def answer(serving, url):
    """The response, as soon as the program listens."""
    while serving.poll() is None:
        try:
            return fetch(url)
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the program has ended")
