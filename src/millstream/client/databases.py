"""A bucket over HTTP, as a database: its design documents and views.

Invariants:
1. `put` and `delete` replace what is there; a document that names its revision replaces that one
   only.

Elsewhere: requests and errors (`client.http`), the pages (docs/reference/http.md), documents over
kv (`client.kv`).
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from millstream.client.http import HttpClient
from millstream.errors import ConditionError

__all__ = ["DESIGN", "Database"]

DESIGN: Final = "_design/"


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
