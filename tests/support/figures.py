"""What the tests have counted, for the terminal's summary and a JUnit report."""

import pytest

FIGURE = "figure"


class Figures:
    """Printed when all tests have run, in whichever process that was."""

    def __init__(self):
        self.lines = []

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            test = report.nodeid.split("::")[-1]
            self.lines += [f"{test}: {text}" for name, text in report.user_properties if name == FIGURE]

    def pytest_terminal_summary(self, terminalreporter):
        if self.lines:
            terminalreporter.section("figures")
            for line in self.lines:
                terminalreporter.write_line(line)


def pytest_configure(config):
    config.pluginmanager.register(Figures(), "swlimit-figures")


@pytest.fixture
def report(record_property):
    """Say what was tried, how often, and what was lost: in the terminal's summary and in a JUnit report."""
    return lambda text: record_property(FIGURE, text)
