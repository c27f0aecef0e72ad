"""Modules in C that tests load beside the module."""

import os
import subprocess
from pathlib import Path


def built(name, folder):
    """The module of this name in tests/support, built into a folder."""
    module = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", module, source], check=True)
    return module
