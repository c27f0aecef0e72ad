"""The AI SDK, in packages of its own, behind the middleware for its models."""

import re

import pytest

from docs.pages import blocks, page_named
from support import node
from support.server import ROOT

HERE = ROOT / "tests/clients/ai-sdk"
MODEL = "http://127.0.0.1:8000/v1"  # in the page
PROGRAM = """
import {{ fakeModel }} from "./fake-model.mjs";
const ends = [];
const {{ baseURL }} = await fakeModel({{ after: (end) => ends.push(end) }}, ["400", "400"]);
{program}
for (const end of ends) end();
"""

pytestmark = pytest.mark.long


@pytest.mark.parametrize("module", [True, False], ids=["module", "script"])
def test_requests(module, start):
    server = start() if module else start(module=None)
    printed = run("--test", "--test-reporter=spec", "ai-sdk.test.mjs",
                  env=node.ENVIRONMENT | {"SWLIMIT_PORT": str(server.port)})
    assert "ℹ pass 0\n" not in printed and "ℹ skipped 0\n" in printed, printed


def test_the_program_of_the_page(server):
    block, = (block for block in blocks(page_named("language-models.md")) if "test_ai_sdk" in block.comment)
    assert f'"{MODEL}"' in block.text
    text = block.text.replace(f'"{MODEL}"', "baseURL").replace("6379", str(server.port))
    text = re.sub(r"new (Hold)?Limiter\(\{", r'\g<0> timeout: "20s",', text)
    printed = run("--input-type=module", "--eval", PROGRAM.format(program=text))
    assert re.fullmatch(r"(hello back: 400 tokens\n){2}come back in \d+ seconds\n", printed), printed


def test_types():
    run(node.TSC, "--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck", "--types",
        "node", "--typeRoots", node.PACKAGE / "node_modules/@types", "--ignoreConfig", "types.ts")


def run(*words, **options):
    """What Node.js prints."""
    done = node.run(*words, cwd=HERE, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
