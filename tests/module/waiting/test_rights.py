"""A waiter's rights are checked again at its turn: who lost them meanwhile is refused, and the next one goes on."""

import pytest

from support.cli import ask
from support.resp import Connection, Failed
from support.waiters import BLOCKED, PATIENT

DAY = ("1d", "1h")
LOGIN = [("AUTH", "ann", "x")]
NO_COMMAND = "NOPERM this user has no permissions to run the 'swlimit.acquire' command"
NO_KEY = "NOPERM this user has no permissions to access one of the keys used as arguments"


@pytest.fixture
def turn(server, wait):
    """Let ann, who may do everything, wait for `k` before somebody else; change her rights; their turns come."""
    def turn(*rules):
        server.cli("SWLIMIT.BLOCK", "k", BLOCKED)
        server.cli("ACL", "SETUSER", "ann", "reset", "on", ">x", "~*", "&*", "+@all")
        waiters = wait("k", 2, *DAY, PATIENT, first=LOGIN), wait("k", 2, *DAY, PATIENT)
        assert server.cli("ACL", "SETUSER", "ann", *rules) == "OK"
        server.cli("SWLIMIT.UNBLOCK", "k")
        return [waiter.answer() for waiter in waiters]

    yield turn
    server.cli("ACL", "DELUSER", "ann")


@pytest.mark.parametrize("rules, error", [
    (["-swlimit.acquire"], NO_COMMAND), (["-@all"], NO_COMMAND), (["nocommands", "resetkeys"], NO_KEY),
    (["resetkeys"], NO_KEY), (["resetkeys", "~mine:*"], NO_KEY), (["resetkeys", "%R~k"], NO_KEY),
    (["resetkeys", "%W~k"], NO_KEY),
], ids=str)
def test_rights_that_were_withdrawn(turn, counted, rules, error):
    refused, granted = turn(*rules)
    assert isinstance(refused, Failed) and refused == error
    assert granted[:3] == [1, 2, 1]
    assert counted() == {"blocked": 1, "denied": 1, "denied_units": 1, "granted": 1, "granted_units": 1, "acquired": 1}


@pytest.mark.parametrize("rules", [["-swlimit.allow"], ["-@all", "+swlimit.acquire"], ["resetkeys", "~k"],
                                   ["resetkeys", "%RW~k"], [">another"], ["off"]], ids=str)
def test_rights_that_it_does_not_need(turn, rules):
    assert [reply[:3] for reply in turn(*rules)] == [[1, 2, 1], [1, 2, 0]]


def test_a_user_who_is_removed(server, wait):
    """The server hangs up."""
    server.cli("SWLIMIT.BLOCK", "k", BLOCKED)
    server.cli("ACL", "SETUSER", "ann", "reset", "on", ">x", "~*", "+@all")
    removed, other = wait("k", 1, *DAY, PATIENT, first=LOGIN), wait("k", 1, *DAY, PATIENT)
    server.cli("ACL", "DELUSER", "ann")
    server.cli("SWLIMIT.UNBLOCK", "k")
    assert other.answer()[:3] == [1, 1, 0]
    with pytest.raises(ConnectionError):
        removed.answer()
    assert ask(server, "SWLIMIT.PEEK", "k", 1, *DAY)[:3] == [0, 1, 0]


def test_a_database_that_it_may_not_use_any_more(server, release, wait):
    if not (release.family == "valkey" and release.version >= (9, 1)):
        pytest.skip("access lists know no databases before Valkey 9.1")
    server.cli("SWLIMIT.BLOCK", "k", BLOCKED)
    server.cli("ACL", "SETUSER", "ann", "reset", "on", ">x", "~*", "+@all", "alldbs")
    refused, granted = [wait("k", 1, *DAY, PATIENT, first=first) for first in [LOGIN, []]]
    server.cli("ACL", "SETUSER", "ann", "resetdbs", "db=1")
    server.cli("SWLIMIT.UNBLOCK", "k")
    assert refused.answer() == NO_COMMAND and granted.answer()[0] == 1
    server.cli("ACL", "DELUSER", "ann")


def test_nobody_has_to_be_known(start):
    """Without access lists there is the default user only."""
    server = start()
    server.cli("SWLIMIT.BLOCK", "k", "200ms")
    with Connection(server.port) as connection:
        assert connection.call("SWLIMIT.ACQUIRE", "k", 1, *DAY, "10s")[0] == 1
