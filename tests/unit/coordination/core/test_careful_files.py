"""What an error leaves: room may be made, everything else is the end."""

from __future__ import annotations

import errno
import random
from itertools import count

import pytest

from millstream.coordination.core.careful_files import CarefulFiles
from millstream.errors import UnavailableError
from simulated_disk import REMOVE, SYNC, SYNC_DIRECTORY, WRITE, SimulatedDisk


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
