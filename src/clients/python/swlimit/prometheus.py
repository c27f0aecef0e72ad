"""Metrics for Prometheus."""

from .contrib.prometheus import LimiterCollector as LimiterCollector
