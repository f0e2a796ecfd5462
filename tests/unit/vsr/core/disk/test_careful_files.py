"""What an error leaves: room may be made, everything else is the end."""

from __future__ import annotations

import errno
import random
from itertools import count

import pytest

from millstream.errors import UnavailableError
from millstream.vsr.core.disk.careful_files import CarefulFiles
from support.kv.simulated_disk import (
    REMOVE,
    SYNC,
    SYNC_DIRECTORY,
    WRITE,
    SimulatedDisk,
    SimulatedFile,
)


class Failing:
    """A disk on which one kind of effect fails."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(random.Random(1), count(1))
        self.files = CarefulFiles(self.disk)
        self.kind, self.number = "", 0
        self.disk.before = self.before

    def before(self, kind: str, name: str) -> None:
        if kind == self.kind:
            raise OSError(self.number, "failed")

    def fails(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number


@pytest.fixture
def failing() -> Failing:
    return Failing()


def test_what_was_written_is_durable(failing: Failing) -> None:
    files = failing.files
    files.write("a", [(0, b"one"), (5, b"two")])
    files.replace("b.new", b"content")
    files.rename("b.new", "b")
    files.write("c", [(0, b"gone")])
    files.sync_directory()
    files.remove(["c", "never"])
    files.sync_directory()
    failing.disk.lose_power()
    assert files.names() == ["a", "b"]
    files.close()
    assert files.read("a", 0, 9) == b"one\0\0two"
    assert files.read("b", 3, 9) == b"tent"


def test_appending_fills_ahead_as_much_as_there_is_up_to_a_bound(failing: Failing) -> None:
    files, sizes = failing.files, []
    for number in range(8):
        files.append("a", 4 * number, b"data", 10)
        sizes.append(failing.disk.open("a").size())
    assert sizes == [8, 8, 22, 22, 22, 34, 34, 34]
    failing.disk.lose_power()
    assert files.read("a", 0, 99) == b"data" * 8 + bytes(2)
    files.cut("a", 6)
    files.append("a", 6, b"more", 10)
    assert files.read("a", 0, 99) == b"datadamore" + bytes(10)
    files.replace("a", b"new")
    files.append("a", 3, b"er", 10)
    assert files.read("a", 0, 99) == b"newer" + bytes(5)
    files.rename("a", "b")
    files.append("b", 10, b"end", 4)
    assert files.read("b", 0, 99) == b"newer" + bytes(5) + b"end" + bytes(4)


def test_an_append_without_space_may_be_made_again(failing: Failing) -> None:
    failing.fails(WRITE, errno.ENOSPC)
    with pytest.raises(UnavailableError, match="free space"):
        failing.files.append("a", 0, b"one", 9)
    failing.fails("", 0)
    failing.files.append("a", 0, b"one", 9)
    failing.disk.lose_power()
    assert failing.files.read("a", 0, 9) == b"one" + bytes(3)


def test_no_space_passes(failing: Failing) -> None:
    failing.fails(WRITE, errno.ENOSPC)
    with pytest.raises(UnavailableError, match="free space") as caught:
        failing.files.write("a", [(0, b"one")])
    assert caught.value.code == "disk_full"
    assert not failing.files.has_failed
    failing.fails("", 0)
    failing.files.write("a", [(0, b"one")])
    assert failing.files.read("a", 0, 3) == b"one"


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (WRITE, errno.EIO),
        (SYNC, errno.EIO),
        (SYNC, errno.ENOSPC),
        (SYNC_DIRECTORY, errno.EIO),
        (SYNC_DIRECTORY, errno.ENOSPC),
        (REMOVE, errno.EROFS),
    ],
)
def test_any_other_error_is_the_end(failing: Failing, kind: str, number: int) -> None:
    files = failing.files
    files.write("a", [(0, b"one")])
    failing.fails(kind, number)

    def all_kinds() -> None:
        files.write("a", [(0, b"two")])
        files.sync_directory()
        files.remove(["a"])

    with pytest.raises(UnavailableError, match="then restart") as caught:
        all_kinds()
    assert caught.value.code == "disk_failed"
    assert files.has_failed
    failing.fails("", 0)
    with pytest.raises(AssertionError, match="the disk failed before"):
        files.write("a", [(0, b"three")])


def test_settling_keeps_what_a_killed_process_wrote(failing: Failing) -> None:
    failing.disk.open("a", create=True).write_at(0, b"written, not synced")
    CarefulFiles(failing.disk).settle()
    failing.disk.lose_power()
    assert failing.files.read("a", 0, 99) == b"written, not synced"


def test_what_can_be_read_is_looked_at_and_an_error_ends_nothing(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = failing.files
    files.write("a", [(0, b"one")])
    assert files.peek("a", 9) == b"one"

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "failed")

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedFile, "read_at", fail)
        assert files.peek("a", 9) == b""
    assert not files.has_failed
    files.write("a", [(3, b"two")])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_no_descriptor_for_what_is_read_is_no_failed_disk(
    failing: Failing, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failing.files.write("a", [(0, b"one")])
    failing.files.close()

    def refuse(name: str, *, create: bool = False) -> SimulatedFile:
        raise OSError(number, "no descriptors")

    with monkeypatch.context() as full:
        full.setattr(failing.disk, "open", refuse)
        with pytest.raises(UnavailableError) as told:
            failing.files.read("a", 0, 3)
    assert told.value.code == "disk_full"
    assert failing.files.read("a", 0, 3) == b"one"
