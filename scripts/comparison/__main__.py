"""Give random commands to a server with the module and to one that runs the script instead, and compare the replies
byte by byte. Both clocks stand, and are set between batches. Prints a line for each release, and ends with 1 at a
difference."""

import argparse
import sys
import tempfile

from support.comparing import Clock, Commands, Difference, compare
from support.releases import ALL, RELEASES, TOO_OLD, Unavailable, obtain
from support.server import Binaries, Server
from support.waiting import eventually

ONLY_SINCE_7 = {"enable-debug-command": [], "enable-module-command": []}


def main():
    options = arguments().parse_args()
    failed = False
    names = options.release or ["installed"]
    for name in ALL if "all" in names else names:
        for clustered in (False, True) if options.cluster == "both" else (options.cluster == "yes",):
            where = f"{name}{', cluster' if clustered else ''}"
            try:
                size = run(name, clustered, options)
                print(f"{where}: {options.commands} commands, {size} bytes of replies, 0 differ", flush=True)
            except Unavailable as reason:
                print(f"{where}: LACKING: {reason}", flush=True)
            except Difference as found:
                print(f"{where}: DIFFERENT, seed {options.seed}: {found}", flush=True)
                failed = True
    return 1 if failed else 0


def arguments():
    parser = argparse.ArgumentParser(prog="compare-script", description=__doc__)
    parser.add_argument("--commands", type=int, default=1_000_000, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random commands (default: %(default)s)")
    parser.add_argument("--release", action="append", choices=["installed", "all", *ALL], metavar="NAME",
                        help=f"installed (the default), all, or one of {', '.join(ALL)}; may be repeated. A release "
                        "that takes no module is compared with the installed one's module")
    parser.add_argument("--cluster", choices=["no", "yes", "both"], default="no",
                        help="whether the servers run as nodes of clusters (default: %(default)s)")
    return parser


def run(name, clustered, options):
    """Compare on servers of this release; the bytes compared."""
    binaries = Binaries.installed() if name == "installed" else obtain(name)
    with_module = binaries if name == "installed" or name in RELEASES else Binaries.installed()
    lacking = ONLY_SINCE_7 if name == TOO_OLD.name else {}
    settings = {"cluster-enabled": "yes"} if clustered else {}
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(folder)
        with (Server(with_module, settings, env=clock.environment) as module,
              Server(binaries, settings | lacking, module=None, env=clock.environment) as plain):
            for server in (module, plain) if clustered else ():
                server.cli("CLUSTER", "ADDSLOTS", *range(16384))
                eventually(lambda server=server: is_up(server, clock))
            return compare(module, plain, clock, Commands(options.seed), options.commands)


def is_up(server, clock):
    """Whether a node of a cluster answers, which it does some seconds after its start, by its clock."""
    clock.set(clock.ms + 1000)
    return "cluster_state:ok" in server.cli("CLUSTER", "INFO")


sys.exit(main())
