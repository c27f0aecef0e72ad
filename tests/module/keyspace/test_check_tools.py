"""redis-check-rdb and redis-check-aof on files with windows in them, whole, cut short and damaged.

The tools are of the server under test and know nothing of the module.
"""

import random
import re
import subprocess

import pytest

from support import aof
from support.bounds import MAX, T
from support.cli import ask, batch
from support.commands import mallow, random_commands
from support.contents import agrees, digest
from support.server import Server

AOF = {"appendonly": "yes", "appendfsync": "always", "aof-load-truncated": "no"}


@pytest.fixture
def check(binaries):
    """Run one of the tools on a file, without a crash; whether it finds the file sound, and what it prints."""
    def check(kind, *words):
        tool = binaries.tool(f"check-{kind}")
        if not tool:
            pytest.skip(f"{binaries} comes without a check-{kind}")
        done = subprocess.run([tool, *words], input="y\n", capture_output=True, text=True, errors="replace", timeout=60)
        assert done.returncode in (0, 1), (done.returncode, done.stdout, done.stderr)
        assert "crash" not in done.stdout.lower(), done.stdout
        return done.returncode == 0, done.stdout

    return check


def fill(server):
    """Windows of all sorts beside other keys."""
    batch(server, random_commands(random.Random(12), 400))
    batch(server, [["SWLIMIT.RECORD", "huge", MAX, "3650d", "1d", "COST", MAX, "AT", T], ["SET", "string", "x"],
                   ["SWLIMIT.RECORD", b"any\0\r\n\xff bytes", 9, 60, 5, "AT", T], ["RPUSH", "list", 1, 2]])


@pytest.fixture
def rdb(start):
    """The file of a server that writes no checksums, so that damage is left for others to find."""
    server = start(options={"rdbchecksum": "no", "rdbcompression": "no"})
    fill(server)
    assert server.cli("SAVE") == "OK"
    return server.folder / "dump.rdb"


def test_a_sound_snapshot(check, start):
    server = start()
    fill(server)
    assert server.cli("SAVE") == "OK"
    sound, said = check("rdb", server.folder / "dump.rdb")
    assert sound, said
    assert "RDB looks OK" in said and "Checksum OK" in said
    assert f"{server.cli('DBSIZE')} keys read" in said


def test_snapshots_cut_short_and_with_a_wrong_checksum(check, start, tmp_path):
    server = start()
    fill(server)
    assert server.cli("SAVE") == "OK"
    whole = (server.folder / "dump.rdb").read_bytes()
    file = tmp_path / "dump.rdb"
    window = whole.index(b"huge")
    # Where a module's value ends between two of its parts, some of these tools look for the next one for ever.
    parts = window + 13, window + 15 + whole[window + 14]
    for cut in sorted({*range(window, window + 40), len(whole) - 1} - {*parts}):
        file.write_bytes(whole[:cut])
        assert not check("rdb", file)[0], cut
    for at in range(window + 4, window + 40):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1:])
        assert not check("rdb", file)[0], at


def test_damaged_snapshots_are_refused_or_whole(binaries, check, rdb, tmp_path):
    """Without a checksum to rely on, the tool does not crash, and a server refuses to start or holds sound windows."""
    rng, whole = random.Random(13), rdb.read_bytes()
    spots = [found.end() for found in re.finditer(rb"key:\d+|other:\d+|huge", whole)]
    started = refused = 0
    for number in range(40):
        at = rng.choice(spots) + rng.randrange(24)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "dump.rdb").write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1:])
        check("rdb", folder / "dump.rdb")
        server = Server(binaries, folder=folder)
        try:
            server.start()
            started += 1
            assert agrees(server) > 10
            assert server.cli("DEBUG", "RELOAD") == "OK"
        except RuntimeError:
            refused += 1
            assert server.process.returncode in (0, 1), server.log  # by its own check of the file, which may pass
        finally:
            server.close()
        assert "BUG REPORT" not in server.log and "panicked" not in server.log
    assert started and refused


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_sound_append_only_files(check, start, preamble):
    server = start(options=AOF | {"aof-use-rdb-preamble": preamble})
    fill(server)
    for _ in range(2):  # as written, and rewritten with more after it
        sound, said = check("aof", server.folder / "appendonlydir/appendonly.aof.manifest")
        assert sound, said
        assert "All AOF files and manifest are valid" in said
        aof.rewrite(server)
        batch(server, random_commands(random.Random(14), 50))


@pytest.mark.parametrize("last", [
    ("SWLIMIT.ALLOW", "k", 9, "1h", "1m", "AT", T), ("SWLIMIT.REFUND", "huge", 5),
    mallow(("k", 9, "1h", "1m", 1), ("l", 9, "1h", "1m", 1), options=("AT", T)),
], ids=lambda words: words[0])
def test_a_file_cut_in_its_last_command_is_mended(check, start, tmp_path, last):
    """`--fix` leaves everything before the last command, and of MALLOW all keys or none."""
    server = start(options=AOF)
    fill(server)
    before, intact = digest(server), aof.written(server).stat().st_size
    ask(server, *last)
    after, whole = digest(server), aof.written(server).read_bytes()
    assert before != after
    server.stop()
    for cut in sorted({*range(intact + 1, len(whole), 31), len(whole) - 1}):
        aof.written(server).write_bytes(whole[:cut])
        manifest = server.folder / "appendonlydir/appendonly.aof.manifest"
        assert not check("aof", manifest)[0]
        assert check("aof", "--fix", manifest)[0]
        assert aof.written(server).stat().st_size == intact
        assert check("aof", manifest)[0]
    server.start()
    assert digest(server) == before
    ask(server, *last)
    assert digest(server) == after


def test_a_file_damaged_in_the_middle_is_cut_there(check, start):
    """`--fix` keeps what came before a damaged command; the server then holds exactly that."""
    server = start(options=AOF)
    for number in range(20):
        ask(server, "SWLIMIT.RECORD", "k", 99, "1h", "1m", "AT", T)
        if number == 9:
            kept, middle = digest(server), aof.written(server).stat().st_size
    server.kill()
    whole = aof.written(server).read_bytes()
    aof.written(server).write_bytes(whole[:middle] + b"*x" + whole[middle + 2:])
    manifest = server.folder / "appendonlydir/appendonly.aof.manifest"
    assert not check("aof", manifest)[0]
    assert check("aof", "--fix", manifest)[0]
    server.start()
    assert digest(server) == kept
