import random
from dataclasses import dataclass, field

import pytest

from millstream.upr.core import shared_slices
from millstream.upr.core.shared_slices import SharedSlices
from millstream.wire.frames import deletion, mutation

LARGE = 1 << 30


def frame_of(seqno: int, size: int = 10) -> bytes:
    return mutation(3, b"k%d" % seqno, b"v" * size, seqno, 1, seqno, 0, 0, 0)


@dataclass
class Block:
    """Slots of seqnos from 0 on."""

    frames: list[bytes] = field(default_factory=list)
    partition_id: int = 3

    def slots(self, after: int, at: int, items_max: int) -> tuple[list[bytes], int, int] | None:
        end = min(at, after + items_max) + 1
        return (self.frames, after + 1, end) if end <= len(self.frames) else None


@pytest.fixture
def block() -> Block:
    return Block([b"", *map(frame_of, range(1, 201))])


def test_a_slice_is_joined_once(block: Block) -> None:
    slices = SharedSlices()
    first = slices.take(block, 50, 200, LARGE, 100)
    assert first is not None
    assert first.body == b"".join(block.frames[51:151])
    assert [first.body[at:][:2] for at in first.offsets] == [b"\x80\x57"] * 100
    assert (first.first_seqno, first.last_seqno, first.covered) == (51, 150, 150)
    assert first.is_mutations
    assert first.json_offsets == []
    assert slices.take(block, 50, 200, LARGE, 100) is first
    slices.clear()
    assert slices.take(block, 50, 200, LARGE, 100) is not first


def test_what_changed_is_joined_anew(block: Block) -> None:
    slices = SharedSlices()
    first = slices.take(block, 50, 200, LARGE, 100)
    block.frames[51] = block.frames[150] = b""
    block.frames[88] = mutation(3, b"k88", b"{}", 88, 1, 88, 0, 0, 1)
    block.frames[77] = deletion(3, b"k", seqno=77, rev=2, cas=1, delete_time=1)
    again = slices.take(block, 50, 200, LARGE, 100)
    assert again is not None
    assert again.body == b"".join(block.frames[51:151])
    assert (again.first_seqno, again.last_seqno, again.covered) == (52, 149, 150)
    assert not again.is_mutations
    assert len(again.offsets) == 98
    assert again.json_offsets == [again.offsets[88 - 52]]
    assert first != again


def test_what_is_not_worth_it_or_too_much_is_left_to_others(block: Block) -> None:
    slices = SharedSlices()
    assert slices.take(block, 0, shared_slices.SHARED_ITEMS_MIN - 1, LARGE, 1000) is None
    assert slices.take(block, 150, 300, LARGE, 1000) is None, "there is more to it"
    whole = slices.take(block, 0, 200, LARGE, 1000)
    assert whole is not None
    assert slices.take(block, 0, 200, len(whole.body), 1000) is whole
    assert slices.take(block, 0, 200, len(whole.body) - 1, 1000) is None
    assert slices.take(Block([b""] * 201), 0, 200, LARGE, 1000) is None


def test_no_more_is_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, slices = random.Random(1), SharedSlices()
    block = Block([b"", *(frame_of(seqno, rng.randrange(500)) for seqno in range(1, 2000))])
    most = 100_000
    monkeypatch.setattr(shared_slices, "SHARED_BYTES_MAX", most)
    for _ in range(500):
        after = rng.randrange(1500)
        found = slices.take(block, after, 1999, LARGE, rng.randint(64, 300))
        assert found is not None
        assert found.body == b"".join(block.frames[after + 1 : found.covered + 1])
        assert slices.kept_bytes == sum(len(one.body) for _, one in slices._kept.values()) <= most
        block.frames[rng.randrange(1, 2000)] = b""
