"""Decisions, quotas and windows: no I/O, no server."""
