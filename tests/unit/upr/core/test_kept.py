"""A kept place comes back as it was, and an illegal one is never made."""

from typing import Any

import pytest

from millstream.errors import CorruptionError
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.kept import Kept, kept_from_json, kept_to_json
from millstream.upr.core.repair import LoadState

LOG = (FailoverEntry(0xB, 10, 7), FailoverEntry(0xA, 0, 3))


@pytest.mark.parametrize(
    "kept",
    [
        Kept(),
        Kept(Position(0xA, 0, 0, 0, 4), LOG, LoadState(3, 4, is_loading=True)),
        Kept(Position(0xB, 5, 0, 12, 4), LOG),
        Kept(Position(0xB, 20, 12, 30), LOG, LoadState(2, 9), is_undoing=True),
        Kept(Position(0xA, 10, 10, 10), LOG, LoadState()),
    ],
)
def test_it_comes_back(kept: Kept) -> None:
    assert kept_from_json(kept_to_json(kept), name="here") == kept


@pytest.mark.parametrize(
    "members",
    [
        {"position": Position(0xB, 20, 12, 19)},
        {"position": Position(0xB, 20, 21, 30)},
        {"position": Position(0xB, 20, 12, 1 << 64)},
        {"position": Position(0xB, 20, 12, 30, 4)},
        {"position": Position(0xB, 5, 0, 12, -1), "loaded": LoadState(is_loading=True)},
        {"position": Position(0xA, 20, 12, 30)},
        {"position": Position(0xC, 20, 12, 30)},
        {"failover_log": ()},
        {"failover_log": LOG[::-1]},
        {"failover_log": (LOG[0], *LOG)},
        {"failover_log": (*LOG, FailoverEntry(0, 0, 0))},
        {"loaded": LoadState(0)},
        {"loaded": LoadState(is_loading=True)},
        {"loaded": LoadState(floor=-1)},
    ],
)
def test_an_illegal_one_is_never_made(members: dict[str, Any]) -> None:
    legal: dict[str, Any] = {
        "position": Position(0xB, 20, 12, 30), "failover_log": LOG, "loaded": LoadState()
    }  # fmt: skip
    Kept(**legal)
    with pytest.raises(CorruptionError, match="no place to go on from"):
        Kept(**{**legal, **members})


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b'{"v":1}',
        kept_to_json(Kept()).replace(b'"v":1', b'"v":2'),
        kept_to_json(Kept()).replace(b'"load":1', b'"load":0'),
        kept_to_json(Kept()).replace(b'"000000000000"', b'"xyz"'),
        kept_to_json(Kept(failover_log=LOG)).replace(b'"00000000000b"', b'"?"'),
    ],
)  # fmt: skip
def test_nonsense_is_named_with_its_place(text: bytes) -> None:
    with pytest.raises(CorruptionError, match="here is no place of a reader"):
        kept_from_json(text, name="here")
