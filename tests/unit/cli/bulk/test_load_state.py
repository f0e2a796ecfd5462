from pathlib import Path

import pytest

from millstream.cli.bulk.load_rows import Place
from millstream.cli.bulk.load_state import LoadState, NoState
from millstream.errors import UnavailableError, UsageError

PLACE = Place(7, 123, "ab")


def test_what_cannot_be_gone_on_with_has_no_place() -> None:
    state = NoState()
    state.save(PLACE, is_done=True)
    state.remove()
    assert (state.place, state.is_done) == (Place(), False)


def test_places_are_kept_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    state = LoadState(file, "b", "feed")
    assert (state.place, state.is_done) == (Place(), False)
    state.save(PLACE)
    assert (tmp_path / "a.csv.b.load").exists()
    again = LoadState(file, "b", "feed")
    assert (again.place, again.is_done) == (PLACE, False)
    again.save(PLACE, is_done=True)
    assert LoadState(file, "b", "feed").is_done
    again.remove()
    again.remove()
    assert LoadState(file, "b", "feed").place == Place()


def test_another_bucket_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    LoadState(file, "b", "feed").save(PLACE)
    assert LoadState(file, "b", "recreated").place == Place()
    assert LoadState(file, "c", "feed").place == Place()
    assert LoadState(file, "b", "feed", tmp_path.parent).place == Place()


def test_errors(tmp_path: Path) -> None:
    (tmp_path / "a.csv.b.load").write_text("{")
    with pytest.raises(UsageError, match="does not say how far"):
        LoadState(tmp_path / "a.csv", "b", "feed")
    state = LoadState(tmp_path / "a.csv", "b", "feed", tmp_path / "none")
    with pytest.raises(UnavailableError, match="--state"):
        state.save(PLACE)
