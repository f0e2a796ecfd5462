"""The tables; what is refused at the start is in test_following."""

from pathlib import Path

import pytest

from millstream.errors import CorruptionError
from millstream.model.position import FailoverEntry, Position
from millstream.upr.aio.ledger import Ledger, Stored, open_database
from millstream.upr.core.bookkeeper import Forget, Keep, Remember, Sweep
from millstream.upr.core.kept import Kept, Recent
from millstream.upr.core.repair import LoadState

KEPT = Kept(Position(0xA, 5, 5, 5), (FailoverEntry(0xA, 0, 1),), LoadState(floor=2))


def test_places_and_rings_come_back(tmp_path: Path) -> None:
    database = open_database(tmp_path / "here.db")
    ledger = Ledger(database, "here")
    entries = [Recent(3, b"b"), Recent(4, b"\xff\0"), Recent(5, b"a")]
    for effect in (
        Remember(1, entries), Remember(1, entries[:1]), Remember(2, entries[:1]),
        Keep(1, Kept()), Keep(1, KEPT), Forget(1, entries[:1]), Forget(1, [Recent(9, b"x")]),
        Sweep(1, 2),
    ):  # fmt: skip
        ledger.perform(effect)
    expected = {1: Stored(KEPT, tuple(entries[1:])), 2: Stored(Kept(), tuple(entries[:1]))}
    assert ledger.load() == expected
    database.close()
    database = open_database(tmp_path / "here.db")
    assert Ledger(database, "here").load() == expected
    database.execute("UPDATE millstream_place SET kept = replace(kept, '5', '6')")
    database.execute("UPDATE millstream_place SET kept = replace(kept, 'load', 'lord')")
    with pytest.raises(CorruptionError, match="here, 1 is not the position"):
        Ledger(database, "here").load()
    database.close()
