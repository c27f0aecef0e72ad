"""scripts/bench/strain.py: that all of it can be measured; a small part of it is."""

import re
from dataclasses import replace

from bench import strain


def test_all_is_measured(monkeypatch):
    monkeypatch.setattr(strain, "CONNECTIONS", 3)
    monkeypatch.setattr(strain, "STREAMS", 4)
    monkeypatch.setattr(strain, "SETTLED", 0.1)
    monkeypatch.setattr(strain, "CASES", [replace(case, many=20, requests=3) for case in strain.CASES])
    late_by, kept, spent = strain.measure(rounds=2, times=5)
    assert [len(figures) for figures in (*late_by, *sum(spent.values(), ()))] == [2] * (2 + 2 * len(strain.CASES))
    # The most is of a process with these bodies, and stays when they are gone.
    least = [(most - idle) / strain.MIB for idle, most in kept.values()]
    assert least[0] > 2 and least[1] > 3
    figures = re.findall(r"\| ([\d,.]+) \| ([\d,.]+) \| [\d.]+ \([\d.]+–[\d.]+\) \|", "\n".join(strain.table(
        late_by, kept, spent)))
    assert len(figures) == 1 + len(strain.CASES)
