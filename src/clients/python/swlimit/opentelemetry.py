"""Metrics and traces for OpenTelemetry."""

from .contrib.opentelemetry import observe as observe
from .contrib.opentelemetry import trace as trace
