"""Plays the demonstration: node, pipeline, load, check, a crash, report.

Invariants:
1. The pipeline is running before the first flight is written, and follows while the load runs.
2. The load pauses once, until the indexes have what was written; so what comes after it updates
   and deletes rows that were already counted.
3. Any difference from the truth makes it fail.

Elsewhere: changes (`flights`), truth (`truth`), processes (`children`), comparison (`checks`),
pictures (`report`).
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

import millstream
from millstream.client.databases import Database
from millstream.client.http import http_of
from millstream.demo.checks import Check, check_number, check_that, check_views
from millstream.demo.children import Child, start_node, start_pipeline
from millstream.demo.crash import play_crash
from millstream.demo.flights import Replay, find_flights, read_flights
from millstream.demo.timeline import Timeline
from millstream.demo.truth import Truth, compute_truth
from millstream.demo.views import DESIGNS
from millstream.errors import UnavailableError, UsageError
from millstream.pipelines.change_stream.bucket_changes import scan
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.index.setup import index_state_of

if TYPE_CHECKING:
    from rich.console import Console

    from millstream.client.kv import Client

__all__ = ["BUCKET", "VIEWS", "Outcome", "Sample", "clean", "prepare", "run_demo"]

BUCKET: Final = "flights"
VIEWS: Final = ("flights/delay_by_carrier", "flights/flights_by_hour", "routes/delay_by_route")
LOAD_STEP: Final = 4_000
SPARK_START_S: Final = 180.0
CATCH_UP_S: Final = 600.0
_POLL_S: Final = 0.25
_MARK: Final = ".millstream-demo"
_DIRECTORIES: Final = ("node", "nodes", "state", "spark", "crash")


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment of the run: seconds since its start, changes written, rows streamed so far."""

    seconds: float
    written: int
    streamed: int


@dataclass(slots=True)
class Outcome:
    """What the demonstration found."""

    truth: Truth
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    steps: list[tuple[str, float, str]] = field(default_factory=list)
    written: int = 0
    streamed: int = 0
    updates: int = 0
    deletes: int = 0
    timeline: Timeline | None = None
    """Of a run with a cluster."""

    @property
    def is_right(self) -> bool:
        """Whether every check passed."""
        return all(check.is_right for check in self.checks)


def run_demo(
    console: Console, work_dir: Path, *, flights: int | None = None, keep: bool = False
) -> Outcome:
    """Run everything but the report.

    Args:
        console: where progress is shown.
        work_dir: for the node's data, Spark's state and logs; made if missing.
        flights: number of rows of the file; None for all.
        keep: leave data and state in the work directory.

    Raises:
        UsageError: `not_empty`: the work directory holds a run that was kept.
        UnavailableError: a part did not start, ended, or did not catch up.
    """
    archive = find_flights()
    prepare(work_dir)
    demo = _Demo(console, work_dir)
    with ExitStack() as stack:
        if not keep:
            stack.callback(clean, work_dir)
        outcome = demo.play(stack, archive, flights)
    if keep:
        (work_dir / _MARK).unlink()
    return outcome


def prepare(work_dir: Path) -> None:
    """Make the work directory, or take the one of an interrupted run.

    Raises:
        UsageError: `not_empty`: it holds a run that was kept.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    if (work_dir / _MARK).exists():
        clean(work_dir)  # what an interrupted run left
    if any((work_dir / name).exists() for name in _DIRECTORIES):
        raise UsageError(
            f"{work_dir} holds a run that was kept: remove it, or choose another --workdir",
            code="not_empty",
        )
    (work_dir / _MARK).touch()


def clean(work_dir: Path) -> None:
    """Remove what a run has made, but reports and logs."""
    for name in _DIRECTORIES:
        shutil.rmtree(work_dir / name, ignore_errors=True)
    (work_dir / _MARK).unlink(missing_ok=True)


class _Demo:
    """One run."""

    def __init__(self, console: Console, work_dir: Path) -> None:
        self._console = console
        self._work_dir = work_dir
        self._began = time.monotonic()
        self._source = SourceOptions(hosts="", bucket=BUCKET)
        self._outcome = Outcome(Truth())

    def play(self, stack: ExitStack, archive: Path, flights: int | None) -> Outcome:
        outcome = self._outcome
        node, address = start_node(self._work_dir, BUCKET)
        stack.enter_context(node)
        self._source = SourceOptions(hosts=address, bucket=BUCKET)
        client = stack.enter_context(millstream.connect(address, bucket=BUCKET))
        http = http_of(client, user=None, password="", tls=None, timeout_s=SPARK_START_S)
        database = Database(http, BUCKET)
        for name, design in DESIGNS.items():
            database.put(name, design)
        self._step("node", f"running at {address}, bucket {BUCKET}, design documents put")
        pipeline = stack.enter_context(
            start_pipeline(self._work_dir, address, BUCKET, list(DESIGNS))
        )
        with self._console.status("computing the truth from the CSV file, apart from all else"):
            outcome.truth = compute_truth(archive, flights)
        truth = outcome.truth
        self._step(
            "truth",
            f"{truth.flights:,} flights: {truth.changes:,} changes, {truth.documents:,} documents",
        )
        with self._console.status("reading the flights in order of time"):
            replay = read_flights(archive, flights)
        self._step("replay", f"{len(replay):,} changes in order of time")
        with self._console.status("waiting for Spark"):
            # The design documents are changes too: their batch warms the pipeline up.
            pipeline.wait_for_lines(len(DESIGNS), SPARK_START_S)
        self._step("pipeline", "following the change stream with Spark Structured Streaming")
        self._load(client, pipeline, replay)
        self._count_late_changes(replay)
        self._collect(client, database)
        self._check(database, node, pipeline)
        self._crash(replay)
        return outcome

    def _step(self, name: str, text: str) -> None:
        seconds = time.monotonic() - self._began
        self._outcome.steps.append((name, seconds, text))
        self._console.print(f"[green]{seconds:6.1f} s[/]  [bold]{name:9}[/] {text}")

    # -- load --------------------------------------------------------------------------------

    def _load(self, client: Client, pipeline: Child, replay: Replay) -> None:
        pause = replay.pause_point()
        with Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), console=self._console, transient=True,
        ) as progress:  # fmt: skip
            written = progress.add_task("changes written", total=len(replay))
            streamed = progress.add_task("rows streamed", total=replay.flight_count)

            def show() -> None:
                progress.update(written, completed=self._outcome.written)
                progress.update(streamed, completed=self._note(pipeline))

            self._write(client, replay, 0, pause, show)
            self._catch_up(client, pipeline, show)
            progress.console.print(
                f"{'':10} paused the load at {pause:,} changes, until the views had applied them"
            )
            self._write(client, replay, pause, len(replay), show)
            self._step("load", f"{self._outcome.written:,} changes written")
            self._catch_up(client, pipeline, show)
        self._step("stream", f"the views have caught up: {self._outcome.streamed:,} rows streamed")

    def _write(self, client: Client, replay: Replay, start: int, stop: int, show: Any) -> None:
        for at in range(start, stop, LOAD_STEP):
            end = min(at + LOAD_STEP, stop)
            result = client.apply_many(replay.changes(at, end))
            result.raise_first()
            self._outcome.written += result.done
            show()

    def _catch_up(self, client: Client, pipeline: Child, show: Any) -> None:
        """Wait until both indexes have what is in the bucket now."""
        wanted = {p.partition_id: p.high_seqno for p in client.positions()}
        deadline = time.monotonic() + CATCH_UP_S
        while not all(self._has_reached(name, wanted) for name in DESIGNS):
            pipeline.check()
            show()
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"the pipeline did not catch up within {CATCH_UP_S:.0f} s; see {pipeline.log}",
                    code="timeout",
                )
            time.sleep(_POLL_S)
        show()

    def _has_reached(self, ddoc: str, wanted: dict[int, int]) -> bool:
        where = index_state_of(self._source, ddoc).where
        return all(
            partition in where and where[partition].is_closed and where[partition].seqno >= seqno
            for partition, seqno in wanted.items()
        )

    def _note(self, pipeline: Child) -> int:
        """Remember how far the pipeline is, and return it."""
        lines = [line for line in pipeline.lines() if line["ddoc"] == "flights"]
        streamed = sum(line["changes"] for line in lines)
        seconds = time.monotonic() - self._began
        self._outcome.samples.append(Sample(seconds, self._outcome.written, streamed))
        self._outcome.streamed = streamed
        return int(streamed)

    # -- check -------------------------------------------------------------------------------

    def _count_late_changes(self, replay: Replay) -> None:
        """Count what changed documents after the pause that the indexes had before it."""
        pause = replay.pause_point()
        before = {key for key, _ in replay.changes(0, pause)}
        late = [
            value is None for key, value in replay.changes(pause, len(replay)) if key in before
        ]
        self._outcome.deletes = sum(late)
        self._outcome.updates = len(late) - sum(late)

    def _collect(self, client: Client, database: Database) -> None:
        with self._console.status("querying the views"):
            for name in VIEWS:
                ddoc, _, view = name.partition("/")
                page = f"{database.design_path(ddoc)}/_view/{view}?group=true"
                self._outcome.rows[name] = database.http.request("GET", page)["rows"]
            count = len(scan(client, with_values=False)) - len(DESIGNS)
            self._outcome.checks.append(
                check_number("documents in the bucket", self._outcome.truth.documents, count)
            )
        rows = sum(map(len, self._outcome.rows.values()))
        self._step("query", f"{rows:,} rows of {len(VIEWS)} views")

    def _check(self, database: Database, node: Child, pipeline: Child) -> None:
        outcome = self._outcome
        truth = outcome.truth
        outcome.checks.append(check_number("changes written", truth.changes, outcome.written))
        outcome.checks += check_views(truth, outcome.rows)
        for name in DESIGNS:
            info = database.http.request("GET", f"{database.design_path(name)}/_info")[
                "view_index"
            ]
            errors = sum(each["count"] for each in info["map_errors"].values())
            outcome.checks += [
                check_number(f"{name}: map errors", 0, errors),
                check_that(
                    f"{name}: kept by Spark", "1", int(info["writer"].startswith("Spark")),
                    is_right=info["writer"].startswith("Spark"),
                ),
            ]  # fmt: skip
        self._note(pipeline)
        outcome.checks += [
            check_that(
                "rows streamed", "fewer than changes", outcome.streamed,
                is_right=outcome.streamed < truth.changes,
            ),
            check_that(
                "updates of rows already applied", "at least 1", outcome.updates,
                is_right=outcome.updates > 0,
            ),
            check_that(
                "deletes of rows already applied", "at least 1" if truth.cancelled else "0",
                outcome.deletes, is_right=outcome.deletes > 0 or not truth.cancelled,
            ),
        ]  # fmt: skip
        self._step("check", _verdict(outcome))
        for child in (pipeline, node):
            code = child.stop()
            outcome.checks.append(check_number(f"exit code of the {child.name}", 0, code))

    def _crash(self, replay: Replay) -> None:
        with self._console.status("killing a node that Spark is ahead of"):
            act = play_crash(self._work_dir, replay)
        self._outcome.checks += act.checks
        self._step(
            "crash",
            f"a node was killed with {act.lost:,} changes that a table had; rolled back, "
            f"{act.fetched:,} documents fetched, equal again",
        )


def _verdict(outcome: Outcome) -> str:
    wrong = [check for check in outcome.checks if not check.is_right]
    if not wrong:
        return "every row of every view equals the truth"
    return f"[bold red]{len(wrong)} checks failed[/]: {', '.join(c.name for c in wrong)}"
