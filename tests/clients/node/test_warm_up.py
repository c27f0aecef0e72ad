"""Limits that rise after idleness, in processes of Node.js."""

import pytest

from support import node
from support.warming import check_shared_curve


@pytest.fixture(scope="module", autouse=True)
def built():
    node.build()


def test_processes_share_a_curve(tmp_path, start):
    check_shared_curve(tmp_path, start, [node.NODE, node.MODULES / "warming.mjs"])
