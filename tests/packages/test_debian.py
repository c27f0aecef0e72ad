"""The Debian package on fresh Debian systems: installed by apt beside Debian's servers, which serve it."""

import platform
import re
import shutil

import pytest

from support.roots import Root
from support.server import free_port

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
MODULE = "/usr/lib/redis/modules/swlimit.so"
# No service starts when it is installed: it would have a port that others may have, too.
NO_STARTS = "printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d"
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends"
SERVICE = """
set -e
printf '%s\\n' "$LINE" >> $CONFIGURATION
sed -i 's/^port .*/port '$PORT'/' $CONFIGURATION
service $SERVER start
for attempt in $(seq 100); do
    [ "$($CLI -p $PORT PING)" != PONG ] || break
    sleep 0.1
done
$CLI -p $PORT SWLIMIT.ALLOW k 10 60 5
$CLI -p $PORT INFO swlimit
$CLI -p $PORT SAVE
service $SERVER restart
$CLI -p $PORT SWLIMIT.INFO k
service $SERVER stop
"""


@pytest.fixture(scope="module")
def root(request):
    """A fresh Debian with its lists of packages, where services are not started by themselves."""
    with Root(request.param) as root:
        run(root, f"{NO_STARTS} && apt-get update -qq")
        yield root


def run(root, script, **variables):
    """What a script prints in the system; it must not fail."""
    done = root.run("env", *(f"{name}={value}" for name, value in variables.items()), "sh", "-c", script)
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@pytest.mark.parametrize("root, family", [("bookworm", "redis"), ("trixie", "redis"), ("trixie", "valkey")],
                         indirect=["root"])
def test_the_packaged_service_serves_with_the_line_that_was_printed(family, root, packages):
    """apt installs it and changes no configuration; with the line it prints the service answers, before and after a
    restart; installed over another one, the package says that servers must be restarted."""
    server, configuration = f"{family}-server", f"/etc/{family}/{family}.conf"
    run(root, f"{INSTALL} {server}")
    original = (root.folder / configuration[1:]).read_bytes()
    shutil.copy(packages.debian(ARCHITECTURE), root.folder / "tmp/swlimit.deb")
    printed = run(root, f"{INSTALL} /tmp/swlimit.deb")
    assert (root.folder / configuration[1:]).read_bytes() == original
    line, = re.findall(r"^ *(loadmodule \S+)$", printed, re.MULTILINE)
    assert configuration in printed and line == f"loadmodule {MODULE}"

    served = run(root, SERVICE, LINE=line, CONFIGURATION=configuration, PORT=free_port(), SERVER=server,
                 CLI=f"{family}-cli")
    assert "\n1\n10\n9\n0\n" in served.replace("(integer) ", "")
    assert f"swlimit_version:{packages.version}" in served
    assert "counts" in served.split("OK\n", 1)[1], served

    assert "restarted" in run(root, f"{INSTALL} --reinstall /tmp/swlimit.deb")
    run(root, "apt-get remove -qq swlimit")  # the other family's server comes after this one
    assert not (root.folder / MODULE[1:]).exists()
