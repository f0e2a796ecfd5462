"""How slow this machine's processor is, for the limits of time in `tests/timing`.

The limits are promises on the processor that docs/benchmarks.md was measured on. A slower one has
more time, in proportion to one fixed piece of Python's work.
"""

from __future__ import annotations

import time
from functools import cache

REFERENCE_S = 0.020
"""What the work takes on that processor."""
ROUNDS = 300_000
TRIES = 15


@cache
def slowness() -> float:
    """Return how many times as long as on the reference this processor takes, at least 1."""
    return max(1.0, min(_work_s() for _ in range(TRIES)) / REFERENCE_S)


def _work_s() -> float:
    began_s = time.process_time()
    counts: dict[int, int] = {}
    for number in range(ROUNDS):
        counts[number & 1023] = counts.get(number & 1023, 0) + number
    return time.process_time() - began_s
