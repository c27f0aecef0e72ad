"""`scripts/crates`: an older Rust that suffices for the module is not asked to build the rest."""

import os
import subprocess

import pytest

from support.server import ROOT


def crates(folder, version):
    """What it prints with a cargo of this version, and what it says beside that."""
    (folder / "cargo").write_text(f'#!/bin/sh\necho "cargo {version} (d73d2caf9 2024-12-31)"\n')
    (folder / "cargo").chmod(0o755)
    done = subprocess.run([ROOT / "scripts/crates"], env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
                          capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize("version", ["1.89.0", "1.100.0"])
def test_a_new_rust_takes_everything(tmp_path, version):
    assert crates(tmp_path, version) == (["--workspace"], "")


@pytest.mark.parametrize("version", ["1.85.0", "1.88.1"])
def test_an_older_one_says_what_it_leaves_out(tmp_path, version):
    words, said = crates(tmp_path, version)
    assert words[0] == "--workspace" and "swlimit-client" in words[2::2] and set(words[1::2]) == {"--exclude"}
    assert not {"swlimit", "swlimit-window"} & set(words)
    assert f"LEFT OUT: swlimit-client, which needs Rust 1.89; this is {version}" in said.splitlines()
