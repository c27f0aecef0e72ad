"""Adapters for web frameworks, for the package limits, for Prometheus and OpenTelemetry."""
