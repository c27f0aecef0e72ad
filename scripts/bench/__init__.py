"""Measure swlimit against what else a user could take; `scripts/benchmark` starts it, RESULTS.md says what came out."""
