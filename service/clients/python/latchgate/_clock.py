"""The clock by which leases are counted: it cannot be set, and goes on while the machine is suspended."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def now() -> float:
        """Seconds since the machine started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def now() -> float:
        """Seconds since the machine started. `time.monotonic` stands still there while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)

else:

    def now() -> float:
        """Seconds since some moment in the past."""
        return time.monotonic()
