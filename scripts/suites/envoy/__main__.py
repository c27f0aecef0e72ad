"""Replay the cases of envoyproxy/ratelimit's own tests on swlimitd, and say how many are answered the same.

Its files of limits come with git, and Envoy Gateway's resources. A case is a request, or requests in a row that one
test makes, and what they are answered. Every case that is answered differently has to be explained below.
"""

import sys
from collections import Counter

from suites.envoy import gateway
from suites.envoy.replay import Replay
from suites.explained import explained
from support.server import Binaries, Server

DIFFERENCES = {
    r"duplicate_domain": "files of one domain are put together",
    r"TestConfigLimitOverride": "limits that requests bring along have one name in metrics",
    r"over_limit_with_local_cache": "local denials are on unless configured otherwise",
    r"two limits, one denies": "a denied request counts nowhere; of limits that were not asked the code only",
    r"headers: TestService.*other headers": "`Retry-After` is sent with each denial",
    r"headers: TestService.*Reset": "`RateLimit-Reset` is up to a subinterval later",
    r"metrics of hits": "metrics count decisions, not hits",
    r"hits: Test(NearLimit|OverLimit)": "`limit_remaining` when over is what is left for a smaller request",
    r"token-?quota\.sh": "0 hits are denied when one more would be",
    r"its text": "texts of errors",
    r"Redis is away": "swlimitd is well while Redis is away, and answers by its policy",
    r"wrong at the start": "wrong files end it at the start",
}
"""What a case that is answered differently has in its name or answers -> why."""


class Book:
    """The cases that were replayed, by area."""

    def __init__(self):
        self.same, self.different = Counter(), {}

    def compare(self, area, name, theirs, ours):
        """Write down a case: what envoyproxy/ratelimit answers, and what swlimitd did."""
        self.different.setdefault(area, [])
        if theirs == ours:
            self.same[area] += 1
        else:
            self.different[area].append(f"{area}: {name}\n  theirs: {theirs}\n  ours:   {ours}")

    def print(self):
        """Print the table, and end with an error if a difference is not explained."""
        rows, unknown = ["| what is asked | the same | the others |", "|---|---:|---|"], []
        for area, failed in self.different.items():
            why, unexplained = explained(failed, DIFFERENCES)
            unknown += unexplained
            rows.append(f"| {area} | {self.same[area]} of {self.same[area] + len(failed)} | {why} |")
        same, others = sum(self.same.values()), sum(map(len, self.different.values()))
        print("\n".join([*rows, f"| all | {same} of {same + others} | |"]))
        if unknown:
            sys.exit("\n\n".join(["", "Not explained:", *unknown]))


def main():
    book = Book()
    with Server(Binaries.installed()) as server:
        replay = Replay(book, server)
        for replayed in (replay.files, replay.rules, replay.rows, replay.modes, replay.counted, replay.scripts,
                         replay.errors, replay.resources):
            replayed()
        with replay.discovering() as (daemon, control_plane):
            gateway.replay(book.compare, daemon, control_plane)
    book.print()


if __name__ == "__main__":
    main()
