"""The archive for those who help, from a real node."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.client.http import HttpClient
from millstream.node.embedded import EmbeddedNode

SECRETS = ("document-planted", "key-planted", "password-planted", "code-planted", "file-planted")


def test_it_holds_nothing_of_documents_and_no_secrets(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedNode(tmp_path / "d", buckets=["b:4"]) as node:
        assert node.kv is not None
        assert node.http is not None
        with millstream.connect(node.kv, bucket="b") as client:
            client.upsert("key-planted", {"a": "document-planted"})
        host, _, port = node.http.partition(":")
        http = HttpClient(host, int(port), user=None, password="", tls=None, timeout_s=30)
        body = {"views": {"v": {"map": "function (doc) { emit('code-planted'); }"}}}
        http.request("PUT", "/b/_design/d", body)
        data = {"text": {"content_type": "text/plain", "data": "ZmlsZS1wbGFudGVk"}}
        http.request("PUT", "/b/with-file", {"_attachments": data})
        user = ("user", "add", "root", "--role", "admin", "--connect", node.kv)
        assert call(*user, stdin=b"password-planted\n").code == 0
        out = tmp_path / "out.zip"
        command = ("support", "--out", str(out), "--connect", node.kv)
        assert call(*command).code == 1, "only administrators get it"
        assert not out.exists()
        monkeypatch.setenv("MILLSTREAM_USER", "root")
        monkeypatch.setenv("MILLSTREAM_PASSWORD", "password-planted")
        assert call(*command).code == 0
        again = call(*command)
        assert (again.code, again.err.count("\n")) == (2, 1)
    with zipfile.ZipFile(out) as archive:
        content = b"".join(map(archive.read, archive.namelist())).decode()
    assert '"name": "b"' in content
    for secret in SECRETS:
        assert secret not in content
