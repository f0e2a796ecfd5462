"""Mistakes in the sweep of attachments, which the schedules of `blob_world` have to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from millstream.kv.aio.documents import blob_sweeping
from millstream.kv.aio.documents.blob_sweeping import BlobSweep
from millstream.kv.aio.documents.blobs import BlobFiles
from millstream.kv.aio.flusher import Flusher
from millstream.kv.core.queue.holds import Holds
from millstream.kv.core.revisions import revision_store as revised
from millstream.kv.core.revisions.unused_blobs import UnnamedBlobs
from millstream.model.limits import UINT64_MAX

__all__ = ["PLANTS"]


def what_is_named_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """A change may name what is gone, and the sweep is not told of it."""
    patch.setattr(revised, "_check_blobs", lambda *_: None)


def a_sweep_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlobFiles, "keep", lambda *_: None)


def memory_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What the log has not got yet is not brought there."""

    async def nothing(_: Flusher) -> None:
        return

    patch.setattr(Flusher, "flush_all", nothing)


def holds_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holds, "sides", lambda _: iter(()))


def copies_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(blob_sweeping, "have_reached", lambda *_: True)


def only_the_newest_count(patch: pytest.MonkeyPatch) -> None:
    """What has been replaced is passed over, though history goes back to it."""

    def look(sweep: BlobSweep, unnamed: UnnamedBlobs) -> Iterator[None]:
        store = sweep._store
        for p in range(sweep._bucket.partition_count):
            replaced = store.superseded(p, 0, UINT64_MAX)
            for changes in store.scan(p, 0, UINT64_MAX, replaced):
                unnamed.found_in(change.sidecar for change in changes)
                yield

    patch.setattr(BlobSweep, "_look_through_log", look)


def what_is_being_put_is_removed(patch: pytest.MonkeyPatch) -> None:
    """Whoever puts the same bytes finds the file, does not write it, and then it goes."""
    patch.setattr(BlobFiles, "putting", property(lambda _: ()))
    real = BlobFiles.removing
    patch.setattr(BlobFiles, "removing", lambda files, _: real(files, ()))


def what_names_nothing_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Half of the names are taken for needed."""
    real = UnnamedBlobs.__init__
    patch.setattr(
        UnnamedBlobs,
        "__init__",
        lambda unnamed, names: real(unnamed, [one for one in names if one[0] & 1]),
    )


PLANTS: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    plant.__name__: plant
    for plant in (
        what_is_named_is_not_looked_for, a_sweep_is_not_told, memory_is_forgotten,
        holds_are_forgotten, copies_are_not_waited_for, only_the_newest_count,
        what_is_being_put_is_removed, what_names_nothing_is_kept,
    )
}  # fmt: skip
