"""What a check says of a node's own files of coordination."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.coordination.aio.coordinator import Coordinator
from millstream.coordination.aio.node_files_check import NodeFilesCheck, check_node_files
from millstream.coordination.core.pool.file_format import Phase


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    node = await Coordinator.start(tmp_path)
    await node.stop()
    return tmp_path


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


async def test_sound_ones(directory: Path) -> None:
    before = content(directory)
    own, known = check_node_files(directory)
    assert own.is_sound
    assert (own.incarnation, own.groups, own.healed) == (1, 1, 0)
    assert known is not None
    assert list(known.phases.values()) == [Phase.OPEN]
    assert content(directory) == before


async def test_nothing_yet(tmp_path: Path) -> None:
    assert check_node_files(tmp_path) == (NodeFilesCheck(), None)


@pytest.mark.parametrize("name", ["pool", "pool.copy", "node.toml", "node.toml.copy"])
async def test_one_copy_is_healed_by_the_next_start(directory: Path, name: str) -> None:
    (directory / name).write_bytes(b"rubbish")
    before = content(directory)
    own, known = check_node_files(directory)
    assert own.is_sound
    assert own.healed == 1
    assert known is not None
    assert content(directory) == before


@pytest.mark.parametrize("name", ["pool", "node.toml"])
@pytest.mark.parametrize("is_gone", [True, False])
async def test_both_are_damage(directory: Path, name: str, *, is_gone: bool) -> None:
    for path in (directory / name, directory / f"{name}.copy"):
        path.write_bytes(b"rubbish")
        if is_gone:
            path.unlink()
    own, _ = check_node_files(directory)
    assert "GROUP REPLACE" in own.damage
    assert not own.is_sound


async def test_files_of_two_nodes(directory: Path, tmp_path: Path) -> None:
    node = await Coordinator.start(tmp_path / "other")
    await node.stop()
    for name in ("pool", "pool.copy"):
        (directory / name).write_bytes((tmp_path / "other" / name).read_bytes())
    assert "of another node" in check_node_files(directory)[0].damage
