"""rights.md: with the line of its language, each client decides, remembers denials and gives back."""

import os
import re
import subprocess
import sys

import pytest

from docs.pages import page_named
from support import golang, node
from support.server import ROOT

ROWS = dict(re.findall(r"^\| (Python|Node\.js|Go) \| `(.*)` \|$", page_named("rights.md").read_text(), re.MULTILINE))

PYTHON = """
import sys, time, swlimit
with swlimit.Limiter.from_url(sys.argv[1], "5/minute", prefix="limit:", timeout=5) as limiter:
    granted = sum(limiter.allow("k").granted for _ in range(15))
    time.sleep(0.5)
    assert limiter.peek("k").remaining == 0 and limiter.refund("k", 2) == 2
    time.sleep(0.5)
    print(granted + sum(limiter.allow("k").granted for _ in range(5)))
"""

NODE = """
import { setTimeout as sleep } from "node:timers/promises";
import { Limiter } from "swlimit";
const limiter = await Limiter.fromUrl(process.argv[2], "5/minute", { prefix: "limit:", timeout: 5000 });
let granted = 0;
for (let i = 0; i < 15; i++) granted += (await limiter.allow("k")).granted;
await sleep(500);
if ((await limiter.peek("k")).remaining !== 0 || (await limiter.refund("k", 2)) !== 2) process.exit(1);
await sleep(500);
for (let i = 0; i < 5; i++) granted += (await limiter.allow("k")).granted;
console.log(granted);
await limiter.close();
"""

GO = """
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/goredis"
)

func main() {
	limiter, err := goredis.Open(os.Args[1], "5/minute", swlimit.Prefix("limit:"), swlimit.Timeout(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	granted := uint64(0)
	ask := func(times int) {
		for range times {
			decision, err := limiter.Allow(context.Background(), "k")
			if err != nil {
				log.Fatal(err)
			}
			granted += uint64(decision.Granted)
		}
	}
	ask(15)
	time.Sleep(500 * time.Millisecond)
	if returned, err := limiter.Refund(context.Background(), "k", 2); err != nil || returned != 2 {
		log.Fatal(returned, err)
	}
	time.Sleep(500 * time.Millisecond)
	ask(5)
	fmt.Println(granted)
}
"""


def python(url, folder):
    (folder / "main.py").write_text(PYTHON)
    return [sys.executable, folder / "main.py", url], {"PYTHONPATH": str(ROOT / "src/clients/python")}, folder


def nodejs(url, folder):
    node.build()
    program = node.MODULES / f"{folder.name}.mjs"
    program.write_text(NODE)
    return [node.NODE, program, url], {}, folder


def go(url, folder):
    golang.copy_module(folder)
    (folder / "main.go").write_text(GO)
    return [golang.GO, "run", ".", url], golang.ENVIRONMENT, folder


@pytest.fixture
def server(server_of_each):
    server_of_each.cli("FLUSHALL")
    return server_of_each


@pytest.mark.parametrize("language, program", [("Python", python), ("Node.js", nodejs), ("Go", go)])
def test_the_line_of_each_language(server, tmp_path, language, program):
    rights = ROWS[language].replace("\\|", "|").split()
    server.cli("ACL", "SETUSER", "limits", "reset", "on", ">secret", *rights)
    server.cli("ACL", "LOG", "RESET")
    words, environment, folder = program(f"redis://limits:secret@127.0.0.1:{server.port}", tmp_path)
    try:
        done = subprocess.run(words, cwd=folder, env=os.environ | environment, capture_output=True, text=True,
                              timeout=300)
    finally:
        (node.MODULES / f"{tmp_path.name}.mjs").unlink(missing_ok=True)
    assert done.stdout == "7\n", done.stdout + done.stderr
    # The log names each command that was refused. Go asks for the database, and does not need to for 0; the libraries
    # below Python and Node.js say their names to servers since 7.2.
    refused = set(re.findall(r"^object\n(.*)$", server.cli("ACL", "LOG"), re.MULTILINE))
    assert refused <= ({"select"} if language == "Go" else {"client|setinfo"}), refused
