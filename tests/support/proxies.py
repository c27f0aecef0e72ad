"""Fetch the proxies that swlimitd is tested behind, and the Prometheus that reads its metrics, out of Debian's packages
and without installing any.

As releases.py does with servers, and into the same cache: `nginx/bin/nginx` starts it.
"""

import shutil
import sys
from dataclasses import dataclass

from .releases import CACHE, LIBC, Unavailable, building, cache_lock, fetch_named, run, unpack_packages, write_launchers

SUITE = "bookworm"


@dataclass(frozen=True)
class Proxy:
    program: str  # below the root of its packages
    version: str  # the word that makes it tell its version
    packages: tuple
    beside: tuple = ()  # further programs


PROXIES = {
    "prometheus": Proxy("usr/bin/prometheus", "--version", ("prometheus", *LIBC), beside=("usr/bin/promtool",)),
    "nginx": Proxy("usr/sbin/nginx", "-v", ("nginx", "libcrypt1", "libpcre2-8-0", "libssl3", "zlib1g", *LIBC)),
    "caddy": Proxy("usr/bin/caddy", "version", ("caddy", *LIBC)),
    "haproxy": Proxy("usr/sbin/haproxy", "-v", (
        "haproxy", "libcap2", "libcrypt1", "libgcrypt20", "libgpg-error0", "liblua5.3-0", "liblz4-1", "liblzma5",
        "libopentracing-c-wrapper0", "libopentracing1", "libpcre2-8-0", "libssl3", "libsystemd0", "libzstd1", *LIBC)),
}


def obtain(name, program=None):
    """Where a proxy's program is, or another one of its packages: fetched, or on PATH. Raises `Unavailable`."""
    fetched = CACHE / name / "bin" / (program or name)
    found = fetched if fetched.exists() else shutil.which(program or name)
    if not found:
        raise Unavailable(f"it is not installed and has not been fetched: scripts/proxies {name} does that")
    return found


def fetch(name):
    """Where a proxy's program is, fetched if it has not been. Raises `Unavailable`."""
    folder, proxy = CACHE / name, PROXIES[name]
    try:
        with cache_lock():
            if not folder.exists():
                print(f"proxies: fetching {name}", file=sys.stderr, flush=True)
                with building(folder) as unfinished:
                    unpack_packages(SUITE, proxy.packages, unfinished)
                    programs = [proxy.program, *proxy.beside]
                    write_launchers(unfinished, programs, lambda program: run(program, proxy.version))
    except OSError as error:
        raise Unavailable(f"the cache folder cannot be written: {error}") from None
    return obtain(name)


if __name__ == "__main__":
    sys.exit(fetch_named("proxies", PROXIES, fetch))
