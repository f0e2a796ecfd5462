from __future__ import annotations

from millstream.pipelines.change_stream.bucket_changes import Endpoint, _apply
from millstream.wire.frames import deletion, mutation


def test_the_newest_version_of_a_document_counts():
    chunk = (
        mutation(0, b"a", b"1", 1, 1, 1, 0, 0, 1)
        + mutation(0, b"x", b"1", 2, 1, 1, 0, 0, 1)
        + mutation(0, b"a2", b"old", 3, 1, 1, 0, 0, 1)
        + mutation(0, b"a2", b"new", 4, 2, 2, 0, 0, 1)
        + deletion(0, b"a", 5, 2, 2, 0)
    )
    documents: dict[bytes, bytes | None] = {}
    _apply(chunk, b"a", documents)
    assert documents == {b"a": None, b"a2": b"new"}


def test_a_password_is_not_shown():
    assert "secret" not in repr(Endpoint("h:1", "ann", "secret"))
