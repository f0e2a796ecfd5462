"""Contents of old revisions are put beside those of a document, as far as its tree has them."""

from __future__ import annotations

from typing import Any

from millstream.documents.revisions import Path
from millstream.documents.stored import Content, StoredDocument
from millstream.documents.tree import EMPTY, RevisionTree
from millstream.gateway.aio.documents.old_contents import with_old
from millstream.gateway.core.api.documents import OldDocuments
from support.http.revised_documents import signature


def rev(n: int) -> str:
    return f"{n}-{signature(n)}"


def document(n: int) -> StoredDocument:
    tree = EMPTY.merged(Path(n, [signature(k) for k in range(n, 0, -1)]))
    made = StoredDocument(tree, {rev(n): Content(b'{"n":%d}' % n, {})})
    made.seqno = n
    return made


class Log:
    """Has the contents of revisions 2 and 9."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def old(
        self, bucket: str, doc_id: str, revs: list[str], *, lists_all: bool
    ) -> OldDocuments:
        self.asked.append(revs)
        carrying = document(3)
        carrying.replaced = {rev(1): Content(b'{"n":1}', {})}
        found = [(carrying, [rev(1)]), (document(2), [rev(2)]), (document(9), [rev(9)])]
        return OldDocuments(found, [rev(9), rev(2), rev(1)] if lists_all else [])


async def test_a_document_gets_the_contents_that_its_tree_knows() -> None:
    log, now = Log(), document(4)
    shown = await with_old(log, "b", "d", now, [rev(1), rev(2), rev(3), rev(4), rev(9)])
    assert shown is not None
    assert log.asked == [[rev(1), rev(2), rev(3)]], "neither what is there nor what is unknown"
    assert {one: content.body for one, content in shown.contents.items()} == {
        rev(n): b'{"n":%d}' % n for n in (1, 2, 4)
    }
    assert (shown.tree, shown.seqno) == (now.tree, 4)
    assert list(now.contents) == [rev(4)], "what is shown is a copy"


async def test_what_can_be_read_is_listed_without_being_read() -> None:
    shown = await with_old(Log(), "b", "d", document(4), [], lists_all=True)
    assert shown is not None
    assert shown.contents.keys() == {rev(1), rev(2), rev(4)}


async def test_nobody_is_asked_for_what_is_there_or_for_nothing() -> None:
    log, now = Log(), document(4)
    assert await with_old(log, "b", "d", now, [rev(4)]) is now
    assert await with_old(log, "b", "d", None, [rev(1)], lists_all=True) is None
    gone = StoredDocument(RevisionTree([]), {})
    assert await with_old(log, "b", "d", gone, [rev(1)], lists_all=True) is gone
    whole = document(1)
    assert await with_old(log, "b", "d", whole, [], lists_all=True) is whole, "it has no other"
    assert log.asked == []
