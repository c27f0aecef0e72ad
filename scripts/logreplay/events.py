"""What a log is read into."""

from collections import Counter
from typing import NamedTuple

EXAMPLES = 3


class Event(NamedTuple):
    """Something that asks for leave. `fields` are what a key can be made of: None where the log does not say."""

    at: int      # Unix time in milliseconds
    line: int    # number of its line, from 1
    fields: dict
    times: int = 1


class Account:
    """Where every line of the log went, so that nothing gets lost silently."""

    def __init__(self):
        self.lines = 0
        self.other = Counter()  # well-formed lines that are no events, by the reason
        self.unreadable = 0
        self.examples = []      # the first unreadable ones: (number, text)
        self.notes = []         # what was assumed

    def cannot_read(self, number, line):
        self.unreadable += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append((number, line))
