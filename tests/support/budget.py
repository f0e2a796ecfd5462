"""How much a randomised test tries: everything in `make nightly`, less in `make ci` and elsewhere.

`MILLSTREAM_THOROUGH` is 2 in `make nightly`, 1 in `make ci`.
"""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
LEVEL = os.environ.get("MILLSTREAM_THOROUGH", "")
SHARE = {"2": 1, "1": 3}.get(LEVEL, 4)
"""One case in so many is tried."""


def budget(whole: int) -> int:
    """Hypothesis examples, seeds or rounds of this run, out of the `whole` of `make nightly`."""
    return max(1, -(-whole // SHARE))


def some(cases: Iterable[Case]) -> list[Case]:
    """As many cases as `budget` says; others in each run, but the same in each `make ci`."""
    found = list(cases)
    return random.sample(found, budget(len(found)))
