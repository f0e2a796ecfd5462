"""Where reduced rows are kept until there is an index: documents of the bucket `BUCKET-views`.

    <ddoc>/<view>/<key as JSON>            {"ddoc", "view", "signature", "key", "value", "stamp"}
    <ddoc>/<view>/<key as JSON>/<doc id>   the same with "id" and "rows" (values), map-only views
    #<sha-256 in hex>                      either of them, where its key would be too long
    header:<ddoc>                          the header, written last in every batch

Invariants:
1. Rows are absolute. Writing a batch again, or a part of it, changes nothing but the stamps.
2. All writes of a batch are persisted before its header is; the header names the offset of the
   batch, and a row whose stamp names a later batch belongs to a batch in the making.
3. One writer: the header names the run that owns the rows; a run looks before every ROWS_PER_CHECK
   writes, stops if it finds another's name, and the header is only replaced by compare-and-swap.
4. What a run that was taken over still wrote, however late, stays until the owner's next batch at
   most: before and after its writes a batch learns from the store's change stream what is there,
   whoever wrote it, and its header is written when that is exactly the rows of the batch.

Elsewhere: what the rows are (`view_reduce`), reading them (`view_reading`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.errors import ConditionError, UnavailableError
from millstream.model.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from millstream.client.kv import Client
    from millstream.pipelines.bucket_changes import BucketChanges
    from millstream.pipelines.view_reduce import ReducedBatch, ViewRow
    from millstream.views.core.design import DesignDocument

__all__ = ["STORE_SUFFIX", "Applied", "ViewStore", "header_key", "row_body", "row_key"]

STORE_SUFFIX: Final = "-views"
ROWS_PER_CHECK: Final = 2_000
"""Writes between two looks at who owns the rows; a look costs one read of the header."""
PASSES_MAX: Final = 8
"""A batch writes until the store has its rows; each run that was taken over disturbs it once."""
_DIGEST_BYTES: Final = 16
_STAMP: Final = b',"stamp":'


@dataclass(frozen=True, slots=True)
class Applied:
    """What one batch did to the store."""

    changed: int
    deleted: int


def header_key(ddoc: str) -> str:
    """Return the key of a design document's header."""
    return f"header:{ddoc}"


def row_key(ddoc: str, view: str, key: str, doc_id: str | None) -> bytes:
    """Return the key of a row; a hash of it where it would be too long."""
    text = f"{ddoc}/{view}/{key}" + ("" if doc_id is None else f"/{doc_id}")
    data = text.encode(errors="surrogatepass")
    return data if len(data) <= KEY_BYTES_MAX else b"#" + sha256(data).hexdigest().encode()


def row_body(design: DesignDocument, row: ViewRow) -> bytes:
    """Return the text of a row's document up to its stamp."""
    head = msgspec.json.encode(
        {
            "ddoc": design.name,
            "view": design.views[row.view].name,
            "signature": design.named_signature,
        }
    )
    body = head[:-1] + b',"key":' + row.key.encode()
    if row.doc_id is None:
        return body + b',"value":' + row.content
    return body + b',"id":' + msgspec.json.encode(row.doc_id) + b',"rows":' + row.content


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()


class ViewStore:
    """The rows of one design document, as its change stream last said.

    Args:
        client: of the bucket `BUCKET-views`.
        changes: of the same bucket, not read before.
        design: the design document.
        run: name of this run, never used before.
    """

    def __init__(
        self, client: Client, changes: BucketChanges, design: DesignDocument, run: str
    ) -> None:
        self._client = client
        self._changes = changes
        self._design = design
        self._run = run
        self._digests: dict[bytes, bytes] = {}
        self._header_cas = 0

    def read_header(self) -> dict[str, Any]:
        """Return the header as it is; empty if there is none."""
        found = self._client.get(header_key(self._design.name))
        self._header_cas = found.cas if found else 0
        value = found.value if found else {}
        return value if isinstance(value, dict) else {}

    def take_over(self, header: Mapping[str, Any]) -> None:
        """Become the writer, then learn which rows are there.

        Args:
            header: members of the header that a reader should see meanwhile.
        """
        self._write_header(header)
        self._learn()

    def clear(self) -> None:
        """Delete all rows: they are those of another bucket of the same name."""
        self._write([], list(self._digests), {}, b"")

    def apply(self, batch_id: int, reduced: ReducedBatch, header: Mapping[str, Any]) -> Applied:
        """Bring the store to exactly the rows of `reduced`, the header last.

        Raises:
            ConditionError: `taken_over`: another run writes these rows now.
            UnavailableError: a write failed; the batch may be applied again. `store_disturbed`:
                somebody else keeps writing these rows.
        """
        stamp = msgspec.json.encode({"run": self._run, "batch": batch_id})
        wanted = {
            row_key(self._design.name, self._design.views[row.view].name, row.key, row.doc_id):
                row_body(self._design, row)
            for row in reduced.rows
        }  # fmt: skip
        digests = {key: _digest(body) for key, body in wanted.items()}
        done = Applied(0, 0)
        for _ in range(PASSES_MAX):
            self._learn()
            changed = [key for key, digest in digests.items() if self._digests.get(key) != digest]
            vanished = [key for key in self._digests if key not in digests]
            if not changed and not vanished:
                self._write_header({**header, "batch": batch_id})
                return done
            self._write(changed, vanished, wanted, stamp)
            done = Applied(done.changed + len(changed), done.deleted + len(vanished))
        raise UnavailableError(
            f"somebody else writes the rows of design document {self._design.name!r} in bucket "
            f"{self._client.bucket!r}: let only its pipeline write there",
            code="store_disturbed",
        )

    def _learn(self) -> None:
        """Bring what is known of the rows up to date with the store."""
        found = self._changes.read()
        if found.is_all:
            self._digests = {}
        prefix = self._design.name.encode() + b"/"
        named = b'"ddoc":' + msgspec.json.encode(self._design.name) + b","
        for key, value in found.documents.items():
            if value is None:
                self._digests.pop(key, None)
            elif key.startswith(prefix) or (key.startswith(b"#") and named in value):
                body, stamp, _ = value.rpartition(_STAMP)
                self._digests[key] = _digest(body) if stamp else b""

    def _write(
        self,
        changed: Sequence[bytes],
        vanished: Sequence[bytes],
        wanted: Mapping[bytes, bytes],
        stamp: bytes,
    ) -> None:
        def changes() -> Iterator[tuple[bytes, msgspec.Raw | None]]:
            for key in changed:
                yield key, msgspec.Raw(wanted[key] + _STAMP + stamp + b"}")
            for key in vanished:
                yield key, None

        every = changes()
        while chunk := list(islice(every, ROWS_PER_CHECK)):
            self._check_owner()
            self._client.apply_many(chunk, durability="persisted").raise_first()

    def _check_owner(self) -> None:
        cas = self._header_cas
        if self.read_header().get("run") != self._run or self._header_cas != cas:
            raise _taken_over(self._design.name)

    def _write_header(self, header: Mapping[str, Any]) -> None:
        content = {
            **header,
            "ddoc": self._design.name,
            "signature": self._design.named_signature,
            "design": self._design.as_json(),
            "run": self._run,
        }
        key = header_key(self._design.name)
        try:
            if self._header_cas:
                stored = self._client.replace(
                    key, content, cas=self._header_cas, durability="persisted"
                )
            else:
                stored = self._client.insert(key, content, durability="persisted")
        except ConditionError as error:
            raise _taken_over(self._design.name) from error
        self._header_cas = stored.cas


def _taken_over(ddoc: str) -> ConditionError:
    return ConditionError(
        f"another run of the views pipeline has taken over design document {ddoc!r}; this one "
        "stops. Run one pipeline per design document",
        code="taken_over",
    )
