"""Why tests of other libraries fail on swlimit: everyone that does has to be explained."""

import re
from collections import Counter


def explained(failed, differences):
    """How many of these tests fail why, in words, and those of which nobody has said why.

    `differences` has patterns of names and errors, and what they come to.
    """
    def why(test):
        return next((reason for pattern, reason in differences.items() if re.search(pattern, test)), None)

    unexplained = [test for test in failed if why(test) is None]
    reasons = Counter(why(test) or "not explained" for test in failed)
    return "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common()), unexplained
