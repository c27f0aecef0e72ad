"""Start swlimitd on free loopback addresses, and talk to it as proxies do."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import wrappers_pb2

from .http import fetch
from .server import ROOT, free_port

DAEMON = Path(os.environ.get("SWLIMITD", ROOT / "target/debug/swlimitd"))
READY_SECONDS = 20
OK, OVER_LIMIT = rls_pb2.RateLimitResponse.OK, rls_pb2.RateLimitResponse.OVER_LIMIT


class Daemon:
    """One swlimitd in a folder of its own. Use as a context manager.

    `limits` is the text of a file of limits, `settings` what the configuration file says besides; `command` starts it.
    """

    def __init__(self, limits="", server=None, command=(DAEMON,), **settings):
        self.command = command
        self.folder = Path(tempfile.mkdtemp(prefix="swlimitd-"))
        self.port, self.http_port = free_port(), free_port()
        self.settings = {
            "server": f"redis://127.0.0.1:{server.port}" if server else "none",
            "grpc": {"address": f"127.0.0.1:{self.port}"},
            "http": {"address": f"127.0.0.1:{self.http_port}"},
            "timeout": "5s",  # a busy machine is not a server that is away
            "limits": ["limits.yaml"],
        } | settings
        self.write_limits(limits)
        self.write_settings()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    def write_limits(self, text):
        (self.folder / "limits.yaml").write_text(text)

    def write_settings(self, **settings):
        self.settings |= settings
        (self.folder / "swlimitd.yaml").write_text(json.dumps(self.settings))  # JSON is YAML

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def run(self, *words):
        """What a run of the daemon that ends by itself prints, and how it ends."""
        done = subprocess.run([*self.command, "--config", self.folder / "swlimitd.yaml", *words], capture_output=True,
                              text=True, timeout=READY_SECONDS)
        return done.returncode, done.stdout + done.stderr

    def spawn(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([*self.command, "--config", self.folder / "swlimitd.yaml"], stdout=log,
                                            stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def start(self):
        self.spawn()
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                assert self.get("/healthcheck")[0] == 200
                return self
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def send_signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """End it in good order; how long that took, in seconds."""
        began = time.monotonic()
        self.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log
        return time.monotonic() - began

    def channel(self, credentials=None):
        target = f"127.0.0.1:{self.port}"
        return grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target)

    def ask(self, *descriptors, hits=0, domain="d", channel=None, metadata=()):
        """The reply to a request with these descriptors over gRPC."""
        with channel or self.channel() as channel:
            asked = request(*descriptors, hits=hits, domain=domain)
            return rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(asked, timeout=10, metadata=metadata)

    def codes(self, *descriptors, **options):
        """The overall code of the reply and those of its statuses, each by its name."""
        reply = self.ask(*descriptors, **options)
        return tuple(rls_pb2.RateLimitResponse.Code.Name(code)
                     for code in (reply.overall_code, *(status.code for status in reply.statuses)))

    def http(self, path, body=None, method=None, headers=()):
        """The status, headers and text of a reply over HTTP."""
        return fetch(f"http://127.0.0.1:{self.http_port}{path}", body, method, headers)

    def get(self, path):
        status, _, text = self.http(path)
        return status, text

    def json(self, body):
        """The status of a reply to a request in JSON, and the reply."""
        status, headers, text = self.http("/json", body)
        return status, json.loads(text) if headers["Content-Type"] == "application/json" else text

    def metrics(self, name):
        """The values of a metric, by the values of its labels."""
        found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return {tuple(re.findall(r'"(.*?)"', labels)): float(value) for labels, value in found}


class FromEnvironment(Daemon):
    """A swlimitd that only envoyproxy/ratelimit's environment variables configure.

    `files` are texts by their paths below the folder of limits, `config`.
    """

    def __init__(self, files, server, **variables):
        super().__init__(server=server)
        self.debug_port = free_port()
        self.config = self.folder / "ratelimit/config"
        self.config.mkdir(parents=True)
        for path, text in files.items():
            (self.config / path).parent.mkdir(parents=True, exist_ok=True)
            (self.config / path).write_text(text)
        self.variables = {
            "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{server.port}", "REDIS_TIMEOUT": "5s",
            "RUNTIME_ROOT": self.folder, "RUNTIME_SUBDIRECTORY": "ratelimit",
            "GRPC_HOST": "127.0.0.1", "GRPC_PORT": self.port, "HOST": "127.0.0.1", "PORT": self.http_port,
            "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": self.debug_port,
        } | variables

    def spawn(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([DAEMON], env=environment(**self.variables), stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, start_new_session=True)


def environment(**variables):
    """An environment of these variables alone."""
    return {"PATH": os.environ["PATH"]} | {name: str(value) for name, value in variables.items()}


def request(*descriptors, hits=0, domain="d"):
    """A request. A descriptor is written `key=value key=value`, or is one already."""
    made = [descriptor(one) if isinstance(one, str) else one for one in descriptors]
    return rls_pb2.RateLimitRequest(domain=domain, descriptors=made, hits_addend=hits)


def descriptor(words, hits=None, limit=None, is_negative=False):
    """A descriptor with its own hits, which may be given back, or its own limit: a pair such as `(5, "HOUR")`."""
    entries = [dict(zip(("key", "value"), word.split("=", 1))) for word in words.split()]
    made = ratelimit_pb2.RateLimitDescriptor(entries=entries)
    if hits is not None:
        made.hits_addend.CopyFrom(wrappers_pb2.UInt64Value(value=hits))
    if limit is not None:
        made.limit.requests_per_unit, made.limit.unit = limit[0], UNITS.index(limit[1])
    if is_negative:
        made.MergeFromString(b"\x20\x01")  # is_negative_hits, younger than this client's idea of the protocol
    return made


UNITS = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"]
