"""The file that says of which cluster a node is a member."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cluster.core.identity import Identity
from millstream.data_directory.acceptance import accept
from millstream.data_directory.cluster_file import CLUSTER_FILE, UNKNOWN_NAME, write_identity
from millstream.data_directory.ownership import DataDirectory
from millstream.errors import CorruptionError, UsageError

IDENTITY = Identity("c" * 32, "flights", "10.0.0.1:7380")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    opened = DataDirectory.open(tmp_path)
    assert opened.identity is None
    write_identity(tmp_path, opened.inventory, IDENTITY)
    opened.close()
    return tmp_path


def opened(path: Path) -> Identity | None:
    found = DataDirectory.open(path)
    found.close()
    return found.identity


def test_a_member_knows_its_cluster_at_its_next_start(directory: Path) -> None:
    assert opened(directory) == IDENTITY


@pytest.mark.parametrize("how", ["missing", "flipped", "empty", "another"])
def test_a_lost_or_altered_file_stops_the_node_until_it_is_accepted(
    directory: Path, how: str
) -> None:
    file = directory / CLUSTER_FILE
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "another":
        other = DataDirectory.open(directory)
        other.inventory.note_cluster("d" * 32)
        other.close()
    else:
        file.write_bytes(content.replace(b"flights", b"flightz") if how == "flipped" else b"")
    with pytest.raises(CorruptionError, match=r"--accept cluster\.toml"):
        DataDirectory.open(directory)
    accept(directory, CLUSTER_FILE)
    found = opened(directory)
    assert found is not None
    assert found == Identity("d" * 32 if how == "another" else IDENTITY.cluster, UNKNOWN_NAME)


def test_a_file_that_the_inventory_does_not_name_counts(directory: Path) -> None:
    found = DataDirectory.open(directory)
    found.inventory.note_cluster("")  # a kill came before it was named
    found.close()
    assert opened(directory) == IDENTITY
    (directory / "inventory.toml").unlink()
    accept(directory, "inventory.toml")
    found = DataDirectory.open(directory)
    found.close()
    assert found.inventory.read().cluster == IDENTITY.cluster


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "-a", "a" * 65])
def test_a_name_that_would_have_to_be_quoted_is_refused(tmp_path: Path, name: str) -> None:
    directory = DataDirectory.open(tmp_path)
    with pytest.raises(UsageError, match="letters, digits"):
        write_identity(tmp_path, directory.inventory, Identity("c", name))
    directory.close()
