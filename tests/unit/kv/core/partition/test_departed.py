from __future__ import annotations

from millstream.kv.core.partition.departed import DEPARTED_BITS_MAX, KEY_BITS, Departed


def test_what_has_left_is_never_denied_and_little_else_is_claimed() -> None:
    departed = Departed(1000)
    left = [b"key%d" % n for n in range(8000)]
    for key in left:
        departed.add(key)
        departed.add(key)
    assert all(map(departed.may_have, left))
    others = sum(departed.may_have(b"other%d" % n) for n in range(8000))
    assert others < 8000 * 0.15  # 5 % are expected with so many


def test_it_is_as_large_as_the_partition_was_within_bounds() -> None:
    assert 1000 * KEY_BITS <= len(Departed(1000).bits) * 8 < 2 * 1000 * KEY_BITS
    assert len(Departed(0).bits) > 0
    assert DEPARTED_BITS_MAX - 1 < 1 << 32  # two places come from one hash of 64 bits
