"""`millstream get BUCKET KEY`: print one document.

Invariants:
1. Without `--json` stdout gets the value's bytes as stored, with a line end only after JSON.
2. A design document is shown with its `_id` and `_rev`, as over HTTP.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from typing import Any

import msgspec

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    KeyArgument,
    NodeOptions,
    at_node,
    client_of,
    key_of,
)
from millstream.cli.designs import database_of, is_design
from millstream.client.documents import Document
from millstream.errors import ConditionError

__all__ = ["command"]


@at_node
def command(
    bucket: BucketArgument,
    key: KeyArgument,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Print one document."""
    if is_design(key):
        database = database_of(bucket, key, **at.options)
        found = database.get(key)
        shown = {"key": key, "rev": found.get("_rev"), "value": found} if json else found
        sys.stdout.buffer.write(msgspec.json.encode(shown) + b"\n")
        sys.stdout.buffer.flush()
        return
    with client_of(bucket, **at.options) as client:
        document = client.get(key_of(key))
    if document is None:
        raise ConditionError(
            f"there is no document {key!r} in bucket {bucket!r}", code="not_found"
        )
    out = sys.stdout.buffer
    if json:
        out.write(msgspec.json.encode(_members(key, document)) + b"\n")
    else:
        out.write(document.data + (b"\n" if document.is_json else b""))
    out.flush()


def _members(key: str, document: Document) -> dict[str, Any]:
    members: dict[str, Any] = {
        "key": key,
        "cas": document.cas,
        "flags": document.flags,
        "datatype": document.datatype,
    }
    value = document.value
    if isinstance(value, bytes):
        return members | {"value_base64": b64encode(value).decode()}
    return members | {"value": value}
