"""How much a randomised test tries: the whole budget in `make ci`, a quarter of it elsewhere."""

import os

THOROUGH = os.environ.get("MILLSTREAM_THOROUGH") == "1"


def budget(whole: int) -> int:
    """Hypothesis examples, seeds or rounds of this run, out of the `whole` that `make ci` has."""
    return whole if THOROUGH else max(1, -(-whole // 4))
