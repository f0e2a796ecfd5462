"""Errors of the API as numbers and text."""

from __future__ import annotations

import errno

import pytest

from millstream.coordination.core.ninep.refusals import NinepError


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("ERROR_DOES_NOT_EXISTS", 2), ("NOPERM", 13), ("LOCKED", 16), ("EXISTS", 17),
        ("NAME_CONFLICT", 17), ("ISROOT", 22), ("LOOP", 22), ("BADARG", 22), ("WRONGTYPE", 22),
        ("TOOBIG", 27), ("QUOTA", 122), ("NOTEMPTY", 39), ("CAS_MISMATCH", 116), ("FENCED", 116),
        ("NOQUORUM", 110), ("NOTPRIMARY", 110), ("UNKNOWN", 110), ("TIMEOUT", 110),
    ],
)  # fmt: skip
def test_codes_have_numbers(code: str, number: int) -> None:
    assert NinepError(code).errno == number


def test_what_nobody_foresaw_has_one_too() -> None:
    assert NinepError("SOMETHING_NEW").errno == errno.EIO
