"""Heads of multipart bodies: one document with its attachments, or several of those.

    multipart/related   the document's JSON, then each attachment that `follows`, in its order
    multipart/mixed     revisions: JSON, or a multipart/related, or `{"missing": rev}`

Invariants:
1. Names of attachments cannot end a head or begin a part.

Elsewhere: the bytes between heads (`gateway.aio.documents.documents_out`).
Source: RFC 2046; CouchDB's multipart bodies.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

__all__ = [
    "PART_END", "attachment_head", "disposition_of", "end", "filename",
    "inner_head", "json_head", "missing_part", "one_line",
]  # fmt: skip

_SHOWN: Final = ("image/", "audio/", "video/", "text/plain")
_RUN: Final = ("image/svg+xml",)
PART_END: Final = b"\r\n"


def json_head(boundary: str) -> bytes:
    """Return the head of a part that is JSON; `PART_END` follows the text."""
    return b"--%b\r\nContent-Type: application/json\r\n\r\n" % boundary.encode()


def missing_part(boundary: str, text: bytes) -> bytes:
    """Return a part for a missing revision."""
    head = b'--%b\r\nContent-Type: application/json; error="true"\r\n\r\n%b\r\n'
    return head % (boundary.encode(), text)


def inner_head(boundary: str, inner: str) -> bytes:
    """Return the head of a part that has parts itself."""
    head = b'--%b\r\nContent-Type: multipart/related; boundary="%b"\r\n\r\n'
    return head % (boundary.encode(), inner.encode())


def attachment_head(
    boundary: str, name: str, content_type: str, length: int, encoding: str
) -> bytes:
    """Return the head of an attachment of `length` bytes in its sent form."""
    lines = [
        f"--{boundary}",
        f"Content-Disposition: attachment; {filename(name)}",
        f"Content-Type: {one_line(content_type)}",
        f"Content-Length: {length}",
    ]
    if encoding:
        lines.append(f"Content-Encoding: {encoding}")
    return "\r\n".join([*lines, "", ""]).encode()


def end(boundary: str) -> bytes:
    """Return the end of a body."""
    return b"--%b--" % boundary.encode()


def filename(name: str) -> str:
    """Return the parameter of Content-Disposition with the file name."""
    if name.isascii() and name.isprintable() and '"' not in name and "\\" not in name:
        return f'filename="{name}"'
    return f"filename*=UTF-8''{quote(name, safe='')}"


def disposition_of(content_type: str) -> str:
    """Return whether a browser may display users' content: never what it could run as a page."""
    kind = content_type.partition(";")[0].strip().lower()
    is_shown = kind.startswith(_SHOWN) and kind not in _RUN
    return "inline" if is_shown else "attachment"


def one_line(text: str) -> str:
    """Return a content type that is valid in a head, whatever was stored."""
    kept = "".join(c for c in text if c.isprintable() and c.isascii())
    return kept or "application/octet-stream"
