"""Every error of every command, word for word; whatever it is, nothing has changed."""

import pytest

from support.bounds import MAX, T
from support.cli import WRONGTYPE, batch
from support.commands import mallow
from support.contents import digest, unchanged

LIMIT = "ERR limit must be an integer between 0 and 9007199254740991"
WINDOW = "ERR window must be a duration such as 60, 500ms, 5m, 1h or 7d"
RESOLUTION = "ERR resolution must be a duration such as 60, 500ms, 5m, 1h or 7d"
UNEVEN = "ERR resolution must divide the window evenly"
COST = "ERR cost must be an integer between 1 and 9007199254740991"
UNITS = "ERR units must be an integer between 1 and 9007199254740991"
AT = "ERR AT must be a Unix time in milliseconds"
SINCE = "ERR SINCE must be a Unix time in milliseconds"
AGE = "ERR AGE must be a duration such as 60, 500ms, 5m, 1h or 7d"
NUMKEYS = "ERR numkeys must be a positive integer that matches the keys given"

NO_INTEGER = ["", "x", "1x", "+1", "-1", "1.0", "1e3", "0x1f", " 1", "1 ", "1\n", "\r\n", b"\xff", b"1\xc3\x28",
              "\u0661", str(MAX + 1), "18446744073709551617", "9" * 400]
NO_DURATION = ["", "x", "0", "0ms", "00d", "-5", "+5", "1.5s", "5 s", " 5", "5 ", "5w", "5mss", "s", "ms", "5s5", "5\n",
               b"5\xff", b"\xff", "3651d", "315360000001ms", "315360001", "99999999999999999999d", str(2**64 + 60)]
DECIDE = ["SWLIMIT.ALLOW", "SWLIMIT.PEEK", "SWLIMIT.RECORD"]


def quota_cases():
    """(limit, window, resolution), error"""
    yield from (((word, "60", "5"), LIMIT) for word in NO_INTEGER)
    yield from (((5, word, "5"), WINDOW) for word in NO_DURATION)
    yield from (((5, "60", word), RESOLUTION) for word in NO_DURATION)
    yield from (((5, *uneven), UNEVEN) for uneven in [("60", "7"), ("60", "61"), ("1ms", "2ms"), ("1m", "7s")])
    for window, resolution, subintervals in [("4097ms", "1ms", 4_097), ("3650d", "1s", 315_360_000), (5_000, 1, 5_000)]:
        yield ((5, window, resolution),
               f"ERR window / resolution is {subintervals} subintervals, above swlimit.max-subintervals (4096)")


def option_cases(cost=True):
    """options, error"""
    if cost:
        yield from ((("COST", word), COST) for word in [*NO_INTEGER, "0"])
        yield ("COST",), "ERR syntax error near 'COST'"
        yield ("COST", 1, "cost", 1), "ERR syntax error near 'cost'"
    yield from ((("AT", word), AT) for word in NO_INTEGER)
    yield ("STRICT", "AT"), "ERR syntax error near 'AT'"
    yield ("At", 1, "STRICT", "aT", 1), "ERR syntax error near 'aT'"
    yield ("STRICT", "Strict"), "ERR syntax error near 'Strict'"
    yield from (((word,), f"ERR syntax error near '{word}'") for word in ["NOW", "", "5", "STRICTLY"])


def refused(server, *cases):
    """Each command gets exactly its error, and neither what the server holds nor its statistics change."""
    with unchanged(server):
        before = digest(server)
        replies = batch(server, [words for command, _ in cases for words in (command, ["DEBUG", "DIGEST"])])
    for (command, error), reply, after in zip(cases, replies[::2], replies[1::2]):
        assert (reply, after) == (error, before), command


@pytest.fixture(autouse=True)
def keys(server):
    """A key of each kind."""
    batch(server, [["SWLIMIT.RECORD", "k", 5, 60, 5, "COST", 3, "AT", T], ["SET", "string", 5], ["LPUSH", "list", 5],
                   ["HSET", "hash", "f", 5], ["XADD", "stream", "*", "f", 5], ["SADD", "set", 5],
                   ["ZADD", "zset", 5, 5]])


@pytest.mark.parametrize("command", DECIDE)
def test_quotas(server, command):
    refused(server, *(([command, "k", *quota], error) for quota, error in quota_cases()))


def test_quotas_of_mallow(server):
    first = "a", 5, 60, 5, 1
    refused(server, *((mallow(first, ("k", *quota, 1)), error) for quota, error in quota_cases()))


@pytest.mark.parametrize("command", DECIDE)
def test_options(server, command):
    refused(server, *(([command, "k", 5, 60, 5, *options], error) for options, error in option_cases()))


def test_ages_and_expiries(server):
    ages = [word for word in NO_DURATION if word not in ("0", "0ms", "00d")]
    record, refund = ["SWLIMIT.RECORD", "k", 5, 60, 5], ["SWLIMIT.REFUND", "k", 1]
    for command in (record, refund):
        refused(server, *(([*command, "AGE", word], AGE) for word in ages),
                ([*command, "AGE"], "ERR syntax error near 'AGE'"),
                ([*command, "AGE", 1, "age", 1], "ERR syntax error near 'age'"))
    refused(server, *(([*refund, "SINCE", word], SINCE) for word in NO_INTEGER),
            ([*refund, "SINCE"], "ERR syntax error near 'SINCE'"),
            ([*refund, "SINCE", 1, "since", 1], "ERR syntax error near 'since'"),
            ([*refund, "SINCE", 1, "AGE", 1], "ERR syntax error near 'AGE'"),
            ([*refund, "AGE", 1, "SINCE", 1], "ERR syntax error near 'SINCE'"),
            *(([*command, "SINCE", 1], "ERR syntax error near 'SINCE'")
              for command in (record, ["SWLIMIT.BLOCK", "k", 60], mallow(("k", 5, 60, 5, 1)))))
    for command in (record, refund, ["SWLIMIT.BLOCK", "k", 60], ["SWLIMIT.UNBLOCK", "k"]):
        refused(server, ([*command, "UNTIL", 1], "ERR syntax error near 'UNTIL'"))
    for command in (["SWLIMIT.ALLOW", "k", 5, 60, 5], ["SWLIMIT.PEEK", "k", 5, 60, 5], mallow(("k", 5, 60, 5, 1))):
        refused(server, *(([*command, word, 1], f"ERR syntax error near '{word}'") for word in ("AGE", "UNTIL")))


def test_options_of_mallow_and_refund(server):
    limit, refund = ("k", 5, 60, 5, 1), ("SWLIMIT.REFUND", "k", 1)
    refused(server, *((mallow(limit, options=options), error) for options, error in option_cases(cost=False)))
    refused(server, *(([*refund, *options], error) for options, error in option_cases(cost=False)
                      if "STRICT" not in options), ([*refund, "AT", T, "AT", T], "ERR syntax error near 'AT'"))


@pytest.mark.parametrize("command, option", [
    (("SWLIMIT.RECORD", "k", 5, 60, 5), "PARTIAL"), (("SWLIMIT.REFUND", "k", 1), "STRICT"),
    (("SWLIMIT.REFUND", "k", 1), "PARTIAL"), (("SWLIMIT.REFUND", "k", 1), "COST"),
    (("SWLIMIT.MALLOW", 1, "k", 5, 60, 5, 1), "PARTIAL"), (("SWLIMIT.MALLOW", 1, "k", 5, 60, 5, 1), "COST"),
])
def test_options_of_other_commands(server, command, option):
    refused(server, ([*command, option, "1"], f"ERR syntax error near '{option}'"))


def test_costs_and_units(server):
    refused(server, *((mallow(("a", 5, 60, 5, 1), ("k", 5, 60, 5, word)), COST) for word in [*NO_INTEGER, "0"]))
    refused(server, *((["SWLIMIT.REFUND", "k", word], UNITS) for word in [*NO_INTEGER, "0"]))


def test_numkeys(server):
    one = "k", 5, 60, 5, 1
    refused(server, *((["SWLIMIT.MALLOW", word, *one], NUMKEYS)
                      for word in [*NO_INTEGER, "0", "2", "3", str(MAX), str(2**62), str(2**64 + 1)]),
            (["SWLIMIT.MALLOW", 2, *one, "STRICT", "AT", T], NUMKEYS))
    # Fewer than the keys given: what follows can only be read as options.
    with unchanged(server):
        assert server.cli("SWLIMIT.MALLOW", 1, *one, 5, 60, 5, 1).startswith("ERR ")


def test_a_key_named_twice(server):
    for keys in (["k", "k"], ["a", "b", "a"], ["", ""], [b"\xff", "k", b"\xff"]):
        refused(server, (mallow(*((key, 5, 60, 5, 1) for key in keys)), "ERR key named twice"))


@pytest.mark.parametrize("command, words", [
    ("swlimit.allow", ["k"]), ("swlimit.allow", ["k", 5, 60]), ("swlimit.allow", []),
    ("swlimit.peek", ["k", 5, 60]), ("swlimit.record", ["k", 5, 60]), ("swlimit.refund", ["k"]), ("swlimit.refund", []),
    ("swlimit.info", []), ("swlimit.info", ["k", "k"]), ("swlimit.mallow", []), ("swlimit.mallow", [1]),
    ("swlimit.mallow", [1, "k", 5, 60, 5]),
], ids=str)
def test_arity(server, command, words):
    refused(server, ([command.upper(), *words], f"ERR wrong number of arguments for '{command}' command"))


def test_info_of_no_key(server):
    refused(server, (["SWLIMIT.INFO", "missing"], "ERR no such key"))


@pytest.mark.parametrize("word", [b"\xff\xfe", b"a\nb", b"\r\n+OK\r\n", b"'", b"\x01" * 5_000, "\u2603".encode()])
@pytest.mark.parametrize("command", [("SWLIMIT.ALLOW", "k", 5, 60, 5), ("SWLIMIT.REFUND", "k", 1),
                                     ("SWLIMIT.MALLOW", 1, "k", 5, 60, 5, 1)], ids=lambda command: command[0])
def test_any_bytes_in_place_of_an_option(server, command, word):
    with unchanged(server):
        error = server.cli(*command, word)
        assert error.startswith("ERR syntax error near '") and error.endswith("'") and "\n" not in error
    assert server.cli("PING") == "PONG"


def test_nul_bytes(server):
    nul = b"1\0"
    refused(server, (["SWLIMIT.ALLOW", "k", nul, 60, 5], LIMIT), (["SWLIMIT.ALLOW", "k", 5, nul, 5], WINDOW),
            (["SWLIMIT.ALLOW", "k", 5, 60, nul], RESOLUTION), (["SWLIMIT.ALLOW", "k", 5, 60, 5, "COST", nul], COST),
            (["SWLIMIT.ALLOW", "k", 5, 60, 5, "AT", nul], AT), (["SWLIMIT.REFUND", "k", nul], UNITS),
            (["SWLIMIT.MALLOW", nul, "k", 5, 60, 5, 1], NUMKEYS))
    errors = batch(server, [["SWLIMIT.ALLOW", "k", 5, 60, 5, nul], ["SWLIMIT.REFUND", "k", 1, nul]])
    assert all(error.startswith("ERR syntax error near '1") for error in errors)


@pytest.mark.parametrize("key", ["string", "list", "hash", "stream", "set", "zset"])
def test_swlimit_on_another_type(server, key):
    decide = [[command, key, 5, 60, 5, *cost] for command in DECIDE for cost in ([], ["COST", 6])]
    several = [mallow(*((name, 5, 60, 5, 1) for name in names)) for names in ([key, "k"], ["missing", "k", key])]
    others = [["SWLIMIT.REFUND", key, 1], ["SWLIMIT.INFO", key]]
    refused(server, *((command, WRONGTYPE) for command in decide + several + others))


def test_other_commands_on_a_window(server):
    refused(server, *((command.split(), WRONGTYPE) for command in [
        "GET k", "APPEND k 1", "INCR k", "STRLEN k", "SETBIT k 1 1", "GETSET k 1", "LPUSH k 1", "LRANGE k 0 -1",
        "HSET k f 1", "HGETALL k", "SADD k 1", "SMEMBERS k", "SUNION set k", "ZADD k 1 1", "ZRANGE k 0 -1",
        "XADD k * f 1", "PFADD k 1", "GEOADD k 1 1 a", "SORT k",
    ]))


def test_arguments_are_checked_before_keys(server):
    two = "SWLIMIT.MALLOW", 2, "string", "k", 5, 60, 5, 1, 5, 60
    refused(server, (["SWLIMIT.ALLOW", "string", "x", 60, 5], LIMIT), (["SWLIMIT.REFUND", "string", 0], UNITS),
            (["SWLIMIT.REFUND", "missing", 1, "AT", "x"], AT), ([*two, 7, 1], UNEVEN),
            ([*two, 5, 1, "NOW"], "ERR syntax error near 'NOW'"))


@pytest.mark.parametrize("flags", [[], ["-3"]], ids=["RESP2", "RESP3"])
def test_errors_carry_their_code_in_scripts(server, flags):
    script = "return redis.pcall(unpack(ARGV))['err']"
    assert server.cli("EVAL", script, 0, "SWLIMIT.ALLOW", "string", 5, 60, 5, flags=flags) == WRONGTYPE
    assert server.cli("EVAL", script, 0, "SWLIMIT.ALLOW", "k", "x", 60, 5, flags=flags) == LIMIT
