"""Run the tests that Flask-Limiter and slowapi have for themselves on swlimit's storage, and say how many pass.

Nothing is changed in them: see `plugin`. Every test that fails has to be explained below.
"""

import os
import subprocess
import sys
import tarfile
from importlib import metadata
from xml.etree import ElementTree

from suites.explained import explained
from support.server import ROOT, Binaries, Server

FOLDER = ROOT / ".cache/suites/python"
NEEDED = ["hiro", "six", "pymemcache", "pymongo", "dnspython", "flask-restful", "aniso8601", "pytz", "pytest-mock",
          "pytest-check", "asgiref", "httpx", "httpcore", "mock"]
SLIDES = "the test looks exactly one window later; a unit counts for the window and up to one subinterval more"
ROUNDED = "the end of a window is told in whole seconds, rounded up, and is when nothing counts any more"
INSIDE = "the test replaces parts of the fixed window, or looks into the storage in memory"
WHOLE = "costs are whole units"
STARLETTE = "the test needs an older Starlette"

DIFFERENCES = {
    "tests.test_error_handling|test_key_style": INSIDE,
    "cost must be an integer": WHOLE,
    "has no attribute 'route'": STARLETTE,
    r"'\d{10}' == '\d{10}'|'\d{1,4}' == '\d{1,4}'|[Hh]eaders": ROUNDED,
    "429 == 200|200 == 429": SLIDES,
}
"""What a failing test has in its name or error -> why it fails."""


def flask_limiter():
    """Its source distribution has its tests."""
    version = metadata.version("Flask-Limiter")
    folder = FOLDER / f"flask_limiter-{version}"
    if not folder.exists():
        pip("download", "--no-deps", "--no-binary", ":all:", "--dest", FOLDER, f"Flask-Limiter=={version}")
        with tarfile.open(f"{folder}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    return f"Flask-Limiter {version}", folder


def slowapi():
    """The repository has them."""
    folder = FOLDER / "slowapi"
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", "--branch", "v0.1.9",
                        "https://github.com/laurentS/slowapi", folder], check=True)
    return "slowapi 0.1.9", folder


def pip(command, *words):
    subprocess.run([sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *words], check=True)


def run(folder, port):
    """How a suite's tests went: name and message of each that did not pass, and how many did."""
    report = FOLDER / "report.xml"
    path = f"{ROOT}/src/python:{ROOT}/scripts:{FOLDER}/site"
    words = ["-p", "suites.python.plugin", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "asyncio_mode=auto",
             "-W", "ignore", "--tb=line", f"--junitxml={report}", "tests"]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=folder, timeout=900, stdout=subprocess.DEVNULL,
                   env=os.environ | {"SWLIMIT_PORT": str(port), "PYTHONPATH": path})
    passed, failed = 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = next((one for one in case if one.tag in ("failure", "error")), None)
        if wrong is not None:
            failed.append(f"{case.get('classname')}.{case.get('name')}\n{wrong.get('message')}\n{wrong.text}")
        elif case.find("skipped") is None:
            passed += 1
    return passed, failed


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not (FOLDER / "site").exists():
        pip("install", "--no-deps", "--target", FOLDER / "site", *NEEDED)
    rows, unknown = ["| tests of | pass | the others |", "|---|---:|---|"], []
    with Server(Binaries.installed()) as server:
        for suite in (flask_limiter, slowapi):
            name, folder = suite()
            passed, failed = run(folder, server.port)
            others, unexplained = explained(failed, DIFFERENCES)
            unknown += unexplained
            rows.append(f"| {name} | {passed} of {passed + len(failed)} | {others} |")
    print("\n".join(rows))
    if unknown:
        sys.exit("\n\n".join(["", "Not explained:", *unknown]))


if __name__ == "__main__":
    main()
