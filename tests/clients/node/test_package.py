"""What `npm pack` makes: installed into an empty folder, it works with import and require, and has types for both."""

import fcntl
import json
import os
import shutil
import tarfile

import pytest

from support import node
from support.server import ROOT

PROGRAM = """
const frameworks = all.slice(0, {frameworks}), others = all.slice({frameworks});
const client = await redis.createClient({{ socket: {{ port: {port} }} }}).connect();
const limiter = new swlimit.Limiter({{ client, limit: 1, window: "1m", prefix: "{prefix}" }});
const granted = [];
for (let i = 0; i < 3; i++) granted.push((await limiter.allow("k")).granted);
console.log(JSON.stringify([granted, frameworks.map(({{ rateLimit }}) => typeof rateLimit({{ limiter }})),
                            others.map((module, at) => typeof module[{names}[at]])]));
limiter.close();
await client.close();
"""
FRAMEWORKS = ["express", "fastify", "hono", "koa"]
OTHERS = {"express-rate-limit": "SwlimitStore", "fastify-rate-limit": "swlimitStore",
          "nestjs": "SwlimitThrottlerStorage", "edge": "HttpLimiter", "bullmq": "inTurn",
          "rate-limiter-flexible": "RateLimiterSwlimit", "ai-sdk": "rateLimit", "testing": "TestClock",
          "prometheus": "observe", "opentelemetry": "trace", "ws": "webSocketLimit"}
"""Each other module of the package, and what it has."""
MODULES = [f"swlimit/{name}" for name in [*FRAMEWORKS, *OTHERS]]
EXPECTED = [[1, 0, 0], ["function"] * len(FRAMEWORKS), ["function"] * len(OTHERS)]
TYPED = """
import {{ type Decision, Limiter }} from "swlimit";
import {{ rateLimit }} from "swlimit/hono";
const limiter = new Limiter({{ limit: 1, window: "1m" }});
export const decision: Promise<Decision> = limiter.allow("k"){wrong};
export const middleware = rateLimit({{ limiter }});
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the package as it would be published, which is installed there, and packages that it is used with.

    The first of pytest's processes makes it, for all.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "published"
    with open(shared / "published.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "node_modules/swlimit").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_text("{}")
            versions = json.loads((node.MODULES / "package.json").read_text())["dependencies"]
            peers = [f"{name}@{versions[name]}" for name in ("redis", "prom-client", "@opentelemetry/api")]
            node.npm("install", "--silent", "--prefer-offline", "--no-audit", node.pack(folder), *peers, cwd=folder)
    return folder


@pytest.fixture
def packed(folder):
    package, = folder.glob("*.tgz")
    return package


@pytest.fixture
def installed(folder):
    return folder


@pytest.mark.long
def test_only_what_users_need_is_published(packed):
    with tarfile.open(packed) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
    built = {name for name in names if name.startswith("dist/")}
    assert names - built == {"package.json", "README.md", "LICENSE"}
    assert {name.split("/")[1] for name in built} == {"esm", "cjs"}


@pytest.mark.parametrize("folder", ["src/clients/node", "tests/clients/node", "tests/clients/ai-sdk"])
def test_lock_files_name_what_all_packages_hold(folder):
    packages = json.loads((ROOT / folder / "package-lock.json").read_text())["packages"]
    assert [path for path, package in packages.items()
            if "node_modules/" in path and not {"link", "integrity"} & package.keys()] == []


@pytest.mark.long
def test_import(installed, server):
    imports = "".join(f'import * as m{number} from "{name}";\n' for number, name in enumerate(MODULES))
    head = f'import * as redis from "redis";\nimport * as swlimit from "swlimit";\n{imports}'
    head += f"const all = [{', '.join(f'm{number}' for number in range(len(MODULES)))}];"
    assert run(installed, "import.mjs", head, server) == EXPECTED


@pytest.mark.long
def test_require(installed, server):
    names = ", ".join(f'require("{name}")' for name in MODULES)
    head = f'const redis = require("redis"), swlimit = require("swlimit"), all = [{names}];\n'
    head += "(async () => {"
    assert run(installed, "require.cjs", head, server, "})();") == EXPECTED


def run(folder, name, head, server, tail=""):
    program = PROGRAM.format(port=server.port, prefix=name, names=[*OTHERS.values()], frameworks=len(FRAMEWORKS))
    (folder / name).write_text(head + program + tail)
    done = node.run(name, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["mts", "cts"])
def test_types(installed, suffix):
    """That of a wrong program is complained of shows that they are read."""
    for wrong, good in [("", True), (" as unknown as number", False)]:
        (installed / f"typed.{suffix}").write_text(TYPED.format(wrong=wrong))
        done = node.run(node.TSC, "--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--types", "node",
                        "--typeRoots", node.PACKAGE / "node_modules/@types", f"typed.{suffix}", cwd=installed)
        assert (done.returncode == 0) == good, done.stdout + done.stderr


@pytest.mark.long
def test_types_where_exports_are_not_read(installed):
    """TypeScript 5 with `moduleResolution: node10` finds the modules of the package, too."""
    lines = "".join(f'import * as m{number} from "{name}";\n' for number, name in enumerate(["swlimit", *MODULES]))
    (installed / "old.ts").write_text(lines + 'export const wrong: number = m0.Limiter;\n')
    done = node.run(node.MODULES / "node_modules/typescript-5/bin/tsc", "--noEmit", "--strict", "--skipLibCheck",
                    "--target", "es2022", "--module", "commonjs", "--moduleResolution", "node10", "--types", "node",
                    "--typeRoots", node.PACKAGE / "node_modules/@types", "old.ts", cwd=installed)
    assert done.stdout.count("error") == 1 and "Type 'typeof Limiter' is not assignable" in done.stdout, done.stdout
