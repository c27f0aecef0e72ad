"""SWLIMIT.TOP: who is being limited."""

import itertools

import pytest

from support.bounds import T
from support.cli import ask, feed
from support.clock import set_clock
from support.commands import mallow
from support.contents import info
from support.replication import PROMPT, follow
from support.resp import Connection, Failed, storm
from support.server_modules import built
from support.waiting import eventually

NAME = "swlimit.top-keys"
QUOTA = 60, 60
LATER = itertools.count(1)


@pytest.fixture(scope="module")
def own_server(starting, skewed):
    with starting() as start:
        yield start(env=skewed(0))


@pytest.fixture
def server(own_server):
    """A server with no denials in this minute and the last one, ten seconds into a minute of its own."""
    at(own_server, 10 * next(LATER))
    own_server.cli("FLUSHALL")
    yield own_server
    assert own_server.alive, own_server.log
    own_server.cli("CONFIG", "SET", NAME, 100)


FIRST = 1_900_000_000 // 60  # the minute from which these tests count: none of the real clock's


def at(server, minute, second=10):
    """Set a server's clock, and wait until commands see it."""
    set_clock(server, 60 * (FIRST + minute) + second)
    eventually(lambda: now(server), minute)


def now(server):
    """The minute it is for commands, as `at` counts."""
    until, = ask(server, "SWLIMIT.BLOCK", "clock", "1ms")
    return until // 60_000 - FIRST


def top(server, *words, **options):
    """Who is being limited, as tuples."""
    with Connection(server.port) as connection:
        if user := options.get("user"):
            connection.call("AUTH", user, "x")
        reply = connection.call("SWLIMIT.TOP", *words)
    assert not isinstance(reply, Failed), reply
    return [tuple(line) for line in reply]


def deny(server, *names, times=1, database=0):
    """Requests that are denied."""
    storm(server.port, [("SELECT", database), *(("SWLIMIT.ALLOW", name, 0, *QUOTA) for name in names * times)])


def denied(name, this, last=0, database=0):
    return database, name.encode() if isinstance(name, str) else name, this, last


def test_what_counts_as_denied(server):
    commands = [
        ("SWLIMIT.ALLOW", "allow", 1, *QUOTA),
        ("SWLIMIT.ALLOW", "allow", 1, *QUOTA),
        ("SWLIMIT.ALLOW", "allow", 1, *QUOTA, "COST", 7, "PARTIAL"),
        ("SWLIMIT.ALLOW", "allow", 1, *QUOTA, "AT", T + 10**9),
        ("SWLIMIT.ALLOW", "allow", 0, *QUOTA, "AT", T),
        ("SWLIMIT.ALLOW", "block", 0, *QUOTA, "BLOCK", "1h"),
        ("SWLIMIT.ALLOW", "block", 9, *QUOTA),
        ("SWLIMIT.ALLOW", "block", 9, *QUOTA, "COST", 10),
        ("SWLIMIT.RECORD", "record", 1, *QUOTA),
        ("SWLIMIT.RECORD", "record", 1, *QUOTA),
        ("SWLIMIT.RECORD", "record", 0, *QUOTA, "AT", 1),  # dropped
        mallow(("together", 1, *QUOTA, 1), ("granted", 9, *QUOTA, 1)),
        mallow(("together", 1, *QUOTA, 1), ("granted", 9, *QUOTA, 1)),
        ("SWLIMIT.ACQUIRE", "acquire", 0, *QUOTA, 0),
        ("SWLIMIT.PEEK", "peek", 0, *QUOTA),
        ("SWLIMIT.ALLOW", "refused", "many", *QUOTA),
        ("SWLIMIT.BLOCK", "by hand", "1h"),
        ("SWLIMIT.REFUND", "nothing", 1),
    ]
    with Connection(server.port) as connection:
        connection.calls(commands)
    assert top(server) == [denied("allow", 4), denied("block", 3), denied("record", 2), denied("acquire", 1),
                           denied("together", 1)]


def test_a_wait_in_vain_counts_once(server):
    ask(server, "SWLIMIT.ALLOW", "k", 1, *QUOTA)
    assert ask(server, "SWLIMIT.ACQUIRE", "k", 1, *QUOTA, "1ms")[0] == 0  # hopeless
    assert top(server) == [denied("k", 1)]
    with Connection(server.port) as waiting:
        identity = waiting.call("CLIENT", "ID")
        waiting.send(b"SWLIMIT.ACQUIRE k 1 1m 1m 5m\r\n")
        eventually(lambda: server.cli("CLIENT", "UNBLOCK", identity, "TIMEOUT"), "1")
        assert waiting.reply()[0] == 0
    assert top(server) == [denied("k", 2)]


@pytest.mark.parametrize("words, lines", [((), 10), ((1,), 1), ((3,), 3), ((10_000,), 15)])
def test_how_many(server, words, lines):
    names = [f"k{number:02}" for number in range(15)]
    for position in range(len(names)):
        deny(server, *names[position:])
    expected = [denied(name, times) for times, name in enumerate(names, 1)][::-1]
    assert top(server, *words) == expected[:lines]


@pytest.mark.parametrize("word", ["0", "10001", "-1", "x", "", "1.5", "18446744073709551617", b"\xff"])
def test_wrong_counts(server, word):
    assert server.cli("SWLIMIT.TOP", word) == "ERR count must be an integer between 1 and 10000"


def test_errors(server):
    assert server.cli("SWLIMIT.TOP", 1, 2) == "ERR wrong number of arguments for 'swlimit.top' command"
    assert top(server) == []


def test_minutes(server):
    minute = now(server)
    deny(server, "a", times=5)
    deny(server, "b", times=3)
    at(server, minute, 40)
    deny(server, "a")
    assert top(server) == [denied("a", 6), denied("b", 3)]
    at(server, minute + 1, 2)
    deny(server, "b", times=4)
    deny(server, "c")
    assert top(server) == [denied("b", 4, 3), denied("a", 0, 6), denied("c", 1)]
    at(server, minute + 2)
    assert top(server) == [denied("b", 0, 4), denied("c", 0, 1)]
    at(server, minute + 3)
    assert top(server) == []
    deny(server, "d")
    at(server, minute + 5)
    assert top(server) == []


def test_a_clock_that_steps_back(server):
    minute = now(server)
    deny(server, "a")
    at(server, minute + 1, 2)
    deny(server, "a", "b")
    at(server, minute, 40)
    deny(server, "a")
    assert top(server) == [denied("a", 2, 1), denied("b", 1)]  # it will soon be there again
    at(server, minute - 2)
    assert top(server) == []
    deny(server, "a")
    assert top(server) == [denied("a", 1)]


def test_what_changes_keys_changes_nothing(server):
    deny(server, "a", times=3)
    deny(server, "a", times=2, database=1)
    ask(server, "SWLIMIT.RECORD", "b", 0, *QUOTA)
    expected = [denied("a", 3), denied("a", 2, database=1), denied("b", 1)]
    assert top(server) == expected
    for words in [("RENAME", "b", "c"), ("MOVE", "c", 2), ("SWAPDB", 0, 1), ("DEBUG", "RELOAD"), ("FLUSHALL",)]:
        assert "ERR" not in server.cli(*words)
        assert top(server) == expected


@pytest.mark.parametrize("rules, names", [
    ("+@all ~*", ["app:1", "app:2", "other", "free"]),
    ("+@all ~app:*", ["app:1", "app:2"]),
    ("+swlimit.top ~other", ["other"]),
    ("+@all %R~app:1 %W~other", ["app:1"]),
    ("+@all %RW~free", ["free"]),
    ("+@all %W~*", []),
    ("+@all", []),
    ("+@all ~other (+@all ~app:2)", ["app:2", "other"]),
])
def test_keys_that_the_caller_may_not_read_are_left_out(server, rules, names):
    for times, name in enumerate(["free", "other", "app:2", "app:1"], 1):
        deny(server, name, times=times)
    assert server.cli("ACL", "SETUSER", "ann", "reset", "on", ">x", *_rules(rules)) == "OK"
    assert [name.decode() for _, name, *_ in top(server, user="ann")] == names
    assert [name.decode() for _, name, *_ in top(server, 1, user="ann")] == names[:1]
    call = ["EVAL_RO", "return #redis.call('SWLIMIT.TOP')", "0"]
    if "+@all" in rules:
        reply = server.cli(*call, flags=["--user", "ann", "--pass", "x", "--no-auth-warning"])
        assert reply == str(len(names))


def _rules(rules):
    """Rules word by word, but what is in parentheses together."""
    words, _, selector = rules.partition(" (")
    return [*words.split(), *([f"({selector}"] if selector else [])]


def test_who_may_not_run_it(server):
    assert server.cli("ACL", "SETUSER", "ann", "reset", "on", ">x", "+@all", "-swlimit.top", "~*") == "OK"
    with Connection(server.port) as connection:
        connection.call("AUTH", "ann", "x")
        assert connection.call("SWLIMIT.TOP").startswith("NOPERM")


def test_modules_see_all_unless_they_call_for_their_client(start, tmp_path):
    """Without a user, some servers crash when asked who calls."""
    server = start(options={"loadmodule": built("caller", tmp_path)})
    deny(server, "a", "b")
    assert server.cli("ACL", "SETUSER", "ann", "reset", "on", ">x", "+@all", "~a") == "OK"
    errors = info(server, "errorstats")
    with Connection(server.port) as connection:
        connection.call("AUTH", "ann", "x")
        names = [[name for _, name, *_ in connection.call("CALLER.TOP", *words)] for words in [(), ("C",)]]
    assert names == [[b"a", b"b"], [b"a"]]
    assert info(server, "errorstats") == errors and server.cli("ACL", "LOG") == ""


def test_databases_that_the_caller_may_not_use_are_left_out(server, release):
    if not (release.family == "valkey" and release.version >= (9, 1)):
        pytest.skip("access lists know no databases before Valkey 9.1")
    deny(server, "a")
    deny(server, "a", database=1)
    for rule, databases in [("db=0", [0]), ("db=0,1", [0, 1]), ("alldbs", [0, 1])]:
        assert server.cli("ACL", "SETUSER", "ann", "reset", "on", ">x", "+@all", "~*", rule) == "OK"
        assert [database for database, *_ in top(server, user="ann")] == databases


@pytest.mark.parametrize("name", [b"", b"\0", b"a\r\nb", bytes(range(256)), b"\xff" * 512, b"x" * 513, b"y" * 100_000])
def test_names_are_any_bytes_and_cut_at_512(server, name):
    deny(server, name, times=2)
    deny(server, name[:512])
    assert top(server) == [denied(name[:512], 3)]
    with Connection(server.port) as connection:
        connection.call("HELLO", 3)
        assert connection.call("SWLIMIT.TOP") == [[0, name[:512], 3, 0]]


def test_in_transactions_and_scripts(server):
    deny(server, "k")
    assert feed(server, "MULTI", "SWLIMIT.ALLOW k 0 60 60", "SWLIMIT.TOP 1", "EXEC")[-4:] == ["0", "k", "2", "0"]
    assert ask(server, "EVAL", "return redis.call('SWLIMIT.TOP')[1][3]", 0) == [2]


def test_what_others_denied_is_not_counted(start, skewed):
    """Not what is replicated or loaded; but a replica may be asked, and knows whom it denied itself."""
    primary = start(options=PROMPT | {"appendonly": "yes", "aof-use-rdb-preamble": "no"}, env=skewed(0))
    replica = start(env=skewed(0))
    at(primary, 0)
    at(replica, 0)
    follow(replica, primary)
    for _ in range(3):
        ask(primary, "SWLIMIT.RECORD", "k", 1, "1h", "1h")
    ask(primary, "SWLIMIT.ALLOW", "k", 1, "1h", "1h")
    assert top(primary) == [denied("k", 3)]
    eventually(lambda: replica.cli("SWLIMIT.INFO", "k") == primary.cli("SWLIMIT.INFO", "k"))
    assert top(replica) == []
    assert replica.cli("SWLIMIT.ALLOW", "k", 0, "1h", "1h").startswith("READONLY")
    replica.cli("CONFIG", "SET", "replica-read-only", "no")
    ask(replica, "SWLIMIT.ALLOW", "k", 0, "1h", "1h")
    assert top(replica) == [denied("k", 1)]
    primary.restart()
    assert ask(primary, "SWLIMIT.PEEK", "k", 9, "1h", "1h")[2] == 6
    assert top(primary) == []


def test_the_setting_takes_effect_with_the_next_minute(server):
    minute = now(server)
    names = [f"k{number}" for number in range(30)]
    assert server.cli("CONFIG", "GET", NAME).split() == [NAME, "100"]
    deny(server, *names)
    assert server.cli("CONFIG", "SET", NAME, 5) == "OK"
    deny(server, *names)
    assert len(top(server, 100)) == 30
    at(server, minute + 1)
    deny(server, *names[:20])
    lines = top(server, 100)
    assert len(lines) == 30 and sum(this > 0 for _, _, this, _ in lines) == 5
    assert sum(this for _, _, this, _ in lines) == 20
    server.cli("CONFIG", "SET", NAME, 0)
    deny(server, *names[:20])
    assert sum(this for _, _, this, _ in top(server, 100)) == 40
    at(server, minute + 2)
    deny(server, *names)
    assert [this for _, _, this, _ in top(server, 100)] == [0] * 5
    at(server, minute + 3)
    deny(server, *names)
    assert top(server, 100) == []
    server.cli("CONFIG", "SET", NAME, 100)
    assert top(server, 100) == []
    at(server, minute + 4)
    deny(server, "k")
    assert top(server, 100) == [denied("k", 1)]


@pytest.mark.parametrize("words, value", [(["top-keys", 0], 0), (["TOP-KEYS", 10_000], 10_000)])
def test_argument_of_loadmodule(start, words, value):
    server = start(module_args=words)
    assert server.cli("CONFIG", "GET", NAME).split() == [NAME, str(value)]
    deny(server, "k")
    assert len(top(server)) == (value > 0)


@pytest.mark.parametrize("value", ["-1", "10001", "many"])
def test_wrong_settings(server, value):
    assert server.cli("CONFIG", "SET", NAME, value).startswith("ERR CONFIG SET failed")
    assert server.cli("CONFIG", "GET", NAME).split() == [NAME, "100"]


def test_the_most_entries_and_what_they_take(server):
    minute = now(server)
    server.cli("CONFIG", "SET", NAME, 10_000)
    before = info(server, "memory")["used_memory"]
    at(server, minute + 1)
    long = b"x" * 600
    deny(server, *(b"%05d" % number + long for number in range(12_000)))
    deny(server, b"often", times=3)
    lines = top(server, 10_000)
    assert len(lines) == 10_000 and lines[0][1] == b"often"
    assert sum(this for _, _, this, _ in lines) == 12_003
    entry = (info(server, "memory")["used_memory"] - before) / 10_000
    assert 512 + 48 <= entry < 768
    at(server, minute + 3)
    assert top(server) == []
    eventually(lambda: info(server, "memory")["used_memory"] < before + 1_000_000)


def test_who_is_denied_more_than_its_share_is_in(server):
    """100 entries, and a thousand times as many others, in the worst order."""
    heavy = [f"heavy:{number}" for number in range(30)]
    others = (f"other:{number}" for number in itertools.count())
    stream = [name for _ in range(1_000) for name in [*heavy, *itertools.islice(others, 60)]]
    deny(server, *stream)
    lines = {name.decode(): this for _, name, this, _ in top(server, 10_000)}
    assert len(lines) == 100 and sum(lines.values()) == len(stream)
    for name in heavy:
        assert 1_000 <= lines[name] <= 1_000 + len(stream) / 100
    for name, count in lines.items():
        if name not in heavy:
            assert count <= 1 + len(stream) / 100
