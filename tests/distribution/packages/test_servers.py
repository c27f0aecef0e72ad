"""Each module on real servers of the systems it is for: Debian 12's and 13's, on both processors, and ones for musl."""

import pytest

from support.foreign import debian_server, musl_server
from support.releases import fetch
from support.server import Server
from support.waiting import eventually

NOW = 1_800_000_000_123
READY_SECONDS = 60  # under an emulator
SERVERS = {
    "x86_64-unknown-linux-gnu": {name: lambda name=name: fetch(name)
                                 for name in ("redis-7.0", "redis-8.0", "valkey-8.0", "valkey-8.1")},
    "aarch64-unknown-linux-gnu": {suite: lambda suite=suite: debian_server(suite, "aarch64")
                                  for suite in ("bookworm", "trixie")},
    "x86_64-unknown-linux-musl": {"musl": lambda: musl_server("x86_64")},
    "aarch64-unknown-linux-musl": {"musl": lambda: musl_server("aarch64")},
}


@pytest.mark.parametrize("target, server", [pytest.param(target, server, id=f"{target} on {name}")
                                            for target, servers in SERVERS.items() for name, server in servers.items()])
def test_a_module_decides_and_what_it_counted_outlives_the_server(target, server, packages, module_for):
    """Every command answers as it should, the module is the version it is named for, and a restarted server goes on
    from its RDB, and then from its AOF, with the same counts."""
    module = module_for(target)
    with Server(server(), module=module, ready_seconds=READY_SECONDS) as server:
        client = server.client()

        def ask(command, *words):
            return client.execute_command(f"SWLIMIT.{command}", *words, "AT", NOW)

        assert ask("ALLOW", "k", 10, 60, 5, "COST", 9) == [9, 10, 1, 0, 64877]
        assert ask("ALLOW", "k", 10, 60, 5, "COST", 2) == [0, 10, 1, 60433, 64877]
        assert ask("PEEK", "k", 10, 60, 5) == [1, 10, 1, 0, 64877]
        assert ask("RECORD", "k", 10, 60, 5, "COST", 3)[2] == 0
        assert ask("REFUND", "k", 4) == 4
        assert ask("MALLOW", 1, "k", 10, 60, 5, 1) == [1, [1, 10, 1, 0, 64877]]
        assert client.execute_command("SWLIMIT.ALLOW", "live", 1, "1h", "1m")[0] == 1
        assert client.info("swlimit")["swlimit_version"] == packages.version
        held = client.execute_command("SWLIMIT.INFO", "k")

        client.save()
        client = server.restart().client()
        assert client.execute_command("SWLIMIT.INFO", "k") == held
        client.config_set("appendonly", "yes")
        eventually(lambda: [client.info("persistence")[f"aof_{field}"] for field in
                            ("enabled", "rewrite_scheduled", "rewrite_in_progress")], [1, 0, 0])
        assert ask("ALLOW", "k", 10, 60, 5) == [1, 10, 0, 0, 64877]
        held = client.execute_command("SWLIMIT.INFO", "k")
        server.options["appendonly"] = "yes"
        client = server.restart().client()
        assert client.execute_command("SWLIMIT.INFO", "k") == held
        assert client.execute_command("SWLIMIT.ALLOW", "live", 1, "1h", "1m")[0] == 0
