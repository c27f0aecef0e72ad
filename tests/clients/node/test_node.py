"""The tests of the package for Node, each file of them on real servers, whose ports it gets."""

import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import node
from support.cluster import Cluster
from support.daemon import Daemon
from support.sentinel import watched
from support.server import MODULE
from support.tls import encrypted

HERE = node.MODULES
TESTS = {path.name for path in HERE.glob("*.test.mjs")}
WITH_MORE_SERVERS = {f"{name}.test.mjs" for name in (
    "away", "cluster", "edge", "glide", "script", "script-cluster", "sentinel", "takeover", "tls")}
once = pytest.mark.skipif(bool(os.environ.get("SWLIMIT_SERVERS")), reason="depends on no release")


def test_denials(server):
    """What is announced is what a server sends."""
    passes("denials.test.mjs", main=server.port)


@pytest.mark.parametrize("name", ["admit", "budget", "denials", "hold", "limiter", "rates", "spending"])
def test_without_the_module(name, start):
    """A script decides the same there, and the same is announced."""
    passes(f"{name}.test.mjs", main=start(module=None).port)


def test_script(server, start):
    bare, spare = start(module=None), start(module=None)
    passes("script.test.mjs", main=bare.port, spare=spare.port, module=server.port)


@once
@pytest.mark.parametrize("name", sorted(TESTS - WITH_MORE_SERVERS - {"denials.test.mjs"}))
def test_file(name, server):
    passes(name, main=server.port)


@once
def test_away(server, start):
    """`spare` is paused and killed, and starts again; `bare` has no module."""
    spare, bare = start(), start(module=None)
    with ThreadPoolExecutor() as pool:
        passed = pool.submit(passes, "away.test.mjs", main=server.port, spare=spare.port, bare=bare.port)
        while not passed.done():
            spare.start()
            time.sleep(0.1)
        passed.result()


@once
def test_edge(server):
    with Daemon("domain: d", server=server) as daemon:
        passes("edge.test.mjs", env={"NODE_OPTIONS": "--experimental-vm-modules"}, daemon=daemon.http_port)


@once
def test_cluster(start):
    passes("cluster.test.mjs", main=Cluster(start).servers[0].port)


@once
def test_the_oldest_glide(server, start):
    """Only one release of it works in a process."""
    oldest = {"SWLIMIT_GLIDE": "valkey-glide-2.2"}
    passes("limiter.test.mjs", "--test-name-pattern=GLIDE", env=oldest, main=server.port)
    passes("cluster.test.mjs", "--test-name-pattern=GLIDE", env=oldest, main=Cluster(start).servers[0].port)
    passes("glide.test.mjs", env=oldest, main=server.port, bare=start(module=None).port)


@once
def test_glide(server, start):
    passes("glide.test.mjs", main=server.port, bare=start(module=None).port)


@once
def test_script_in_a_cluster(start):
    passes("script-cluster.test.mjs", main=Cluster(start, module=None).servers[0].port)


@once
def test_takeover(server, start):
    """`later` gets the module while clients work."""
    later, cluster = start(module=None), Cluster(start).servers[0]
    passes("takeover.test.mjs", env={"SWLIMIT_MODULE": str(MODULE)},
           main=server.port, later=later.port, cluster=cluster.port)


@once
@pytest.mark.parametrize("module", [MODULE, pytest.param(None, marks=pytest.mark.long)], ids=["module", "script"])
def test_sentinel(start, binaries, tmp_path, module):
    """A sentinel that makes the replica the master when the test says so."""
    sentinel, master, replica = watched(start, binaries, tmp_path, "main", ("failover-timeout", 2000), module=module)
    passes("sentinel.test.mjs", main=master.port, replica=replica.port, sentinel=sentinel.port)


@once
def test_tls(start, tmp_path):
    server = encrypted(start, tmp_path)
    passes("tls.test.mjs", env={"SWLIMIT_CA": str(server.authority)}, main=server.port)


def passes(name, *words, env=None, **ports):
    """A file of tests, of which at least one is run, and all pass."""
    done = node.run("--test", "--test-reporter=spec", *words, name,
                    env=node.ENVIRONMENT | {"SWLIMIT_PORTS": json.dumps(ports)} | (env or {}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ℹ pass 0\n" not in done.stdout and "ℹ skipped 0\n" in done.stdout, done.stdout


@once
def test_types():
    """The package's types fit those of the clients and the frameworks."""
    done = node.run(node.TSC, "--project", HERE)
    assert done.returncode == 0, done.stdout + done.stderr


NODE_TYPES = ["--types", "node", "--typeRoots", node.PACKAGE / "node_modules/@types"]
OLD = node.MODULES / "node_modules/typescript-5/bin/tsc"
USERS = {
    "node10": (OLD, "ts", NODE_TYPES, "--module", "commonjs", "--moduleResolution", "node10"),
    "node16, import": (OLD, "mts", NODE_TYPES, "--module", "node16"),
    "node16, require": (OLD, "cts", NODE_TYPES, "--module", "node16"),
    "nodenext": (node.TSC, "mts", NODE_TYPES, "--module", "nodenext", "--ignoreConfig"),
    "bundler": (node.TSC, "ts", NODE_TYPES, "--module", "esnext", "--moduleResolution", "bundler", "--ignoreConfig"),
    "edge": (node.TSC, "ts", ["--lib", "es2022,dom", "--typeRoots", "/nonexistent"], "--module", "esnext",
             "--moduleResolution", "bundler", "--ignoreConfig"),
}
"""What users tell the compiler, by how it finds modules; functions at the edge know nothing of Node.js."""


REFUSED = """
// @ts-expect-error: either a period or a window
new m0.BudgetLimiter({ limit: 1, period: "month", window: "1m" });
"""


@once
@pytest.mark.parametrize("users", USERS)
def test_types_with_settings_of_users(users):
    """The declarations themselves are checked: without `skipLibCheck`. A wrong line shows that they are read."""
    compiler, suffix, types, *words = USERS[users]
    exports = json.loads((node.PACKAGE / "package.json").read_text())["exports"]
    names = ["./edge"] if users == "edge" else list(exports)
    lines = [f'import * as m{at} from "swlimit{name[1:]}";\n' for at, name in enumerate(names)]
    lines += [] if users == "edge" else [REFUSED]
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        program = Path(folder, f"users.{suffix}")
        modules = "".join(f"m{at}," for at in range(len(names)))
        program.write_text("".join([*lines, f"export const wrong: number[] = [{modules}];\n"]))
        done = node.run(compiler, "--noEmit", "--strict", "--esModuleInterop", "--target", "es2022", *types, *words,
                        program)
    wrong = [line for line in done.stdout.splitlines() if "dist/" in line.split("(")[0]]
    assert wrong == []
    assert done.stdout.count(f"users.{suffix}(") == len(names), done.stdout
