"""What a decision costs the client in Node.js, beside the client library's own command: `python -m bench.javascript`.

CPU of the process, in rounds that alternate, so that a busy machine disturbs both alike; medians of the ratios. It runs
in scripts/.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support import node  # noqa: E402
from support.server import Server  # noqa: E402


def main():
    node.build()
    print("| decision | swlimit | client | ratio |\n|---|---:|---:|---:|", flush=True)
    program = ROOT / "scripts/bench/client.mjs"
    with Server() as server:
        subprocess.run(**node.command(program, server.port), check=True)


if __name__ == "__main__":
    main()
