"""A chain of manifests, and the newest version of each key in it.

Invariants:
1. A chain goes from the manifest that was asked for to one that has no parent; of one bucket.
2. Within a partition the newest part that has a row of a key has its newest version. That is so
   after a rollback, too: a branched part has a row, if need be a deletion, of every key of which
   the chain had a version that was undone (`increment`).
3. A part has a key at most once. What is held in memory are the keys of the parts newer than the
   full one.

Elsewhere: who writes the parts (`increment`), Parquet (`parquet`), directories (`directory`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millstream.errors import CorruptionError, UsageError
from millstream.pipelines.lake.manifest import Manifest, Part

__all__ = ["Manifests", "Newest", "chain_of", "parts_of"]


class Manifests(dict[int, Manifest]):
    """The manifests of a backup by id; `unreadable`: what is wrong with the others, by id."""

    def __init__(self, found: Mapping[int, Manifest] | None = None) -> None:
        super().__init__(found or {})
        self.unreadable: dict[int, CorruptionError | UsageError] = {}

    @property
    def newest(self) -> int:
        """The highest id, readable or not. 0: there is none."""
        return max((*self, *self.unreadable), default=0)


def chain_of(manifests: Manifests, id_: int) -> list[Manifest]:
    """Return the manifests that `id_` needs, newest first.

    Raises:
        UsageError: `unknown_manifest`, `other_format`.
        CorruptionError: `broken_chain`, `bad_manifest`.
    """
    if id_ in manifests.unreadable:
        raise manifests.unreadable[id_]
    if id_ not in manifests:
        known = ", ".join(map(str, sorted(manifests))) or "none"
        raise UsageError(
            f"no manifest {id_} in this backup, only {known}", code="unknown_manifest"
        )
    chain = [manifests[id_]]
    while (parent := chain[-1].parent) is not None:
        if parent in manifests.unreadable:
            raise manifests.unreadable[parent]
        chain.append(_parent_of(chain[-1], manifests.get(parent)))
    return chain


def _parent_of(manifest: Manifest, parent: Manifest | None) -> Manifest:
    if parent is None:
        raise CorruptionError(
            f"manifest {manifest.id} needs manifest {manifest.parent}, which is gone; use one "
            "that does not need it, or make a new backup",
            code="broken_chain",
        )
    mine = manifest.bucket_uuid, manifest.partition_count
    if (parent.bucket_uuid, parent.partition_count) != mine:
        raise CorruptionError(
            f"manifest {manifest.id} and its parent {parent.id} are of different buckets",
            code="broken_chain",
        )
    return parent


def parts_of(chain: Sequence[Manifest], partition_id: int) -> list[Part]:
    """Return the parts of a partition that count, newest first; the last one is full."""
    parts: list[Part] = []
    for manifest in chain:
        parts.append(manifest.part(partition_id))
        if parts[-1].kind == "full":
            break
    return parts


class Newest:
    """Tells the rows that count from those that do not, part by part, newest first."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def rows(self, part: Part, keys: Sequence[str | None]) -> Iterator[int]:
        """Yield the indices of those rows of `part` that count; marks, without a key, never do."""
        seen = self._seen
        is_last = part.kind == "full"  # nobody asks for the keys of the last one
        for index, key in enumerate(keys):
            if key is None or key in seen:
                continue
            if not is_last:
                seen.add(key)
            yield index
