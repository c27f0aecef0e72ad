"""Who may do what: access control lists."""

import json

import pytest

from module.commands.declared import COMMANDS
from support.bounds import T
from support.cli import ask

QUOTA = "k", 3, 60, 5
NO_PERMISSION = "NOPERM"


@pytest.fixture
def user(server):
    """Let a user with these rules call a command."""
    def call(rules, *words):
        assert server.cli("ACL", "SETUSER", "ann", "reset", "on", "nopass", *rules.split()) == "OK"
        return server.cli(*words, flags=["--user", "ann", "--pass", "x", "--no-auth-warning"])

    ask(server, "SWLIMIT.ALLOW", *QUOTA, "AT", T)
    yield call
    server.cli("ACL", "DELUSER", "ann")


ALLOW = "SWLIMIT.ALLOW", *QUOTA, "AT", T
PEEK = "SWLIMIT.PEEK", *QUOTA, "AT", T
MALLOW = "SWLIMIT.MALLOW", 2, "k", "other", 3, 60, 5, 1, 3, 60, 5, 1, "AT", T


@pytest.mark.parametrize("rules, command, first", [
    ("+swlimit.peek ~*", PEEK, "1"),
    ("+swlimit.peek ~*", ALLOW, NO_PERMISSION),
    ("+@all -swlimit.allow ~*", ALLOW, NO_PERMISSION),
    ("+@all -swlimit.allow ~*", MALLOW, "1"),
    ("+@all ~other*", ALLOW, NO_PERMISSION),
    ("+@all ~k", ALLOW, "1"),
    ("+@all ~k", MALLOW, NO_PERMISSION),
    ("+@all ~k ~o*", MALLOW, "1"),
    ("+@all %R~k", PEEK, "1"),
    ("+@all %R~k", ("SWLIMIT.INFO", "k"), "window"),
    ("+@all %W~k", PEEK, NO_PERMISSION),
    ("+@all %R~k", ALLOW, NO_PERMISSION),
    ("+@all %W~k", ALLOW, NO_PERMISSION),
    ("+@all %RW~k", ALLOW, "1"),
    ("+@all %R~k", ("SWLIMIT.RECORD", *QUOTA), NO_PERMISSION),
    ("+@all %R~k", ("SWLIMIT.REFUND", "k", 1), NO_PERMISSION),
    ("+@all %RW~k %R~other", MALLOW, NO_PERMISSION),
    ("+@all %RW~k %RW~other", MALLOW, "1"),
], ids=lambda part: part if isinstance(part, str) else part[0])
def test_keys_and_commands(server, user, rules, command, first):
    before = server.cli("DEBUG", "DIGEST")
    assert user(rules, *command).split()[0] == first
    if first == NO_PERMISSION:
        assert server.cli("DEBUG", "DIGEST") == before


@pytest.fixture
def categories(server, release):
    """The categories of each command, as COMMAND INFO has them: ACL CAT leaves modules out before Redis 8."""
    if not release.at_least(redis=(7, 2)):
        pytest.skip("modules cannot set the categories of their commands before Redis 7.2")
    replies = json.loads(server.cli("COMMAND", "INFO", *COMMANDS, flags=["-3", "--json"]))
    return {reply[0].upper(): set(reply[6]) for reply in replies}


@pytest.mark.parametrize("command", COMMANDS)
def test_categories(categories, command):
    """As the flags are."""
    names = {"READONLY": "@read", "WRITE": "@write", "FAST": "@fast", "BLOCKING": "@blocking"}
    flags = set(COMMANDS[command]["command_flags"]) & set(names)
    assert categories[command] - {"@swlimit", "@slow"} == {names[flag] for flag in flags}


def test_users_limited_to_a_category(user, categories):
    assert user("+@read ~*", *PEEK).split()[0] == "1"
    assert user("+@read ~*", *ALLOW).startswith(NO_PERMISSION)
    assert user("+@all -@write ~*", *MALLOW).startswith(NO_PERMISSION)
    assert user("+@write ~*", *ALLOW).split()[0] == "1"


def test_own_category(server, user, categories, release):
    if not release.at_least(redis=(7, 4)):
        pytest.skip("modules cannot add categories before Redis 7.4")
    assert "swlimit" in server.cli("ACL", "CAT").split()
    assert all("@swlimit" in found for found in categories.values())
    assert user("+@swlimit ~*", *ALLOW).split()[0] == "1"
    assert user("+@all -@swlimit ~*", *PEEK).startswith(NO_PERMISSION)
