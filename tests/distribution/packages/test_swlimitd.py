"""swlimitd as it is published, for each processor and C library, and as its container holds it."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import trustme
from packages.test_contents import TARGETS

from docs.pages import blocks, page_named
from support import foreign
from support.daemon import Daemon
from support.lacking import lacking
from support.recipe import PACKAGING, Recipe
from support.server import ROOT, Server, free_port

OWN = f"{platform.machine()}-unknown-linux-musl"
HERE = f"tests/distribution/packages/{Path(__file__).name}"
# In a file system that nobody can write to: the root of the image, and its configuration, a folder from outside.
CONTAINED = """
mount --make-rprivate /
mount --bind "$0" "$0"
mount --bind "$(dirname "$3")" "$0/etc/swlimitd"
mount -o remount,bind,ro "$0"
exec chroot --userspec "$1" "$0" /usr/bin/swlimitd
"""


@pytest.fixture
def server(module_for):
    with Server(module=module_for(f"{platform.machine()}-unknown-linux-gnu")) as server:
        yield server


def assert_it_limits(daemon):
    """It lets 100 requests a minute through, as the sample configuration says."""
    assert daemon.codes("user=ann", hits=100, domain="example")[0] == "OK"
    assert daemon.codes("user=ann", domain="example")[0] == "OVER_LIMIT"
    assert daemon.codes("user=bob", domain="example")[0] == "OK"
    daemon.stop()


@pytest.mark.parametrize("target", TARGETS)
def test_it_limits_on_the_systems_it_is_for(target, packages, unpacked, server):
    folder = unpacked(target, "swlimitd")
    command = foreign.program(folder / "swlimitd", target.split("-")[0])
    with Daemon((folder / "limits.yaml").read_text(), server, command=command) as daemon:
        assert daemon.run("--version") == (0, f"swlimitd {packages.version}\n")
        assert_it_limits(daemon)


def test_what_the_page_does_with_a_tarball(packages, tmp_path):
    block, = [block for block in blocks(page_named("install-swlimitd.md")) if block.comment == f"run by {HERE}"]
    shutil.copy(packages.tarball("x86_64-unknown-linux-musl", "swlimitd"), tmp_path)
    script = block.text.rstrip() + " --check"
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recipe_copies_all_that_it_builds(tmp_path):
    """Its command finds everything among what it copies, checked as far as the compiler looks, with what lints use."""
    recipe = Recipe()
    copied = subprocess.run(["git", "ls-files", "-z", *recipe.sources], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.split("\0")
    for file in filter(None, copied):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    installs, builds, *_ = recipe.commands
    assert installs.startswith("apk add ") and builds.startswith("cargo build --release --locked ")
    subprocess.run(builds.replace("build --release", "check", 1).split(), cwd=tmp_path, check=True,
                   env=os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target")})


@pytest.fixture
def image(unpacked, tmp_path):
    """A folder with what the image holds. What Alpine's compiler would make is the program for musl."""
    built = {"/source/target/release/swlimitd": unpacked(OWN, "swlimitd") / "swlimitd"}
    recipe, prepared = Recipe(), tmp_path / "prepared"
    for command in recipe.commands[2:]:
        subprocess.run(["sh", "-ec", command.replace("/image", str(prepared))], check=True)
    for source, target in recipe.taken.items():
        path = tmp_path / "image" / target.lstrip("/")
        if source == "/image/":
            shutil.copytree(prepared, path, symlinks=True, dirs_exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(built.get(source, Path(source)), path)
    (tmp_path / "image/etc/swlimitd").mkdir()
    return tmp_path / "image"


def test_the_container_needs_nothing_but_what_it_holds(image, module_for, tmp_path):
    """As a user without rights, with nothing that can be written to, and ended as containers are. It verifies its
    server by the certificates in the image: here those of an authority that vouches for that server."""
    if os.geteuid() != 0:
        lacking("root's rights, to run a container's contents")
    authority, port, user = trustme.CA(), free_port(), Recipe().user
    certificate = authority.issue_cert("127.0.0.1")
    files = {"tls-ca-cert-file": image / "etc/ssl/certs/ca-certificates.crt", "tls-cert-file": tmp_path / "cert.pem",
             "tls-key-file": tmp_path / "key.pem"}
    for file, pem in zip(files.values(), (authority.cert_pem, certificate.cert_chain_pems[0],
                                          certificate.private_key_pem)):
        pem.write_to_path(file)

    command = ("unshare", "--mount", "sh", "-ec", CONTAINED, image, f"{user}:{user}")
    daemon = Daemon((PACKAGING / "limits.yaml").read_text(), command=command)
    daemon.write_settings(server=f"rediss://127.0.0.1:{port}")
    daemon.folder.chmod(0o755)  # as volumes are
    with Server(module=module_for(f"{platform.machine()}-unknown-linux-gnu"),
                options=files | {"tls-port": port, "tls-auth-clients": "no"}), daemon:
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        assert f"Uid:\t{user}\t{user}\t{user}\t{user}\n" in status
        assert_it_limits(daemon)
