"""Makes the doubles of this folder importable, and runs its tests in Python and compiled."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="module")
def _both_variants(variant: str) -> None:
    """See `variant`."""
