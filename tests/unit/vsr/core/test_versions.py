"""Versions are numbers to compare and text to show."""

import pytest

from millstream.vsr.core.entries import GENESIS, Kind, chain
from millstream.vsr.core.versions import Version, parse_version, version_of
from support.coordination.coordination_logs import GROUP


def test_text_goes_there_and_back() -> None:
    assert Version(1, 20, 300).text == b"1:20:300"
    assert parse_version(b"1:20:300") == parse_version(b"01:0020:300") == Version(1, 20, 300)


def test_epochs_count_before_views_before_lsns() -> None:
    assert Version(1, 0, 9) < Version(1, 2, 3) < Version(2, 0, 0)


@pytest.mark.parametrize(
    "text", [b"", b"1:2", b"1:2:3:4", b"1:2:-3", b"1:2:3 ", b"a:b:c", b"1:2:3\n"]
)
def test_other_text_is_none(text: bytes) -> None:
    assert parse_version(text) is None


def test_an_entry_has_one() -> None:
    entry = chain(GENESIS, group_id=GROUP, epoch=4, view=5, kind=Kind.NOOP, ts_ms=0)
    assert version_of(entry.header) == Version(4, 5, 1)
