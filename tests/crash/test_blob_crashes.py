"""A blob is put, or removed, and the process dies, or the disk fails, at every effect in turn.

What lasts is said by a journal of effects: bytes by their fsync, names by the sync of the
directory they stand in. Whatever was torn off, what `put` returned from is there whole after a
power loss, and what a start finds under a name is whole. What was removed may come back: a sweep
syncs nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.kv.aio.documents import blobs
from millstream.kv.aio.documents.blobs import BlobFiles

DATA = b"bytes of an attachment" * 1000
NAME = hashlib.sha256(DATA).hexdigest()


class Killed(BaseException):
    """The process is gone."""


class Effects:
    """Counts what is made durable; one of them does not happen."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, left: int) -> None:
        self.root, self.left = root, left
        self.synced = set[int]()
        """Inodes whose bytes are durable."""
        self.names = set[Path]()
        """What is durable of the directories."""
        self.unlinked = dict[Path, bytes]()
        """What comes back if the power fails before its directory is synced."""
        real_fsync, real_sync, real_rename = os.fsync, blobs.sync_directory, Path.rename
        real_unlink = Path.unlink

        def fsync(descriptor: int) -> None:
            self.step()
            real_fsync(descriptor)
            self.synced.add(os.fstat(descriptor).st_ino)

        def sync_directory(path: Path) -> None:
            self.step()
            real_sync(path)
            self.unlinked = {n: data for n, data in self.unlinked.items() if n.parent != path}
            self.names = {name for name in self.names if name.parent != path} | set(path.iterdir())

        def rename(source: Path, target: Path) -> Path:
            self.step()
            return real_rename(source, target)

        def unlink(path: Path, missing_ok: bool = False) -> None:
            if path.parent.name != "new":
                self.step()
            if path in self.names:
                self.unlinked[path] = path.read_bytes()
            real_unlink(path, missing_ok)

        patch.setattr(Path, "unlink", unlink)
        patch.setattr(blobs.os, "fsync", fsync)
        patch.setattr(blobs, "sync_directory", sync_directory)
        patch.setattr(Path, "rename", rename)

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    def lose_power(self) -> None:
        """Take what is not durable away: names first, then bytes."""
        for path in sorted(self.root.rglob("*"), reverse=True):
            if path in self.names:
                if path.is_file() and path.stat().st_ino not in self.synced:
                    path.write_bytes(b"")
            elif path.is_dir():
                if not any(path.iterdir()):
                    path.rmdir()
            else:
                os.unlink(path)
        for path, data in self.unlinked.items():
            if not path.exists():
                path.write_bytes(data)


async def pieces() -> AsyncIterator[bytes]:
    yield DATA[:5000]
    yield DATA[5000:]


def is_whole(root: Path) -> bool:
    """Whether the blob is there; if so, it is whole."""
    found = BlobFiles(root / "blobs").piece(bytes.fromhex(NAME), 0, 10**6)
    assert found is None or found.data == DATA
    return found is not None


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("puts", [1, 2])
async def test_what_was_put_is_there_and_nothing_else(
    tmp_path: Path, puts: int, is_power_lost: bool
) -> None:
    for left in range(1, 30):
        root = tmp_path / str(left)
        root.mkdir()
        returned = 0
        with pytest.MonkeyPatch.context() as patch:
            effects = Effects(root, patch, left)
            files = BlobFiles(root / "blobs")
            try:
                for _ in range(puts):
                    await files.put(pieces())
                    returned += 1
            except Killed:
                pass
            effects.left = 0
            if is_power_lost:
                effects.lose_power()
        assert is_whole(root) or not returned
        files = BlobFiles(root / "blobs")
        files.prepare()
        assert not list((root / "blobs").glob("new/*"))
        await files.put(pieces())
        assert is_whole(root)
        if returned == puts:
            assert left > puts, "every effect was one that did not happen"
            return
    raise AssertionError("putting never ends")


async def test_a_name_that_a_kill_left_lasts_once_it_is_relied_on(tmp_path: Path) -> None:
    """Killed between rename and sync: the next process must not take the name for durable."""
    with pytest.MonkeyPatch.context() as patch:
        effects = Effects(tmp_path, patch, 3)
        with pytest.raises(Killed):
            await BlobFiles(tmp_path / "blobs").put(pieces())
        assert is_whole(tmp_path)
        effects.left = -1
        files = BlobFiles(tmp_path / "blobs")
        files.prepare()
        assert files.has(bytes.fromhex(NAME))
        effects.lose_power()
    assert is_whole(tmp_path)


@pytest.mark.parametrize("is_power_lost", [False, True])
async def test_what_was_removed_is_there_if_it_was_put_again(
    tmp_path: Path, is_power_lost: bool
) -> None:
    for left in range(1, 40):
        root = tmp_path / str(left)
        root.mkdir()
        is_put_again = False
        with pytest.MonkeyPatch.context() as patch:
            effects = Effects(root, patch, -1)
            files = BlobFiles(root / "blobs")
            name = (await files.put(pieces())).sha256
            effects.left = left
            try:
                with files.removing([name]):
                    for _ in files.remove([name], time.time_ns()):
                        pass
                await files.put(pieces())
                is_put_again = True
            except Killed:
                pass
            effects.left = 0
            if is_power_lost:
                effects.lose_power()
        assert is_whole(root) or not is_put_again
        again = BlobFiles(root / "blobs")
        again.prepare()
        assert again.count == is_whole(root), "what came back, and what is half put, is known"
        if is_put_again:
            assert left > 3, "every effect was one that did not happen"
            return
    raise AssertionError("it never ends")
