from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.model.position import FailoverEntry, Position
from millstream.pipelines.lake.blobs import keep_blobs, listed
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.manifest import DataFile, Manifest, Part

CONTENT = {hashlib.sha256(data).digest(): data for data in (b"a", b"b", b"c")}


def manifest(id_: int, parent: int | None, *paths: str) -> Manifest:
    files = [DataFile(path=path, row_count=1, byte_count=1, sha256="0" * 64) for path in paths]
    part = Part(
        partition=0, kind="full", position=Position(1, 9, 9, 9), branch=1, purge_seqno=0,
        failover_log=(FailoverEntry(1, 0, 1),), files=tuple(files),
    )  # fmt: skip
    return Manifest(
        id=id_, parent=parent, created="", bucket="b", bucket_uuid="b0", partition_count=1,
        parts=(part,),
    )  # fmt: skip


def published(directory: BackupDirectory, id_: int, parent: int | None = None) -> str:
    data = directory.new_data(id_)
    folder = directory.path / data / "partition=0"
    folder.mkdir()
    for name in ("a.parquet", "twice.parquet"):
        (folder / name).write_bytes(b"x")
    directory.publish(manifest(id_, parent, f"{data}/partition=0/a.parquet"), data)
    return data


def test_a_backup_exists_once_its_manifest_does(tmp_path: Path) -> None:
    directory = BackupDirectory(tmp_path / "new" / "deep")
    with directory.writing():
        assert directory.next_id() == 1
        data = published(directory, 1)
        torn = directory.new_data(2)
        assert list(directory.manifests()) == [1]
        assert directory.next_id() == 3  # of the torn one nothing is used again
        assert [f.name for f in (directory.path / data / "partition=0").iterdir()] == ["a.parquet"]
        assert directory.remove_unnamed(directory.manifests()) == [torn]
        assert directory.remove_unnamed(directory.manifests()) == []
    assert directory.manifests()[1] == manifest(1, None, f"{data}/partition=0/a.parquet")


def test_data_of_deleted_manifests_are_removed_unless_a_chain_is_broken(tmp_path: Path) -> None:
    directory = BackupDirectory(tmp_path)
    data = [published(directory, 1), published(directory, 2), published(directory, 3, parent=2)]
    (tmp_path / "manifest-000001.json").unlink()
    assert directory.remove_unnamed(directory.manifests()) == [data[0]]
    (tmp_path / "manifest-000002.json").unlink()
    assert directory.remove_unnamed(directory.manifests()) == []
    assert (tmp_path / data[1]).exists()


def test_a_manifest_that_cannot_be_read_keeps_all_data(tmp_path: Path) -> None:
    directory = BackupDirectory(tmp_path)
    published(directory, 1)
    torn = directory.new_data(2)
    (tmp_path / "manifest-000003.json").write_bytes(b"{")
    manifests = directory.manifests()
    assert (list(manifests), manifests.newest) == ([1], 3)
    assert manifests.unreadable[3].code in ("bad_manifest", "other_format")
    assert directory.remove_unnamed(manifests) == []
    assert (tmp_path / torn).exists()


def test_attachments_go_with_the_last_manifest_that_lists_them(tmp_path: Path) -> None:
    directory = BackupDirectory(tmp_path)
    names = sorted(hashlib.sha256(data).digest() for data in (b"a", b"b", b"c"))
    for id_, mine in ((1, names[:2]), (2, names[1:])):
        data = directory.new_data(id_)
        found = keep_blobs(tmp_path, 0, mine, lambda _, name: iter([CONTENT[name]]))
        blobs = listed(tmp_path, data, 0, found)
        made = manifest(id_, None)
        part = made.parts[0].with_blobs(blobs, 0)
        directory.publish(msgspec.structs.replace(made, parts=(part,)), data)
    torn = directory.new_data(3)
    (tmp_path / "blobs" / names[0].hex()[:2] / ".half").write_bytes(b"x")
    (tmp_path / "manifest-000001.json").unlink()
    assert len(directory.remove_unnamed(directory.manifests())) == 2
    assert not (tmp_path / torn).exists()
    left = {f.parent.name + f.name for f in tmp_path.glob("blobs/??/*")}
    assert left == {name.hex() for name in names[1:]}
    # A list that cannot be read may name anything: nothing goes.
    torn = directory.new_data(3)
    next(tmp_path.glob("data-*/partition=0/_blobs-*")).write_bytes(b"")
    assert directory.remove_unnamed(directory.manifests()) == []
    assert (tmp_path / torn).exists()
    assert len(list(tmp_path.glob("blobs/??/*"))) == 2


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    directory = BackupDirectory(tmp_path)
    with directory.writing(), pytest.raises(ConditionError) as refusal, directory.writing():
        pass
    assert refusal.value.code == "already_running"


def test_a_path_that_is_not_a_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as missing:
        BackupDirectory(tmp_path / "none").manifests()
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError) as unwritable:
        BackupDirectory(tmp_path / "file").writing().__enter__()
    assert (missing.value.code, unwritable.value.code) == ("no_backup", "bad_directory")
