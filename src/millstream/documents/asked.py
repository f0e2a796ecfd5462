"""Long lists in requests, checked at once and then passed on in portions.

To take a hundred thousand small values apart takes long, and to free them does, too. So a function
here looks at a request as a whole, in a helper process if it is large, and returns texts of a few
values each.

Invariants:
1. A portion is about `TOGETHER_MAX` documents, so that they are read together from other nodes; or
   about fewer, if it would be longer than `TOGETHER_BYTES_MAX`.
2. What is returned needs no check of its form any more.

Elsewhere: what else is asked of large texts (`documents.large_texts`), who gives others a turn
(`gateway.aio.parsing`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from millstream.documents.json_text import parse
from millstream.documents.large_texts import Slices
from millstream.documents.revisions import checked_rev
from millstream.errors import UsageError

__all__ = [
    "TOGETHER_BYTES_MAX", "TOGETHER_MAX", "DocumentsAsked", "PackedIds", "documents_asked",
    "revs_asked",
]  # fmt: skip

TOGETHER_MAX: Final = 200
"""Documents in one portion."""
TOGETHER_BYTES_MAX: Final = 64 * 1024
"""Bytes of a portion of several documents: a thousand revisions, which are decoded in a ms."""
_encode: Final = msgspec.json.Encoder().encode
_ENTRY: Final = ("id", "rev", "atts_since")
_FLAGS: Final = ("revs", "latest", "attachments")


def revs_asked(text: bytes, ids_max: int, of_one_max: int) -> Sequence[bytes]:
    """Return objects {id: [revisions]} of some documents each.

    Args:
        text: such an object.
        ids_max: most documents.
        of_one_max: most revisions of one.

    Raises:
        UsageError: `bad_request`, `bad_json`, `too_large`.
    """
    asked = parse(text)
    if not isinstance(asked, dict):
        raise _no_revs()
    _check_count(len(asked), ids_max)
    for revs in asked.values():
        if not isinstance(revs, list) or not all(isinstance(rev, str) for rev in revs):
            raise _no_revs()
        if len(revs) > of_one_max:
            raise UsageError(
                f"at most {of_one_max} revisions of a document at a time", code="too_large"
            )
        for rev in revs:
            checked_rev(rev)
    members = (_encode(doc_id) + b":" + _encode(revs) for doc_id, revs in asked.items())
    return Slices([b"{%b}" % some for some in _together(members)])


def _no_revs() -> UsageError:
    return UsageError("the body must be {id: [revisions]}", code="bad_request")


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise UsageError(f"at most {most} documents at a time", code="too_large")


class DocumentsAsked(NamedTuple):
    """What the body of a `_bulk_get` asks for."""

    flags: dict[str, bool]
    """Its members that are flags."""
    portions: Sequence[bytes]
    """Arrays of some entries each: an object, or null where an entry names no document."""
    length: int


def documents_asked(text: bytes, most: int, revs_max: int) -> DocumentsAsked:
    """Return what the body of a `_bulk_get` asks for.

    Args:
        text: of the body.
        most: entries.
        revs_max: revisions in `atts_since`; a longer list is cut behind one more.

    Raises:
        UsageError: `bad_request`, `bad_json`, `too_large`.
    """
    content = parse(text)
    docs = content.get("docs") if isinstance(content, dict) else None
    if not isinstance(docs, list):
        raise UsageError("Missing JSON list of 'docs'.", code="bad_request")
    _check_count(len(docs), most)
    entries = (_encode(_entry(form, revs_max)) for form in docs)
    flags = {name: content[name] for name in _FLAGS if isinstance(content.get(name), bool)}
    return DocumentsAsked(
        flags, Slices([b"[%b]" % some for some in _together(entries)]), len(docs)
    )


def _entry(form: Any, revs_max: int) -> dict[str, Any] | None:
    if not isinstance(form, dict) or not isinstance(form.get("id"), str):
        return None
    entry = {name: form[name] for name in _ENTRY if form.get(name) is not None}
    if "rev" in entry:
        entry["rev"] = str(entry["rev"])
    if isinstance(since := entry.get("atts_since"), list):
        entry["atts_since"] = since[: revs_max + 1]
    return entry


def _together(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield texts with commas between them, some at a time."""
    some, size = list[bytes](), 0
    for text in texts:
        if len(some) == TOGETHER_MAX or (some and size + len(text) > TOGETHER_BYTES_MAX):
            yield b",".join(some)
            some, size = [], 0
        some.append(text)
        size += len(text) + 1
    if some:
        yield b",".join(some)


class PackedIds(Collection[str]):
    """A set of ids in a few pieces of memory; to look one up takes some microseconds."""

    def __init__(self, ids: Iterable[str]) -> None:
        texts = sorted({one.encode(errors="surrogatepass") for one in ids})
        ends, end = array("Q"), 0
        for text in texts:
            end += len(text)
            ends.append(end)
        self._text, self._ends = b"".join(texts), ends.tobytes()

    def __len__(self) -> int:
        return len(self._ends) // array("Q").itemsize

    def __iter__(self) -> Iterator[str]:
        return (self._at(place).decode(errors="surrogatepass") for place in range(len(self)))

    def __contains__(self, one: object) -> bool:
        if not isinstance(one, str):
            return False
        text = one.encode(errors="surrogatepass")
        place = bisect_left(range(len(self)), text, key=self._at)
        return place < len(self) and self._at(place) == text

    def _at(self, place: int) -> bytes:
        ends = memoryview(self._ends).cast("Q")
        return self._text[ends[place - 1] if place else 0 : ends[place]]
