"""Who a node is: made once, counted at each start, never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.coordination.aio.node_file import NODE_FILE, begin_incarnation
from millstream.errors import CorruptionError, UnavailableError, UsageError


def test_an_id_is_made_once_and_incarnations_are_counted(tmp_path: Path) -> None:
    first = begin_incarnation(tmp_path / "coord")
    assert (len(first.node_id), first.incarnation) == (16, 1)
    assert begin_incarnation(tmp_path / "coord") == first._replace(incarnation=2)
    assert begin_incarnation(tmp_path / "other").node_id != first.node_id


def test_no_second_id_beside_groups(tmp_path: Path) -> None:
    begin_incarnation(tmp_path)
    (tmp_path / ("0" * 32)).mkdir()
    (tmp_path / NODE_FILE).unlink()
    with pytest.raises(CorruptionError, match="is gone"):
        begin_incarnation(tmp_path)
    assert not (tmp_path / NODE_FILE).exists()


@pytest.mark.parametrize(
    "content",
    [
        "", "format = 1", "rubbish", 'format = 1\nid = "ab"\nincarnation = 1',
        f'format = 1\nid = "{"a" * 32}"\nincarnation = 0',
    ],
)  # fmt: skip
def test_a_damaged_file_is_not_guessed(tmp_path: Path, content: str) -> None:
    (tmp_path / NODE_FILE).write_text(content)
    with pytest.raises(CorruptionError) as caught:
        begin_incarnation(tmp_path)
    assert caught.value.code == "bad_node_file"
    assert (tmp_path / NODE_FILE).read_text() == content


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    begin_incarnation(tmp_path)
    content = (tmp_path / NODE_FILE).read_text().replace("format = 1", "format = 2")
    (tmp_path / NODE_FILE).write_text(content)
    with pytest.raises(UsageError) as caught:
        begin_incarnation(tmp_path)
    assert caught.value.code == "newer_format"


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"file/coord cannot be used"):
        begin_incarnation(tmp_path / "file" / "coord")
