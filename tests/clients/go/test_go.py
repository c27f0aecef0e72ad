"""The tests of the modules for Go, on real servers: SWLIMIT_PORTS has their ports."""

import json
import subprocess

import pytest

from support import golang
from support.cluster import Cluster
from support.sentinel import watched
from support.server import MODULE, ROOT
from support.tls import encrypted

CORE = "github.com/swlimit/swlimit/src/clients/go"
MODULES = [*golang.FOLDERS, golang.TESTS]


def passes(folder, only=None, env=None, **ports):
    """The tests of a folder, of which at least one is run, none is skipped, and all pass. They are vetted below. Those
    that run in parallel wait more than they compute."""
    done = golang.run("test", "-vet=off", "-count=1", "-parallel=16", "-v", *(["-run", only] if only else []), ".",
                      cwd=golang.MODULES / folder, env={"SWLIMIT_PORTS": json.dumps(ports)} | (env or {}))
    failed = [text for text in done.stdout.split("=== RUN") if "--- FAIL" in text]
    assert done.returncode == 0, "".join(failed)[-20_000:] or done.stdout[-20_000:] + done.stderr
    assert "--- PASS" in done.stdout and "--- SKIP" not in done.stdout, done.stdout


def test_core(server, start):
    """`bare` has no module; `late` and the cluster get it."""
    bare, late, cluster = start(module=None), start(module=None), Cluster(start, module=None)
    passes(".", main=server.port, bare=bare.port, late=late.port, cluster=cluster.servers[0].port,
           env={"SWLIMIT_MODULE": str(MODULE)})


@pytest.mark.parametrize("package", ["httplimit", "swlimittest"])
def test_packages_without_a_server(package):
    passes(package)


def test_adapters(server, start, binaries, tmp_path):
    """Also that every exported name is documented. The sentinel makes the replica the master when it is asked to."""
    cluster, tls = Cluster(start), encrypted(start, tmp_path)
    sentinel, *_ = watched(start, binaries, tmp_path, "main", ("failover-timeout", 2000))
    passes(golang.TESTS, main=server.port, cluster=cluster.servers[0].port, tls=tls.port, sentinel=sentinel.port,
           env={"SWLIMIT_CA": str(tls.authority)})


@pytest.mark.parametrize("exporter", ["promlimit", "otellimit"])
def test_exporters(exporter):
    passes(exporter)


def test_rueidisgo(server, start):
    passes("rueidisgo", main=server.port, cluster=Cluster(start).servers[0].port)


def test_grpclimit(server):
    passes("grpclimit", main=server.port)


def test_redisrate(server, start):
    passes("redisrate", main=server.port, cluster=Cluster(start).servers[0].port)


@pytest.mark.parametrize("module", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_is_in_good_order(module):
    """Formatted and vetted."""
    assert subprocess.check_output([golang.FORMAT, "-l", "."], cwd=module, text=True) == ""
    done = golang.run("vet", "./...", cwd=module)
    assert done.returncode == 0, done.stderr


def test_core_depends_on_nothing_but_the_script():
    named = golang.run("list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", f"{CORE}/httplimit")
    assert set(named.stdout.split()) == {"github.com/swlimit/swlimit/src/server/script", f"{CORE}/internal/fakes", CORE,
                                         f"{CORE}/httplimit"}
