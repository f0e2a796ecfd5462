"""Where staged files are, and when they go."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.views.aio.indexing import staging as module
from millstream.views.aio.indexing.staging import Staging, receive
from millstream.views.core.index.header import DocumentRows
from millstream.views.core.index.staged import END, block_of_documents, block_of_rows


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path)


def put(staging: Staging, fence: int, name: str, data: bytes) -> None:
    staging.place(fence, name).write_bytes(data)
    staging.finish(fence, name)


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def test_files_are_merged_in_order(staging: Staging) -> None:
    put(staging, 3, "r1", block_of_rows([(b"a", 0, b""), (b"d", 0, b"")]) + END)
    put(staging, 3, "r2", block_of_rows([(b"b", 1, b""), (b"c", 1, b"")]) + END)
    checks: list[int] = []
    portions = staging.rows(3, ["r1", "r2"], lambda: checks.append(1))
    assert [row[0] for portion in portions for row in portion] == [b"a", b"b", b"c", b"d"]
    assert checks


def test_documents_of_files_follow_each_other(staging: Staging) -> None:
    for name in ("d1", "d2"):
        put(staging, 1, name, block_of_documents([DocumentRows(0, name.encode())]) + END)
    assert [each.doc_id for each in staging.documents(1, ["d2", "d1"])] == [b"d2", b"d1"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.part", "x" * 101, "a b"])
def test_names_are_plain(staging: Staging, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        staging.place(1, name)
    assert caught.value.code == "bad_run_name"
    with pytest.raises(ConditionError):
        list(staging.rows(1, [name], lambda: None))


def test_incomplete_and_foreign_files_count_as_missing(staging: Staging) -> None:
    staging.place(1, "half").write_bytes(END)
    put(staging, 1, "whole", END)
    for fence, name in ((1, "half"), (2, "whole"), (1, "none")):
        with pytest.raises(ConditionError) as caught:
            list(staging.rows(fence, [name], lambda: None))
        assert caught.value.code == "run_missing"
    with pytest.raises(ConditionError):
        staging.finish(1, "never begun")


def test_files_go_with_their_commit_and_with_their_writer(
    staging: Staging, tmp_path: Path
) -> None:
    for fence in (1, 2):
        for name in ("a", "b"):
            put(staging, fence, name, END)
    staging.remove(2, ["a", "gone"])
    staging.keep_only(2)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]
    Staging(tmp_path / "other").keep_only(2)  # nothing was ever staged


def test_unused_complete_files_are_removed(staging: Staging, tmp_path: Path) -> None:
    staging.remove_whole(1)  # nothing was ever staged
    put(staging, 1, "of_a_task_that_failed", END)
    put(staging, 2, "of_another_writer", END)
    staging.place(1, "coming").write_bytes(END)
    staging.remove_whole(1)
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["coming.part", "of_another_writer"]
    staging.finish(1, "coming")


def test_files_of_a_silent_writer_are_removed(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(staging, 1, "a", END)
    assert not staging.expire()
    monkeypatch.setattr(module, "STAGED_LEASE_S", 0.0)
    assert staging.expire()
    assert not list(tmp_path.iterdir())
    assert not staging.expire()


def test_the_number_of_staged_files_is_bounded(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STAGED_FILES_MAX", 2)
    for name in ("a", "b"):
        put(staging, 1, name, END)
    with pytest.raises(UnavailableError) as caught:
        staging.place(1, "c")
    assert caught.value.code == "too_many_runs"


async def test_received_files_are_written(tmp_path: Path) -> None:
    await receive(tmp_path / "r", pieces_of(b"ab", b"c"))
    assert (tmp_path / "r").read_bytes() == b"abc"


async def test_a_file_that_is_cut_off_or_too_large_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield b"ab"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await receive(tmp_path / "r", cut())
    monkeypatch.setattr(module, "RUN_BYTES_MAX", 3)
    with pytest.raises(UsageError) as caught:
        await receive(tmp_path / "r", pieces_of(b"ab", b"cd"))
    assert caught.value.code == "too_large"
    assert not await asyncio.to_thread(_names_in, tmp_path)


async def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    async def full() -> AsyncIterator[bytes]:
        yield b"ab"
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(MillstreamError) as caught:
        await receive(tmp_path / "r", full())
    assert caught.value.code == "disk_full"
    assert not await asyncio.to_thread(_names_in, tmp_path)


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
