"""Throttles for Django REST framework."""

from .contrib.drf import AnonRateThrottle as AnonRateThrottle
from .contrib.drf import ScopedRateThrottle as ScopedRateThrottle
from .contrib.drf import SimpleRateThrottle as SimpleRateThrottle
from .contrib.drf import UserRateThrottle as UserRateThrottle
