"""Files that nobody means well with are errors, soon, and the daemon goes on."""

import os

import pytest

from support.waiting import eventually

LIMITS = "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 3}}]}"
COMPLEX = "YAML document too large or too complex\n"
LIMIT = "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, {}}}}}]"
# Nine times nine times nine …, where anything may stand.
LAUGHS = "".join(f"      {name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
                 for before, name in zip("abcdefg", "bcdefgh"))


@pytest.mark.parametrize("text, why", [
    ("domain: " + "[" * 200_000, ":1:"),
    ("domain: d\ndescriptors:\n" + "".join("  " * level + "- descriptors:\n" for level in range(1000)), COMPLEX),
    ("? " * 100_000, COMPLEX),
    ("domain: d\ndescriptors:\n  - key: k\n    metadata:\n      a: &a x\n" + LAUGHS, COMPLEX),
    ("&a\ndomain: d\ndescriptors: *a\n", ":3:"),
    ("domain: d\n<<: *nobody\n", ":2:"),
    ("domain: d\ndescriptors: [" + "{key: k}, " * 1_000_000, COMPLEX),
    ("#" * 10_000_000, "there is no domain"),
    ("domain: d\n---\ndomain: e\n", ":3:"),
    (b"domain: \xff\xfe\n", "UTF-8"),
    ("domain: d\n".encode("utf-16"), "UTF-8"),
    (bytes(1000), ":1:1:"),
    (LIMIT.format("requests_per_unit: 1" + "0" * 1000), ":2:"),
    (LIMIT.format("requests_per_unit: 1e400"), ":2:"),
    (LIMIT.format("requests_per_unit: -1"), ":2:"),
    (LIMIT.format("local_share: .nan"), "not NaN"),
    (LIMIT.format("block: 99999999999999999999d"), "is not a duration"),
    ("domain: !!python/object/apply:os.system ['id']", ":1:"),
], ids=["flow", "levels", "keys", "laughs", "itself", "nobody", "10 MB", "comment", "documents", "bytes", "UTF-16",
        "zeros", "large", "infinite", "negative", "NaN", "duration", "tag"])
def test_hostile_files(start_daemon, text, why):
    daemon = start_daemon(LIMITS)
    (daemon.folder / "next").write_bytes(text.encode() if isinstance(text, str) else text)
    (daemon.folder / "next").rename(daemon.folder / "limits.yaml")
    eventually(lambda: "the old one stays" in daemon.log)
    assert why in daemon.log.split("the old one stays")[1]
    assert daemon.codes("k=x") == ("OK", "OK")
    daemon.write_limits(LIMITS.replace("3", "4"))
    eventually(lambda: daemon.get("/rlconfig")[1].startswith("d.k: 4 "))


def test_a_file_that_takes_its_time_keeps_nobody_waiting(start_daemon, monkeypatch):
    monkeypatch.setenv("TOKIO_WORKER_THREADS", "1")
    daemon = start_daemon(LIMITS)
    pipe = daemon.folder / "pipe"
    os.mkfifo(pipe)  # a reader waits for somebody who writes
    pipe.rename(daemon.folder / "limits.yaml")
    written = os.open(daemon.folder / "limits.yaml", os.O_WRONLY)  # which is when somebody reads
    assert daemon.codes("k=x") == ("OK", "OK")
    with open(written, "w") as file:
        file.write(LIMITS.replace("3", "4"))
    eventually(lambda: daemon.get("/rlconfig")[1].startswith("d.k: 4 "))


def test_a_file_that_is_never_read_to_its_end_keeps_nobody_from_ending(start_daemon):
    daemon = start_daemon(LIMITS)
    pipe = daemon.folder / "pipe"
    os.mkfifo(pipe)
    pipe.rename(daemon.folder / "limits.yaml")
    with open(daemon.folder / "limits.yaml", "w"):
        assert daemon.stop() < 5
