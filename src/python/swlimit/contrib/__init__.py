"""Adapters for web frameworks and for the package limits."""
