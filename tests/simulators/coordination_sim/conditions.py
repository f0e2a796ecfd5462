"""What one run is like: how large, how fast, and which faults it has, drawn from its seed.

Invariants:
1. Each fault class is on or off by a draw of its own, so that many runs are calm in most respects
   and the faults that are left come to bear.
2. `Options` only ever leave something out, but for `only`: that is a short run in which much
   happens, with the fault classes it names and no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple
from unittest import mock

from millstream.coordination.core.namespace import audience
from simulators.coordination_sim.loop import stream

__all__ = ["FAULTS", "GROUPS", "Conditions", "Options"]

FAULTS = (
    # network
    "loss", "duplicate", "late", "reorder", "clog", "partition", "one_way", "isolate_primary",
    "bridge", "swizzle",
    # processes
    "crash", "crash_in_step", "crash_in_write", "pause", "slow_node", "restart_storm", "all_down",
    # disks
    "power", "damage", "lost_log", "lost_disk", "sync_error", "disk_full", "slow_disk",
    # clocks
    "drift", "jump",
    # operations
    "reconfigure", "death_in_reconfigure", "move_primary", "rolling_restart",
    # clients
    "client_duplicate", "client_restart", "client_loss", "client_silence",
    # those that came later, each drawn by itself
    "short_sessions", "snapshot_storm", "wrong_state", "no_journal", "forget_all", "lost_entry",
    "upgrade", "namespaces", "forced", "refused",
)  # fmt: skip
LATER = {
    "short_sessions": 0.3, "snapshot_storm": 0.2, "wrong_state": 0.25, "no_journal": 0.15,
    "forget_all": 0.3, "lost_entry": 0.08, "upgrade": 0.2,
    "namespaces": 0.5, "forced": 0.2, "refused": 0.2,
}  # fmt: skip
"""How many runs have these. Without them a seed is the run that it was before there were any."""
GROUPS = {
    "network faults": frozenset(FAULTS[: FAULTS.index("crash")]),
    "process faults": frozenset(FAULTS[FAULTS.index("crash") : FAULTS.index("power")]),
    "disk faults": frozenset(FAULTS[FAULTS.index("power") : FAULTS.index("drift")]),
    "changes of members": frozenset(("reconfigure", "death_in_reconfigure")),
    "no journal": frozenset(("no_journal",)),
    "states that go wrong": frozenset(("wrong_state",)),
    "more lost than may be": frozenset(("forget_all", "lost_entry")),
    "upgrades": frozenset(("upgrade",)),
    "clients of namespaces": frozenset(("namespaces",)),
    "groups forced to go on": frozenset(("forced",)),
}
"""What the figures are given for."""
OFTEN = ("crash", "crash_in_step", "isolate_primary", "reconfigure", "partition")
"""On in more runs than the others."""


LARGE = (
    "restart_storm", "all_down", "rolling_restart", "wrong_state", "forget_all", "lost_entry",
)  # fmt: skip
"""Each is many faults, or takes long to get over."""


class Options(NamedTuple):
    """What a run is cut down to."""

    without: frozenset[str] = frozenset()
    clients_max: int = 12
    until_s: float = 1e9
    plant: str | None = None
    only: frozenset[str] | None = None
    fixed: tuple[tuple[str, float], ...] = ()
    """Fields of a short run's conditions that are not drawn."""

    def as_arguments(self) -> str:
        """Return them for the command line."""
        parts = []
        if self.without:
            parts.append(f"--without {','.join(sorted(self.without))}")
        if self.clients_max < 12:
            parts.append(f"--clients {self.clients_max}")
        if self.until_s < 1e9:
            parts.append(f"--until {self.until_s:.3f}")
        if self.plant:
            parts.append(f"--plant {self.plant}")
        if self.only is not None:
            parts.append(f"--only {','.join(sorted(self.only)) or 'nothing'}")
        if self.fixed:
            parts.append(f"--fix {','.join(f'{name}={value:g}' for name, value in self.fixed)}")
        return " ".join(parts)


def _spread(rng: Random, low: float, high: float) -> float:
    """Draw so that each factor is as likely as any other."""
    return low * (high / low) ** rng.random()


class Conditions(NamedTuple):
    """Periods are means, in ms; rates are per message."""

    members: int
    spares: int
    clients: int
    duration_ms: float
    rate_per_s: float
    keys: int
    window: int
    batch: int
    apply: int
    hint: int
    snapshot: int
    retain: int
    part: int
    delay_ms: float
    jitter: float
    loss: float
    duplicate: float
    late: float
    reorder: bool
    disk_ms: float
    client_loss: float
    client_duplicate: float
    sign_of_life: float
    power: float
    drift: float
    journalled: bool
    short_sessions: bool
    upgrades: bool
    namespaces: bool
    forced: bool
    periods: dict[str, float]
    queued: int
    """Messages that may wait for a subscriber; `--fix queued=8` has many overruns."""

    @classmethod
    def drawn(cls, seed: int, options: Options) -> Conditions:
        """Return the conditions of a run."""
        if options.only is not None:
            drawn = cls.drawn(seed, options._replace(only=None))._made_short(seed, options.only)
            return drawn._replace(**dict(options.fixed))  # type: ignore[arg-type]
        rng = stream(seed, "weather")
        pick = rng.choice
        rate = _spread(rng, 0.2, 50)
        duration = _spread(rng, 60, 600) if rate < 10 else _spread(rng, 30, 3000 / rate)
        on = _drawn_faults(seed) - options.without
        periods = {}
        for fault in FAULTS:
            if fault in on:
                between = (40, 400) if fault in LARGE else (5, 100)
                periods[fault] = 1000 * _spread(stream(seed, f"period/{fault}"), *between)
        small = rng.random() < 0.25 and rate < 5
        members = pick((1, 3, 3, 3, 3, 3, 5, 5, 7))
        return cls(
            members=members,
            spares=pick((0, 1, 2, 3)),
            clients=min(rng.randint(2, 12), options.clients_max),
            duration_ms=duration * 1000,
            rate_per_s=rate,
            keys=rng.randint(1, 4),
            window=pick((1, 1, 4, 16, 40)),
            batch=pick((3, 20)) if small else 512,
            apply=stream(seed, "apply").choice((1, 5, 50, 512)),
            hint=pick((5, 50, 65_536)),
            snapshot=pick((10, 100, 100, 500, 10**6)),
            retain=pick((0, 20, 300)),
            part=pick((60, 2000, 256 * 1024)),
            delay_ms=_spread(rng, 0.1, 5) if rng.random() < 0.7 else _spread(rng, 5, 100),
            jitter=pick((0.1, 1.0, 5.0)),
            loss=pick((0.003, 0.03, 0.1, 0.3)) if "loss" in on else 0,
            duplicate=pick((0.01, 0.1, 0.5)) if "duplicate" in on else 0,
            late=pick((0.002, 0.02)) if "late" in on else 0,
            reorder="reorder" in on,
            disk_ms=_spread(rng, 0.05, 20),
            client_loss=pick((0.01, 0.1)) if "client_loss" in on else 0,
            client_duplicate=pick((0.05, 0.5)) if "client_duplicate" in on else 0,
            sign_of_life=0.5 if "client_silence" in on else 1,
            power=pick((0.3, 1.0)) if "power" in on else 0,
            drift=0.2 if "drift" in on else 0,
            journalled="no_journal" not in on or members == 1,
            short_sessions="short_sessions" in on,
            upgrades="upgrade" in on,
            namespaces="namespaces" in on,
            forced="forced" in on,
            periods=periods,
            queued=audience.QUEUED_MAX,
        )

    def _made_short(self, seed: int, only: frozenset[str]) -> Conditions:
        rng = stream(seed, "short weather")
        pick = rng.choice
        return self._replace(
            members=pick((3, 3, 3, 5)), spares=pick((0, 1, 2)), duration_ms=pick((10_000, 40_000)),
            rate_per_s=_spread(rng, 5, 50), batch=512, hint=pick((5, 50)),
            snapshot=pick((10, 30, 100)), retain=pick((0, 20)),
            delay_ms=_spread(rng, 0.5, 50), disk_ms=_spread(rng, 0.1, 50),
            loss=pick((0.03, 0.1)) if "loss" in only else 0,
            duplicate=pick((0.1, 0.5)) if "duplicate" in only else 0,
            late=0.02 if "late" in only else 0, reorder="reorder" in only,
            client_loss=pick((0.01, 0.1)) if "client_loss" in only else 0,
            client_duplicate=0.2 if "client_duplicate" in only else 0,
            sign_of_life=0.3 if "client_silence" in only else 1,
            power=pick((0.3, 1.0)) if "power" in only else 0,
            drift=0.2 if "drift" in only else 0,
            journalled="no_journal" not in only, short_sessions="short_sessions" in only,
            upgrades="upgrade" in only, namespaces="namespaces" in only,
            forced="forced" in only,
            periods={fault: 1000 * _spread(rng, 0.5, 8) for fault in FAULTS if fault in only},
        )  # fmt: skip

    @contextmanager
    def bounds(self) -> Iterator[None]:
        """Have the bounds of the code be those of the run."""
        with (
            mock.patch.object(audience, "QUEUED_MAX", self.queued),
            mock.patch.object(audience, "PROGRESS_MS", 300.0 if self.queued < 100 else 10_000.0),
        ):
            yield

    @property
    def faults(self) -> list[str]:
        """The classes that are on."""
        return sorted(self.periods)


def _drawn_faults(seed: int) -> frozenset[str]:
    rng = stream(seed, "faults")
    share = rng.choice((0.1, 0.3, 0.3, 0.6))
    first = (fault for fault in FAULTS if fault not in LATER)
    chosen = {f for f in first if rng.random() < (max(share, 0.5) if f in OFTEN else share)}
    later = {f for f, part in LATER.items() if stream(seed, f"on/{f}").random() < part}
    return frozenset(chosen | later)
