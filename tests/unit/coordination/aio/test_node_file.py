"""Who a node is: made once, counted at each start, kept twice, never guessed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from millstream.coordination.aio import node_file as module
from millstream.coordination.aio.node_file import (
    NODE_FILE,
    NODE_FILES,
    Identity,
    _encoded,
    begin_incarnation,
    keep_refusal,
    read_identity,
)
from millstream.coordination.core.pool.boot_stamps import Kin, kin_of, starts
from millstream.errors import CorruptionError, UnavailableError, UsageError
from support.kv.simulated_disk import Crash


def test_an_id_is_made_once_and_incarnations_are_counted(tmp_path: Path) -> None:
    first = begin_incarnation(tmp_path / "coord")
    assert (len(first.node_id), starts(first.incarnation)) == (16, 1)
    again = begin_incarnation(tmp_path / "coord")
    assert (again.node_id, starts(again.incarnation)) == (first.node_id, 2)
    assert again.incarnation > first.incarnation
    assert begin_incarnation(tmp_path / "other").node_id != first.node_id


def test_no_second_id_beside_groups(tmp_path: Path) -> None:
    begin_incarnation(tmp_path)
    (tmp_path / ("0" * 32)).mkdir()
    for name in NODE_FILES:
        (tmp_path / name).unlink()
    with pytest.raises(CorruptionError, match="gone or damaged"):
        begin_incarnation(tmp_path)
    assert not (tmp_path / NODE_FILE).exists()


@pytest.mark.parametrize("name", NODE_FILES)
@pytest.mark.parametrize("harm", ["gone", "cut", "bit", "empty"])
def test_either_copy_may_be_lost(tmp_path: Path, name: str, harm: str) -> None:
    first = begin_incarnation(tmp_path)
    (tmp_path / "pool").touch()
    path = tmp_path / name
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        at = content.index(b"incarnation = ") + 14
        harmed = content[:at] + bytes([content[at] ^ 8]) + content[at + 1 :]
        path.write_bytes({"cut": content[:50], "bit": harmed, "empty": b""}[harm])
    assert read_identity(tmp_path) == (first, 1)
    again = begin_incarnation(tmp_path)
    assert (again.node_id, starts(again.incarnation)) == (first.node_id, 2)
    assert read_identity(tmp_path) == (again, 0)
    assert path.stat().st_size == len(content)


@pytest.mark.parametrize("is_alone", [True, False])
def test_damaged_content_is_not_guessed(tmp_path: Path, *, is_alone: bool) -> None:
    """A first start that was killed has promised nothing; beside a pool it may be anybody."""
    first = begin_incarnation(tmp_path)
    for name in NODE_FILES:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:20])
    if is_alone:
        assert begin_incarnation(tmp_path).node_id != first.node_id
        return
    (tmp_path / "pool").touch()
    with pytest.raises(CorruptionError, match="GROUP REPLACE") as caught:
        begin_incarnation(tmp_path)
    assert caught.value.code == "bad_node_file"
    assert (tmp_path / NODE_FILE).stat().st_size == 20


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_a_file_that_the_system_refuses_to_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    begin_incarnation(tmp_path)
    (tmp_path / "pool").touch()

    def refused(_: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", refused)
    error = CorruptionError if number == errno.EIO else UnavailableError
    with pytest.raises(error) as caught:
        begin_incarnation(tmp_path)
    assert caught.value.code == ("bad_node_file" if number == errno.EIO else "directory_unusable")


def test_a_copy_of_another_node_is_not_believed(tmp_path: Path) -> None:
    begin_incarnation(tmp_path / "one")
    begin_incarnation(tmp_path / "other")
    (tmp_path / "other" / NODE_FILE).replace(tmp_path / "one" / NODE_FILE)
    with pytest.raises(CorruptionError, match="two nodes"):
        begin_incarnation(tmp_path / "one")


def test_no_incarnation_comes_twice_wherever_a_start_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any of its calls, or in the middle of a write; then one copy is lost, too."""
    first = begin_incarnation(tmp_path)
    (tmp_path / "pool").touch()
    used = {first.incarnation}
    calls = ("open", "pwrite", "ftruncate", "fsync")
    for cut_at in range(12):
        left = cut_at
        with monkeypatch.context() as patched:
            for name in calls:
                real = getattr(os, name)

                def cut(*args: object, name: str = name, real: object = real) -> object:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        if name == "pwrite":
                            descriptor, content, offset = args
                            real(descriptor, content[:40], offset)
                        raise Crash
                    return real(*args)

                patched.setattr(module.os, name, cut)
            try:
                used.add(begin_incarnation(tmp_path).incarnation)
            except Crash:
                is_cut = True
            else:
                is_cut = False
        assert is_cut == (cut_at < 10)
        again = begin_incarnation(tmp_path)
        assert again.node_id == first.node_id
        assert again.incarnation not in used
        used.add(again.incarnation)
        (tmp_path / NODE_FILES[cut_at % 2]).write_bytes(b"")


def test_a_start_needs_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_incarnation(tmp_path)
    sizes = [(tmp_path / name).stat() for name in NODE_FILES]
    real = os.open

    def opened(path: Path, flags: int, *mode: int) -> int:
        if not os.path.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *mode)

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "open", opened)
        assert starts(begin_incarnation(tmp_path).incarnation) == 2
        again = [(tmp_path / name).stat() for name in NODE_FILES]
        assert [one.st_ino for one in again] == [one.st_ino for one in sizes]
        assert [one.st_blocks for one in again] == [one.st_blocks for one in sizes]
        with pytest.raises(UnavailableError, match="make room there"):
            begin_incarnation(tmp_path / "new")


def test_a_newer_format_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "_FORMAT", 2)
        begin_incarnation(tmp_path)
    with pytest.raises(UsageError) as caught:
        begin_incarnation(tmp_path)
    assert caught.value.code == "newer_format"


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"file/coord cannot be used"):
        begin_incarnation(tmp_path / "file" / "coord")


def test_two_starts_of_copies_of_one_directory_have_different_numbers(tmp_path: Path) -> None:
    begin_incarnation(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    one, other = (begin_incarnation(tmp_path / name) for name in ("one", "other"))
    assert one.node_id == other.node_id
    assert kin_of(one.incarnation, other.incarnation) is Kin.OTHER


def test_the_refusal_of_a_directory_survives_restarts(tmp_path: Path) -> None:
    first = begin_incarnation(tmp_path)
    reason = 'it was "set back"\n'
    keep_refusal(tmp_path, reason)
    for _ in range(2):
        again = begin_incarnation(tmp_path)
        assert (again.node_id, again.refusal) == (first.node_id, "it was ?set back??")
    assert {(tmp_path / name).stat().st_size for name in NODE_FILES} == {512}


def test_a_directory_of_a_version_that_counted_alone_goes_on(tmp_path: Path) -> None:
    node_id = begin_incarnation(tmp_path).node_id
    for name in NODE_FILES:
        (tmp_path / name).write_bytes(_encoded(Identity(node_id, 7)))
    assert read_identity(tmp_path) == (Identity(node_id, 7), 0)
    again = begin_incarnation(tmp_path)
    assert starts(again.incarnation) == 8
    assert kin_of(7, again.incarnation) is Kin.LATER
