"""Who follows the demonstration's cluster: a Spark table, a view that Spark keeps, a loader.

Also whoever asks for views.

Invariants:
1. The Spark query is started once. When it has ended, that is an error, and it is not started
   again.
2. The loader writes the changes of a key in order. What was not acknowledged is written again,
   with all that follows it.
3. Whoever asks for views takes the index as it is. It never goes back: an answer with status 200
   that lacks more than the flights that are cancelled is short.

Elsewhere: the changes (`flights`), the play (`cluster`), PouchDB (`pouchdb`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import millstream
from millstream.errors import MillstreamError, UnavailableError
from millstream.pipelines import ParquetTarget, apply_changes
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index.on_spark import CycleReport, IndexPipeline
from millstream.pipelines.index.setup import find_specs

if TYPE_CHECKING:
    from millstream.client.http import HttpClient
    from millstream.demo.flights import Change, Replay

__all__ = ["Loader", "TableFollower", "ViewAsker", "ViewKeeper", "steps_of"]

STEP_MAX: Final = 500
"""Changes that are written before the next are begun."""
TRIES_S_MAX: Final = 120.0
"""How long one step is written again while it fails."""
_PAUSE_S: Final = 0.2
_STOP_S: Final = 60.0


class _Worker(ABC):
    """A thread that works until it is told to stop; `check` raises what it ended with."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    @property
    def is_over(self) -> bool:
        """Whether the work has come to its end."""
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise the error that the work ended with, if it did."""
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._error = error

    @abstractmethod
    def work(self) -> None:
        """Work until `_stop` is set."""


def steps_of(changes: Iterator[Change]) -> Iterator[list[Change]]:
    """Cut changes into steps of at most `STEP_MAX`, in which each key occurs once."""
    step: dict[str, Change] = {}
    for change in changes:
        if change[0] in step or len(step) >= STEP_MAX:
            yield [*step.values()]
            step = {}
        step[change[0]] = change
    if step:
        yield [*step.values()]


class Loader(_Worker):
    """Writes all changes with a majority's acknowledgement.

    Args:
        addresses: of nodes.
        bucket: its name.
        replay: the changes.
        load_s: how long to spread them over, in seconds.
        on_error: called with each error that the client had.
    """

    def __init__(
        self,
        addresses: str,
        bucket: str,
        replay: Replay,
        load_s: float,
        on_error: Callable[[str, MillstreamError], None],
    ) -> None:
        super().__init__("loader")
        self._addresses, self._bucket, self._replay = addresses, bucket, replay
        self._load_s, self._on_error = load_s, on_error
        self.written = 0
        """Changes that were acknowledged."""

    def work(self) -> None:
        """Write to the end, or until told to stop."""
        began, total = time.monotonic(), len(self._replay)
        with millstream.connect(self._addresses, bucket=self._bucket, timeout_s=30.0) as client:
            for step in steps_of(self._replay.changes(0, total)):
                if self._stop.is_set():
                    return
                self._write(client, step)
                self.written += len(step)
                due_s = began + self._load_s * self.written / total
                self._stop.wait(max(0.0, due_s - time.monotonic()))

    def _write(self, client: Any, step: Sequence[Change]) -> None:
        deadline = time.monotonic() + TRIES_S_MAX
        while True:
            try:
                client.apply_many(step, durability="majority").raise_first()
            except MillstreamError as error:
                self._on_error("write", error)
                if time.monotonic() > deadline or self._stop.wait(_PAUSE_S):
                    raise
            else:
                return


class ViewAsker(_Worker):
    """Asks one node after the other for the number of flights, `update=false`.

    Args:
        nodes: returns those to be asked.
        path: of the view.
        cancelled: how many flights may vanish, at most.
        on_error: called with each error.
    """

    def __init__(
        self,
        nodes: Callable[[], list[HttpClient]],
        path: str,
        cancelled: int,
        on_error: Callable[[str, MillstreamError], None],
    ) -> None:
        super().__init__("view asker")
        self._nodes, self._path, self._on_error = nodes, path, on_error
        self._cancelled = cancelled
        self.answers = 0
        self.flights = 0
        """Flights of the last answer."""
        self.most = 0
        """Flights of the answer with the most."""
        self.short: Counter[str] = Counter()
        """Short answers, by node."""

    def work(self) -> None:
        """Ask until told to stop."""
        while not self._stop.wait(_PAUSE_S):
            for http in self._nodes():
                floor = self.most - self._cancelled
                try:
                    rows = http.request("GET", f"{self._path}?update=false")["rows"]
                except MillstreamError as error:
                    self._on_error("view", error)
                    continue
                self.answers += 1
                self.flights = sum(row["value"] for row in rows)
                self.most = max(self.most, self.flights)
                if self.flights < floor:
                    self.short[http.address] += 1


class ViewKeeper(_Worker):
    """Keeps the index of a design document on Spark, wherever its parts are.

    Args:
        session: Spark.
        addresses: of nodes.
        bucket: its name.
        design: name of the design document.
        directory: for the checkpoint.
    """

    def __init__(
        self, session: Any, addresses: str, bucket: str, design: str, directory: Path
    ) -> None:
        super().__init__(f"view {design}")
        source = parse_options({"hosts": addresses, "bucket": bucket})
        (spec,) = find_specs(source, [design])
        self._session = session
        self.commits = 0
        """Commits of all nodes together."""
        self._pipeline = IndexPipeline(
            spec, directory / design, on_cycle=self._count, is_loop=True
        )

    def __exit__(self, *error: object) -> None:
        self._pipeline.is_stopping = True
        super().__exit__(*error)

    def work(self) -> None:
        """Keep it until told to stop."""
        self._pipeline.run(self._session)

    def _count(self, _: CycleReport) -> None:
        self.commits += 1


class TableFollower:
    """A table of Parquet files that one Spark query keeps equal to the bucket.

    Args:
        session: Spark.
        addresses: of nodes.
        bucket: its name.
        directory: for table and checkpoint.
    """

    def __init__(self, session: Any, addresses: str, bucket: str, directory: Path) -> None:
        self._table = ParquetTarget(directory / "table")
        self._source = {"hosts": addresses, "bucket": bucket, "rollback": "rows"}
        self.applied: Counter[str] = Counter()
        """What the batches came to: the members of `Applied`, added up."""
        changes = session.readStream.format("millstream").options(**self._source).load()
        writer = changes.writeStream.foreachBatch(self._take)
        self.query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()

    def _take(self, batch: Any, batch_id: int) -> None:
        applied = apply_changes(batch, batch_id, self._table, self._source)
        self.applied.update(applied._asdict())

    def check(self) -> None:
        """Raise if the query has ended.

        Raises:
            UnavailableError: `query_failed`.
        """
        if not self.query.isActive:
            text = f"the Spark query has ended: {self.query.exception()}"
            raise UnavailableError(text, code="query_failed")

    def rows(self) -> dict[str, bytes]:
        """Return key -> value."""
        table = self._table.table().select(["key", "value"]).to_pydict()
        return dict(zip(table["key"], table["value"], strict=True))
