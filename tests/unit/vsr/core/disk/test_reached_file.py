"""`vsr.core.disk.reached_file`: how far a member had got, noted outside of its folder."""

from __future__ import annotations

from pathlib import Path

from millstream.runtime.disk import OsDisk
from millstream.vsr.core.disk.reached_file import ReachedFile, ReachedPoint
from support.coordination.coordination_logs import GROUP

NODE, OTHER = b"n" * 16, b"o" * 16


def noted(path: Path, node_id: bytes = NODE, group_id: bytes = GROUP) -> ReachedFile:
    return ReachedFile(OsDisk(path), node_id, group_id)


def test_the_farthest_point_that_was_noted_is_found_again(tmp_path: Path) -> None:
    file = noted(tmp_path)
    assert file.found() is None
    assert not list(tmp_path.iterdir()), "who looks makes no file"
    for point in ((1, 0), (1, 7), (2, 3), (2, 4), (300, 2**60)):
        file.note(ReachedPoint(*point))
        assert noted(tmp_path).found() == point
    file.close()
    assert file.found() == (300, 2**60)
    file.forget()
    file.forget()
    assert file.found() is None


def test_a_note_of_another_node_or_group_says_nothing(tmp_path: Path) -> None:
    noted(tmp_path).note(ReachedPoint(9, 9))
    assert noted(tmp_path, OTHER).found() is None
    (tmp_path / GROUP.hex()).rename(tmp_path / OTHER.hex())
    assert noted(tmp_path, group_id=OTHER).found() is None


def test_a_note_that_was_cut_short_or_damaged_leaves_the_one_before_it(tmp_path: Path) -> None:
    file = noted(tmp_path)
    file.note(ReachedPoint(1, 1))
    file.note(ReachedPoint(1, 2))
    path = tmp_path / GROUP.hex()
    whole = path.read_bytes()
    for begin, left in ((0, (1, 1)), (512, (1, 2))):
        for at in range(begin, begin + 64):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert noted(tmp_path).found() == left
    path.write_bytes(whole[:50])
    assert noted(tmp_path).found() is None


def test_what_cannot_be_noted_stops_nothing(tmp_path: Path) -> None:
    file = noted(tmp_path)
    (tmp_path / GROUP.hex()).mkdir()
    file.note(ReachedPoint(1, 1))
    assert file.found() is None
