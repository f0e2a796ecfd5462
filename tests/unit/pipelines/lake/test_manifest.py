from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError, UsageError
from millstream.model.position import FailoverEntry, Position
from millstream.pipelines.lake.manifest import (
    DataFile,
    Manifest,
    Part,
    manifest_from_json,
    manifest_to_json,
)

NUMBERS = st.integers(0, 2**53)
UUIDS = st.integers(0, 2**48 - 1)
FILES = st.builds(
    DataFile,
    path=st.sampled_from(["data-000001-ab/partition=0/x.parquet", "a"]),
    row_count=NUMBERS,
    byte_count=NUMBERS,
    sha256=st.just("0" * 64),
)


@st.composite
def part(draw: st.DrawFn, partition_id: int, *, has_parent: bool) -> Part:
    kind = draw(st.sampled_from(["full", "changes", "branched"] if has_parent else ["full"]))
    at = draw(NUMBERS)
    entry = st.builds(FailoverEntry, UUIDS, NUMBERS, NUMBERS)
    return Part(
        partition=partition_id,
        kind=kind,
        position=Position(draw(UUIDS), at, at, at),
        branch=draw(NUMBERS),
        purge_seqno=draw(NUMBERS),
        failover_log=tuple(draw(st.lists(entry, min_size=1, max_size=3))),
        rollback_to=draw(NUMBERS) if kind == "branched" else None,
        files=tuple(draw(st.lists(FILES, max_size=2))),
        blobs=draw(st.none() | FILES),
        missing_blobs=draw(st.sampled_from([0, 0, 3])),
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    has_parent, count = draw(st.booleans()), draw(st.integers(1, 4))
    return Manifest(
        id=5,
        parent=draw(st.integers(1, 4)) if has_parent else None,
        created="2026-01-01T00:00:00Z",
        bucket=draw(st.text(max_size=5)),
        bucket_uuid="b0b0",
        partition_count=count,
        parts=tuple(draw(part(p, has_parent=has_parent)) for p in range(count)),
    )


@given(manifests())
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    text = manifest_to_json(manifest)
    assert manifest_from_json(text, "m") == manifest
    assert manifest_to_json(manifest_from_json(text, "m")) == text


def one() -> dict[str, Any]:
    made = Manifest(
        id=2, parent=1, created="2026-01-01T00:00:00Z", bucket="b", bucket_uuid="b0b0",
        partition_count=2,
        parts=tuple(
            Part(
                partition=p, kind="changes", position=Position(1, 9, 9, 9), branch=1,
                purge_seqno=0, failover_log=(FailoverEntry(1, 0, 1),),
                files=(DataFile(path="a/b", row_count=3, byte_count=9, sha256="0" * 64),),
            )
            for p in range(2)
        ),
    )  # fmt: skip
    form: dict[str, Any] = json.loads(manifest_to_json(made))
    return form


def read(form: Any) -> Manifest:
    return manifest_from_json(json.dumps(form).encode(), "manifest-000002.json")


def test_missing_and_contradicting_members_are_damage() -> None:
    def changed(change: Any) -> Any:
        form = one()
        change(form)
        return form

    damages = [
        lambda form: form["parts"].pop(),
        lambda form: form["parts"].reverse(),
        lambda form: form.update(row_count=7),
        lambda form: form.update(parent=2),
        lambda form: form.update(parent=None),
        lambda form: form.update(partition_count=0),
        lambda form: form["parts"][0].update(kind="branched"),
        lambda form: form["parts"][0].update(rollback_to=4),
        lambda form: form["parts"][0].update(position=["00", 9, 8, 9]),
        lambda form: form["parts"][0].update(position=["00", "9"]),
        lambda form: form["parts"][0].update(failover_log=[]),
        lambda form: form["parts"][0].update(failover_log=[["zz", 0, 1]]),
        lambda form: form["parts"][0].update(branch=-1),
        lambda form: form["parts"][0].pop("branch"),
        lambda form: form["parts"][0]["files"][0].update(path="/etc/passwd"),
        lambda form: form["parts"][0]["files"][0].update(path="a/../../b"),
        lambda form: form["parts"][0].update(blobs={**form["parts"][0]["files"][0], "path": "/a"}),
        lambda form: form["parts"][0].update(missing_blobs=-1),
    ]
    assert read(one()).id == 2
    for damage in damages:
        with pytest.raises(CorruptionError, match="manifest-000002") as refusal:
            read(changed(damage))
        assert refusal.value.code == "bad_manifest"


@given(st.binary(max_size=40))
def test_bytes_that_are_not_a_manifest_are_refused(text: bytes) -> None:
    with pytest.raises((CorruptionError, UsageError)):
        manifest_from_json(text, "m")


@pytest.mark.parametrize("change", [{"version": 3}, {"format": "tar"}, {"version": None}])
def test_another_version_is_not_guessed_at(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="use the release that wrote it") as refusal:
        read({**one(), **change})
    assert refusal.value.code == "other_format"


def test_a_part_counts_its_rows_and_can_stand_for_what_it_builds_on() -> None:
    manifest = read(one())
    full = manifest.part(1).as_full([])
    assert (manifest.row_count, manifest.part(1).row_count) == (6, 3)
    assert (full.kind, full.rollback_to, full.files) == ("full", None, ())
    assert full.position == manifest.part(1).position


def test_a_backup_with_attachments_is_refused_by_releases_that_know_none() -> None:
    form = one()
    assert (form["version"], "blobs" in form["parts"][0]) == (1, False)
    without = read(form)
    listed = DataFile(path="a/_blobs", row_count=2, byte_count=64, sha256="0" * 64)
    parts = (without.parts[0].with_blobs(listed, 3), without.parts[1])
    form = json.loads(manifest_to_json(msgspec.structs.replace(without, parts=parts)))
    assert form["version"] == 2
    found = read(form)
    assert (found.parts, found.missing_blobs) == (parts, 3)
    assert found.parts[0].all_files == (*parts[0].files, listed)
    assert found.parts[0].as_full([]).blobs is None
