import pytest

from millstream.kv.aio.reserve import FIXED_BYTES, PARTITION_BYTES, Reserve


def test_space_is_taken_once_and_given_back_once(tmp_path):
    path = tmp_path / "reserve"
    reserve = Reserve(path, 4)
    assert not reserve.give_back()
    reserve.take()
    assert path.stat().st_size == FIXED_BYTES + 4 * PARTITION_BYTES
    inode = path.stat().st_ino
    reserve.take()
    assert path.stat().st_ino == inode
    assert reserve.give_back()
    assert not path.exists()


@pytest.mark.parametrize("kept", [0, 100])
def test_what_there_is_too_little_space_for_is_left(tmp_path, monkeypatch, kept):
    def refuse(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    (tmp_path / "reserve").write_bytes(bytes(kept))
    Reserve(tmp_path / "reserve", 4).take()
    assert not (tmp_path / "reserve").exists()
