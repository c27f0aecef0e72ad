"""Thousands of random commands on holds and budgets, each answered by the server and by an independent model."""

from collections import Counter

import pytest

from support import aof
from support.bounds import T
from support.contents import agrees, digest, expiries
from support.holding_workload import HoldingWorkload, RisingAdmissions, answers
from support.replication import PROMPT, follow, in_step

pytestmark = pytest.mark.as_run
FUTURE = 4_000_000_000_000


def disagreement(expected, replies):
    """The first command that was answered otherwise than the model does, in words; None if all agree."""
    for number, ((words, answer), reply) in enumerate(zip(expected, replies, strict=True)):
        if (str(answer), type(answer)) != (str(reply), type(reply)):
            return f"command {number}: {' '.join(map(str, words))}: {reply!r} instead of {answer!r}"
    return None


@pytest.mark.parametrize("start_at", [T, FUTURE])
@pytest.mark.parametrize("seed", range(3))
def test_server_answers_as_the_model(server, seed, start_at):
    workload = HoldingWorkload(seed, start_at)
    expected = [workload.next() for _ in range(2_000)]
    replies = answers(server, [words for words, _ in expected])
    assert disagreement(expected, replies) is None
    kinds = Counter((words[0], type(reply).__name__ if isinstance(reply, Exception) else bool(reply and reply != [0]))
                    for words, reply in zip((words for words, _ in expected), replies, strict=True))
    assert {name for name, _ in kinds} == {
        f"SWLIMIT.{name}" for name in (
        "HOLD", "RELEASE", "RENEW", "HOLDERS", "BUDGET", "REFUND", "ADMIT", "SETTLE")}
    assert min(kinds.values()) > 5, kinds


@pytest.mark.parametrize("seed", range(3))
def test_server_answers_as_the_model_for_rates_that_rise(server, seed):
    workload = RisingAdmissions(seed)
    expected = [workload.next() for _ in range(2_000)]
    assert disagreement(expected, answers(server, [words for words, _ in expected])) is None
    rises = [reply for words, reply in expected if "WARMUP" in words and isinstance(reply, list)]
    settled = [reply for words, reply in expected if words[0] == "SWLIMIT.SETTLE" and isinstance(reply, list)
               and max(reply) > 1]  # beyond what was reserved
    assert {reply[0] for reply in rises} == {0, 1} and len(rises) > 100 and len(settled) > 10


def test_tokens_always_grow(server):
    """For as long as the key lives, which a hold sees to here, and also when the clock is set back."""
    workload = HoldingWorkload(7)
    keeping = [["SWLIMIT.HOLD", key, 10**6, "3650d", "keeper", "AT", T] for key in workload.keys if "hold" in key]
    commands = keeping + [words for words, _ in (workload.next() for _ in range(3_000))]
    granted = {}
    for words, reply in zip(commands, answers(server, commands), strict=True):
        if not isinstance(reply, list) or words[0] not in ("SWLIMIT.HOLD", "SWLIMIT.ADMIT") or not reply[0]:
            continue
        decisions = [(words[1], reply)] if words[0] == "SWLIMIT.HOLD" else zip(words[2:], reply[1:], strict=False)
        for key, decision in decisions:
            seen, token = granted.setdefault(key, []), decision[5] if len(decision) == 6 else None
            if token and token not in seen:
                assert token > max(seen, default=0)
                seen.append(token)
    assert sum(map(len, granted.values())) > 50


@pytest.mark.parametrize("kind", [HoldingWorkload, RisingAdmissions])
def test_a_replica_stores_the_same(start, kind):
    primary, replica = start(options=PROMPT), start(options=PROMPT)
    workload = kind(11)
    commands = [workload.next()[0] for _ in range(2_000)]
    answers(primary, commands[:300])
    follow(replica, primary)
    answers(primary, commands[300:])
    in_step(replica, primary)
    assert digest(replica) == digest(primary)
    assert expiries(replica) == expiries(primary)
    assert int(primary.cli("DBSIZE")) > 3


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("kind", [HoldingWorkload, RisingAdmissions])
def test_files_bring_everything_back(start, preamble, kind):
    """Replayed as it was written, rewritten, and rewritten with more after it."""
    server = start(options={"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": preamble})
    workload = kind(13)

    def restart():
        before = digest(server), expiries(server)
        server.restart()
        assert (digest(server), expiries(server)) == before
        assert agrees(server) == int(server.cli("DBSIZE")) > 3

    for _ in range(3):
        answers(server, [workload.next()[0] for _ in range(500)])
        restart()
        aof.rewrite(server)
        base, = (server.folder / "appendonlydir").glob("*.base.*")
        assert (b"SWLIMIT.APPLY" in base.read_bytes()) == (preamble == "no")
        restart()
