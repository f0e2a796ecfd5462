from __future__ import annotations

import pytest

from millstream.errors import CorruptionError, UsageError
from millstream.model.position import FailoverEntry, Position
from millstream.pipelines.lake.chain import Manifests, Newest, chain_of, parts_of
from millstream.pipelines.lake.manifest import Manifest, Part, PartKind


def part(kind: PartKind, partition_id: int = 0) -> Part:
    return Part(
        partition=partition_id, kind=kind, position=Position(1, 9, 9, 9), branch=1, purge_seqno=0,
        failover_log=(FailoverEntry(1, 0, 1),), rollback_to=4 if kind == "branched" else None,
    )  # fmt: skip


def manifest(id_: int, parent: int | None, *kinds: PartKind, uuid: str = "b0") -> Manifest:
    return Manifest(
        id=id_, parent=parent, created="", bucket="b", bucket_uuid=uuid,
        partition_count=len(kinds), parts=tuple(part(kind, p) for p, kind in enumerate(kinds)),
    )  # fmt: skip


def test_a_chain_goes_to_the_one_without_parent() -> None:
    made = [manifest(1, None, "full"), manifest(2, 1, "changes"), manifest(3, None, "full"),
            manifest(4, 2, "branched")]  # fmt: skip
    manifests = Manifests({m.id: m for m in made})
    assert [m.id for m in chain_of(manifests, 4)] == [4, 2, 1]
    assert [m.id for m in chain_of(manifests, 3)] == [3]


def test_a_broken_chain_is_an_error_with_its_reason() -> None:
    manifests = Manifests({2: manifest(2, 1, "changes"), 5: manifest(5, 2, "changes", uuid="b1")})
    with pytest.raises(UsageError, match="only 2, 5") as unknown:
        chain_of(manifests, 3)
    with pytest.raises(CorruptionError, match="manifest 2 needs manifest 1") as gone:
        chain_of(manifests, 2)
    with pytest.raises(CorruptionError, match="different buckets") as other:
        chain_of(manifests, 5)
    assert [e.value.code for e in (unknown, gone, other)] == [
        "unknown_manifest", "broken_chain", "broken_chain",
    ]  # fmt: skip


def test_parts_count_down_to_the_newest_full_one() -> None:
    chain = [
        manifest(3, 2, "changes", "full"),
        manifest(2, 1, "branched", "changes"),
        manifest(1, None, "full", "full"),
    ]
    assert [p.kind for p in parts_of(chain, 0)] == ["changes", "branched", "full"]
    assert [p.kind for p in parts_of(chain, 1)] == ["full"]


def test_the_newest_part_with_a_key_counts_and_marks_never_do() -> None:
    newest = Newest()
    assert list(newest.rows(part("branched"), [None, "a", "b"])) == [1, 2]
    assert list(newest.rows(part("changes"), ["b", "c"])) == [1]
    assert list(newest.rows(part("full"), ["a", "d", "c"])) == [1]
