"""The wheel and the source distribution: what they hold, and that they work where nothing else is."""

import subprocess
import sys
import tarfile
import zipfile

import pytest

from docs.pages import blocks, page_named
from support.server import ROOT

pytestmark = pytest.mark.long

SOURCE = ROOT / "src/clients/python"


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What is built, by the end of its name."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, SOURCE)
    return {"whl": next(folder.glob("*.whl")), "tar.gz": next(folder.glob("*.tar.gz"))}


def test_what_they_hold(built):
    ours = {str(path.relative_to(SOURCE)) for path in SOURCE.glob("swlimit/**/*") if path.suffix in (".py", ".typed")}
    scripts = "swlimit.lua", "takeover.lua"
    ours |= {f"swlimit/{name}" for name in scripts}
    assert "swlimit/py.typed" in ours
    with zipfile.ZipFile(built["whl"]) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours
        for name in scripts:
            assert wheel.read(f"swlimit/{name}") == (ROOT / "src/server/script" / name).read_bytes()
        metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        assert "Requires-Python: >=3.10" in wheel.read(metadata).decode()
    with tarfile.open(built["tar.gz"]) as source:
        names = {name.split("/", 1)[1] for name in source.getnames()}
        assert ours | {"pyproject.toml", "README.md"} <= names


@pytest.mark.parametrize("module", [True, False], ids=["module", "plain"])
def test_first_use(server, start, tmp_path, module):
    """What python.md says to type, in an environment where nothing is, up to its first denial; on any server."""
    server = server if module else start(module=None)
    page = blocks(page_named("python.md"))
    run_server, install = (block.text.strip() for block in page if block.language == "sh")
    assert (run_server, install) == ("redis-server --port 6379", "pip install ./src/clients/python")
    program, shown = next((one.text, other.text) for one, other in zip(page, page[1:]) if one.language == "python")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check",
        *install.split()[1:], cwd=ROOT)
    assert "denied" in shown
    waiting = program.replace("6379", str(server.port)).replace('timeout="1s"', 'timeout="20s"')
    assert run(python, "-I", "-c", waiting, cwd=tmp_path) == shown
    version = (ROOT / "Cargo.toml").read_text().split('version = "')[1].split('"')[0]
    others = "import swlimit, swlimit.asgi, swlimit.wsgi; print(swlimit.__version__)"
    assert run(python, "-I", "-c", others, cwd=tmp_path) == f"{version}\n"
