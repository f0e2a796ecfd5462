"""Maps batches of changes to the rows of an index.

    mapper = IndexMapper(design, bucket_uuid)
    mapped = mapper.map(Changes(frames, sides))         # 500 to 1,000 of them
    reducers = mapper.reducers()                  # for the writer of the trees, in the same thread

Invariants:
1. No change raises an error. If a map fails, the document loses its rows of that tree. If it
   breaks the limits, it loses all its rows. Both are listed, and other documents are not affected.
2. The sandbox is called once per batch, whatever the number of trees.
3. The result has every changed document, without rows if it is deleted or emits nothing.

Elsewhere: texts of documents (`views.core.design.documents`), languages
(`views.aio.sandbox.mapping`), bytes of rows (`views.core.rows`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.errors import UnavailableError, UsageError
from millstream.views.aio.sandbox.mapping import open_functions
from millstream.views.core.collation import encode_key, encoder_of
from millstream.views.core.design.design_documents import own_number
from millstream.views.core.design.documents import Documents
from millstream.views.core.index.header import DocumentRows, MapFailure, Row
from millstream.views.core.reduce.reductions import ViewReducer
from millstream.views.core.rows import EKEY_BYTES_MAX

if TYPE_CHECKING:
    from millstream.views.aio.sandbox.process import Mapped
    from millstream.views.core.design.design_documents import DesignDocument
    from millstream.views.core.design.documents import Changes, MapInput
    from millstream.views.core.reduce.reductions import ReduceCall, ReduceLimit, ReduceResult

__all__ = ["IndexMapper", "MappedChanges"]

_TREE: Final = itemgetter(0)
_KEY: Final = itemgetter(1)
_VALUE: Final = itemgetter(2)
_ROWS: Final = attrgetter("rows")
_PARTITION: Final = itemgetter(0)
_ID: Final = itemgetter(1)
_document: Final[Callable[[tuple[int, bytes, Sequence[Row]]], DocumentRows]] = partial(
    tuple.__new__, DocumentRows
)
"""Makes `DocumentRows` from a tuple of its three parts, three times as fast as the constructor."""
_decode: Final = msgspec.json.Decoder(list[Any]).decode
_decode_one: Final = msgspec.json.decode
_BAD_KEY: Final = (UsageError, msgspec.DecodeError, RecursionError, ValueError)


class MappedChanges(NamedTuple):
    """The rows of each changed document, and where maps failed, by partition."""

    documents: Sequence[DocumentRows]
    failures: Sequence[tuple[int, MapFailure]]


class IndexMapper:
    """Runs the maps of one index. Blocking, one thread at a time.

    Args:
        design: a checked design document.
        bucket_uuid: of its bucket.

    Raises:
        UsageError: `compilation_error` or `unknown_function`.
        UnavailableError: the JavaScript process cannot be started.
    """

    def __init__(self, design: DesignDocument, bucket_uuid: str) -> None:
        self._design = design
        self._documents = Documents(
            bucket_uuid, include_design=design.include_design, local_seq=design.local_seq
        )
        encoders = [encoder_of(tree.collation) for tree in design.trees]
        self._encoders = encoders
        self._is_plain = all(encoder is encode_key for encoder in encoders)
        self._mapper = open_functions(design.functions_by_tree())
        self._change = Lock()
        self._stops = 0
        """How often it was stopped."""
        self._is_stopped = False
        self._called_at: float | None = None

    @property
    def busy_s(self) -> float:
        """For how long functions have been running; 0 if none are.

        May be called from any thread.
        """
        called_at = self._called_at
        return 0.0 if called_at is None else time.monotonic() - called_at

    def map(self, changes: Changes) -> MappedChanges:
        """Map changes in their order.

        Raises:
            UnavailableError: the JavaScript process cannot be started again; `stopping`.
        """
        seen = changes.inputs_for(self._documents)
        live = [each for each in seen if each[2] is not None]
        texts = [text for _, _, text in live if text is not None]
        with self._calling():
            mapped = self._mapper.map(texts)
        failures = [
            (each[0], failure)
            for each, found in zip(live, mapped, strict=True)
            if found.errors
            for failure in self._failures_of(each, found)
        ]
        rows = list(chain.from_iterable(map(_ROWS, mapped)))
        encoded = self._encoded(rows)
        if encoded is None:
            lists = [self._checked(*pair, failures) for pair in zip(live, mapped, strict=True)]
        else:
            ends = _ends(mapped)
            lists = [encoded[low:high] for low, high in zip([0, *ends], ends, strict=False)]
        if len(live) < len(seen):
            found_lists = iter(lists)
            lists = [[] if text is None else next(found_lists) for _, _, text in seen]
        parts = zip(map(_PARTITION, seen), map(_ID, seen), lists, strict=True)
        return MappedChanges(list(map(_document, parts)), failures)

    def reducers(
        self, limit: ReduceLimit = "true", on_overflow: Callable[[str], None] = lambda reason: None
    ) -> list[ViewReducer]:
        """Return the reducer of each tree. Users' reduce functions run where the maps run.

        Args:
            limit: what happens to results that do not shrink.
            on_overflow: see `ViewReducer`.
        """
        return [
            ViewReducer(tree.reduces, partial(self._reduce, at), limit, on_overflow)
            for at, tree in enumerate(self._design.trees)
        ]

    def _reduce(
        self, tree: int, number: int, calls: Sequence[ReduceCall]
    ) -> Sequence[ReduceResult]:
        with self._calling():
            return self._mapper.reduce_texts(own_number(tree, number), calls)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        self._called_at = time.monotonic()
        try:
            yield
        finally:
            self._called_at = None

    def close(self) -> None:
        """Free the resources of the mapper."""
        self._mapper.close()

    def stop(self) -> None:
        """Stop a running map or reduce, from any thread.

        `resume` makes the mapper usable again.
        """
        with self._change:
            self._stops += 1
            self._is_stopped = True
            mapper = self._mapper
        mapper.stop()

    def resume(self) -> None:
        """Make the mapper usable again if it was stopped. Raises as the constructor.

        Raises:
            UnavailableError: `stopping`: it was stopped again meanwhile.
        """
        stops = self._stops
        if not self._is_stopped:
            return
        mapper = open_functions(self._design.functions_by_tree())
        with self._change:
            if is_current := stops == self._stops:
                self._mapper.close()
                self._mapper, self._is_stopped = mapper, False
        if not is_current:
            mapper.close()
            raise UnavailableError("the functions were stopped", code="stopping")

    def _encoded(self, rows: Sequence[Any]) -> list[Row] | None:
        """Return all rows with their encoded keys. None if a key cannot be encoded."""
        texts = list(map(bytes, map(_KEY, rows)))
        try:
            if self._is_plain:
                # Most views group: each of a batch's different keys is encoded once.
                different = list(dict.fromkeys(texts))
                keys = _decode(b"[%b]" % b",".join(different))
                known = dict(zip(different, map(encode_key, keys), strict=True))
                ekeys = list(map(known.__getitem__, texts))
            else:
                keys = _decode(b"[%b]" % b",".join(texts))
                encoders = map(self._encoders.__getitem__, map(_TREE, rows))
                ekeys = [encode(key) for encode, key in zip(encoders, keys, strict=True)]
        except _BAD_KEY:
            return None
        if max(map(len, ekeys), default=0) > EKEY_BYTES_MAX:
            return None
        return list(
            zip(map(_TREE, rows), ekeys, texts, map(bytes, map(_VALUE, rows)), strict=True)
        )

    def _checked(
        self, each: MapInput, found: Mapped, failures: list[tuple[int, MapFailure]]
    ) -> list[Row]:
        """Return each document's good rows of a batch that has bad keys, and list those."""
        good: list[Row] = []
        bad: dict[int, str] = {}
        for tree, key, value in found.rows:
            text = bytes(key)
            try:
                ekey = _short(self._encoders[tree](_decode_one(text)))
            except _BAD_KEY as error:
                bad.setdefault(tree, f"bad key: {error}")
            else:
                good.append((tree, ekey, text, bytes(value)))
        for tree, message in bad.items():
            failures.append((each[0], MapFailure(tree, _shown(each), message)))
        return [row for row in good if row[0] not in bad]

    def _failures_of(self, each: MapInput, found: Mapped) -> list[MapFailure]:
        """List a document that lost the rows of all views as a failure of each tree."""
        trees = range(len(self._encoders))
        return [
            MapFailure(tree, _shown(each), error.message)
            for error in found.errors
            for tree in (trees if error.view < 0 else (error.view,))
        ]


def _ends(mapped: Sequence[Mapped]) -> list[int]:
    return list(accumulate(map(len, map(_ROWS, mapped))))


def _short(ekey: bytes) -> bytes:
    if len(ekey) > EKEY_BYTES_MAX:
        message = f"{len(ekey)} bytes when encoded are more than {EKEY_BYTES_MAX}"
        raise UsageError(message, code="bad_key")
    return ekey


def _shown(each: MapInput) -> str:
    return each[1].decode()
