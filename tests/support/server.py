"""Start real servers with the module loaded, on free loopback ports, and end each of them again."""

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import redis

ROOT = Path(__file__).resolve().parents[2]
MODULE = Path(os.environ.get("SWLIMIT_MODULE", ROOT / "target/debug/libswlimit.so"))
READY_SECONDS = 20


_given = set()


def free_port():
    """A loopback port nobody listens on, nor on a cluster's second port (10 000 above); no port is given twice.

    Both are below those that the system gives to clients, of which one could take it before the server does. Processes
    that run tests at the same time share a file, in which each locks the byte of every port that it has given.
    """
    while True:
        port = random.randrange(10_000, 20_000)
        if port not in _given and all(map(_is_free, [port, port + 10_000])):
            try:
                fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:
                continue
            _given.add(port)
            return port


@cache
def _locks():
    """The file whose locked bytes are the ports that are given; open as long as this process runs."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    return open(ROOT / ".cache/ports", "ab")


def _is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Binaries:
    """One server release: how to start it and the command-line client that belongs to it.

    `command` is a list, because some releases are started through their own dynamic loader.
    """

    def __init__(self, name, command, cli="redis-cli", env=None):
        self.name = name
        self.command = list(command)
        self.cli = cli
        self.env = dict(env or {})

    @classmethod
    def installed(cls):
        """The redis-server on PATH, or the one that SWLIMIT_SERVER names."""
        return cls("installed", [os.environ.get("SWLIMIT_SERVER", "redis-server")])

    def tool(self, name):
        """Where another tool of this release is, such as `check-aof`; None if it came without."""
        server = Path(shutil.which(self.command[0]))
        return shutil.which(server.with_name(server.name.replace("-server", f"-{name}")))

    def __repr__(self):
        return self.name


class Server:
    """One server process in a folder of its own. Use as a context manager.

    `options` are redis.conf directives ({"appendonly": "yes"}); `module_args` follow the module's path;
    `module=None` starts a server without the module; `before` is a list of words put before the server's own command
    (taskset, valgrind, faketime).
    """

    def __init__(self, binaries=None, options=None, module=MODULE, module_args=(), folder=None, port=None, env=None,
                 before=(), ready_seconds=READY_SECONDS):
        self.binaries = binaries or Binaries.installed()
        self.options = dict(options or {})
        self.module = module
        self.module_args = [str(arg) for arg in module_args]
        self.port = port or free_port()
        self.env = dict(env or {})
        self.before = list(before)
        self.ready_seconds = ready_seconds
        self.process = None
        self._owns_folder = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix="swlimit-"))

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    @property
    def log(self):
        """What the server has logged so far."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def command_line(self):
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "logfile": self.folder / "server.log",
            "save": "",
            "enable-debug-command": "yes",
            "enable-module-command": "yes",
            "daemonize": "no",
        } | self.options
        if "LD_PRELOAD" in self.env:
            # jemalloc's thread waits until a time of the kernel's clock. If the shown clock is behind, it never sleeps.
            options.setdefault("jemalloc-bg-thread", "no")
        words = self.before + self.binaries.command
        for name, value in options.items():
            values = value if isinstance(value, list) else [value]
            for one in values:
                words += [f"--{name}", *(str(part) for part in (one if isinstance(one, tuple) else (one,)))]
        if self.module:
            words += ["--loadmodule", str(self.module), *self.module_args]
        return words

    def spawn(self):
        """Start the process and do not wait for it; for servers that are expected to refuse to start."""
        with open(self.folder / "stdout.log", "ab") as output:
            # In a session of its own: Ctrl-C is for the process that started the server, which then ends it.
            self.process = subprocess.Popen(self.command_line(), cwd=self.folder, stdout=output,
                                            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                            env=os.environ | self.binaries.env | self.env)
        return self

    def start(self):
        """Start (or start again in the same folder) and wait until commands are answered."""
        if self.alive:
            return self
        self.spawn()
        deadline = time.monotonic() + self.ready_seconds
        while True:
            try:
                with self.client(socket_timeout=5) as client:
                    client.ping()
                return self
            except redis.exceptions.RedisError as error:  # not listening yet, or still loading its data
                output = (self.folder / "stdout.log").read_text(errors="replace")
                if self.process.poll() is not None:
                    raise RuntimeError(f"{self.binaries} ended at once:\n{self.log}{output}") from error
                if time.monotonic() > deadline:
                    self.kill()
                    raise RuntimeError(f"{self.binaries} does not answer: {error}\n{self.log}{output}") from error
            time.sleep(0.02)

    def stop(self, timeout=30):
        """End in good order (SIGTERM), keeping the folder."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
        return self

    def kill(self):
        """End without any warning (SIGKILL), keeping the folder."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        return self

    def restart(self):
        return self.stop().start()

    def close(self):
        """End the process and remove its folder."""
        self.stop()
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def alive(self):
        return self.process is not None and self.process.poll() is None

    def client(self, **options):
        """A redis-py client."""
        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def cli(self, *words, flags=(), stdin=None):
        """What `redis-cli` prints for one command: errors included, without the last line end."""
        command = [self.binaries.cli, "-h", "127.0.0.1", "-p", str(self.port), *flags, *(_word(word) for word in words)]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, env=os.environ | self.binaries.env)
        return done.stdout.decode(errors="surrogateescape").rstrip("\n")


def _word(word):
    return word if isinstance(word, (str, bytes)) else str(word)
