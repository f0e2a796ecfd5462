"""A real index on disk with built-in reduces, for who checks or copies one."""

from pathlib import Path

from millstream.model.position import FailoverEntry, Position
from millstream.views.aio.indexing.index_store import LmdbIndexStore
from millstream.views.core.collation import encode_key
from millstream.views.core.index.header import DocumentRows, Judged, PartRead
from millstream.views.core.index.index import Index, IndexShape
from millstream.views.core.index.node_store import NodeStore
from millstream.views.core.reduce.reductions import ViewReducer

REDUCES = (("_count", "_sum"), ("_count", "function (keys, values) { return null; }"))
DOCUMENTS = 200
LOG = (FailoverEntry(7, 0, 1),)
JUDGED = {p: Judged(LOG, 10_000) for p in range(4)}


class OwnFunction:
    """Stands for a reduce of the design document's own."""

    def __call__(self, number: int, calls: list[tuple[bytes, bytes, bool]]) -> list[bytes]:
        return [b"null"] * len(calls)


SHAPE = IndexShape(
    "0123abcd", "uca", tuple(ViewReducer(names, OwnFunction()) for names in REDUCES), REDUCES
)


def closed(seqno: int) -> Position:
    return Position(7, seqno, seqno, seqno)


def document(number: int, value: int) -> DocumentRows:
    """Every second document has a row in tree 1, too."""
    key = number % 10
    rows = [(0, encode_key(key), b"%d" % key, b"%d" % value)]
    if number % 2:
        rows.append((1, encode_key("odd"), b'"odd"', b"null"))
    return DocumentRows(number % 4, b"document-%05d" % number, rows)


def fill(store: NodeStore) -> Index:
    """Publish DOCUMENTS documents in four partitions, in three commits."""
    index = Index(store, SHAPE, 1)
    index.set_states(range(4), [], 2)
    fence = index.take_over("a test", 3)
    for turn in range(3):
        parts = {}
        for partition in range(4):
            numbers = [n for n in range(DOCUMENTS) if n % 4 == partition]
            start = closed(turn * 100) if turn else Position()
            documents = [document(number, turn) for number in numbers]
            parts[partition] = PartRead(start, closed(turn * 100 + 100), LOG, 0, documents)
        index.publish(fence, parts, JUDGED, 10 + turn)
    return index


def filled_index(path: Path) -> LmdbIndexStore:
    store = LmdbIndexStore(path, SHAPE.signature, SHAPE.collation, map_bytes=64 * 1024 * 1024)
    fill(store)
    return store
