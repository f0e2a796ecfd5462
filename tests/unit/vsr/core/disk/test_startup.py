"""A start on damaged files: what was acknowledged is whole, faulty or lost, never just gone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.vsr.core.disk.durable_steps import (
    COPY_BYTES,
    SLOT_BYTES,
    SUPERBLOCK,
    DurableImage,
    header_file_name,
    segment_name,
)
from millstream.vsr.core.disk.journal import Journal
from millstream.vsr.core.disk.startup import read_whole, survey
from millstream.vsr.core.entries import HEADER_BYTES
from support.budget import budget
from support.coordination.simulated_journal import (
    DAMAGES,
    SEGMENT_BYTES,
    JournalWorld,
    State,
    damage,
    found_in,
)
from support.kv.simulated_disk import Fault


def lived(seed: int, steps: int = 8) -> JournalWorld:
    world = JournalWorld(seed)
    world.start()
    world.append(3)
    for _ in range(steps):
        world.random_step()
    return world


def nothing_is_gone(state: State, image: DurableImage) -> None:
    """Everything acknowledged is in the image: the same, or faulty."""
    kept = state.kept()
    assert image.base == state.base
    assert list(image.headers[: len(kept)]) == [entry.header for entry in kept]
    for entry, body in zip(kept, image.bodies, strict=False):
        assert body in (None, entry.body)


@settings(max_examples=budget(300))
@given(st.integers(0, 2**32), st.sampled_from(DAMAGES), st.booleans())
def test_no_single_damage_makes_anything_go(seed: int, kind: str, is_torn: bool) -> None:
    world = lived(seed)
    if is_torn:
        world.fault = Fault("power", world.rng.randint(0, 3))
        world.append(3)
        world.restart(has_power=False)
    world.open.close()
    name = damage(world.rng, world.disk, world.disk.names(), kind)
    world.disk.lose_power()
    image = Journal(world.disk, SEGMENT_BYTES).image
    if name == SUPERBLOCK and image.hard_state is None:
        assert kind in ("cut", "gone")  # more than one copy is damaged
        return
    assert image.hard_state == world.state.hard_state
    assert not image.is_journal_lost
    nothing_is_gone(world.state, image)
    if not name.startswith("journal"):
        assert not list(image.faulty())


@settings(max_examples=budget(300))
@given(st.integers(0, 2**32), st.lists(st.sampled_from(DAMAGES[:4]), min_size=2, max_size=4))
def test_several_damages_are_faulty_or_lost_and_never_other_entries(
    seed: int, kinds: list[str]
) -> None:
    """Several harms together may take the end of log and header file; what is told is true."""
    world = lived(seed)
    world.open.close()
    for kind in kinds:
        damage(world.rng, world.disk, world.disk.names(), kind)
    image = Journal(world.disk, SEGMENT_BYTES).image
    if image.hard_state is None or image.is_journal_lost:
        return
    log = {entry.lsn: entry for entry in world.state.log}
    assert image.op_lsn >= image.hard_state.commit_hint
    for header, body in zip(image.headers, image.bodies, strict=True):
        assert header == log[header.lsn].header
        assert body in (None, log[header.lsn].body)


@settings(max_examples=budget(100))
@given(st.integers(0, 2**32), st.sampled_from(DAMAGES))
def test_a_repaired_log_survives_a_second_damage(seed: int, kind: str) -> None:
    """Each start brings back both copies of everything that has two."""
    world = lived(seed)
    world.open.close()
    for _ in range(3):
        names = [n for n in world.disk.names() if not n.startswith(("journal", "snapshot"))]
        damage(world.rng, world.disk, names, kind)
        image = Journal(world.disk, SEGMENT_BYTES).image
        if image.hard_state is None:
            assert kind in ("cut", "gone")
            return
        nothing_is_gone(world.state, image)
        assert not list(image.faulty())


# ---- one by one


def plain(number: int = 5) -> JournalWorld:
    world = JournalWorld(1)
    world.start()
    world.append(number)
    world.open.close()
    return world


def reopened(world: JournalWorld) -> DurableImage:
    return Journal(world.disk, SEGMENT_BYTES).image


def file(world: JournalWorld, prefix: str) -> bytearray:
    """Return a file's bytes; a change of them is a change on the disk."""
    (name,) = [name for name in world.disk.names() if name.startswith(prefix)]
    content = world.disk.files[name]
    content.synced = content.data
    return content.data


def offset(world: JournalWorld, index: int) -> int:
    return sum(HEADER_BYTES + len(entry.body) for entry in world.state.log[:index])


def test_a_torn_record_that_no_slot_names_is_cut_and_the_next_stands_there() -> None:
    world = plain()
    end = offset(world, len(world.state.log))
    whole = bytes(file(world, "journal")[:end])
    file(world, "journal")[end : end + 5] = b"begun"
    journal = Journal(world.disk, SEGMENT_BYTES)
    assert journal.torn_bytes == 5
    assert found_in(journal.image).log == world.state.log
    assert bytes(file(world, "journal")) == whole


def test_a_damage_behind_the_end_of_a_segment_is_cut_away() -> None:
    world = plain()
    size = len(file(world, "journal"))
    assert size > offset(world, 5), "it is filled ahead"
    file(world, "journal")[-1] ^= 1
    journal = Journal(world.disk, SEGMENT_BYTES)
    assert journal.torn_bytes == size - offset(world, 5)
    assert found_in(journal.image).log == world.state.log
    journal.append(world.entries(journal.image.link, 2))
    assert Journal(world.disk, SEGMENT_BYTES).op_lsn == journal.op_lsn


def test_a_whole_record_that_no_slot_names_is_kept() -> None:
    world = plain()
    del file(world, "headers")[-SLOT_BYTES:]
    assert found_in(reopened(world)).log == world.state.log
    assert len(file(world, "headers")) == 5 * SLOT_BYTES


@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_damaged_body_is_faulty_and_an_install_repairs_it(index: int) -> None:
    world = plain()
    file(world, "journal")[offset(world, index) + HEADER_BYTES] ^= 1
    journal = Journal(world.disk, SEGMENT_BYTES)
    assert list(journal.image.faulty()) == [index + 1]
    assert journal.image.entry(index + 1) is None
    nothing_is_gone(world.state, journal.image)
    journal.install(index, world.state.log[index:], world.state.hard_state)
    journal.close()
    assert found_in(reopened(world)) == world.state


def test_a_segment_that_is_gone_leaves_all_its_entries_faulty() -> None:
    world = plain()
    world.disk.remove(segment_name(2))
    assert list(reopened(world).faulty()) == [1, 2, 3, 4, 5]


def test_a_record_whose_head_alone_is_damaged_is_healed_by_its_slot() -> None:
    world = plain()
    whole = bytes(file(world, "journal"))
    file(world, "journal")[offset(world, 1) + 3] ^= 4
    assert found_in(reopened(world)).log == world.state.log
    assert bytes(file(world, "journal")) == whole


def test_a_header_file_that_is_gone_is_written_anew() -> None:
    world = plain()
    world.disk.remove(header_file_name(1))
    assert found_in(reopened(world)).log == world.state.log
    assert found_in(reopened(world)).log == world.state.log


def test_without_header_file_a_torn_end_is_no_longer_told_from_damage() -> None:
    world = plain()
    world.disk.remove(header_file_name(1))
    file(world, "journal")[-1] ^= 1
    image = reopened(world)
    assert image.is_journal_lost
    assert image.hard_state == world.state.hard_state
    assert not image.headers


def test_entries_without_slot_and_record_are_lost_not_cut() -> None:
    world = plain()
    file(world, "journal")[offset(world, 4)] ^= 1
    file(world, "headers")[-1] ^= 1
    assert reopened(world).is_journal_lost


def test_a_commit_hint_above_the_log_says_that_its_end_is_gone() -> None:
    world = plain()
    journal = Journal(world.disk, SEGMENT_BYTES)
    journal.write_hard_state(world.state.hard_state._replace(commit_hint=4))
    del file(world, "journal")[offset(world, 3) :]
    del file(world, "headers")[3 * SLOT_BYTES :]
    assert reopened(world).is_journal_lost


def test_a_lost_journal_can_begin_anew() -> None:
    world = plain()
    world.disk.remove(header_file_name(1))
    file(world, "journal")[-1] ^= 1
    journal = Journal(world.disk, SEGMENT_BYTES)
    with pytest.raises(AssertionError):
        journal.append(world.state.log)
    journal.write_hard_state(world.state.hard_state)
    assert reopened(world).is_journal_lost
    journal.install(0, world.state.log, world.state.hard_state)
    journal.close()
    assert found_in(reopened(world)) == world.state


@pytest.mark.parametrize("copy", [0, 1])
def test_either_copy_of_the_superblock_holds_the_newest_promise(copy: int) -> None:
    world = plain()
    world.journal = Journal(world.disk, SEGMENT_BYTES)
    world.promise()
    whole = bytes(file(world, SUPERBLOCK))
    file(world, SUPERBLOCK)[copy * COPY_BYTES + 40] ^= 1
    assert reopened(world).hard_state == world.state.hard_state
    assert bytes(file(world, SUPERBLOCK)) == whole


def test_both_copies_damaged_is_a_lost_member() -> None:
    world = plain()
    for copy in (0, 1):
        file(world, SUPERBLOCK)[copy * COPY_BYTES] ^= 1
    journal = Journal(world.disk, SEGMENT_BYTES)
    assert journal.image == DurableImage(None)
    with pytest.raises(AssertionError, match="lost"):
        journal.write_hard_state(world.state.hard_state)


def test_a_damaged_snapshot_is_said_to_be_missing() -> None:
    world = plain()
    world.journal = Journal(world.disk, SEGMENT_BYTES)
    world.snapshot()
    file(world, "snapshot")[-1] ^= 1
    image = reopened(world)
    assert image.snapshot is None
    assert image.snapshot_id == world.state.snapshot is not None
    nothing_is_gone(world.state, image)


class _BadSectors:
    """A disk with blocks that cannot be read."""

    def __init__(self, disk: object, bad: Callable[[int, int], bool]) -> None:
        self._disk, self._bad = disk, bad

    def open(self, name: str, *, create: bool = False) -> object:
        file = self._disk.open(name, create=create)
        return _BadFile(file, self._bad)


class _BadFile:
    def __init__(self, file: object, bad: Callable[[int, int], bool]) -> None:
        self._file, self._bad = file, bad
        self.size, self.close = file.size, file.close

    def read_at(self, offset: int, size: int) -> bytes:
        if self._bad(offset, size):
            raise OSError(5, "Input/output error")
        return self._file.read_at(offset, size)


def test_a_block_that_cannot_be_read_is_damaged_and_no_zeros() -> None:
    world = plain()
    world.disk.open("x", create=True).write_at(0, bytes(range(256)) * 40)
    disk = _BadSectors(world.disk, lambda offset, size: offset <= 5000 < offset + size)
    data = read_whole(disk, "x")
    assert len(data) == 10240
    assert data[:4096] == bytes(range(256)) * 16
    assert data[4096:8192] == b"\xff" * 4096
    assert data[8192:] == bytes(range(256)) * 8


def test_entries_of_a_newer_version_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    world = plain()
    monkeypatch.setattr("millstream.vsr.core.entries._VERSION", 2)
    with pytest.raises(CorruptionError, match="newer one wrote it"):
        survey(world.disk)


def test_random_lives_are_the_same_each_time() -> None:
    """The world of these tests draws from its seed alone."""
    first, second = lived(7), lived(7)
    assert first.state == second.state
    assert isinstance(first.rng, random.Random)
