"""Subscriptions and exactly-once over real connections to a real group that has a bad time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millstream.coordination.core.namespace import audience as audience_module
from millstream.coordination.core.namespace.audience import Audience, Subscription
from millstream.coordination.core.namespace.state import updates as updates_module
from millstream.coordination.core.namespace.state.marks import Marks
from millstream.coordination.core.namespace.state.updates import Place, Update
from millstream.vsr.core import client_table
from millstream.vsr.core.client_table import Past, Verdict
from millstream.vsr.core.tuning import Tuning
from millstream.vsr.core.versions import Version
from simulators.hearing_schedules import run

SEEDS = 10
"""About 5 s of processor time."""
PLANT_SEEDS = 30
"""Each mistake shows in the first or the second; `a snapshot is no break` in 14, as few snapshots
are installed where somebody listens."""


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audience_module, "QUEUED_MAX", 8)
    monkeypatch.setattr(audience_module, "PROGRESS_MS", 300.0)
    monkeypatch.setattr(Tuning, "retain_entries", 5)


def test_changes_are_done_once_and_hearers_hear_all_or_are_told() -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        wrong, counts = run(seed)
        assert wrong is None, f"seed {seed}: {wrong}"
        total += counts
    happened = "answered", "heard", "start", "progress", "overrun", "history lost", "stops"
    assert not [what for what in happened if not total[what]], total


# ---- mistakes

KEPT, TELL, REMARK = Marks.kept, Audience._tell, updates_module.remark
BEGIN_HEARING = Marks.begin_hearing


def executed_again(self: Any, csn: int) -> Verdict:
    return Verdict(Past.NEW)


def kept_twice(self: Marks, place: Place, after_lsn: int) -> list[Update] | None:
    return KEPT(self, place, max(after_lsn - 1, 0))


def kept_in_part(self: Marks, place: Place, after_lsn: int) -> list[Update] | None:
    mark = self.at(place)
    return KEPT(self, place, max(after_lsn, mark.floor_lsn)) if mark else None


def lost_in_silence(subscription: Subscription, payloads: Sequence[bytes]) -> bool:
    TELL(subscription, payloads)
    return True


def one_too_many(op: str, lsn: int, version: Version | None = None) -> bytes:
    return REMARK(op, lsn + 5 if op == "overrun" else lsn, version)


def begun_again(self: Marks, session: int, name: bytes, lsn: int) -> None:
    BEGIN_HEARING(self, session, name, lsn)
    self.hear(session, name, lsn)


def nothing(self: Audience, *_: Any) -> None:
    pass


MISTAKES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "an executed number is executed again": (client_table._Session, "judge", executed_again),
    "an update is told again on going on": (Marks, "kept", kept_twice),
    "what is kept no more is left out": (Marks, "kept", kept_in_part),
    "what has no room is left out": (Audience, "_tell", staticmethod(lost_in_silence)),
    "overrun names too high an LSN": (audience_module, "remark", one_too_many),
    "a durable name begins anew each time": (Marks, "begin_hearing", begun_again),
    "a snapshot is no break": (Audience, "skip", nothing),
    "start names an old LSN": (Audience, "reach", nothing),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES[name])
    assert any(run(seed)[0] for seed in range(PLANT_SEEDS))
