from __future__ import annotations

import pytest

from millstream.pipelines.sinks import companions
from millstream.pipelines.sinks.companions import Ring, chunk_key, head_key
from millstream.pipelines.sinks.repairing import StoredVersion
from millstream.upr.core.repair import LoadState

STATE = LoadState(2, 1, is_loading=True)


def entry(seqno: int, key: str, branch: int = 1, load: int = 1) -> StoredVersion:
    return StoredVersion(0, branch, seqno, key, load=load)


def test_keys_name_their_sink() -> None:
    assert head_key("copy", 3) == "_millstream:copy:3"
    assert chunk_key("copy", 3, 7) == "_millstream:copy:3:7"


def test_a_key_may_have_several_entries_and_any_of_them_counts() -> None:
    ring = Ring()
    assert ring.state is None
    ring.add([entry(5, "a"), entry(3, "a", branch=2), entry(3, "a", branch=2), entry(4, "b")])
    assert ring.newest(["a", "c"]) == {"a": entry(3, "a", branch=2)}
    assert ring.keys_above(2, 3) == ["a", "b"]
    assert ring.keys_above(2, 4) == ["a"]
    ring.add([entry(3, "a", branch=2, load=2)])
    assert ring.keys_of_load(2) == {"a"}
    assert ring.drop(3) == 3
    assert ring.newest(["a"]) == {"a": entry(5, "a")}
    assert ring.drop(3) == 0


def test_written_entries_can_be_read() -> None:
    ring = Ring()
    ring.add([entry(1, "a"), entry(2, "b")])
    head, chunks = ring.encode(STATE)
    assert head is not None
    assert chunks == {}
    again = Ring(Ring.decode(head))
    assert again.state == STATE
    assert again.newest(["a", "b"]) == {"a": entry(1, "a"), "b": entry(2, "b")}
    assert again.encode(STATE) == (None, {})
    assert again.encode(LoadState())[0] is not None


def test_a_long_ring_grows_by_chunks_and_is_rewritten_when_it_shrinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(companions, "CHUNK_ENTRIES", 2)
    kept: dict[int, bytes] = {}

    def written(ring: Ring) -> Ring:
        head, chunks = ring.encode(STATE)
        assert head is not None
        kept.update(chunks)
        for stale in ring.stale:
            del kept[stale]
        found = Ring.decode(head)
        assert sorted(found.chunks) == sorted(kept)
        return Ring(found, [e for n in found.chunks for e in Ring.decode_chunk(kept[n])])

    ring = Ring()
    ring.add([entry(n, f"{n}") for n in range(1, 4)])
    ring = written(ring)
    assert list(kept) == [0, 1]
    ring.add([entry(4, "4")])
    ring = written(ring)
    assert list(kept) == [0, 1, 2]
    ring.drop(1)
    ring = written(ring)
    assert list(kept) == [3, 4]
    ring.drop(2)
    ring = written(ring)
    assert not kept
    assert sorted(ring.keys_above(9, 0)) == ["3", "4"]
