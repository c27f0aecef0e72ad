"""Run the tests that Flask-Limiter and slowapi have for themselves on swlimit's storage, and say how many pass.

Nothing is changed in them: see `plugin`. Every test that fails has to be explained below.
"""

import os
import subprocess
import sys
import tarfile
from importlib import metadata
from xml.etree import ElementTree

from suites.explained import difference, named
from support.server import ROOT, Binaries, Server

FOLDER = ROOT / ".cache/suites/python"
NEEDED = ["hiro", "six", "pymemcache", "pymongo", "dnspython", "flask-restful", "aniso8601", "pytz", "pytest-mock",
          "pytest-check", "asgiref", "httpx", "httpcore", "mock"]
SLIDES = "the test looks exactly one window later; a unit counts for the window and up to one subinterval more"
ROUNDED = "the end of a window is given in whole seconds, rounded up, and is when nothing counts any more"
INSIDE = "the test replaces parts of the fixed window, or looks into the storage in memory"
WHOLE = "costs are whole units"
STARLETTE = "the test needs an older Starlette"

FLASK_LIMITER = [
    difference(SLIDES, r"\b(429 == 200|200 == 429)\b", """
    tests.test_blueprints.test_nested_blueprint_exemption_ridiculous
    tests.test_blueprints.test_nested_blueprint_child_explicit_nested_limits
    tests.test_blueprints.test_register_blueprint
    tests.test_blueprints.test_blueprint_limit_with_route_limits
    tests.test_context_manager.test_static_limit
    tests.test_decorators.test_shared_limit_with_conditional_deduction
    tests.test_decorators.test_decorated_limits_with_combined_defaults
    tests.test_decorators.test_decorated_dynamic_limits
    tests.test_decorators.test_decorated_limit_with_combined_defaults_per_method
    tests.test_decorators.test_decorated_limit_with_meta_limit
    tests.test_decorators.test_manually_constructed_decorated_limit
    tests.test_decorators.test_whitelisting
    tests.test_decorators.test_non_route_decoration_static_limits_override_defaults
    tests.test_flask_ext.test_default_limit_with_exemption
    tests.test_flask_ext.test_default_limit_with_variable_cost
    tests.test_flask_ext.test_default_limit_with_conditional_deduction
    tests.test_flask_ext.test_multiple_apps
    tests.test_flask_ext.test_fail_on_first_breach
    tests.test_flask_ext.test_multiple_instances_no_key_prefix
    tests.test_flask_ext.test_independent_instances_by_key_prefix
    tests.test_flask_ext.test_multiple_limiters_default_limits
    tests.test_flask_ext.test_meta_limits
    tests.test_regressions.test_default_limits_with_per_route_limit
    tests.test_views.test_pluggable_views
    tests.test_views.test_pluggable_method_views
    tests.test_views.test_flask_restful_resource
    """),
    difference(ROUNDED, r"assert '(\d{10})' == '\d{10}'", """
    tests.test_flask_ext.test_headers_no_breach
    tests.test_flask_ext.test_headers_application_limits
    tests.test_flask_ext.test_headers_breach
    tests.test_flask_ext.test_custom_headers_from_config
    """),
    difference(INSIDE, r"assert 'ok' in|500 == 200|429 == 200", """
    tests.test_error_handling.test_swallow_error
    tests.test_error_handling.test_no_swallow_error
    tests.test_error_handling.test_no_swallow_error_conditional_deduction
    tests.test_error_handling.test_fallback_to_memory
    """),
]
SLOWAPI = [
    difference(WHOLE, "cost must be an integer", """
    tests.test_fastapi_extension.TestDecorators.test_callable_cost
    tests.test_starlette_extension.TestDecorators.test_callable_cost
    """),
    difference(INSIDE, r"assert 0 == [12]\b", """
    tests.test_fastapi_extension.TestDecorators.test_key_style
    tests.test_starlette_extension.TestDecorators.test_key_style
    """),
    difference(STARLETTE, "has no attribute 'route'", """
    tests.test_starlette_extension.TestDecorators.test_headers_no_breach
    tests.test_starlette_extension.TestDecorators.test_headers_breach
    tests.test_starlette_extension.TestDecorators.test_retry_after
    tests.test_starlette_extension.TestDecorators.test_exempt_decorator
    """),
]

STRETCH = "1.002"
"""A unit counts for a window and up to a thousandth more here: a clock that goes that much faster shows no slide."""


def flask_limiter():
    """Its source distribution has its tests."""
    version = metadata.version("Flask-Limiter")
    folder = FOLDER / f"flask_limiter-{version}"
    if not folder.exists():
        pip("download", "--no-deps", "--no-binary", ":all:", "--dest", FOLDER, f"Flask-Limiter=={version}")
        with tarfile.open(f"{folder}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    return f"Flask-Limiter {version}", folder, FLASK_LIMITER


def slowapi():
    """The repository has them."""
    folder = FOLDER / "slowapi"
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", "--branch", "v0.1.9",
                        "https://github.com/laurentS/slowapi", folder], check=True)
    return "slowapi 0.1.9", folder, SLOWAPI


def pip(command, *words):
    subprocess.run([sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *words], check=True)


def run(folder, port, stretch="1"):
    """How a suite's tests went: name and message of each that did not pass, and how many did.

    `stretch`: how much faster than the test's clock the server's goes.
    """
    report = FOLDER / "report.xml"
    path = f"{ROOT}/src/python:{ROOT}/scripts:{FOLDER}/site"
    words = ["-p", "suites.python.plugin", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "asyncio_mode=auto",
             "-W", "ignore", "--tb=line", f"--junitxml={report}", "tests"]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=folder, timeout=900, stdout=subprocess.DEVNULL,
                   env=os.environ | {"SWLIMIT_PORT": str(port), "SWLIMIT_STRETCH": stretch, "PYTHONPATH": path})
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
            name, folder, differences = suite()
            passed, failed = run(folder, server.port)
            others, wrong = named(failed, differences)
            unknown += wrong
            slides = {name for one in differences if one.reason == SLIDES for name in one.names}
            if slides:
                _, still = run(folder, server.port, STRETCH)
                unknown += [f"{test}\nfails, and not because a window slides" for test in still
                            if test.split("\n", 1)[0] in slides]
            rows.append(f"| {name} | {passed} of {passed + len(failed)} | {others} |")
    print("\n".join(rows))
    if unknown:
        sys.exit("\n\n".join(["", "Not explained:", *unknown]))


if __name__ == "__main__":
    main()
