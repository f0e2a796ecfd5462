"""A real node removes the attachment of a document that it refused, and no other."""

from __future__ import annotations

import os
from collections.abc import Callable

from support.http.attached_documents import attached, fill, http_of, shown
from support.http.http_calls import call
from support.node.node_process import NodeProcess
from support.node.waiting import until


def test_what_was_sent_with_a_refused_document_goes(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node("--no-memcached", "--bucket", "b:4").start()
    fill(node, "b")
    had = shown(node, "b", "large", "one", "two", "plain")
    refused = {"_attachments": {"z": attached(b"unused")}}
    assert call(http_of(node), "PUT", "/b/one", refused)[0] == 409
    files = list(node.data_dir.glob("**/blobs/??/*"))
    assert len(files) == 4
    for file in files:
        os.utime(file, (1, 1))
    assert call(http_of(node), "POST", "/b/_compact", {})[0] == 202
    until(lambda: len(list(node.data_dir.glob("**/blobs/??/*"))) == 3)
    assert shown(node, "b", *had) == had
