"""How much a test tries: everything in `make ci`, a quarter of it elsewhere."""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
THOROUGH = os.environ.get("MILLSTREAM_THOROUGH") == "1"


def budget(whole: int) -> int:
    """Hypothesis examples, seeds or rounds of this run, out of the `whole` that `make ci` has."""
    return whole if THOROUGH else max(1, -(-whole // 4))


def some(cases: Iterable[Case]) -> list[Case]:
    """The cases of this run: others in each, unless the order of tests is repeated by its seed."""
    found = list(cases)
    return found if THOROUGH else random.sample(found, budget(len(found)))
