"""What the tests have counted, for the terminal's summary and a JUnit report."""

import pytest


class Figures:
    """Printed when all tests have run."""

    def __init__(self):
        self.lines = []

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("figures")
        for line in self.lines:
            terminalreporter.write_line(line)


@pytest.fixture
def report(request, record_property):
    """Say what was tried, how often, and what was lost: in the terminal's summary and in a JUnit report."""
    plugins = request.config.pluginmanager
    figures = plugins.get_plugin("swlimit-figures")
    if figures is None:
        figures = Figures()
        plugins.register(figures, "swlimit-figures")

    def report(text):
        figures.lines.append(f"{request.node.name}: {text}")
        record_property("figure", text)

    return report
