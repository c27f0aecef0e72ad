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

from suites.explained import Difference, difference, named
from support import node
from support.server import ROOT, Server

HERE = Path(__file__).parent
FOLDER = ROOT / ".cache/suites/node"
LATER = "a window slides, and ends up to a subinterval later: `RateLimit`'s reset and `Retry-After`"
CLOCK = "the test sets a clock; the server's own decides"
MEMORY = "how that store keeps its memory: maps and timers"
MISSING = "`resetAll` is missing"
EMPTY = "a key that counts nothing has no answer"
UNTOLD = "a store that nobody told its window"
REFUSED = "`continueExceeding` and `exponentialBackoff` are refused"

TOLD_LATER = r'x-ratelimit-reset|to be less than or equal to|expected "(ratelimit|ratelimit-reset|retry-after)" of'
STOOD_STILL = r'expected 200 "OK", got 429|expected 2 to deeply equal 1|expected true to deeply equal false'
OWN_MEMORY = r"to be defined|RangeError: window|clearInterval|reading 'has'|expected 5 to be 3"
"""What the errors of tests say that fail so."""

EXPRESS = [
    difference(LATER, TOLD_LATER, """
    headers test should send correct `x-ratelimit-limit`, `x-ratelimit-remaining`, and `x-ratelimit-reset` headers
    headers test should send correct `ratelimit-*` headers for the standard headers draft 6
    headers test should send policy and combined ratelimit headers for the standard draft 7
    headers test should send correct headers for the standard draft 8
    headers test should send multiple headers correctly for the standard draft 8
    headers test should override the quota name if specified for the standard draft 8
    headers test should return the `retry-after` header once IP has reached the max
    """),
    difference(EMPTY, r'expected undefined to be defined', """
    memory store test does not decrement the key below 0 when `decrement` is called
    """),
    difference(UNTOLD, r'init of the store was not called', """
    memory store test resetKey should remove the key from storage
    """),
    difference(MISSING, r'resetAll is not a function', """
    memory store test resets the count for all keys in the store when `resetAll` is called
    """),
    difference(MEMORY, OWN_MEMORY, """
    memory store test clears the timer when `shutdown` is called
    memory store test can run in electron where setInterval does not return a Timeout object with an unset function
    memory store test should automatically clear previously set intervals
    memory store test should move clients from previous to current
    memory store test does not allow a Client object to be assigned to two keys
    """),
    difference(CLOCK, STOOD_STILL, """
    memory store test resets the count for all the keys in the store when the timeout is reached
    middleware test should (eventually) accept new connections from a blocked IP
    middleware test should work repeatedly
    middleware test should not decrement hits when request finishes after `resetTime` with `skipSuccessfulRequests`
    """),
]
HONO = [
    difference(LATER, TOLD_LATER, """
    headers test should send correct `ratelimit-*` headers for the standard headers draft 6
    headers test should send policy and combined ratelimit headers for the standard draft 7
    headers test should return the `retry-after` header once IP has reached the max
    """),
    difference(CLOCK, STOOD_STILL, """
    middleware test should (eventually) accept new connections from a blocked IP
    middleware test should work repeatedly
    memory store test resets the count for all the keys in the store when the timeout is reached
    """),
    difference(MISSING, r'resetAll is not a function', """
    memory store test resets the count for all keys in the store when `resetAll` is called
    """),
    difference(MEMORY, OWN_MEMORY, """
    memory store test clears the timer when `shutdown` is called
    memory store test can run in electron where setInterval does not return a Timeout object with an unset function
    memory store test should move clients from previous to current
    memory store test does not allow a Client object to be assigned to two keys
    """),
]
FASTIFY = [
    difference(LATER, r"'\d+' !== '\d+'|\+ +ttl: |ttlInSeconds", """
    With global rate limit options
    With custom rate limit options
    With { increment: false } it reads the state without consuming it
    Basic
    When passing NaN to the timeWindow property then the timeWindow should be the default value - 60 seconds
    With async/await keyGenerator
    hide rate limit headers
    hide rate limit headers on exceeding
    With enabled IETF Draft Spec
    hide IETF draft spec headers
    Set not found handler can be rate limited
    Set not found handler can be rate limited with specific options
    With keyGenerator
    custom error response
    global timeWindow when not set in routes
    Allow multiple different rate limiter registrations
    With enable IETF draft spec
    Allow custom timeWindow in preHandler
    """),
    difference(REFUSED, r'swlimit has no', """
    With { increment: false } and continueExceeding the peek mirrors the active window
    With { increment: false } and exponentialBackoff the peek reports the base window without escalating it
    Exponential Backoff
    Global Exponential Backoff
    MAx safe Exponential Backoff
    When continue exceeding is on (Local)
    """),
]


@dataclass(frozen=True)
class Suite:
    name: str
    url: str
    release: str
    store: str
    """Where its store is, and the file in place of it."""
    text: str
    differences: list[Difference]


SUITES = [
    Suite("express-rate-limit", "https://github.com/express-rate-limit/express-rate-limit", "v8.6.2",
          "source/memory-store.ts", 'export { MemoryStore } from "../../store.mjs";\n', EXPRESS),
    Suite("hono-rate-limiter", "https://github.com/rhinobase/hono-rate-limiter", "v0.5.3",
          "src/stores/memory.ts", 'export { MemoryStore } from "../../../store.mjs";\n', HONO),
    Suite("@fastify/rate-limit", "https://github.com/fastify/fastify-rate-limit", "v11.2.0",
          "store/LocalStore.js", 'module.exports = require("../../LocalStore.cjs");\n', FASTIFY),
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
        failed = [re.sub(r"^not ok \d+ - ", "", test) for test in tests if test.startswith("not")]
        return len(tests) - len(failed), failed
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    words = ["run", "--config", FOLDER / "vitest.config.mjs", "--root", folder, "--reporter=json",
             f"--outputFile={report}"]
    subprocess.run([node.NODE, FOLDER / "node_modules/vitest/vitest.mjs", *words], env=env, timeout=900,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tests = [test for file in json.loads(report.read_text())["testResults"] for test in file["assertionResults"]]
    failed = [test for test in tests if test["status"] != "passed"]
    told = ["\n".join([test["fullName"].strip(), *test["failureMessages"]]) for test in failed]
    return len(tests) - len(failed), told


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
            others, unknown = named(failed, suite.differences)
            unexplained += [f"{suite.name}: {test}" for test in unknown]
            cells = (f"{suite.name} {suite.release.lstrip('v')}", passed, passed + len(failed), others)
            print("|", " | ".join(map(str, cells)), "|", flush=True)
    for test in unexplained:
        print(f"not explained: {test}", file=sys.stderr)
    return bool(unexplained)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
