"""Why tests of other libraries fail on swlimit: everyone that does has to be explained."""

import re
from collections import Counter
from typing import NamedTuple


class Difference(NamedTuple):
    """Why the tests of these names fail, and what their errors then say."""

    reason: str
    error: str
    names: frozenset[str]


def difference(reason, error, names):
    """The names stand in lines of their own."""
    return Difference(reason, error, frozenset(name.strip() for name in names.strip().splitlines()))


def named(failed, differences):
    """How many tests fail why, in words, and those that no difference names, or that fail with another error.

    A test is its name, with `[parameters]` perhaps, and lines of its error.
    """
    reasons, wrong = Counter(), []
    for test in failed:
        name = test.split("\n", 1)[0].split("[", 1)[0].strip()
        why = next((one for one in differences if name in one.names and re.search(one.error, test)), None)
        reasons[why.reason if why else "not explained"] += 1
        if why is None:
            wrong.append(test)
    return "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common()), wrong


def explained(failed, differences):
    """How many of these tests fail why, in words, and those of which nobody has said why.

    `differences` has patterns of names and errors, and what they come to.
    """
    def why(test):
        return next((reason for pattern, reason in differences.items() if re.search(pattern, test)), None)

    unexplained = [test for test in failed if why(test) is None]
    reasons = Counter(why(test) or "not explained" for test in failed)
    return "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common()), unexplained
