"""Attachments over HTTP: compression, headers, ranges.

Invariants:
1. A digest is that of the stored bytes; `length` is that of the original bytes.
2. Content is served with `Content-Encoding: gzip` only to clients that accept it.

Elsewhere: tables of attachments (`documents.stored`), the pages
(`gateway.aio.documents.attachment_pages`), storing the bytes (`gateway.aio.documents.attaching`).
Source: CouchDB's attachments.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from millstream.errors import ConditionError, UsageError

__all__ = [
    "ATTACHMENTS_MAX",
    "ATTACHMENT_BYTES_MAX",
    "ATTACHMENT_NAME_BYTES_MAX",
    "CONTENT_TYPE_BYTES_MAX",
    "NOTHING_SAID",
    "PEERS_NAME_BYTES_MAX",
    "Range",
    "Said",
    "accepts_gzip",
    "asked_range",
    "checked_name",
    "checked_type",
    "decoded",
    "digest_of",
    "is_compressible",
    "said_md5",
    "said_of",
]  # fmt: skip

ATTACHMENT_BYTES_MAX: Final = 1024 * 1024 * 1024
ATTACHMENT_NAME_BYTES_MAX: Final = 1024
PEERS_NAME_BYTES_MAX: Final = 7 * 1024
"""Name of a peer's attachment: the header line that names it is parsed again."""
CONTENT_TYPE_BYTES_MAX: Final = 1024
"""Content type of an attachment: it becomes a header again."""
ATTACHMENTS_MAX: Final = 1000
"""Attachments of one revision that a client makes."""
_COMPRESSIBLE: Final = ("application/javascript", "application/json", "application/xml")
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def is_compressible(content_type: str) -> bool:
    """Return whether attachments of a type are stored compressed, as CouchDB does."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in _COMPRESSIBLE


def digest_of(md5: bytes) -> str:
    """Return the text form of a digest."""
    return "md5-" + b64encode(md5).decode()


def accepts_gzip(header: str | None) -> bool:
    """Return whether a client's Accept-Encoding allows gzip."""
    for one in (header or "").split(","):
        name, _, options = one.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", options)
    return False


def checked_name(name: str, *, is_replicated: bool = False) -> str:
    """Return the name of an attachment.

    Args:
        name: to check.
        is_replicated: a peer stores it under this name: it may be empty, or longer than a client
            may choose.

    Raises:
        UsageError: `bad_request`.
    """
    if name.startswith("_") or (not is_replicated and (not name or "\0" in name)):
        raise UsageError(
            f"Attachment name {name!r}: it may not be empty, nor start with '_'",
            code="bad_request",
        )
    bytes_max = PEERS_NAME_BYTES_MAX if is_replicated else ATTACHMENT_NAME_BYTES_MAX
    if len(name.encode(errors="surrogatepass")) > bytes_max:
        raise UsageError(
            f"the name of an attachment has at most {bytes_max} bytes", code="bad_request"
        )
    return name


def checked_type(content_type: object) -> str:
    """Return the content type of an attachment.

    Raises:
        UsageError: `bad_request`.
    """
    if not isinstance(content_type, str):
        raise UsageError("content_type must be a string", code="bad_request")
    if len(content_type.encode(errors="surrogatepass")) > CONTENT_TYPE_BYTES_MAX:
        raise UsageError(
            f"a content type has at most {CONTENT_TYPE_BYTES_MAX} bytes", code="bad_request"
        )
    return content_type


def decoded(data: object, *, is_last: bool = True) -> bytes:
    """Return the bytes of base64, or of a piece of it.

    Args:
        data: a multiple of four characters where it is not the last piece.
        is_last: whether it may be padded.

    Raises:
        UsageError: `bad_request`.
    """
    if isinstance(data, str) and data.isascii() and (is_last or "=" not in data):
        try:
            return b64decode(data, validate=True)
        except binascii.Error:
            pass
    raise UsageError("Invalid attachment data: must be base64", code="bad_request")


class Said(NamedTuple):
    """A client's statements about the attachment bytes that it sends, in their sent form."""

    md5: bytes = b""
    """Empty: none."""
    length: int | None = None


NOTHING_SAID: Final = Said()


def said_of(entry: Mapping[str, Any]) -> Said:
    """Return the statements of a document's entry about the bytes that follow it."""
    digest, length = entry.get("digest"), entry.get("length")
    if entry.get("encoding") == "gzip":
        length = entry.get("encoded_length")
    md5 = b""
    if isinstance(digest, str) and digest.startswith("md5-"):
        md5 = said_md5(digest.removeprefix("md5-"))
    return Said(md5, length if type(length) is int else None)


def said_md5(text: str) -> bytes:
    """Return the digest of a header or a document.

    Raises:
        UsageError: `bad_request`.
    """
    try:
        return b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError("an MD5 digest is base64", code="bad_request") from error


class Range(NamedTuple):
    """A part of an attachment: [begin, end)."""

    begin: int
    end: int

    def header(self, length: int) -> str:
        """Return its Content-Range."""
        return f"bytes {self.begin}-{self.end - 1}/{length}"


def asked_range(header: str | None, length: int) -> Range | None:
    """Return the requested range; None: all of it.

    Anything else than a single range gets the whole attachment, as the standard allows.

    Raises:
        ConditionError: `requested_range_not_satisfiable`.
    """
    found = _RANGE.fullmatch((header or "").strip())
    if found is None or not (found[1] or found[2]):
        return None
    if found[1]:
        begin, end = int(found[1]), int(found[2]) + 1 if found[2] else length
        is_wrong = begin >= length or end <= begin
    else:
        begin, end = max(0, length - int(found[2])), length
        is_wrong = int(found[2]) == 0 or length == 0
    if is_wrong:
        raise ConditionError(
            "Requested range not satisfiable", code="requested_range_not_satisfiable"
        )
    return Range(begin, min(end, length))
