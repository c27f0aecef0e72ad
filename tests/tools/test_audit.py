"""`scripts/audit` finds holes, and says what it could not look up."""

import json
import os
import subprocess

import pytest

from support.server import ROOT

UNREACHABLE = ["Rust's crates", "Python's packages", "the packages of src/clients/node",
               "the packages of tests/clients/node", "the packages of tests/clients/ai-sdk", "Go's packages"]


@pytest.fixture
def audit(tmp_path):
    """Runs it where databases answer as these programs do."""
    scripts = tmp_path / "swlimit/scripts"
    programs = tmp_path / "swlimit/.venv/bin"
    scripts.mkdir(parents=True)
    programs.mkdir(parents=True)
    for name in ("audit", "help"):
        (scripts / name).write_text((ROOT / "scripts" / name).read_text())
        (scripts / name).chmod(0o755)

    def audit(*words, **answers):
        for name, answer in answers.items():
            (programs / name).write_text(f"#!/bin/sh\n{answer}\n")
            (programs / name).chmod(0o755)
        environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run([scripts / "audit", *words], env=environment, capture_output=True, text=True)
        return done.returncode, done.stderr

    return audit


def test_what_cannot_be_looked_up_is_said(audit):
    away = {"git": "exit 128", "curl": "exit 6", "npm": "echo '{\"error\": {}}'; exit 1"}
    status, said = audit(**away)
    assert status == 0
    assert said.splitlines() == [
        f"audit: NOT CHECKED: {what}, whose database of holes cannot be reached from here" for what in UNREACHABLE]
    assert audit("--all", **away)[0] == 1


@pytest.mark.parametrize("holes, status", [({}, 0), ({"some-package": {"severity": "high"}}, 1)])
def test_a_hole_makes_it_fail(audit, holes, status):
    report = json.dumps({"auditReportVersion": 2, "vulnerabilities": holes})
    assert audit(git="exit 128", curl="exit 6", npm=f"echo '{report}'; exit {status}")[0] == status
