import gc

import pytest

from millstream.data_directory.unchanged_disk import UnchangedDisk


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "b").write_bytes(b"")
    return tmp_path


def test_files_are_seen_as_they_are_or_as_they_are_to_be(path):
    disk = UnchangedDisk(path, ["b"], {"a": 4})
    assert disk.names() == ["a"]
    assert disk.describe("a") == str(path / "a")
    file = disk.open("a")
    assert (file.size(), file.read_at(2, 100), file.read_resident(9, 1)) == (4, b"23", b"")
    whole = UnchangedDisk(path).open("a")
    assert (whole.size(), whole.read_at(8, 100)) == (10, b"89")
    assert whole.identity() == file.identity()
    assert UnchangedDisk(path).boot_id() == ""
    assert len(UnchangedDisk(path).random_bytes(5)) == 5


def test_what_a_start_would_change_is_remembered_and_not_done(path):
    disk = UnchangedDisk(path)
    disk.remove("a")
    disk.sync_directory()
    file = disk.open("a")
    file.truncate(3)
    file.sync()
    file.forget_cache()
    assert disk.open("a").size() == 3
    disk.open("b").write_at(0, b"header")
    assert (disk.open("b").size(), disk.open("b").read_at(1, 3)) == (6, b"ead")
    assert disk.leftovers == ["a"]
    assert (path / "a").read_bytes() == b"0123456789"
    assert (path / "b").read_bytes() == b""
    file.close()
    for change in (
        lambda: file.write_at(3, b"x"),
        lambda: disk.rename("a", "c"),
        lambda: disk.open("c", create=True),
    ):
        with pytest.raises(AssertionError, match="a check"):
            change()


def test_a_file_that_is_missing_is_an_error_and_nothing_else(path, capsys):
    with pytest.raises(FileNotFoundError):
        UnchangedDisk(path).open("c")
    gc.collect()
    assert capsys.readouterr().err == ""
