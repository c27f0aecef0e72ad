"""The Debian packages on fresh Debian systems: installed by apt beside Debian's servers, which serve."""

import platform
import re
import shlex
import shutil
import tarfile
from contextlib import ExitStack

import pytest

from docs.pages import blocks, page_named
from support.releases import Unavailable
from support.roots import Root
from support.server import free_port

HERE = "tests/distribution/packages/test_debian.py"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
MODULE = "/usr/lib/redis/modules/swlimit.so"
# No service starts when it is installed: it would have a port that others may have, too.
NO_STARTS = "printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d"
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends"
SERVICE = """
set -e
printf '%s\\n' "$LINE" >> $CONFIGURATION
sed -i 's/^port .*/port '$PORT'/' $CONFIGURATION
answers() {
    for attempt in $(seq 100); do
        [ "$($CLI -p $PORT PING)" != PONG ] || break
        sleep 0.1
    done
}
service $SERVER start
answers
$CLI -p $PORT SWLIMIT.ALLOW k 10 60 5
$CLI -p $PORT INFO swlimit
$CLI -p $PORT SAVE
service $SERVER restart
answers
$CLI -p $PORT SWLIMIT.INFO k
service $SERVER stop
"""

DAEMON = """
trap 'journalctl --no-pager --boot --unit swlimitd | tail -n 30' EXIT
cd /root
redis-server --loadmodule /usr/lib/redis/modules/swlimit.so --daemonize yes
until redis-cli PING; do sleep 0.1; done
systemd-analyze verify swlimitd.service
systemd-analyze security --no-pager --threshold=20 swlimitd.service > /dev/null # 2 of 10: well confined
systemctl is-enabled swlimitd

# ask PATH STATUS [OPTION…]
ask() {
    path=$1 status=$2
    shift 2
    [ "$(curl --silent --output /dev/null --write-out '%{http_code}' "$@" "http://127.0.0.1:8080$path")" = "$status" ]
}
user() {
    ask /json "$1" --data '{"domain": "example", "hitsAddend": '$2', "descriptors": [{"entries": [
        {"key": "user", "value": "ann"}]}]}'
}
fails() {
    if "$@"; then return 1; fi
}
# again [OPTION…]: start it, however often that was, and wait for it
again() {
    systemctl reset-failed swlimitd
    systemctl restart swlimitd
    curl --fail --silent --retry 20 --retry-all-errors --retry-delay 1 "$@" http://localhost:8080/healthcheck
}

: as it is installed, except the time that a busy machine takes
sed --in-place 's,^#timeout: .*,timeout: 5s,' /etc/swlimitd/swlimitd.yaml
again
user 200 100
user 429 1
[ "$(redis-cli EXISTS '{example}|user=ann|1m')" = 1 ]
process=$(systemctl show --value --property MainPID swlimitd)
[ "$(stat --format %u /proc/$process)" -gt 60000 ] # a user of its own
grep 'Seccomp:.*2' /proc/$process/status

: an invalid configuration is neither reloaded nor started, a valid one is taken up
cp /etc/swlimitd/limits.yaml valid.yaml
echo 'wrong: 1' >> /etc/swlimitd/limits.yaml
fails systemctl reload swlimitd
user 429 1
fails systemctl restart swlimitd
sed 's/: 100}/: 1000}/' valid.yaml > /etc/swlimitd/limits.yaml
again
systemctl reload swlimitd
user 200 500

: by the name of a server, which the sandbox lets it look up, from a file that only root can read
echo 127.0.0.1 counting >> /etc/hosts
(umask 077 && echo SWLIMITD_SERVER=redis://counting:6379 > /etc/default/swlimitd)
sed --in-place 's,^#server: .*,server: redis://127.0.0.1:1,' /etc/swlimitd/swlimitd.yaml
again
user 200 1

: as the page says, with a server that is away
(umask 077 && printf '%s' "$VARIABLES" > /etc/default/swlimitd)
again
user 503 1
rm /etc/default/swlimitd

: as the page says, with tokens
mkdir --parents /etc/systemd/system/swlimitd.service.d
printf '%s' "$DROP_IN" > /etc/systemd/system/swlimitd.service.d/override.conf
(umask 077 && echo secret > /etc/swlimitd/tokens)
sed --in-place 's,^server: .*,api: {tokens: /run/credentials/swlimitd.service/tokens},' /etc/swlimitd/swlimitd.yaml
systemctl daemon-reload
again
ask /v1/peek 401 --json '{"key": "k", "limit": 5, "window": "1m"}'
ask /v1/peek 200 --json '{"key": "k", "limit": 5, "window": "1m"}' --oauth2-bearer secret

: at a socket, for everybody of this machine
sed --in-place 's,^#http: .*,http: {address: "unix:/run/swlimitd/http.sock"},' /etc/swlimitd/swlimitd.yaml
again --unix-socket /run/swlimitd/http.sock
runuser --user nobody -- curl --fail --silent --unix-socket /run/swlimitd/http.sock http://localhost/healthcheck

systemctl stop swlimitd
[ "$(systemctl show --value --property Result swlimitd)" = success ]
"""


@pytest.fixture(scope="module")
def root(request):
    """A fresh Debian with its lists of packages, where services are not started by themselves."""
    with ExitStack() as stack:
        try:
            root = stack.enter_context(Root(request.param))
        except Unavailable as reason:
            pytest.skip(f"NO FRESH DEBIAN, its packages are not tested: {reason}")
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


@pytest.mark.parametrize("root", ["bookworm", "trixie"], indirect=True)
def test_swlimitd_is_a_service(root, packages):
    """systemd runs it, confined as its unit says, as it is installed and as its page configures it further. Its
    administrator's changes outlive upgrades and its removal; a purge leaves nothing."""
    run(root, f"{INSTALL} redis-server systemd curl")
    for name in ("swlimit", "swlimitd"):
        shutil.copy(packages.debian(ARCHITECTURE, name), root.folder / f"tmp/{name}.deb")
    run(root, f"{INSTALL} /tmp/swlimit.deb /tmp/swlimitd.deb")
    page = [block for block in blocks(page_named("install-swlimitd.md")) if block.comment == f"run by {HERE}"]
    variables, drop_in, install = [next(block.text for block in page if block.language == language)
                                   for language in ("conf", "ini", "sh")]
    try:
        root.boot(f"VARIABLES={shlex.quote(variables)}\nDROP_IN={shlex.quote(drop_in)}\n{DAEMON}")
    except Unavailable as reason:
        pytest.skip(f"NO FRESH DEBIAN, the service is not tested: {reason}")

    limits = root.folder / "etc/swlimitd/limits.yaml"
    changed = limits.read_text()
    assert "1000" in changed
    for change in ("install -qq --reinstall /tmp/swlimitd.deb", "remove -qq swlimitd"):
        run(root, f"DEBIAN_FRONTEND=noninteractive apt-get {change}")
        assert limits.read_text() == changed
    (root.folder / "etc/swlimitd/tokens").unlink()  # it is the administrator's own
    run(root, "apt-get purge -qq swlimitd swlimit")
    left = set(run(root, "find /etc /run /usr /var/lib -name '*swlimitd*'").split())
    assert left == {"/etc/systemd/system/swlimitd.service.d"}, left

    # Without the package, from the tarball.
    with tarfile.open(packages.tarball(f"{platform.machine()}-unknown-linux-gnu", "swlimitd")) as archive:
        archive.extractall(root.folder / "tmp", filter="data")
        run(root, f"cd /tmp/{archive.getnames()[0]} && {install}")
    run(root, "systemd-analyze verify /etc/systemd/system/swlimitd.service && swlimitd --check")
