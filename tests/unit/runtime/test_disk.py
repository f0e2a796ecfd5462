import errno
import os

import pytest

from millstream.runtime import disk
from millstream.runtime.disk import OsDisk, boot_id


def test_files_are_written_read_and_cut(tmp_path):
    disk = OsDisk(tmp_path / "a" / "b")
    file = disk.open("one", create=True)
    file.write_at(3, b"abc")
    assert file.read_at(0, 100) == b"\0\0\0abc"
    assert file.read_at(6, 10) == b""
    assert file.size() == 6
    file.truncate(4)
    file.sync()
    file.sync()
    assert file.read_at(0, 10) == b"\0\0\0a"
    file.truncate(6)
    assert file.read_at(3, 10) == b"a\0\0"
    file.close()
    file.close()


def test_what_is_in_memory_is_read_without_waiting(tmp_path):
    file = OsDisk(tmp_path).open("one", create=True)
    file.write_at(0, b"abc" * 2000)
    assert file.read_resident(3, 5000) == (b"abc" * 2000)[3:5003]
    assert file.read_resident(5998, 10) == b"bc"
    assert file.read_resident(6000, 10) == b""


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (errno.EAGAIN, BlockingIOError),  # the disk would have to be waited for
        (errno.EOPNOTSUPP, BlockingIOError),  # the file system cannot say
        (errno.EIO, OSError),
    ],
)
def test_a_read_that_would_wait_says_so(tmp_path, monkeypatch, number, wanted):
    file = OsDisk(tmp_path).open("one", create=True)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk, "_preadv", refuse)
    with pytest.raises(OSError) as raised:
        file.read_resident(0, 10)
    assert type(raised.value) is wanted


def test_a_partly_cached_read_is_cut(tmp_path, monkeypatch):
    file = OsDisk(tmp_path).open("one", create=True)
    file.write_at(0, b"abcdef")

    def some(descriptor, buffers, offset, _):
        data = os.pread(descriptor, 4, offset)
        buffers[0][: len(data)] = data
        return len(data)

    monkeypatch.setattr(disk, "_preadv", some)
    assert file.read_resident(1, 5) == b"bcde"


def test_names_renames_and_removals(tmp_path):
    disk = OsDisk(tmp_path)
    for name in ("b", "a"):
        disk.open(name, create=True).close()
    assert disk.names() == ["a", "b"]
    disk.rename("a", "b")
    disk.sync_directory()
    assert disk.names() == ["b"]
    disk.remove("b")
    for call in (lambda: disk.remove("b"), lambda: disk.open("b")):
        with pytest.raises(FileNotFoundError):
            call()


def test_identity_changes_with_a_copy(tmp_path):
    disk = OsDisk(tmp_path)
    file = disk.open("one", create=True)
    file.write_at(0, b"x")
    other = disk.open("two", create=True)
    other.write_at(0, file.read_at(0, 1))
    assert file.identity() != other.identity()
    assert disk.open("one").identity() == file.identity()


def test_a_file_that_nobody_refers_to_is_closed(tmp_path):
    disk = OsDisk(tmp_path)
    file = disk.open("one", create=True)
    count = len(os.listdir("/proc/self/fd"))
    del file
    assert len(os.listdir("/proc/self/fd")) == count - 1


def test_boot_id_and_chance(tmp_path):
    disk = OsDisk(tmp_path)
    assert disk.boot_id() == boot_id() != ""
    assert len(disk.random_bytes(16)) == 16
    assert disk.random_bytes(16) != disk.random_bytes(16)


def test_writes_that_the_system_cuts_short_go_on(tmp_path, monkeypatch):
    disk = OsDisk(tmp_path)
    file = disk.open("one", create=True)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, bytes(data[:3]), at))
    file.write_at(1, b"abcdefgh")
    monkeypatch.undo()
    part = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: part(fd, min(size, 2), at))
    assert file.read_at(0, 20) == b"\0abcdefgh"


def test_a_file_is_described_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert OsDisk("log").describe("a") == str(tmp_path / "log" / "a")


def test_what_is_durable_is_there_when_the_cache_is_forgotten(tmp_path):
    file = OsDisk(tmp_path).open("x", create=True)
    file.write_at(0, b"durable")
    file.sync()
    file.forget_cache()
    assert file.read_at(0, 100) == b"durable"
