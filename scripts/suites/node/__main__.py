"""Run the tests that other libraries have for their own stores in memory on swlimit's stores, and say how many pass.

Their sources come with git, at the releases that are named here; in them the store is another file. Where tests set a
clock, only the date obeys; tests of @fastify/rate-limit wait instead. Every test that fails must be explained below.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from suites.explained import explained
from support import node
from support.server import ROOT, Server

HERE = Path(__file__).parent
FOLDER = ROOT / ".cache/suites/node"
LATER = "a window slides, and ends up to a subinterval later: `RateLimit`'s reset and `Retry-After`"
CLOCK = "the test sets a clock; the server's own decides"
MEMORY = "how that store keeps its memory: maps and timers"
MISSING = "`resetAll` is missing"
EMPTY = "of a key that counts nothing nothing is told"
UNTOLD = "a store that nobody told its window"
REFUSED = "`continueExceeding` and `exponentialBackoff` are refused"

DIFFERENCES = {
    r"headers|`retry-after`": LATER,
    r"resetAll": MISSING,
    r"below 0": EMPTY,
    r"init of the store was not called": UNTOLD,
    r"timeout is reached|\(eventually\)|repeatedly|finishes after": CLOCK,
    r"`shutdown`|electron|previous|assigned to two keys": MEMORY,
}
"""What a failing test has in its name or its error -> why it fails."""

FASTIFY_DIFFERENCES = {
    r"swlimit has no": REFUSED,
    r"'(\d+)' !== '\d+'|\+ ttl: |ttlInSeconds": LATER,
}


@dataclass(frozen=True)
class Suite:
    name: str
    url: str
    release: str
    store: str
    """Where its store is, and the file in place of it."""
    text: str
    differences: dict[str, str]


SUITES = [
    Suite("express-rate-limit", "https://github.com/express-rate-limit/express-rate-limit", "v8.6.2",
          "source/memory-store.ts", 'export { MemoryStore } from "../../store.mjs";\n', DIFFERENCES),
    Suite("hono-rate-limiter", "https://github.com/rhinobase/hono-rate-limiter", "v0.5.3",
          "src/stores/memory.ts", 'export { MemoryStore } from "../../../store.mjs";\n', DIFFERENCES),
    Suite("@fastify/rate-limit", "https://github.com/fastify/fastify-rate-limit", "v11.2.0",
          "store/LocalStore.js", 'module.exports = require("../../LocalStore.cjs");\n', FASTIFY_DIFFERENCES),
]


def prepare(suite):
    """The folder of a suite with the other store in it."""
    folder = FOLDER / suite.url.rsplit("/", 1)[1]
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", "--branch", suite.release, suite.url, folder],
                       check=True)
    subprocess.run(["git", "checkout", "--quiet", "--force", suite.release], cwd=folder, check=True)
    (folder / "tsconfig.json").unlink(missing_ok=True)
    (folder / suite.store).write_text(suite.text)
    if suite.name.startswith("@fastify"):
        change(folder / "index.js", r"new LocalStore\([^)]*\)", "new LocalStore(globalParams)")
        for test in (folder / "test").rglob("*.js"):
            change(test, r"clock\.tick\((.*)\)", r"await new Promise((resolve) => setTimeout(resolve, \1))")
            change(test, r"clock\.(enable|reset)\(0?\)", "clock")
    return folder


def change(path, pattern, replacement):
    path.write_text(re.sub(pattern, replacement, path.read_text()))


def run(suite, folder, url):
    """How many of a suite's tests passed, and of each that failed the name and the error."""
    env = node.ENVIRONMENT | {"SWLIMIT_URL": url}
    if suite.name.startswith("@fastify"):
        files = [path for path in (folder / "test").rglob("*.test.js") if "redis" not in path.name]
        done = subprocess.run([node.NODE, "--test", "--test-force-exit", "--test-reporter=tap", *files], cwd=folder,
                              env=env, capture_output=True, text=True, timeout=900)
        tests = re.findall(r"^(?:ok|not ok) \d+ - [^#\n]*\n(?:  .*\n)*", done.stdout, re.MULTILINE)
        return sum(test.startswith("ok") for test in tests), [test for test in tests if test.startswith("not")]
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    words = ["run", "--config", FOLDER / "vitest.config.mjs", "--root", folder, "--reporter=json",
             f"--outputFile={report}"]
    subprocess.run([node.NODE, FOLDER / "node_modules/vitest/vitest.mjs", *words], env=env, timeout=900,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tests = [test for file in json.loads(report.read_text())["testResults"] for test in file["assertionResults"]]
    failed = [test for test in tests if test["status"] != "passed"]
    return len(tests) - len(failed), ["\n".join([test["title"], *test["failureMessages"]]) for test in failed]


def main():
    node.build()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in HERE.glob("*"):
        if path.suffix in (".mjs", ".cjs", ".json"):
            shutil.copy(path, FOLDER)
    if not (FOLDER / "node_modules/vitest").exists():
        node.npm("install", "--ignore-scripts", "--no-package-lock", "--silent", cwd=FOLDER)
    link = FOLDER / "node_modules/swlimit"
    link.unlink(missing_ok=True)
    link.symlink_to(node.PACKAGE)
    unexplained = []
    print("| suite | passed | of | the others |\n|---|---:|---:|---|")
    with Server() as server:
        for suite in SUITES:
            passed, failed = run(suite, prepare(suite), f"redis://127.0.0.1:{server.port}")
            others, unknown = explained(failed, suite.differences)
            unexplained += [f"{suite.name}: {test}" for test in unknown]
            cells = (f"{suite.name} {suite.release.lstrip('v')}", passed, passed + len(failed), others)
            print("|", " | ".join(map(str, cells)), "|", flush=True)
    for test in unexplained:
        print(f"not explained: {test}", file=sys.stderr)
    return bool(unexplained)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
