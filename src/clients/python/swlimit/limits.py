"""Storages for the package `limits`."""

from .contrib.limits import AsyncSwlimitClusterStorage as AsyncSwlimitClusterStorage
from .contrib.limits import AsyncSwlimitSentinelStorage as AsyncSwlimitSentinelStorage
from .contrib.limits import AsyncSwlimitStorage as AsyncSwlimitStorage
from .contrib.limits import SwlimitClusterStorage as SwlimitClusterStorage
from .contrib.limits import SwlimitSentinelStorage as SwlimitSentinelStorage
from .contrib.limits import SwlimitStorage as SwlimitStorage
