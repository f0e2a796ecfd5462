"""Real files of a false node: what rules and Parquet make together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millstream.documents.stored import pack
from millstream.errors import StreamError, UnavailableError
from millstream.pipelines.lake.blobs import read_names
from millstream.pipelines.lake.copying import (
    CopyTask,
    MergeTask,
    copy_part,
    merge_parts,
    newest_batches,
)
from millstream.pipelines.lake.increment import plan_part
from millstream.pipelines.lake.manifest import Part
from support.http.revised_documents import signature, with_leaf
from support.pipelines.backup_double import DescribedRanges
from support.pipelines.node_double import FalseNode


def nothing_to_fetch(partition_id: int, name: bytes) -> Iterator[bytes]:
    raise AssertionError("no row names an attachment")


class Copies:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.node = FalseNode(1)
        self.parts: list[Part] = []
        (root / "data").mkdir()

    def copy(self) -> Part:
        lease = self.node.open_lease([0])[0]
        plan = plan_part(self.parts[0] if self.parts else None, lease, self.node.failover_log(0))
        part = copy_part(
            CopyTask(self.root, "data", plan, tuple(self.parts)),
            DescribedRanges(self.node),
            nothing_to_fetch,
        )
        self.node.release_lease(lease.lease_id, [0])
        self.parts = [part] if part.kind == "full" else [part, *self.parts]
        return part

    def write(self, **values: int | None) -> None:
        for key, value in values.items():
            self.node.write(0, int(key[1:]), value)

    def rows(self, parts: Sequence[Part]) -> dict[str, tuple[str, int]]:
        batches = newest_batches(self.root, parts, ["op", "key", "seqno"])
        rows = [row for batch in batches for row in batch.to_pylist()]
        return {row["key"]: (row["op"], row["seqno"]) for row in rows}


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def test_an_increment_after_a_lost_tail_has_what_is_valid_again(copies: Copies) -> None:
    copies.write(k1=10, k2=20, k3=30)
    copies.write(k1=11, k2=None, k4=40)
    full = copies.copy()
    copies.node.partitions[0].fail_over(3)
    copies.write(k5=50)
    branched = copies.copy()
    assert (full.kind, branched.kind, branched.rollback_to) == ("full", "branched", 3)
    assert copies.rows([branched]) == {
        "1": ("put", 1), "2": ("put", 2), "4": ("delete", 3), "5": ("put", 4),
    }  # fmt: skip
    assert copies.rows([branched, full]) == {**copies.rows([branched]), "3": ("put", 3)}
    assert branched.row_count == 5  # with its mark


def test_a_merged_part_has_the_newest_of_all(copies: Copies) -> None:
    copies.write(k1=10, k2=20)
    copies.copy()
    copies.write(k2=None, k3=30)
    copies.copy()
    merged = merge_parts(MergeTask(copies.root, "data", tuple(copies.parts)))
    assert (merged.kind, merged.position) == ("full", copies.parts[0].position)
    assert copies.rows([merged]) == {"1": ("put", 1), "2": ("delete", 3), "3": ("put", 4)}


def test_a_full_copy_within_a_chain_is_marked(copies: Copies) -> None:
    copies.write(k1=10)
    copies.copy()
    copies.write(k1=11, k2=None)
    copies.node.partitions[0].purge(3)
    part = copies.copy()
    assert (part.kind, part.row_count) == ("full", 2)
    assert copies.rows(copies.parts) == {"1": ("put", 2)}


def test_attachments_that_rows_name_are_brought_and_listed(copies: Copies) -> None:
    data = {hashlib.sha256(one).digest(): one for one in (b"here", b"gone")}
    here, gone = sorted(data, key=lambda name: data[name] != b"here")
    asked: list[tuple[int, bytes]] = []

    def fetch(partition_id: int, name: bytes) -> Iterator[bytes]:
        asked.append((partition_id, name))
        if name == gone:
            raise UnavailableError("not on the node", code="blob_missing")
        yield data[name]

    source = DescribedRanges(copies.node)
    source.sidecar = pack(with_leaf(None, "1-" + signature(1), blobs=(b"here", b"gone"))).sidecar
    copies.write(k1=10, k2=20)
    lease = copies.node.open_lease([0])[0]
    plan = plan_part(None, lease, copies.node.failover_log(0))
    task = CopyTask(copies.root, "data", plan, ())
    part = copy_part(task, source, fetch)
    assert part.blobs is not None
    assert (read_names(copies.root, part.blobs), part.missing_blobs) == ([here], 1)
    assert sorted(asked) == sorted([(0, here), (0, gone)]), "each once, whatever names it"
    merged = merge_parts(MergeTask(copies.root, "data", (part,)))
    assert merged.blobs is not None
    assert (read_names(copies.root, merged.blobs), merged.missing_blobs) == ([here], 1)
    source.is_held = False
    with pytest.raises(StreamError) as lost:
        copy_part(task, source, fetch)
    assert lost.value.code == "lease_lost", "what is missing may be what was removed since"


def test_without_its_lease_nothing_is_kept(copies: Copies) -> None:
    copies.write(k1=10)
    lease = copies.node.open_lease([0])[0]
    plan = plan_part(None, lease, copies.node.failover_log(0))
    copies.node.partitions[0].leases.clear()
    with pytest.raises(StreamError):
        copy_part(
            CopyTask(copies.root, "data", plan, ()), DescribedRanges(copies.node), nothing_to_fetch
        )
    assert list((copies.root / "data" / "partition=0").iterdir()) == []
