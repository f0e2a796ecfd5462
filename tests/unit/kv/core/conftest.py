"""Runs the tests of this folder in Python and compiled."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _both_variants(variant: str) -> None:
    """See `variant`."""
