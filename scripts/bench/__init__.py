"""Measure swlimit against what else a user could take; `scripts/bench/run` starts it, RESULTS.md says what came out."""
