from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.errors import CorruptionError
from millstream.pipelines.sinks import callback_target
from millstream.pipelines.sinks.callback_target import CallbackTarget, Rollback, Sweep, Upsert
from millstream.pipelines.sinks.repairing import KeyedTarget, Row
from millstream.upr.core.repair import LoadState
from simulators.pipeline_world import World
from support.budget import budget
from support.streams.keyed_double import DictTarget

SCHEDULES = budget(200)


class StoreWorld(World):
    """The user's functions over a dictionary, and a driver that is started anew."""

    path: Path

    def make_target(self) -> KeyedTarget:
        self.store = DictTarget()
        return self.callbacks()

    def callbacks(self) -> CallbackTarget:
        return CallbackTarget(self.on_upsert, self.on_rollback, self.path, self.on_sweep)

    def drop_tombstones(self, p: int, seqno: int) -> None:
        pass

    def apply(self, rows: list[Row]) -> bool:
        if self.rng.random() < 0.2:
            self.target = self.callbacks()
            self.sink = self.make_sink()
        return super().apply(rows)

    def on_upsert(self, upserts: Sequence[Upsert]) -> None:
        for row, load in upserts:
            self.store.begin([row.partition])
            held = self.store.versions(row.partition, [row.key]).get(row.key)
            if held is None or row.version >= held.version:
                self.store.put(row.partition, [row], load)

    def on_rollback(self, rollback: Rollback) -> Sequence[str]:
        self.store.begin([rollback.partition])
        return list(self.store.keys_above(*rollback))

    def on_sweep(self, sweep: Sweep) -> None:
        self.store.begin([sweep.partition])
        if sweep.keys is None:
            self.store.sweep(sweep.partition, sweep.load)
        else:
            self.store.retain(sweep.partition, sweep.keys)

    def live(self, p: int) -> dict[str, bytes | None]:
        return self.store.live(p)


def test_a_store_behind_functions_equals_the_source_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        callback_target, "write_atomically", lambda file, text: file.write_bytes(text)
    )
    for seed in range(SCHEDULES):
        StoreWorld.path = tmp_path / str(seed)
        try:
            StoreWorld(seed, repairs=True).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_the_state_is_kept_with_the_end_of_a_batch(tmp_path: Path) -> None:
    def target() -> CallbackTarget:
        made = CallbackTarget(lambda _: None, lambda _: (), tmp_path / "state")
        made.begin([3], 4)
        return made

    first = target()
    first.set_state(3, LoadState(2, 7, is_loading=True))
    assert target().state(3) is None
    first.commit(0)
    assert target().state(3) == LoadState(2, 7, is_loading=True)
    (tmp_path / "state").write_text("[]")
    with pytest.raises(CorruptionError, match="cannot be read"):
        target()


def test_a_store_need_not_sweep(tmp_path: Path) -> None:
    target = CallbackTarget(lambda _: None, lambda _: (), tmp_path / "state")
    target.sweep(0, 2)
    target.retain(0, {"a"})
    assert target.drop_tombstones(0, 9) == 0
