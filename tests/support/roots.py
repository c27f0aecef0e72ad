"""Debian systems as small as debootstrap makes them, in folders of their own, to try there what a newcomer does.

Each starts as a copy of one that is kept in .cache/roots; remove that folder to have them made again. What is mounted
and what runs in a system is in namespaces of its own, so that nothing is left behind, whatever happens.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from .releases import CACHE, Unavailable, apt_source
from .server import ROOT

ROOTS = CACHE.parent / "roots"
IN_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c")
ENTER = """
mount -t proc proc "$0/proc" &&
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$0/dev/pts" &&
chroot --userspec="$1" "$0" "${@:2}"
"""
BOOT = 'mount -t proc proc /proc && mount -t tmpfs tmpfs /run && exec "$0" "$@"'
SCRIPT_UNIT = """
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/sh -ex /root/script
StandardOutput=truncate:/root/output
StandardError=inherit
TimeoutStartSec=120
"""
# What this machine needs to reach its networks and registries, and so does a system on it.
SETTINGS = re.compile(r"(?i:https?|no|all)_(?i:proxy)|PIP_\w+|CARGO_(HTTP|NET|REGISTR|SOURCE)\w*|SSL_CERT_FILE|"
                      r"NODE_EXTRA_CA_CERTS")
FILES = {
    "/etc/resolv.conf": "etc/resolv.conf",
    "~/.config/pip/pip.conf": "etc/pip.conf",
    "/etc/pip.conf": "etc/pip.conf",
    f"{os.environ.get('CARGO_HOME', '~/.cargo')}/config.toml": ".cargo/config.toml",
}
USER = "newcomer"  # has neither root's password nor sudo


class Root:
    """A minimal Debian of the named suite with certificates, git and make. Use as a context manager.

    Raises `Unavailable` where none can be made.
    """

    def __init__(self, suite):
        self.suite = suite

    def __enter__(self):
        archive = _archive(self.suite)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.suite}-", dir=ROOTS))
        try:
            _run("tar", "-xf", archive, "-C", self.folder)
            self.folder.chmod(0o755)
            _hand_in_settings(self.folder)
            self.run("update-ca-certificates").check_returncode()
            self.run("useradd", "--create-home", USER).check_returncode()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def words(self, *words, user="root", folder="/"):
        """The command that runs a command in the system, in one of its folders."""
        home = "/root" if user == "root" else f"/home/{user}"
        settings = [f"{name}={value}" for name, value in os.environ.items() if SETTINGS.fullmatch(name)]
        inside = ["env", "-i", f"HOME={home}", f"USER={user}", "LANG=C.UTF-8",
                  "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *settings,
                  "sh", "-c", 'cd "$0" && exec "$@"', folder, *words]
        return [*IN_NAMESPACES, ENTER, str(self.folder), f"{user}:{user}", *inside]

    def run(self, *words, **options):
        """Run a command in the system and wait for its end; its output and its errors are one text."""
        return subprocess.run(self.words(*words, **options), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace")

    def start(self, *words, **options):
        """Start a command in the system, in a process group of its own."""
        return subprocess.Popen(self.words(*words, **options), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)

    def boot(self, script):
        """Start the system by its own systemd, with a network of its own, run a script in it, and end it. Returns what
        the script prints; it must not fail. Raises `Unavailable` where no system can be started."""
        if not shutil.which("systemd-nspawn"):
            raise Unavailable("there is no systemd-nspawn here")
        output = self.folder / "root/output"
        (self.folder / "root/script").write_text(script)
        (self.folder / "etc/systemd/system/script.service").write_text(SCRIPT_UNIT)
        words = ("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--console=pipe",
                 "--directory", str(self.folder), "--boot", "systemd.unit=script.service")
        unified = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}  # what systemd wants today, whatever this machine has
        done = subprocess.run([*IN_NAMESPACES, BOOT, *words], env=os.environ | unified,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not output.exists():
            raise Unavailable(f"systemd-nspawn starts none here: {done.stdout[-2000:]}")
        printed = output.read_text()
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{printed[-8000:]}"
        return printed

    def clone(self, user="root"):
        """Clone this repository, as it was last committed, into a user's home. Returns the folder in the system."""
        folder = f"/{'root' if user == 'root' else f'home/{user}'}/{ROOT.name}"
        _run("git", "clone", "--quiet", "--no-hardlinks", ROOT, f"{self.folder}{folder}")
        self.run("chown", "-R", f"{user}:{user}", folder).check_returncode()
        return folder


def _archive(suite):
    """The archive of the system as debootstrap makes it, made once."""
    if os.geteuid() != 0:
        raise Unavailable("only root can make Debian systems")
    if not shutil.which("debootstrap"):
        raise Unavailable("there is no debootstrap here")
    if subprocess.run([*IN_NAMESPACES, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        raise Unavailable("namespaces of its own are not allowed here")
    archive = ROOTS / f"{suite}.tar"
    if not archive.exists():
        mirror = re.search(r"\w+://\S+", apt_source(suite)[1])[0]
        ROOTS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ROOTS) as folder:
            _run(*IN_NAMESPACES, 'exec debootstrap "$@"', "sh", "--variant=minbase",
                 "--include=ca-certificates,git,make", suite, f"{folder}/root", mirror)
            _run("tar", "--exclude=*.deb", "-cf", f"{folder}/archive.tar", "-C", f"{folder}/root", ".")
            Path(folder, "archive.tar").rename(archive)
    return archive


def _hand_in_settings(folder):
    for source, target in FILES.items():
        source = Path(source).expanduser()
        if source.exists() and source.read_text():
            (folder / target).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, folder / target)
    for certificate in Path("/usr/local/share/ca-certificates").glob("*.crt"):
        shutil.copy(certificate, folder / "usr/local/share/ca-certificates")
    found = re.findall(r"^Acquire::https?::.*$", _run("apt-config", "dump"), re.MULTILINE)
    (folder / "etc/apt/apt.conf.d/90machine").write_text("".join(f"{line}\n" for line in found))


def _run(*words):
    """What a command prints; it must not fail."""
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    assert done.returncode == 0, f"{' '.join(done.args)}:\n{done.stdout[-3000:]}"
    return done.stdout
