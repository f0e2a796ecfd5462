import os
import stat

import pytest

from millstream.runtime.files import sync_directory, write_atomically


def test_a_file_is_replaced_whole_and_private(tmp_path):
    path = tmp_path / "x.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["x.json"]
    sync_directory(tmp_path)


def test_a_missing_directory_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "x", b"")
