"""What happened to databases: the newest event of each kind, in order, for readers anywhere."""

from __future__ import annotations

import pytest

from millstream.gateway.core import database_updates
from millstream.gateway.core.database_updates import DatabaseUpdates, Seen


def told(updates: DatabaseUpdates, since: str = "") -> list[tuple[str, str]]:
    return [(one.db_name, one.type) for one in updates.after(since)]


def test_databases_are_created_updated_deleted_and_made_anew() -> None:
    updates = DatabaseUpdates("x")
    assert (told(updates), updates.last) == ([], "0-x")
    updates.look({"a": Seen("1", "5"), "b": Seen("2", "0")}, ())
    assert told(updates) == [
        ("a", "created"), ("a", "updated"), ("b", "created"), ("b", "updated")
    ]  # fmt: skip
    begin = updates.last
    updates.look({"a": Seen("1", "6"), "b": Seen("2", "0")}, ())
    assert told(updates, begin) == [("a", "updated")]
    assert told(updates, updates.last) == []
    updates.look({"a": Seen("1", "6")}, ())
    assert told(updates, begin) == [("a", "updated"), ("b", "deleted")]
    assert ("b", "created") not in told(updates)
    begin = updates.last
    updates.look({"a": Seen("3", "6")}, ())
    assert told(updates, begin) == [("a", "deleted"), ("a", "created"), ("a", "updated")]
    for event in updates.after(""):
        assert told(updates, event.seq) == told(updates)[told(updates).index(event[:2]) + 1 :]


def test_a_database_that_cannot_be_asked_is_not_deleted() -> None:
    updates = DatabaseUpdates("x")
    updates.look({"a": Seen("1", "5")}, ())
    begin = updates.last
    updates.look({}, {"a"})
    assert told(updates, begin) == []
    updates.look({"a": Seen("1", "5")}, ())
    assert told(updates, begin) == []


@pytest.mark.parametrize("since", ["", "0", "1-y", "99", "x", "-x", "9" * 5000 + "-x", "²-x"])
def test_a_position_of_another_run_gets_everything(since: str) -> None:
    updates = DatabaseUpdates("x")
    updates.look({"a": Seen("1", "5")}, ())
    assert told(updates, since) == told(updates)


def test_deleted_databases_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_updates, "DELETED_MAX", 3)
    updates = DatabaseUpdates("x")
    for number in range(6):
        updates.look({f"d{number}": Seen(f"{number}", "0")}, ())
    updates.look({}, ())
    assert told(updates) == [("d3", "deleted"), ("d4", "deleted"), ("d5", "deleted")]
