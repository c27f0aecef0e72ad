"""The recipes of containers, as far as they can be followed without a container engine."""

import json
import re

from .server import ROOT

PACKAGING = ROOT / "src/daemon/packaging"


class Recipe:
    """What a Containerfile says: two stages, the first of which builds what the second one takes."""

    def __init__(self, name="Containerfile"):
        text = (PACKAGING / name).read_text()
        self.lines = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
        at = [number for number, (word, _) in enumerate(self.lines) if word == "FROM"]
        (_, base), self.build = self.lines[at[0]], self.lines[at[0] + 1:at[1]]
        (_, self.base), self.final = self.lines[at[1]], self.lines[at[1] + 1:]
        self.stage = base.rpartition(" AS ")[2]

    def of(self, word, lines):
        return [rest.split() for found, rest in lines if found == word]

    @property
    def sources(self):
        """What is copied of the sources, each to the place that it has there."""
        copied = {source: words[-1] for words in self.of("COPY", self.build) for source in words[:-1]}
        assert all(target in (source, "./") for source, target in copied.items())
        return list(copied)

    @property
    def commands(self):
        """What is run to build."""
        return [rest for word, rest in self.build if word == "RUN"]

    @property
    def taken(self):
        """What the image holds: where each file of the first stage is put."""
        copied = self.of("COPY", self.final)
        assert all(words[0] == f"--from={self.stage}" for words in copied)
        return {source: target for _, source, target in copied}

    @property
    def user(self):
        """The number of the user that the program runs as."""
        (user,), = self.of("USER", self.final)
        return int(user.split(":")[0])

    @property
    def ports(self):
        (ports,) = self.of("EXPOSE", self.final)
        return [int(port) for port in ports]

    @property
    def entry_point(self):
        return json.loads(dict(self.final)["ENTRYPOINT"])

    @property
    def command(self):
        return json.loads(dict(self.final)["CMD"])
