"""Real servers for tests, demonstrations and benchmarks."""
