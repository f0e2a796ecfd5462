"""Documents with attachments and conflicts of a real node, by HTTP: for what carries them on."""

from __future__ import annotations

import base64
import hashlib
import urllib.request
from pathlib import Path
from typing import Any

from support.http.http_calls import TIMEOUT_S, call
from support.node.node_process import NodeProcess

LARGE = bytes(range(256)) * 12_000
"""Three pieces of GET_BLOB."""
SMALL = b"once, for two documents"


def http_of(node: NodeProcess) -> str:
    return f"http://{node.ready['http']}"


def put(node: NodeProcess, bucket: str, doc_id: str, body: dict[str, Any]) -> str:
    """Write a document; return its revision."""
    status, answer = call(http_of(node), "PUT", f"/{bucket}/{doc_id}", body)
    assert status in (200, 201), answer
    return str(answer["rev"])


def attached(data: bytes) -> dict[str, str]:
    return {"content_type": "image/png", "data": base64.b64encode(data).decode()}


def fill(node: NodeProcess, bucket: str) -> dict[str, str]:
    """Write documents; return their revisions."""
    revs = {}
    revs["large"] = put(node, bucket, "large", {"_attachments": {"l": attached(LARGE)}})
    revs["one"] = put(node, bucket, "one", {"n": 1, "_attachments": {"s": attached(SMALL)}})
    revs["two"] = put(node, bucket, "two", {"n": 2, "_attachments": {"s": attached(SMALL)}})
    revs["plain"] = put(node, bucket, "plain", {"n": 3})
    doc = {"_id": "plain", "_rev": "1-" + "f" * 32, "n": 4, "_attachments": {"c": attached(b"c")}}
    bulk = {"docs": [doc], "new_edits": False}
    assert call(http_of(node), "POST", f"/{bucket}/_bulk_docs", bulk) == (201, [])
    return revs


def shown(node: NodeProcess, bucket: str, *doc_ids: str) -> dict[str, Any]:
    """What documents are, with all leaves and the bytes of all attachments; "" where missing."""
    found = {}
    for doc_id in doc_ids:
        asked = f"/{bucket}/{doc_id}?open_revs=all&attachments=true&revs=true"
        request = urllib.request.Request(
            http_of(node) + asked, headers={"Accept": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            text = answer.read()
        found[doc_id] = sorted(text.decode().split("\n"))
    return found


def files_of(path: Path) -> dict[str, bytes]:
    """The attachments below a directory, by name; each has the bytes that its name says."""
    found = {one.parent.name + one.name: one.read_bytes() for one in path.glob("blobs/??/*")}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in found.items())
    return found
