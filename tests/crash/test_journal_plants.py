"""The tests of the journal find what is planted in it: one step left out, or done too early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from millstream.vsr.core.disk import journal as module
from millstream.vsr.core.disk.careful_files import CarefulFiles
from millstream.vsr.core.disk.durable_steps import (
    SUPERBLOCK,
    Layout,
    header_file_name,
    segment_name,
)
from millstream.vsr.core.disk.journal import Journal
from millstream.vsr.core.disk.startup import Survey, survey
from support.budget import budget
from support.coordination.simulated_journal import DAMAGES, SEGMENT_BYTES, JournalWorld, damage
from support.kv.simulated_disk import FAULTS, Fault

LIVES_MAX = 400
"""Random lives in which a planted fault must be found; most are in the first ten."""
Plant = Callable[[pytest.MonkeyPatch], None]


def life(seed: int) -> None:
    """A random life with faults, then one harm; raises if anything is not as it must be."""
    world = JournalWorld(seed)
    world.start()
    for _ in range(3):
        world.fault = Fault(world.rng.choice(FAULTS), world.rng.randint(0, 25))
        for _ in range(5):
            world.random_step()
    world.fault = None
    world.restart(has_power=False)
    for _ in range(3):
        world.append(1)
    world.disk.lose_power()
    kind = world.rng.choice(DAMAGES)
    names = [name for name in world.disk.names() if not name.startswith("snapshot")]
    name = damage(world.rng, world.disk, names, kind)
    image = Journal(world.disk, SEGMENT_BYTES).image
    if name == SUPERBLOCK and kind in ("cut", "gone"):
        return  # both copies may be damaged
    assert image.hard_state == world.state.hard_state
    assert not image.is_journal_lost
    assert image.headers == tuple(entry.header for entry in world.state.kept())
    assert name.startswith("journal") or not list(image.faulty())


def unsynced(prefix: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        sync = CarefulFiles._sync

        def skip(files: CarefulFiles, name: str) -> None:
            if not name.startswith(prefix):
                sync(files, name)

        patch.setattr(CarefulFiles, "_sync", skip)

    return plant


def left_out(kind: type, name: str) -> Plant:
    return lambda patch: patch.setattr(kind, name, lambda *_args: None)


def one_copy(patch: pytest.MonkeyPatch) -> None:
    write = Journal._write_copy

    def only_first(journal: Journal, root: object, copy: int) -> None:
        if copy == 0:
            write(journal, root, copy)

    patch.setattr(Journal, "_write_copy", only_first)


def removed_early(patch: pytest.MonkeyPatch) -> None:
    flip = Journal._flip

    def remove(journal: Journal, hard_state: object, layout: Layout, *rest: object) -> None:
        old = journal.root.layout
        if layout.headers != old.headers:
            journal._files.remove([header_file_name(old.headers)])
            used = {extent.segment for extent in layout.segments}
            gone = [extent.segment for extent in old.segments if extent.segment not in used]
            journal._files.remove([segment_name(number) for number in gone])
        flip(journal, hard_state, layout, *rest)

    patch.setattr(Journal, "_flip", remove)


def without(**nothing: object) -> Plant:
    """What the survey found of this is not healed."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(module, "survey", lambda disk: forgetful(survey(disk)))

    def forgetful(found: Survey) -> Survey:
        return replace(found, **nothing)

    return plant


def any_segment(patch: pytest.MonkeyPatch) -> None:
    def segment_of(layout: Layout, lsn: int) -> int | None:
        ahead = [extent for extent in layout.segments if extent.first_lsn <= lsn]
        return ahead[-1].segment if ahead else None

    patch.setattr(Layout, "segment_of", segment_of)


def remembers(patch: pytest.MonkeyPatch) -> None:
    """Believe what memory says after a failed sync."""
    patch.setattr(CarefulFiles, "_settle", lambda files, name: files._file(name).sync())


def trusts(patch: pytest.MonkeyPatch) -> None:
    """Believe what a killed process left in memory."""
    patch.setattr(CarefulFiles, "settle", lambda files: None)


PLANTS: dict[str, Plant] = {
    "entries are not synced": unsynced("journal"),
    "slots are not synced": unsynced("headers"),
    "the superblock is not synced": unsynced(SUPERBLOCK),
    "snapshots are not synced": unsynced("snapshot"),
    "names are not synced": left_out(CarefulFiles, "sync_directory"),
    "one copy of the superblock": one_copy,
    "replaced files go too early": removed_early,
    "slots are not healed": without(slots={}),
    "entries of replaced ends count": any_segment,
    "memory is believed after a failed sync": remembers,
    "memory is believed after a kill": trusts,
}


def caught() -> bool:
    for seed in range(LIVES_MAX):
        try:
            life(seed)
        except Exception:  # noqa: BLE001 - whatever it is, it is found
            return True
    return False


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    assert caught()


@pytest.mark.parametrize("seed", range(budget(40)))
def test_where_nothing_is_planted_nothing_is_found(seed: int) -> None:
    life(seed)
