"""Fetch the proxies that swlimitd is tested behind, out of Debian's packages and without installing any.

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


PROXIES = {
    "nginx": Proxy("usr/sbin/nginx", "-v", ("nginx", "libcrypt1", "libpcre2-8-0", "libssl3", "zlib1g", *LIBC)),
    "caddy": Proxy("usr/bin/caddy", "version", ("caddy", *LIBC)),
    "haproxy": Proxy("usr/sbin/haproxy", "-v", (
        "haproxy", "libcap2", "libcrypt1", "libgcrypt20", "libgpg-error0", "liblua5.3-0", "liblz4-1", "liblzma5",
        "libopentracing-c-wrapper0", "libopentracing1", "libpcre2-8-0", "libssl3", "libsystemd0", "libzstd1", *LIBC)),
}


def obtain(name):
    """Where a proxy's program is: fetched, or on PATH. Raises `Unavailable`."""
    fetched = CACHE / name / "bin" / name
    found = fetched if fetched.exists() else shutil.which(name)
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
                    write_launchers(unfinished, [proxy.program], lambda program: run(program, proxy.version))
    except OSError as error:
        raise Unavailable(f"the cache folder cannot be written: {error}") from None
    return obtain(name)


if __name__ == "__main__":
    sys.exit(fetch_named("proxies", PROXIES, fetch))
