"""Revision ids of documents whose history is one line: every write replaces the one before.

    <generation>-<32 hex>

The digits are blake2b-128 over: bucket uuid, generation (u64), key length (u16), key, branch and
seqno of birth, and the branch that wrote the generation where that is not the first run; the
latter three written as lineages write them.

Invariants:
1. The id of a generation is a function of where the document was born and of the branch of history
   that wrote it: another node computes the same, and it never changes once shown.
2. A generation that was lost and is written again on another branch has another id.

Elsewhere: lineages (`model.lineage`).
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final

from millstream.model.lineage import born, decode, encode_number

__all__ = ["Revisions"]

_HEAD: Final = Struct(">QH")
_MORE: Final = bytes(range(0x80, 0x100))
_BIRTH_NUMBERS: Final = 2


class Revisions:
    """Computes the revision ids of one bucket, given by its uuid."""

    def __init__(self, bucket_uuid: str) -> None:
        self._base = blake2b(bucket_uuid.encode(), digest_size=16)

    def of(self, key: bytes, lineage: bytes, generation: int) -> str:
        """Return the revision id of a key's generation; see `digits_of`."""
        return f"{generation}-{self.digits_of(key, lineage, generation)}"

    def digits_of(self, key: bytes, lineage: bytes, generation: int) -> str:
        """Return the 32 hex digits of a key's generation (from 1). Hot path.

        Args:
            key: at most 65,535 bytes.
            lineage: as of that generation or a later one.
            generation: the rev_seqno of the change.

        Raises:
            ValueError: not a lineage.
        """
        digest = self._base.copy()
        # Only the last byte of a number is below 0x80: two numbers are a birth and no more runs.
        if len(lineage.translate(None, _MORE)) == _BIRTH_NUMBERS:
            digest.update(_HEAD.pack(generation, len(key)) + key + lineage)
        else:
            digest.update(
                _HEAD.pack(generation, len(key)) + key + _written_by(lineage, generation)
            )
        return digest.hexdigest()


def _written_by(lineage: bytes, generation: int) -> bytes:
    birth_branch, birth_seqno, runs = decode(lineage)
    birth = born(birth_branch, birth_seqno)
    for branch, first_generation in reversed(runs[1:]):
        if first_generation <= generation:
            return birth + encode_number(branch)
    return birth
