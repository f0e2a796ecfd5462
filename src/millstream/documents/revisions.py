"""Revisions as text, `N-signature`, and their signatures as 16 bytes.

A signature that CouchDB made is 32 hex digits, here 16 bytes. Any other one, a *foreign* one, is
kept as a hash of 16 bytes, and its text beside (`documents.tree`), so that all are compared and
stored in the same way.

Invariants:
1. A revision is divided at its first `-`; generations are compared as numbers, signatures by the
   bytes of their text.
2. What was a foreign signature comes back as it was written.

Elsewhere: signatures of documents that kv alone wrote (`model.revision`), those of changes over
HTTP (`documents.revision_ids`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from millstream.errors import UsageError

__all__ = [
    "GENERATION_MAX",
    "GENERATION_SENT_MAX",
    "SIGNATURE_BYTES",
    "SIGNATURE_TEXT_BYTES_MAX",
    "Path",
    "all_to_bytes",
    "checked_rev",
    "is_foreign",
    "is_signature",
    "parse_rev",
    "sort_key",
    "to_bytes",
]

GENERATION_MAX: Final = 2**53 - 1
GENERATION_SENT_MAX: Final = 2**52
"""Largest generation that a peer may send. Generations written by kv continue from it and cannot
be refused, so there must be room above."""
SIGNATURE_BYTES: Final = 16
SIGNATURE_TEXT_BYTES_MAX: Final = 4096
"""Most bytes of a foreign signature, in UTF-8."""
_HEX_DIGITS: Final = 32
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f,\ud800-\udfff]").search
"""What no signature has: `,`, which divides lists of revisions, control characters, and what is no
text."""
_FOREIGN: Final = blake2b(b"foreign", digest_size=SIGNATURE_BYTES)


class Path(NamedTuple):
    """A revision and its ancestors, as `_revisions` gives them: newest first."""

    start: int
    """Generation of the newest."""
    ids: list[str]

    @property
    def rev(self) -> str:
        """The newest revision."""
        return f"{self.start}-{self.ids[0]}"

    def revs(self) -> list[str]:
        """Return all of them, newest first."""
        return [f"{self.start - i}-{signature}" for i, signature in enumerate(self.ids)]


def parse_rev(rev: object) -> tuple[int, str]:
    """Return generation and signature.

    Raises:
        UsageError: `bad_request`: not a revision.
    """
    if type(rev) is str:
        digits, _, signature = rev.partition("-")
        if (
            digits.isdecimal()
            and digits.isascii()
            and len(digits) <= len(str(GENERATION_MAX))
            and 0 < (generation := int(digits)) <= GENERATION_MAX
            and digits[0] != "0"
            and is_signature(signature)
        ):
            return generation, signature
    raise UsageError("Invalid rev format", code="bad_request")


def checked_rev(rev: object) -> str:
    """Return a revision's text as it is.

    Raises:
        UsageError: `bad_request`: not a revision.
    """
    generation, signature = parse_rev(rev)
    return f"{generation}-{signature}"


def is_signature(signature: object) -> bool:
    """Return whether it may be the signature of a revision."""
    return (
        type(signature) is str
        and signature != ""
        and len(signature) <= SIGNATURE_TEXT_BYTES_MAX
        and not _FORBIDDEN(signature)
        and len(signature.encode()) <= SIGNATURE_TEXT_BYTES_MAX
    )


def to_bytes(signature: str) -> bytes:
    """Return a signature's 16 bytes. Hot path."""
    if len(signature) == _HEX_DIGITS:
        try:
            packed = bytes.fromhex(signature)
        except ValueError:
            pass
        else:
            if packed.hex() == signature:
                return packed
    digest = _FOREIGN.copy()
    digest.update(signature.encode())
    return digest.digest()


def all_to_bytes(ids: Sequence[Any]) -> bytes | None:
    """Return the bytes of signatures that are all 32 hex digits, None where not all are."""
    if set(map(type, ids)) != {str} or set(map(len, ids)) != {_HEX_DIGITS}:
        return None
    digits = "".join(ids)
    try:
        packed = bytes.fromhex(digits)
    except ValueError:
        return None
    return packed if packed.hex() == digits else None


def is_foreign(signature: str, packed: bytes) -> bool:
    """Return whether a signature's text cannot be told from its 16 bytes."""
    return packed.hex() != signature


def sort_key(rev: str) -> tuple[int, bytes]:
    """Return what revisions are sorted by."""
    generation, _, signature = rev.partition("-")
    return int(generation), signature.encode()
