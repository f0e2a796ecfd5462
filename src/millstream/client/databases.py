"""A bucket over HTTP, as a database: its design documents, views and settings.

Invariants:
1. `put` and `delete` replace what is there; a document that names its revision replaces that one
   only.

Elsewhere: requests and errors (`client.http`), the pages (docs/reference/http.md), documents over
kv (`client.kv`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from typing import Any, Final
from urllib.parse import quote

import msgspec

from millstream.client.http import HttpClient
from millstream.errors import (
    AccessError,
    ConditionError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)

__all__ = ["DESIGN", "Database", "DatabaseSettings"]

DESIGN: Final = "_design/"
BYTES_MAX: Final = 1024 * 1024
"""Largest answer to a change of one design document."""


class _Failed(msgspec.Struct):
    id: str | None = None
    """The id of the database; None if it has none."""
    error: str = ""
    reason: str = ""


class _Got(msgspec.Struct):
    ok: msgspec.Raw = msgspec.Raw()
    error: _Failed | None = None


class _Result(msgspec.Struct):
    docs: list[_Got]


class _Results(msgspec.Struct):
    results: list[_Result]


class DatabaseSettings(msgspec.Struct, frozen=True):
    """What is set for a database; `security` is shown to validation functions."""

    security: dict[str, Any]
    revs_limit: int
    """Generations of a document's revisions that are kept."""


class Database:
    """A bucket over HTTP.

    Args:
        http: of the node.
        bucket: its name.
    """

    def __init__(self, http: HttpClient, bucket: str) -> None:
        self.http = http
        self.bucket = bucket
        self.path = f"/{quote(bucket, safe='')}"

    def design_path(self, key: str) -> str:
        """Return the address of a design document, named with `_design/`."""
        return f"{self.path}/{DESIGN}{quote(key.removeprefix(DESIGN), safe='')}"

    def get(self, key: str) -> dict[str, Any]:
        """Return a design document.

        Raises:
            ConditionError: `not_found`.
        """
        return self.http.request("GET", self.design_path(key))

    def put(self, key: str, content: dict[str, Any]) -> dict[str, Any]:
        """Store a design document in the place of what is there.

        Raises:
            UsageError: `invalid_design_doc`, `compilation_error`, `unknown_function`.
            ConditionError: `conflict`: it has a `_rev` that is not the present one.
        """
        path = self.design_path(key)
        rev = content.get("_rev") or self.http.etag(path)
        sent = content | {"_rev": rev} if rev else content
        return self.http.request("PUT", path, msgspec.json.encode(sent))

    def put_back(self, key: str, content: dict[str, Any]) -> None:
        """Store a design document that a database had, in the place of what is there.

        What does not compile, or has a language that nobody knows, is stored, too, as a
        replication stores it: its views are broken, and the rest is there.

        Raises:
            AccessError: the user may not change design documents.
            UsageError: the database does not take it even so.
        """
        try:
            self.put(key, content)
        except UsageError:
            rev = self.http.etag(self.design_path(key))
            generation, _, parent = (rev or "0-").partition("-")
            text = msgspec.json.encode(content)
            ids = [md5(f"{rev} ".encode() + text, usedforsecurity=False).hexdigest()]
            revisions = {"start": int(generation) + 1, "ids": ids + [parent] * bool(rev)}
            named = content | {"_id": key, "_revisions": revisions}
            self.bring([msgspec.Raw(msgspec.json.encode(named))])

    def settings(self) -> DatabaseSettings:
        """Return what is set for the database."""
        security = self.http.request("GET", f"{self.path}/_security")
        limit = self._answer("GET", f"{self.path}/_revs_limit", None, int, BYTES_MAX)
        return DatabaseSettings(security, limit)

    def set(self, settings: DatabaseSettings) -> None:
        """Set what is not so already.

        Raises:
            AccessError: only administrators may.
        """
        now = self.settings()
        for name in ("security", "revs_limit"):
            wanted = getattr(settings, name)
            if wanted != getattr(now, name):
                self.http.request("PUT", f"{self.path}/_{name}", wanted)

    def leaves(self, key: str, bytes_max: int) -> list[msgspec.Raw]:
        """Return all leaves of a design document, with their ancestry and attachments.

        There are none if there is no such document.

        Args:
            key: of the document.
            bytes_max: largest answer.

        Raises:
            UnavailableError: an attachment is not there.
            UsageError: `too_large`.
        """
        path = f"{self.path}/_bulk_get?revs=true&attachments=true"
        asked = msgspec.json.encode({"docs": [{"id": key}]})
        answer: _Results = self._answer("POST", path, asked, _Results, bytes_max)
        found = []
        for got in (got for result in answer.results for got in result.docs):
            if got.error is None:
                found.append(got.ok)
            elif got.error.error != "not_found":
                raise UnavailableError(f"{key}: {got.error.reason}", code=got.error.error)
        return found

    def bring(self, docs: Sequence[msgspec.Raw]) -> None:
        """Store leaves as `leaves` returned them, beside those that are there.

        Raises:
            AccessError: the user may not change design documents.
            UsageError: the database refuses one.
        """
        body = b'{"new_edits":false,"docs":[%b]}' % b",".join(map(bytes, docs))
        path = f"{self.path}/_bulk_docs"
        refused: list[_Failed] = self._answer("POST", path, body, list[_Failed], BYTES_MAX)
        for one in refused:
            if one.error:
                kind = AccessError if one.error in ("unauthorized", "forbidden") else UsageError
                raise kind(f"{one.id or 'a document'}: {one.reason}", code=one.error)

    def _answer(
        self, method: str, path: str, body: bytes | None, form: Any, bytes_max: int
    ) -> Any:
        data = bytearray()
        for piece in self.http.pieces(method, path, body):
            data += piece
            if len(data) > bytes_max:
                raise UsageError(
                    f"{self.http.address}: an answer is larger than {bytes_max} bytes",
                    code="too_large",
                )
        try:
            return msgspec.json.decode(bytes(data), type=form)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(
                f"{self.http.address} gave an invalid answer: {error}"
            ) from error

    def delete(self, key: str) -> dict[str, Any]:
        """Delete a design document.

        Raises:
            ConditionError: `not_found`.
        """
        path = self.design_path(key)
        rev = self.http.etag(path)
        if rev is None:
            raise ConditionError(
                f"there is no document {key!r} in bucket {self.bucket!r}", code="not_found"
            )
        return self.http.request("DELETE", f"{path}?rev={quote(rev)}")
