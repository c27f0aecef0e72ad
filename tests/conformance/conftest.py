"""Prints what each scenario says with the client of each language, as a table."""

from conformance.runner import table

PREFIX = "scenarios of "  # and an adapter: a property of its test


def pytest_terminal_summary(terminalreporter):
    reports = [report for of_a_kind in terminalreporter.stats.values() for report in of_a_kind
               if hasattr(report, "user_properties")]
    results = {name.removeprefix(PREFIX): found for report in reports for name, found in report.user_properties
               if name.startswith(PREFIX)}
    if results:
        terminalreporter.section("scenarios by client")
        terminalreporter.write_line(table(results))
