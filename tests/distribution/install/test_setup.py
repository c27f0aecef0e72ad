"""What `scripts/setup` finds missing, what it installs, and what it leaves to the user."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.lacking import lacking
from support.server import ROOT

APT = "apt-get update -qq && apt-get install -y -qq --no-install-recommends "
RUSTUP = "rustup update stable && rustup component add rustfmt clippy"


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Links to all programs on PATH but those that could be of a toolchain or a package manager."""
    folder = tmp_path_factory.mktemp("programs")
    kept_out = re.compile(r"sudo|rustup|apt-get|dnf|pacman|apk|clang(-\d+)?|llvm-config.*")
    for path in os.environ["PATH"].split(os.pathsep):
        for program in Path(path).glob("*"):
            if not kept_out.fullmatch(program.name) and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return folder


@pytest.fixture
def machine(programs, tmp_path):
    """A machine with other programs than this one, and a cargo that builds everything at once: removes some, writes
    others, and runs setup there."""
    class Machine:
        bin = shutil.copytree(programs, tmp_path / "bin", symlinks=True)

        def lose(self, *names):
            for name in names:
                (self.bin / name).unlink(missing_ok=True)

        def write(self, name, script):
            self.lose(name)
            (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.bin / name).chmod(0o755)

        def take(self, name):
            """A program of this machine after all."""
            self.lose(name)
            (self.bin / name).symlink_to(programs / name)

        def setup(self, level, **environment):
            environment = {"CI": ""} | environment | {"PATH": str(self.bin)}
            return subprocess.run([ROOT / "scripts/setup", level], env=os.environ | environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        def asks_for(self, level, **environment):
            """The line that setup leaves to the user."""
            done = self.setup(level, **environment)
            assert done.returncode == 1, done.stdout
            assert done.stdout.splitlines()[-2].startswith("setup: missing: "), done.stdout
            return done.stdout.splitlines()[-1]

    machine = Machine()
    machine.write("cargo", cargo("1.85.0", "fmt", "clippy"))
    return machine


def names(line):
    """The packages that a line installs, Debian 12's Rust under the names it has elsewhere."""
    assert line.startswith(APT), line
    return {re.sub(r"^(cargo|rustfmt|rust)-web", r"\1", name) for name in line.removeprefix(APT).split()}


def only_libclang_cpp(folder):
    """Only a library with the C++ interface, whose name is too similar."""
    found = [path for pattern in ("usr/lib/llvm-*/lib/libclang.so*", "usr/lib*/libclang.so*", "usr/lib/*/libclang*.so*")
             for path in Path("/").glob(pattern) if "-cpp" not in path.name]
    (folder / "libclang-cpp.so.14").symlink_to(found[0] if found else lacking("a libclang"))
    return {"LIBCLANG_PATH": folder}


def no_library(folder):
    (folder / "libclang.so").write_text("INPUT(libclang.so.1)")
    return {"LIBCLANG_PATH": folder}


def another_library(folder):
    """One that loads, but is not libclang."""
    subprocess.run(["cc", "-shared", "-x", "c", "-o", folder / "libclang.so", "/dev/null"], check=True)
    return {"LIBCLANG_PATH": folder}


def no_headers(_):
    """A libclang whose own headers, stddef.h among them, are not installed, or as good as."""
    return {"BINDGEN_EXTRA_CLANG_ARGS": "-nobuiltininc"}


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    """A target folder with all that redis-module is built from and nothing of its own, which bindgen writes."""
    words = ["cargo", "tree", "--locked", "--package", "redis-module", "--prefix", "none", "--format", "{lib}"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    crates = set(listed.split()) - {"redis_module"}
    folder = tmp_path_factory.mktemp("target")

    def of_others(path):
        crate = path.name.rpartition("-")[0].replace("-", "_")
        return {crate, crate.removeprefix("lib")} & crates

    for part in (".fingerprint", "build", "deps"):
        for path in filter(of_others, (ROOT / "target/debug" / part).iterdir()):
            copy = folder / "debug" / part / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(path, copy) if path.is_dir() else os.link(path, copy)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("make", [no_headers, only_libclang_cpp, no_library, another_library])
def test_a_libclang_that_bindgen_cannot_use_is_missing(machine, tmp_path, target, make):
    folder = tmp_path / "libclang"
    folder.mkdir()
    machine.take("cargo")
    # A target folder of its own: in the usual one bindgen has done its work already.
    found = machine.asks_for("build", CARGO_TARGET_DIR=target, **make(folder))
    assert names(found) == {"libclang-dev"}


def test_building_needs_neither_python_nor_a_server(machine):
    machine.lose("python", "python3", "redis-server", "redis-cli")
    assert machine.setup("build").stdout == ""
    assert names(machine.asks_for("run")) == {"redis-server", "redis-tools"}


def test_without_a_compiler_nobody_can_tell_whether_there_is_a_libclang(machine):
    machine.lose("cc")
    assert names(machine.asks_for("build")) == {"gcc", "libc6-dev", "libclang-dev"}


def cargo(version, *components):
    """A cargo that builds everything."""
    return f"""case $1 in
        --version) echo "cargo {version} (d73d2caf9 2024-12-31)" ;;
        {"|".join(("build", *components))}) ;;
        *) exit 1 ;;
    esac"""


@pytest.mark.parametrize("version", ["1.85.0", "1.85.1-nightly", "1.100.0", "2.0.0"])
def test_a_cargo_that_suffices_is_left_alone(machine, version):
    machine.write("cargo", cargo(version))
    assert machine.setup("build").stdout == ""


@pytest.mark.parametrize("version", ["0.66.0", "1.9.0", "1.84.1"])
def test_a_cargo_that_is_too_old(machine, version):
    machine.write("cargo", cargo(version))
    assert names(machine.asks_for("build")) == {"cargo", "libclang-dev"}
    machine.write("rustup", "")
    assert machine.asks_for("build") == RUSTUP


def test_no_cargo(machine):
    machine.lose("cargo")
    assert names(machine.asks_for("build")) == {"cargo", "libclang-dev"}


def test_testing_needs_python(machine):
    machine.lose("python3")
    assert machine.setup("run").stdout == ""
    assert names(machine.asks_for("test")) == {"python3-venv"}


def test_linting_needs_rustfmt_and_clippy(machine):
    machine.write("cargo", cargo("1.85.0"))
    machine.lose("python3")
    assert names(machine.asks_for("test")) == {"python3-venv"}
    assert names(machine.asks_for("lint")) == {"rustfmt", "rust-clippy", "python3-venv"}
    machine.write("cargo", cargo("1.85.0", "clippy"))
    assert names(machine.asks_for("lint")) == {"rustfmt", "python3-venv"}
    machine.write("rustup", "")
    assert machine.asks_for("lint") == RUSTUP


def test_testing_needs_curl(machine):
    machine.lose("curl")
    assert machine.setup("run").stdout == ""
    assert names(machine.asks_for("test")) == {"curl"}


def test_ci_needs_more(machine):
    machine.lose("valgrind", "redis-cli", "chromedriver", "sidekiq")
    assert names(machine.asks_for("test")) == {"redis-tools"}
    assert names(machine.asks_for("test", CI="true")) == {"redis-tools", "valgrind", "chromium-driver"}


@pytest.mark.long  # setup then prepares hundreds of packages for the longer tests
def test_the_longer_tests_need_more_in_ci(machine):
    machine.lose("valgrind", "redis-cli", "chromedriver", "sidekiq", "c++")
    assert names(machine.asks_for("long")) == {"redis-tools"}
    assert names(machine.asks_for("long", CI="true")) == {
        "redis-tools", "valgrind", "chromium-driver", "ruby-sidekiq", "g++"}


@pytest.fixture
def apt(machine, tmp_path):
    """Gives the machine an apt-get that notes its arguments, and then does what a test says. Returns the notes."""
    def apt(does):
        machine.write("apt-get", f'echo "$@" >> {tmp_path}/notes; [ "$1" = update ] || {does}')
        machine.write("sudo", 'exec "$@"')
        return lambda: (tmp_path / "notes").read_text().splitlines()

    return apt


def test_what_is_missing_is_installed_and_nothing_else(machine, apt):
    machine.lose("redis-cli")
    notes = apt(f"ln -s /bin/true {machine.bin}/redis-cli")
    done = machine.setup("run")
    assert (done.returncode, done.stdout) == (0, "setup: installing client\n")
    assert notes() == ["update -qq", "install -y -qq --no-install-recommends redis-tools"]
    assert machine.setup("run").stdout == ""


def test_an_installation_that_fails_leaves_the_line(machine, apt):
    machine.lose("redis-cli")
    apt("exit 100")
    assert names(machine.asks_for("run")) == {"redis-tools"}


def test_what_is_installed_and_still_does_not_suffice(machine, apt):
    machine.lose("redis-cli")
    apt("true")
    done = machine.setup("run")
    assert done.returncode == 1 and done.stdout.endswith("not good enough: client\n")


@pytest.mark.parametrize("manager, line", [("dnf", "dnf install -y gcc clang-devel"),
                                           ("pacman", "pacman -S --needed --noconfirm gcc clang"),
                                           ("apk", "apk add gcc musl-dev clang-dev")])
def test_other_package_managers(machine, manager, line):
    machine.lose("cc")
    machine.write(manager, "exit 1")
    assert machine.asks_for("build") == line


@pytest.mark.parametrize("level", ["", "everything"])
def test_setup_wants_to_know_what_for(machine, level):
    assert machine.setup(level).returncode == 2
