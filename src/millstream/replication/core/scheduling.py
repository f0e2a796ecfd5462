"""Which jobs of a node run now, which wait for their turn, and which for better times.

    initializing -> pending -> running -> completed
                       ^  ^        |
              its turn |  +--------+ others wait, too
                       |           v
                       +------- crashing      (failed: what it asks for can never be done)

Invariants:
1. At most `RUNNING_MAX` jobs run.
2. A job that crashes waits, `PENALTY_MIN_MS` first, twice as long each further time, at most
   `PENALTY_MAX_MS`; one that ran well for `HEALTHY_MS` begins anew.
3. While others wait a job runs for `TURN_MS` at least; then those that ran longest make room.
   Who waits longest is next.

Elsewhere: running them (`aio.scheduler`), the documents that ask for them (the node).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from millstream.errors import MillstreamError, UsageError

__all__ = [
    "CHURN_MAX",
    "HEALTHY_MS",
    "HISTORY_MAX",
    "JOBS_MAX",
    "OVER",
    "PENALTY_MAX_MS",
    "PENALTY_MIN_MS",
    "RUNNING_MAX",
    "TURN_MS",
    "Event",
    "JobState",
    "Schedule",
    "State",
    "Turn",
    "crashes_after",
    "penalty_ms",
]

State = Literal["initializing", "pending", "running", "crashing", "completed", "failed"]
OVER: Final[tuple[State, ...]] = ("completed", "failed")
JOBS_MAX: Final = 10_000
"""Jobs that a node knows."""
RUNNING_MAX: Final = 500
CHURN_MAX: Final = 20
"""Jobs that make room for others in one turn."""
TURN_MS: Final = 60_000
PENALTY_MIN_MS: Final = 30_000
PENALTY_MAX_MS: Final = 8 * 3_600_000
HEALTHY_MS: Final = 120_000
HISTORY_MAX: Final = 20
"""Events of a job that are told, as in CouchDB."""


def crashes_after(crashes: int, ran_ms: float) -> int:
    """Return how often in a row a job has crashed that ran for some time and crashed again."""
    return 1 if ran_ms >= HEALTHY_MS else crashes + 1


def penalty_ms(crashes: int) -> int:
    """Return how long a job waits that crashed so often in a row."""
    return min(PENALTY_MIN_MS << min(crashes - 1, 20), PENALTY_MAX_MS)


class Event(NamedTuple):
    """What happened to a job."""

    at_ms: float
    kind: Literal["added", "started", "crashed", "stopped"]
    reason: str = ""
    """Why it crashed."""


@dataclass(slots=True)
class JobState:
    """How one job is."""

    state: State = "initializing"
    since_ms: float = 0
    """When it came into this state."""
    crashes: int = 0
    """Number of crashes in a row."""
    until_ms: float = 0
    """When a crashed one may run again."""
    reason: str = ""
    """Why it crashed or failed last."""
    history: tuple[Event, ...] = ()
    """Newest first."""

    def happened(self, event: Event) -> None:
        """Take in an event."""
        self.history = (event, *self.history)[:HISTORY_MAX]


class Turn(NamedTuple):
    """What is to be done now."""

    begin: tuple[str, ...]
    pause: tuple[str, ...]
    next_ms: float | None
    """When to ask again, if nothing happens before; None: not at all."""


class Schedule:
    """The jobs of a node.

    Args:
        running_max: how many may run.
    """

    def __init__(self, running_max: int = RUNNING_MAX) -> None:
        self._running_max = running_max
        self._jobs: dict[str, JobState] = {}

    @property
    def jobs(self) -> Mapping[str, JobState]:
        """All of them by name."""
        return self._jobs

    def add(self, name: str, now_ms: float) -> None:
        """Take in a job, or again one that is over; one that is known stays as it is.

        Raises:
            UsageError: `too_many_jobs`.
        """
        known = self._jobs.get(name)
        if known is not None and known.state not in OVER:
            return
        if known is None and len(self._jobs) >= JOBS_MAX:
            raise UsageError(f"a node has at most {JOBS_MAX} jobs", code="too_many_jobs")
        self._jobs[name] = JobState(since_ms=now_ms, history=(Event(now_ms, "added"),))

    def remove(self, name: str) -> None:
        """Forget a job."""
        self._jobs.pop(name, None)

    def ended(self, name: str, error: MillstreamError | None, now_ms: float) -> None:
        """A job's run is over."""
        job = self._jobs.get(name)
        if job is None:
            return
        if error is None:
            job.crashes, job.reason = 0, ""
            self._move(job, "completed", now_ms)
            return
        job.crashes = crashes_after(job.crashes, now_ms - job.since_ms)
        job.reason = str(error)
        job.until_ms = now_ms + penalty_ms(job.crashes)
        job.happened(Event(now_ms, "crashed", job.reason))
        self._move(job, "crashing", now_ms)

    def failed(self, name: str, error: MillstreamError, now_ms: float) -> None:
        """What a job asks for can never be done."""
        if job := self._jobs.get(name):
            job.reason = str(error)
            self._move(job, "failed", now_ms)

    def turn(self, now_ms: float) -> Turn:
        """Return which jobs begin and which make room."""
        for job in self._jobs.values():
            if job.state == "initializing" or (job.state == "crashing" and job.until_ms <= now_ms):
                self._move(job, "pending", max(job.since_ms, job.until_ms))
        waiting = self._in("pending")
        running = self._in("running")
        room = self._running_max - len(running)
        old = [name for name in running if now_ms - self._jobs[name].since_ms >= TURN_MS]
        pause = old[: max(0, min(len(waiting) - room, CHURN_MAX))]
        begin = waiting[: max(0, room + len(pause))]
        for name in pause:
            self._move(self._jobs[name], "pending", now_ms)
            self._jobs[name].happened(Event(now_ms, "stopped"))
        for name in begin:
            self._move(self._jobs[name], "running", now_ms)
            self._jobs[name].happened(Event(now_ms, "started"))
        assert not set(begin) & set(pause), "a job begins and makes room"
        assert len(self._in("running")) <= self._running_max, "too many jobs run"
        return Turn(tuple(begin), tuple(pause), self._next_ms())

    def _in(self, state: State) -> list[str]:
        """Return the jobs in a state, those first that are in it longest."""
        found = [name for name, job in self._jobs.items() if job.state == state]
        return sorted(found, key=lambda name: self._jobs[name].since_ms)

    def _next_ms(self) -> float | None:
        times = [job.until_ms for job in self._jobs.values() if job.state == "crashing"]
        if any(job.state == "pending" for job in self._jobs.values()):
            running = (job.since_ms for job in self._jobs.values() if job.state == "running")
            times += [min(running, default=0.0) + TURN_MS]
        return min(times, default=None)

    def _move(self, job: JobState, state: State, now_ms: float) -> None:
        assert state != "running" or job.state == "pending", f"a {job.state} job runs"
        assert state != "pending" or job.state not in OVER, f"a {job.state} job waits"
        job.state, job.since_ms = state, now_ms
