"""Found by the Python of a node under test: its wall clock is wrong by what a file says.

The usual library for this, preloaded, has timed waits of a Python with several threads spin and
sleeps fail, which hides what was to be seen. The file is read for every question, so that the
clock jumps at once; the monotonic clock is left alone, as it is when somebody sets a real one.
"""

from __future__ import annotations

import os
import time

_true_ns = time.time_ns
_path = os.environ.get("COORDINATION_FAULTS_CLOCK", "")


def _time_ns() -> int:
    with open(_path, encoding="ascii") as file:
        return _true_ns() + int(file.read() or 0) * 1_000_000_000


if _path:
    time.time_ns = _time_ns
    time.time = lambda: _time_ns() / 1e9  # noqa: TID251
