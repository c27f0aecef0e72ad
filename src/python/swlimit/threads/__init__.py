"""The outside for programs with threads, or without."""
