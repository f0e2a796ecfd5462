"""Old revisions are found in older changes: bounded, not before a purge or a compaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.documents.revisions import Path
from millstream.documents.stored import Content, StoredDocument, load, pack
from millstream.documents.tree import EMPTY
from millstream.kv.core.revisions import old_revisions as module
from millstream.kv.core.revisions.old_revisions import Compacted, OldChanges, find_old
from millstream.model.lineage import born
from millstream.model.position import FailoverEntry
from millstream.storage.core.records import StoredChange
from millstream.wire.frames import deletion, mutation
from support.http.revised_documents import signature

UUID, KEY = "b" * 32, b"doc"


def rev(n: int) -> str:
    return f"{n}-{signature(n)}"


def document(n: int, *, is_purged: bool = False) -> StoredDocument:
    """A document with a line of `n` revisions."""
    tree = EMPTY.merged(Path(n, [signature(k) for k in range(n, 0, -1)]))
    return StoredDocument(tree, {rev(n): Content(b'{"n":%d}' % n, {})}, is_purged=is_purged)


def change(seqno: int, made: StoredDocument) -> StoredChange:
    value, sidecar = pack(made)
    assert value is not None
    frame = mutation(1, KEY, value, seqno, seqno, seqno, 0, 0, 1)
    return StoredChange(frame, seqno - 1, born(1, 1), sidecar)


def by_kv(seqno: int, value: bytes | None) -> StoredChange:
    if value is None:
        frame = deletion(1, KEY, seqno, seqno, seqno, 0)
    else:
        frame = mutation(1, KEY, value, seqno, seqno, seqno, 0, 0, 1)
    return StoredChange(frame, seqno - 1, born(1, 1))


def line(newest: int) -> Iterator[StoredChange]:
    return (change(n, document(n)) for n in range(newest, 0, -1))


def search(changes: Iterator[StoredChange] | list[StoredChange], *wanted: str, limit: int = 0,
           lists_all: bool = False) -> OldChanges:  # fmt: skip
    return find_old(UUID, KEY, changes, wanted, limit, lists_all=lists_all)


def bodies(found: OldChanges) -> dict[str, bytes]:
    documents = [(load(UUID, KEY, one.frame, one.side), one.revs) for one in found.changes]
    held = [({**one.replaced, **one.contents}, revs) for one, revs in documents]
    return {one: contents[one].body for contents, revs in held for one in revs}


def test_wanted_contents_are_found_and_no_change_is_read_that_is_older() -> None:
    changes = line(9)
    assert bodies(search(changes, rev(7), rev(5))) == {rev(7): b'{"n":7}', rev(5): b'{"n":5}'}
    assert next(changes).previous_seqno == 3
    assert search(line(9), rev(20)) == OldChanges([], [])
    found = search(line(4), rev(2), lists_all=True)
    assert found.revs == [rev(4), rev(3), rev(2), rev(1)]
    assert list(bodies(found)) == [rev(2)]


def test_what_kv_wrote_is_found_too() -> None:
    changes = [by_kv(3, b"[1]"), by_kv(2, None), by_kv(1, b'{"a":1}')]
    listed = search(changes, lists_all=True).revs
    assert [int(one.partition("-")[0]) for one in listed] == [3, 2, 1]
    assert bodies(search(changes, *listed)) == {
        listed[0]: b"{}", listed[1]: b"{}", listed[2]: b'{"a":1}'
    }  # fmt: skip


def test_a_change_has_what_it_replaced_before_it_was_stored() -> None:
    made = document(3)
    made.replaced = {rev(2): Content(b'{"n":2}', {})}
    changes = [change(2, made), change(1, document(1))]
    assert bodies(search(changes, rev(2), rev(1))) == {rev(2): b'{"n":2}', rev(1): b'{"n":1}'}
    assert search(changes, rev(2), limit=2).changes == []


def test_nothing_older_than_a_purge_is_found() -> None:
    changes = [change(4, document(4)), change(3, document(3, is_purged=True)), *line(2)]
    assert search(changes, lists_all=True).revs == [rev(4), rev(3)]


def test_what_a_change_after_a_purge_replaced_unstored_is_found_and_nothing_older() -> None:
    made = document(4, is_purged=True)
    made.replaced = {rev(3): Content(b'{"n":3}', {})}
    assert search([change(4, made), *line(2)], lists_all=True).revs == [rev(4), rev(3)]


@given(st.integers(0, 9))
def test_nothing_is_found_that_was_replaced_up_to_the_limit(limit: int) -> None:
    found = search(line(8), lists_all=True, limit=limit)
    assert found.revs == [rev(n) for n in range(8, 0, -1) if n == 8 or n + 1 > limit]


def test_a_search_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLD_CHANGES_MAX", 3)
    assert search(line(9), lists_all=True).revs == [rev(9), rev(8), rev(7)]
    monkeypatch.setattr(module, "OLD_BYTES_MAX", 1)
    assert search(line(9), lists_all=True).revs == [rev(9)]


def test_where_history_went_back_seqnos_of_later_branches_are_not_compacted() -> None:
    compacted = Compacted(5, 100)
    log = (FailoverEntry(1, 80, 7), FailoverEntry(1, 60, 5), FailoverEntry(1, 0, 1))
    assert compacted.limit(log) == 80
    assert compacted.limit(log[1:]) == 100
    assert compacted.limit(()) == 100
    assert Compacted(0, 0).limit(log) == 0
