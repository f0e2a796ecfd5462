"""`kv.core.streams`: the connections that stream."""

from __future__ import annotations

from millstream.upr.core.producer import StreamFigures
from support.kv.log_double import new_bucket


def test_slices_are_shared_while_more_than_one_connection_streams() -> None:
    class Stream:
        last_rollback = None

        def figures(self) -> StreamFigures:
            return StreamFigures(0, 0, 0, 0, 0, is_stuck=False, is_dead=False)

        def statistics(self) -> list[tuple[str, str]]:
            return []

    bucket, one, other = new_bucket(1), Stream(), Stream()
    bucket.streams.by_name["one"] = one
    assert bucket.shared_slices is None
    bucket.streams.by_name["other"] = other
    assert bucket.shared_slices is not None
    bucket.shared_slices.kept_bytes = 7
    bucket.streams.ended("other", other)
    assert bucket.shared_slices is None
    bucket.streams.by_name["other"] = other
    assert bucket.shared_slices is not None
    assert bucket.shared_slices.kept_bytes == 0
