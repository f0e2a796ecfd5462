"""The node's pool file and its copy: whichever is lost, the other one says what was kept."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from millstream.coordination.aio import pool_copies as module
from millstream.coordination.aio.pool_copies import (
    POOL_FILES,
    keep_pool_file,
    mend_pool_file,
    read_pool_file,
)
from millstream.coordination.core.pool.file_format import NodeFile, encode_node_file
from millstream.coordination.core.pool.messages import Address, NodeInfo, Tables
from millstream.errors import CorruptionError, UnavailableError

ME = NodeInfo(b"m" * 16, 3, 1, Address("h", 1), Address("h", 0))


def content(number: int) -> bytes:
    tables = Tables((b"p" * 16,), (ME._replace(incarnation=number),), (), (), is_answer=False)
    return encode_node_file(NodeFile(ME.node_id, tables, ()))


def test_nothing_yet(tmp_path: Path) -> None:
    assert read_pool_file(tmp_path) == (None, 0)
    assert mend_pool_file(tmp_path) is None


@pytest.mark.parametrize("name", POOL_FILES)
@pytest.mark.parametrize("harm", ["gone", "cut", "unreadable"])
def test_either_may_be_lost_and_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, harm: str
) -> None:
    keep_pool_file(tmp_path, content(1))
    keep_pool_file(tmp_path, content(2))
    path = tmp_path / name
    path.write_bytes(content(2)[:-1])
    if harm == "gone":
        path.unlink()
    with monkeypatch.context() as patched:
        if harm == "unreadable":
            refuse(patched, path, errno.EIO)
        assert read_pool_file(tmp_path) == (content(2), 1)
        assert mend_pool_file(tmp_path) == content(2)
    assert path.read_bytes() == content(2)


def refuse(patched: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Have a file not be read."""
    read = Path.read_bytes

    def refused(asked: Path) -> bytes:
        if asked == path:
            raise OSError(number, "refused")
        return read(asked)

    patched.setattr(Path, "read_bytes", refused)


@pytest.mark.parametrize("name", POOL_FILES)
def test_a_file_that_the_system_refuses_to_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keep_pool_file(tmp_path, content(1))
    refuse(monkeypatch, tmp_path / name, errno.EMFILE)
    with pytest.raises(UnavailableError) as caught:
        mend_pool_file(tmp_path)
    assert caught.value.code == "directory_unusable"


@pytest.mark.parametrize("cut_at", range(3))
def test_one_that_was_cut_short_is_as_before_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_at: int
) -> None:
    keep_pool_file(tmp_path, content(1))
    write, left = module.write_atomically, cut_at

    def cut(path: Path, data: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            path.with_name(path.name + ".new").write_bytes(data[:9])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_atomically", cut)
        if cut_at < 2:
            with pytest.raises(OSError, match="space"):
                keep_pool_file(tmp_path, content(2))
        else:
            keep_pool_file(tmp_path, content(2))
        left = 0
        assert mend_pool_file(tmp_path) == content(2 if cut_at else 1)
    assert mend_pool_file(tmp_path) == content(2 if cut_at else 1)
    assert read_pool_file(tmp_path)[1] == 0


def test_both_lost_is_said(tmp_path: Path) -> None:
    keep_pool_file(tmp_path, content(1))
    for name in POOL_FILES:
        (tmp_path / name).write_bytes(b"rubbish")
    for _ in POOL_FILES:
        with pytest.raises(CorruptionError, match="GROUP REPLACE") as caught:
            mend_pool_file(tmp_path)
        assert caught.value.code == "bad_pool_file"
        (tmp_path / POOL_FILES[0]).unlink(missing_ok=True)
