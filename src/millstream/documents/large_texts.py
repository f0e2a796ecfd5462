"""What is asked of large JSON texts, in a helper process, as each call may take seconds.

Invariants:
1. A function answers as it would in this process, and what it returns is bytes and little else:
   many small values would take long to come back.

Elsewhere: the processes (`runtime.long_calls`), who asks (`gateway.aio.parsing`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, overload

import msgspec

from millstream.documents.json_text import JSON_DEPTH_MAX, check_values, emptied, parse
from millstream.documents.revision_ids import term_of_body
from millstream.documents.sent import Sent, parse_sent
from millstream.errors import UsageError

__all__ = [
    "DEEP_BYTES_MAX",
    "BulkTexts",
    "Named",
    "Slices",
    "Unread",
    "bulk_texts",
    "large_sent",
    "named",
    "sliced",
]

DEEP_BYTES_MAX: Final = 16 * 1024 * 1024
"""Body with many documents that is taken apart though some are deeper than a decoder goes."""
_DEPTH_KEPT: Final = JSON_DEPTH_MAX + 3
"""Depth up to which a body with many documents is decoded. A document that is too deep stays too
deep if the rest is left out."""
_APART_BYTES_MIN: Final = 64 * 1024
"""Longer texts are not put together with others: to copy them takes long."""


class Unread(Mapping[str, Any]):
    """The members of a body, which is taken apart when somebody asks for one."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._content: Mapping[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> Mapping[str, Any]:
        if self._content is None:
            content: Mapping[str, Any] = parse(self._body)
            self._content = content
        return self._content


def large_sent(text: bytes) -> Sent:
    """Return what a client sent, with its term; raises as `parse_sent`."""
    sent = parse_sent(text)
    return sent._replace(term=term_of_body(sent.body, sent.content), content=Unread(sent.body))


class Slices(Sequence[bytes]):
    """Texts that are quickly passed on: the small ones together, a large one by itself."""

    def __init__(self, texts: Sequence[bytes | msgspec.Raw]) -> None:
        self._parts: list[bytes] = []
        places, ends, small = array("I"), array("I"), list[bytes | msgspec.Raw]()
        for text in texts:
            if len(text) > _APART_BYTES_MIN:
                self._add(small)
                self._parts.append(bytes(text))
                ends.append(len(text))
                places.append(len(self._parts) - 1)
                continue
            ends.append((ends[-1] if small else 0) + len(text))
            places.append(len(self._parts))
            small.append(text)
        self._add(small)
        self._places, self._ends = places.tobytes(), ends.tobytes()

    def _add(self, small: list[bytes | msgspec.Raw]) -> None:
        if small:
            self._parts.append(b"".join(map(bytes, small)))
            small.clear()

    def __len__(self) -> int:
        return len(self._ends) // array("I").itemsize

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        places, ends = memoryview(self._places).cast("I"), memoryview(self._ends).cast("I")
        place = places[index]
        begin = ends[index - 1] if index and places[index - 1] == place else 0
        return self._parts[place][begin : ends[index]]  # no copy of a whole part


class _Bulk(msgspec.Struct):
    docs: list[msgspec.Raw]
    new_edits: bool = True


class Named(msgspec.Struct):
    """How a document is named, as far as that can be read."""

    id: Any = msgspec.field(name="_id", default=None)
    rev: Any = msgspec.field(name="_rev", default=None)


def named(text: bytes) -> Named:
    """Return what names a document, also of one that is refused."""
    try:
        return msgspec.json.decode(text, type=Named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Named()  # `parse_sent` says why


class BulkTexts(NamedTuple):
    """A body with many documents."""

    texts: Sequence[bytes | msgspec.Raw]
    new_edits: bool
    local_ids: Mapping[int, str]
    """Ids of `_local` documents, by their place in `texts`."""


_bulk: Final = msgspec.json.Decoder(_Bulk).decode


def bulk_texts(data: bytes, most: int) -> BulkTexts:
    """Return the texts of the documents in a body, of which there may be so many at most.

    Raises:
        UsageError: `bad_request`, `bad_json`, `too_large`.
    """
    check_values(data)
    try:
        try:
            said = _bulk(data)
        except RecursionError:
            if len(data) > DEEP_BYTES_MAX:
                raise
            said = _bulk(emptied(data, _DEPTH_KEPT))
    except msgspec.ValidationError as error:
        raise UsageError(
            "POST body must include `docs` parameter, a list of objects", code="bad_request"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}", code="bad_json") from error
    if len(said.docs) > most:
        raise UsageError(f"at most {most} documents at a time", code="too_large")
    local_ids = dict[int, str]()
    if b"_local" in data:
        for place, text in enumerate(said.docs):
            if (doc_id := _local_id(bytes(text))) is not None:
                local_ids[place] = doc_id
    return BulkTexts(said.docs, said.new_edits, local_ids)


def _local_id(text: bytes) -> str | None:
    if b"_local" not in text:
        return None
    doc_id = named(text).id
    return doc_id if isinstance(doc_id, str) and doc_id.startswith("_local/") else None


def sliced(data: bytes, most: int) -> BulkTexts:
    """Return what `bulk_texts` returns, with the small texts in one piece of bytes."""
    found = bulk_texts(data, most)
    return found._replace(texts=Slices(found.texts))
