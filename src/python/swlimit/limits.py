"""Storages for the package `limits`."""

from .contrib.limits import (
    AsyncSwlimitClusterStorage,
    AsyncSwlimitSentinelStorage,
    AsyncSwlimitStorage,
    SwlimitClusterStorage,
    SwlimitSentinelStorage,
    SwlimitStorage,
)

__all__ = ["AsyncSwlimitClusterStorage", "AsyncSwlimitSentinelStorage", "AsyncSwlimitStorage",
           "SwlimitClusterStorage", "SwlimitSentinelStorage", "SwlimitStorage"]
