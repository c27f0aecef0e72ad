"""The page "Language models" beside a model server, in an environment of its own."""

import hashlib
import os

import pytest
import redis

import swlimit
from docs.pages import blocks, page_named
from support.lacking import lacking
from support.server import ROOT

from .fake_model import FakeModel

ENVIRONMENT = ROOT / ".cache/language-models"
PAGE = page_named("language-models.md")


def environment():
    """The Python of the environment, whose program is run with the package from here."""
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        lacking("what tests/clients/language_models need: run scripts/setup long")
    return python


def variables(folder, **more):
    return os.environ | {"PYTHONPATH": f"{ROOT / 'src/clients/python'}:{folder}"} | more


def file_of(words, **replaced):
    """The block of the page that has these words, with some of its words replaced."""
    text, = (block.text for block in blocks(PAGE) if words in block.text)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def model():
    model = FakeModel()
    yield model
    model.close()


@pytest.fixture(scope="module")
def one_server(starting):
    with starting() as start:
        yield start()


class Account:
    """What the server counts for a key of the page's form."""

    def __init__(self, server, name, window="1m"):
        client = redis.Redis(port=server.port)
        self.name, self.tokens = name, swlimit.Limiter(client, 1000, window, mode="direct", timeout=5.0)
        self.holds = swlimit.HoldLimiter(client, 3, timeout=5.0)

    @property
    def used(self):
        return 1000 - self.tokens.peek(f"{self.name}:tokens").remaining

    @property
    def places(self):
        return len(self.holds.holders(f"{self.name}:places"))


def hashed(key):
    """As LiteLLM names its keys."""
    return hashlib.sha256(key.encode()).hexdigest()
