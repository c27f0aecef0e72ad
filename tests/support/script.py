"""The script that makes the module's decisions on servers without it, and how its calls are spelt."""

import hashlib
import struct

from .server import ROOT

SCRIPT, TAKEOVER = ROOT / "src/server/script/swlimit.lua", ROOT / "src/server/script/takeover.lua"
COUNT, PARTIAL, STRICT, ALL = 1, 2, 4, 8
SEVERAL = "MALLOW", "ADMIT", "SETTLE"  # the commands of several keys


def load(connection):
    """Make the script known to a server."""
    assert connection.call("SCRIPT", "LOAD", SCRIPT.read_bytes()) == sha().encode()


def sha():
    return hashlib.sha1(SCRIPT.read_bytes()).hexdigest()


def scripted(words, sha, read_only="EVALSHA_RO"):
    """A call of the script instead of one of the module's commands; other commands as they are."""
    name = words[0].decode() if isinstance(words[0], bytes) else words[0].upper()
    if not name.startswith("SWLIMIT."):
        return words
    name = name.removeprefix("SWLIMIT.")
    evalsha = read_only if name in ("PEEK", "INFO", "HOLDERS") else "EVALSHA"
    if name in SEVERAL:
        end = 2 + int(words[1])
        return [evalsha, sha, *words[1:end], name, *words[end:]]
    return [evalsha, sha, 1, words[1], name, *words[2:]]


def packed(key, limit, resolution, subintervals, cost, sha, flags=COUNT, at=None, read_only="EVALSHA_RO"):
    """ALLOW (or, without COUNT, PEEK) in one packed argument; `resolution` and `at` in ms."""
    numbers = [limit, resolution, subintervals, cost, *([] if at is None else [at])]
    call = "EVALSHA" if flags & COUNT else read_only
    return [call, sha, 1, key, struct.pack(f"<B{len(numbers)}Q", flags, *numbers)]


def packed_all(keys, quotas, sha, strict=False, at=None):
    """MALLOW in one packed argument; a quota is limit, resolution in ms, subintervals and cost."""
    numbers = [number for quota in quotas for number in quota] + ([] if at is None else [at])
    flags = COUNT | ALL | STRICT * strict
    return ["EVALSHA", sha, len(keys), *keys, struct.pack(f"<B{len(numbers)}Q", flags, *numbers)]


def unpacked(reply, limit):
    """The reply to a packed call as the module gives it; an error as it is."""
    if not isinstance(reply, bytes):
        return reply
    first, second, reset_after = map(int, struct.unpack("<3d", reply))
    return [first, limit, second, 0, reset_after] if first > 0 else [0, limit, -first, second, reset_after]
