"""`coordination.core.pool.directory`: where groups are."""

from __future__ import annotations

from millstream.coordination.core.pool.directory import Directory, GroupStatus
from millstream.coordination.core.pool.file_format import Fork
from millstream.coordination.core.pool.messages import Sighting

G = b"g" * 16
A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))


def test_the_later_view_counts_and_of_equals_the_newer_word() -> None:
    directory = Directory()
    assert directory.note(G, GroupStatus(0, 4, (A, B, C), 100))
    assert not directory.note(G, GroupStatus(0, 3, (A, B, C), 900))
    assert not directory.note(G, GroupStatus(0, 4, (A, B, C), 300))
    assert directory.get(G) == GroupStatus(0, 4, (A, B, C), 300)
    assert directory.note(G, GroupStatus(1, 0, (A,), 200))
    assert directory.get(G) == GroupStatus(1, 0, (A,), 200)


def test_passing_a_word_on_makes_it_no_younger() -> None:
    one, other = Directory(), Directory()
    one.note(G, GroupStatus(0, 1, (A, B, C), 1000))
    other.hear(one.sightings(1700), {G}, 50_000)
    assert other.sightings(50_200) == (Sighting(G, 0, 1, (A, B, C), 900),)


def test_forks_are_kept_and_are_news_again_only_if_they_are_later() -> None:
    one = Directory()
    one.note(G, GroupStatus(7, 1, (A, B, C), 0))
    assert (one.forks(), one.forks_total) == ((), 0)
    one.note(G, GroupStatus(2 << 16, 0, (A,), 10))
    one.note(G, GroupStatus((2 << 16) + 1, 5, (A, B), 20))
    assert one.forks() == (Fork(G, (2 << 16) + 1, (A, B)),)
    assert one.forks_total == 1
    other = Directory()
    other.load((*one.forks(), Fork(A, 1 << 16, (A,))), {G}, 1000)
    assert other.forks() == one.forks()
    assert other.forks_total == 1
    assert other.sightings(1000)[0].age_ms >= 86_400_000
    assert not other.note(G, GroupStatus(9, 1, (A, B, C), 2000)), "the group is not there any more"


def test_groups_that_are_not_known_are_not_kept() -> None:
    directory = Directory()
    directory.hear((Sighting(G, 0, 1, (A,), 0), Sighting(A, 0, 1, (), 0)), {A}, 0)
    assert directory.sightings(0) == ()


def test_the_primary_is_the_one_of_the_view() -> None:
    assert GroupStatus(0, 4, (A, B, C), 0).primary == B
