"""managed-servers.md: what it types works on a server without the module, and the rights it names suffice."""

import os
import re
import subprocess
import sys

from docs.pages import blocks, page_named
from support.resp import Connection, Failed
from support.script import SCRIPT, sha
from support.server import ROOT

PAGE = page_named("managed-servers.md")


def test_a_held_place(plain_server, plain):
    """From a server without the module to a held place, and a rate; by hand and by a client."""
    by_hand, by_client = (block for block in blocks(PAGE) if block.comment.startswith("run by"))
    typed = f'redis-cli() {{ command redis-cli -p {plain_server.port} "$@"; }}\n{by_hand.text}'
    plain.call("SCRIPT", "FLUSH")
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", typed], cwd=ROOT, capture_output=True, text=True)
    first, second, (released,), rate = (done.stdout.split()[at:to] for at, to in [(0, 6), (6, 12), (12, 13), (13, 18)])
    assert [first[:3], second[:3], released] == [["1", "1", "0"], ["0", "1", "0"], "1"]
    assert rate[:4] == ["1", "100", "99", "0"]
    program = re.sub(r"\b6379\b", str(plain_server.port), by_client.text)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "src/clients/python")})
    assert done.stdout == "True False\n", done


def test_rights(plain_server, plain):
    texts = [block.text for block in blocks(PAGE) if block.language == "text"]
    has_read_only = plain.call("COMMAND", "INFO", "EVALSHA_RO")[0]
    rules = [rule for rule in " ".join(texts).split() if rule != "+evalsha_ro" or has_read_only]
    assert plain.call("ACL", "SETUSER", "u", "reset", "on", "nopass", *rules) == b"OK"
    with Connection(plain_server.port) as user:
        user.call("AUTH", "u", "x")
        assert not isinstance(user.call("EVAL", SCRIPT.read_bytes(), 1, "limit:h", "HOLD", 5, 60, "first"), Failed)
        for words in [("HOLD", 5, 60, "id"), ("HOLD", 5, 60, "other", "COST", 2), ("RENEW", 60, "id"), ("HOLDERS",),
                      ("INFO",), ("RELEASE", "id"), ("RELEASE", "other"), ("HOLD", 0, 60, "id")]:
            assert not isinstance(user.call("EVALSHA", sha(), 1, "limit:h", *words), Failed), words
        for words in [("ALLOW", 5, 60, 5), ("RECORD", 5, 60, 5), ("REFUND", 2), ("BLOCK", "1m"), ("UNBLOCK",)]:
            assert not isinstance(user.call("EVALSHA", sha(), 1, "limit:1", *words), Failed), words
            assert user.call("EVALSHA", sha(), 1, "other:1", *words).startswith("NOPERM")
    plain.call("ACL", "DELUSER", "u")
