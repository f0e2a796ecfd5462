"""Environments on file systems without space: they are refused, and nothing dies of it."""

from __future__ import annotations

import os
import subprocess
import sys
from errno import EIO, ENOSPC
from pathlib import Path

import lmdb
import pytest

from millstream.runtime import lmdb_files as module
from millstream.runtime.lmdb_files import lacked_space, open_environment
from support.kv.small_disk import in_small_disk

MAP_BYTES = 1024 * 1024
LIFE = """
import sys
from pathlib import Path
import lmdb
from millstream.runtime.lmdb_files import lacked_space, open_environment

disk, left = Path(sys.argv[1]), int(sys.argv[2])
with open(disk / "filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        filler.truncate(filler.tell() - 4096 * left)
folder = disk / "environment"
try:
    with open_environment(folder, max_readers=64, map_size=1024 * 1024) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(b"a", bytes(9000))
    print("kept")
except lmdb.Error as error:
    print("refused", lacked_space(disk, error))
(disk / "filler").unlink()
with open_environment(folder, max_readers=64, map_size=1024 * 1024) as environment:
    with environment.begin(write=True) as transaction:
        transaction.put(b"b", bytes(9000))
"""


@pytest.mark.parametrize("pages_left", [0, 1, 2, 3, 4, 5])
def test_a_full_disk_refuses_an_environment_and_takes_it_when_there_is_space(
    tmp_path: Path, pages_left: int
) -> None:
    disk = tmp_path / "disk"
    enter = in_small_disk(disk, "256k")
    life = f"from pathlib import Path; Path({str(disk)!r}, 'environment').mkdir()\n{LIFE}"
    command = [*enter, sys.executable, "-c", life, str(disk), str(pages_left)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused True\n"), done.stderr


def test_the_lock_file_has_all_its_places(tmp_path: Path) -> None:
    with open_environment(tmp_path, max_readers=64, map_size=MAP_BYTES) as environment:
        assert environment.info()["max_readers"] >= 64
        lock = (tmp_path / "lock.mdb").stat()
        assert lock.st_blocks * 512 >= lock.st_size
    with open_environment(tmp_path, map_size=MAP_BYTES) as environment:
        assert environment.info()["max_readers"] >= 126


def test_what_was_there_stays_when_opening_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        open_environment(tmp_path, map_size=MAP_BYTES) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"a", b"1")

    def full(*_: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "posix_fallocate", full)
        with pytest.raises(lmdb.DiskError):
            open_environment(tmp_path, map_size=MAP_BYTES)
    with (
        open_environment(tmp_path, map_size=MAP_BYTES) as environment,
        environment.begin() as transaction,
    ):
        assert transaction.get(b"a") == b"1"


def test_other_errors_of_the_lock_file_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(EIO, os.strerror(EIO))

    monkeypatch.setattr(module.os, "posix_fallocate", broken)
    with pytest.raises(OSError, match=os.strerror(EIO)):
        open_environment(tmp_path, map_size=MAP_BYTES)


def test_an_error_is_one_of_space_while_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lacked_space(tmp_path, lmdb.MapFullError("full"))
    assert not lacked_space(tmp_path, lmdb.Error("another"))
    monkeypatch.setattr(module, "FREE_BYTES_MIN", 1 << 62)
    assert lacked_space(tmp_path, lmdb.Error("mdb_txn_commit: Input/output error"))
