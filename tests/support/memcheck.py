"""Servers under valgrind's memcheck, and what it says of them."""

import re

MEMCHECK = ("valgrind", "--trace-children=yes", "--leak-check=full", "--show-leak-kinds=all", "--num-callers=40",
            "--read-var-info=no")


def memcheck(folder):
    return [*MEMCHECK, f"--log-file={folder}/memcheck.%p.log"]


def records(folder):
    """Memcheck's records from all processes, forked ones too: what each says, its stack included."""
    for log in sorted(folder.glob("memcheck.*.log")):
        text = re.sub(r"^==\d+== ?", "", log.read_text(errors="replace"), flags=re.MULTILINE)
        yield from (record for record in re.split(r"\n\s*\n", text) if re.search(r"^\s+(at|by) 0x", record, re.M))
