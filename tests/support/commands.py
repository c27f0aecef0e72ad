"""Commands, spelt and made up."""

from .bounds import T


def mallow(*limits, options=()):
    """A MALLOW command; each limit is its key, limit, window, resolution and cost."""
    keys, quotas = [limit[0] for limit in limits], [word for limit in limits for word in limit[1:]]
    return ["SWLIMIT.MALLOW", len(limits), *keys, *quotas, *options]


def spelled_rise(warmup=None, cold=3):
    """How a limit rises, behind the quota that it is for."""
    return ["WARMUP", f"{warmup}ms", *(["COLD", cold] if cold != 3 else [])] if warmup else []


def expiring(now):
    """Commands that set when a key expires, or change it, each in another way; `now` is by the server's clock."""
    return [
        ["SWLIMIT.ALLOW", "ahead", 5, "2s", "1s", "COST", 5, "AT", now + 60_000],
        ["SWLIMIT.ALLOW", "ahead", 10, "2s", "500ms"],
        ["SWLIMIT.ALLOW", "replayed", 5, "1h", "1m", "AT", T],
        ["SWLIMIT.RECORD", "shorter", 5, "1h", "1m"],
        ["SWLIMIT.RECORD", "shorter", 5, "10m", "1m"],
        ["SWLIMIT.RECORD", "aged", 5, "1h", "1m", "AGE", "10m"],
        ["SWLIMIT.RECORD", "regrouped", 5, "1h", "1h"],
        ["SWLIMIT.RECORD", "regrouped", 5, "1h", "1s", "AGE", "10m"],
        ["SWLIMIT.RECORD", "refunded", 5, "1h", "1m", "AGE", "20m"],
        ["SWLIMIT.ALLOW", "refunded", 5, "1h", "1m"],
        ["SWLIMIT.REFUND", "refunded", 1],
        ["SWLIMIT.RECORD", "given back", 5, "1h", "1m", "AGE", "20m"],
        ["SWLIMIT.RECORD", "given back", 5, "1h", "1m"],
        ["SWLIMIT.REFUND", "given back", 1, "AGE", "1s"],
        ["SWLIMIT.REFUND", "given back", 1, "SINCE", now - 1_000],
        mallow(("m:1", 5, "1h", "1m", 1), ("m:2", 5, "10m", "1m", 1)),
        ["SWLIMIT.BLOCK", "blocked", "2h"],
        ["SWLIMIT.ALLOW", "punished", 0, "1m", "1s", "BLOCK", "1h"],
        ["SWLIMIT.RECORD", "caught", 0, "1m", "1s", "BLOCK", "1h"],
        ["SWLIMIT.ALLOW", "pardoned", 5, "1h", "1m"],
        ["SWLIMIT.BLOCK", "pardoned", "2h"],
        ["SWLIMIT.UNBLOCK", "pardoned"],
        ["SWLIMIT.APPLY", "said", f"c60000*60@{now}~{now + 5_000_000}"],
        ["SWLIMIT.APPLY", "never", f"c60000*60@{now}~0", "caught", f"r1@{now}", "never", f"c60000*60@{now}"],
    ]


def random_commands(draw, count, keys=20):
    """Commands of all kinds on some keys: grants, denials, errors, several geometries, clocks that jump.

    No key expires by the real clock within minutes.
    """
    at, commands = T, []
    for _ in range(count):
        at += draw.choice([0, 1, 999, 60_000, 60_000, 600_000, -120_000])
        geometries = [("1h", "1h"), ("1h", "1m"), ("1h", "1m"), ("1d", "1h"), ("6h", "7s")]  # the last is refused
        key, other, quota = draw.randrange(keys), draw.randrange(keys), (draw.randint(0, 40), *draw.choice(geometries))
        cost = ["COST", draw.randint(1, 9)]
        options = [option for option in ("STRICT", "PARTIAL") if draw.random() < 0.2]
        rise = draw.choice([[], [], ["WARMUP", draw.choice(["1h", "10h", "100h"])], ["WARMUP", "60h", "COLD", 9]])
        commands.append(draw.choice([
            ["SWLIMIT.ALLOW", f"key:{key}", *quota, *cost, *options, *rise, "AT", at],
            ["SWLIMIT.ALLOW", f"key:{key}", *quota, *rise, "AT", at],
            ["SWLIMIT.RECORD", f"key:{key}", *quota, *cost, "AT", at],
            ["SWLIMIT.RECORD", f"key:{key}", *quota, *cost, *rise, "AGE", f"{draw.randint(0, 600)}s",
             "AT", at],
            ["SWLIMIT.PEEK", f"key:{key}", *quota, *cost, *rise, "AT", at],
            mallow((f"key:{key}", *quota, 2, *rise), (f"other:{other}", *quota, 1), options=("AT", at)),
            ["SWLIMIT.REFUND", f"key:{key}", draw.randint(1, 3), *draw.choice([
                ["AT", T], ["SINCE", at - draw.randint(0, 600_000), "AT", at]])],
            [f"SWLIMIT.{draw.choice(['ALLOW', 'RECORD'])}", f"key:{key}", *quota, *cost, "BLOCK", "20m", "AT", at],
            draw.choice([
                ["SWLIMIT.BLOCK", f"key:{draw.randrange(2 * keys)}", f"{draw.randint(10, 90)}m",
                 *draw.choice([[], ["NX"], ["GT"]]), "AT", at],
                ["SWLIMIT.UNBLOCK", f"key:{key}", "AT", at],
            ]),
        ]))
    return commands
