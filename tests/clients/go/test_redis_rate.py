"""The tests that redis_rate has for itself, on swlimit's package of its names.

They come with its module. Changed in them are the import and the client, because a Ring is refused; what they require,
they only check here, so that each check is counted.
"""

import re
from collections import Counter
from pathlib import Path

from docs.pages import page_named
from support import golang

HERE = Path(__file__).parent
THEIRS, CORE = "github.com/go-redis/redis_rate/v10", "github.com/swlimit/swlimit/src/clients/go"
OURS = f"{CORE}/redisrate"
DIFFERENT = {
    "`ResetAfter` is when nothing counts any more": r"InDelta\(t, res\.ResetAfter, \d+\*time\.Millisecond",
    "`RetryAfter` of more units than the burst is `swlimit.Never`": r"InDelta\(t, res\.RetryAfter, 99\*time\.Second",
    "`RetryAfter` is when the oldest units slide out": r"InDelta\(t, res\.RetryAfter, 99\*time\.Millisecond",
    "`RetryAfter` may be a subinterval more than the window": r"LessOrEqual\(t, int64\(res\.RetryAfter\)",
}
"""Why a check may fail, as the page says it, and what its line looks like."""


def difference(check):
    """Why a check may fail, if it may."""
    return next((why for why, line in DIFFERENT.items() if re.search(line, check)), "as theirs")


def test_its_own_tests(server, tmp_path):
    """They have a second for some requests: a busy machine may need another try."""
    for _ in range(3):
        checks, failed, printed = suite(server, tmp_path)
        wrong = [check for check in failed if difference(check) == "as theirs"]
        if not wrong:
            break
    assert len(failed) >= 10 and not wrong, printed
    page = page_named("coming-from-redis_rate.md").read_text()
    shown = {why: int(count) for why, count in re.findall(r"^\| (.+) \| (\d+) \|$", page, re.MULTILINE)}
    assert shown == Counter(map(difference, checks)) and f"of {len(checks)} |" in page


def suite(server, folder):
    """The lines of all checks, of those that fail, and what was printed."""
    source = Path(golang.run("list", "-m", "-f", "{{.Dir}}", THEIRS, cwd=HERE).stdout.strip())
    golang.copy_module(folder)
    lines = {}
    for name in ("rate_test.go", "example_test.go"):
        text = (source / name).read_text()
        for old, new in (
            (re.escape(THEIRS), OURS),
            (r"redis\.NewRing\(&redis\.RingOptions", "redis.NewClient(&redis.Options"),
            (r'Addrs: .*":6379"}|Addr: "localhost:6379"', f'Addr: "127.0.0.1:{server.port}"'),
            (r"NewLimiter\((ring|rdb)\)", r"NewLimiter(\1, swlimit.Timeout(20e9))"),
            (r'"github\.com/redis/go-redis/v9"', rf'\g<0>\n"{CORE}"'),
            (r'"github\.com/stretchr/testify/require"', 'require "github.com/stretchr/testify/assert"'),
        ):
            text = re.sub(old, new, text)
        (folder / name).write_text(text)
        lines[name] = text.splitlines()
    done = golang.run("test", "-vet=off", "-count=1", "-v", ".", cwd=folder)
    assert "--- PASS: ExampleNewLimiter" in done.stdout, done.stdout + done.stderr
    failed = {*re.findall(r"Error Trace:\s+\S*?(\w+\.go):(\d+)", done.stdout)}
    checks = [line.strip() for each in lines.values() for line in each if line.strip().startswith("require.")]
    return checks, [lines[name][int(at) - 1].strip() for name, at in failed], done.stdout
