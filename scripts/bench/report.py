"""What came out, as RESULTS.md and pictures beside it: machine, versions, tables."""

import os
import platform
import re
from datetime import date
from pathlib import Path

import svg
from support.server import ROOT, Binaries, Server

from .revision import rust
from .sections import SECTIONS


def write(folder, results, skipped, command):
    """Write RESULTS.md and the pictures."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = ["# What swlimit costs", "", *circumstances(command), *(f"- Left out: {one}" for one in skipped), ""]
    for name, result in results.items():
        section = SECTIONS[name]
        text += [f"## {section.title}", "", section.note, ""]
        if section.draw:
            svg.save(section.draw(result), folder / f"{name}.svg")
            text += [f"![{section.title}]({name}.svg)", ""]
        text += [*section.table(result), ""]
    (folder / "RESULTS.md").write_text("\n".join(text).rstrip() + "\n")


def circumstances(command):
    """Machine, versions, date, and how to do it again."""
    with Server(Binaries.installed(), module=None) as server, server.client() as client:
        info = client.info("server")
        kind = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
        allocator = client.info("memory")["mem_allocator"]
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    kernel = platform.release().split("-")[0]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"- Date: {date.today()}; repeat it with `{command}`.",
        f"- Machine: {processor()}, {os.cpu_count()} cores, {gib:.0f} GiB; {platform.system()} {kernel}. The server "
        "has one core for itself, the load generator another. Loops of idle priority keep both awake.",
        f"- Server: {kind}, {allocator}; swlimit {version}, built by Rust {rust()}.",
    ]


def processor():
    """The processor's name, as Linux has it."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
