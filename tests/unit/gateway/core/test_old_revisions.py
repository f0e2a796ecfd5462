"""Old revisions: shown where the tree has them, bounded, gone after a compaction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.documents.revisions import Path
from millstream.documents.stored import Content, StoredDocument
from millstream.documents.tree import RevisionTree
from millstream.gateway.core.old_revisions import OldRevisions


def revision(n: int) -> str:
    return f"{n}-{n:032x}"


def document(n: int, size: int = 10) -> StoredDocument:
    """A document with a line of `n` revisions."""
    path = Path(n, [f"{k:032x}" for k in range(n, 0, -1)])
    tree = RevisionTree([]).merged(path)
    return StoredDocument(tree, {revision(n): Content(b"%d" % n * size, {})})


def test_what_was_replaced_is_shown_beside_what_is_there() -> None:
    old = OldRevisions()
    for n in range(1, 4):
        old.keep("b", "d", document(n), document(n + 1))
    now = document(4)
    shown = old.shown("b", "d", now)
    assert shown is not None
    assert set(shown.contents) == {revision(n) for n in range(1, 5)}
    assert shown.tree is now.tree
    assert set(now.contents) == {revision(4)}, "what is shown is a copy"
    assert old.shown("b", "e", now) is now
    assert old.shown("other", "d", now) is now
    assert old.shown("b", "d", None) is None
    other = StoredDocument(RevisionTree([]).merged(Path(1, ["f" * 32])), {})
    found = old.shown("b", "d", other)
    assert found is not None
    assert not found.contents, "another document of that id, as after a purge, has none of it"
    old.forget("other")
    assert old.bytes
    old.forget("b")
    assert (old.bytes, old.shown("b", "d", now)) == (0, now)


def test_a_purged_document_is_forgotten_alone() -> None:
    old = OldRevisions()
    for name in ("d", "e"):
        old.keep("b", name, document(1), document(2))
    old.forget_document("b", "d")
    old.forget_document("b", "none")
    now = document(2)
    assert old.shown("b", "d", now) is now
    assert old.shown("b", "e", now) is not now


def test_what_stays_or_was_never_there_is_not_kept() -> None:
    old = OldRevisions()
    old.keep("b", "d", None, document(1))
    old.keep("b", "d", document(2), document(2))
    assert old.bytes == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8), st.integers(0, 900))))
def test_the_newest_are_kept_as_far_as_there_is_room(
    writes: list[tuple[int, int, int]],
) -> None:
    old = OldRevisions(4000)
    for name, n, size in writes:
        old.keep("b", f"d{name}", document(n, size), document(n + 1))
        assert 0 <= old.bytes <= 4000
    if writes:
        name, n, size = writes[-1]
        shown = old.shown("b", f"d{name}", document(n + 1))
        assert shown is not None
        assert revision(n) in shown.contents
    old.forget("b")
    assert (old.bytes, len(old._kept), len(old._revs)) == (0, 0, 0)
