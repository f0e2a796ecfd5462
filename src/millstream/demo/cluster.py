"""Plays the demonstration of a cluster: nodes die, come and go while flights flow in.

Three nodes hold the bucket with two copies besides the active one. A loader writes flights with a
majority's acknowledgement, a Spark query keeps a table, Spark and the nodes keep views, and a
PouchDB replicates where it is installed. Meanwhile n2 is killed and comes back, n4 joins, and n3
is removed.

Invariants:
1. Followers run before the first flight is written. None of them is started again.
2. At the end every document, copy, table row and view row is compared; any difference makes it
   fail.

Elsewhere: nodes (`members`), followers (`followers`, `pouchdb`), comparison (`checks`), pictures
(`report`).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

import millstream
from millstream.client.databases import Database
from millstream.demo.checks import (
    DIFFERENCES_SHOWN_MAX,
    Check,
    check_number,
    check_that,
    check_views,
)
from millstream.demo.crash import errors_to
from millstream.demo.flights import Replay, find_flights, read_flights
from millstream.demo.followers import Loader, TableFollower, ViewAsker, ViewKeeper
from millstream.demo.members import Members, wait_until
from millstream.demo.pouchdb import PouchPeer, find_pouchdb
from millstream.demo.run import BUCKET, VIEWS, Outcome, clean, prepare
from millstream.demo.timeline import Timeline
from millstream.demo.truth import compute_truth
from millstream.demo.views import DESIGNS
from millstream.errors import MillstreamError
from millstream.pipelines import local_session
from millstream.pipelines.change_stream.bucket_changes import scan

if TYPE_CHECKING:
    from rich.console import Console

    from millstream.client.http import HttpClient

__all__ = ["FLIGHTS_DEFAULT", "run_cluster_demo"]

FLIGHTS_DEFAULT: Final = 20_000
"""Rows of the file that are written unless another number is asked for."""
LOAD_S: Final = 75.0
"""How long the flights flow in, in seconds."""
PARTITIONS: Final = 16
COPIES: Final = 3
"""Of each partition, the active one included."""
CATCH_UP_S: Final = 180.0
SPARK_VIEW: Final = "flights"
"""The design document that Spark keeps; the nodes keep the others."""
_VIEW_S: Final = 60.0
_NOTE_S: Final = 0.5


def run_cluster_demo(
    console: Console, work_dir: Path, *, flights: int = FLIGHTS_DEFAULT, keep: bool = False
) -> Outcome:
    """Run everything but the report.

    Args:
        console: where progress is shown.
        work_dir: for the nodes' data, Spark's state and logs; made if missing.
        flights: number of rows of the file.
        keep: leave data and state in the work directory.

    Raises:
        UsageError: `not_empty`: the work directory holds a run that was kept.
        UnavailableError: a part did not start, ended, or did not catch up.
    """
    archive = find_flights()
    prepare(work_dir)
    outcome = Outcome(compute_truth(archive, flights), timeline=Timeline())
    with ExitStack() as stack:
        if not keep:
            stack.callback(clean, work_dir)
        _Play(console, work_dir, outcome, read_flights(archive, flights)).play(stack)
    return outcome


class _Play:
    """One run."""

    def __init__(self, console: Console, work_dir: Path, outcome: Outcome, replay: Replay) -> None:
        assert outcome.timeline is not None, "a run of a cluster has a timeline"
        self._console, self._work_dir, self._outcome = console, work_dir, outcome
        self._timeline, self._replay = outcome.timeline, replay
        self._nodes = Members(work_dir, f"{BUCKET}:{PARTITIONS}")
        self._loader: Loader
        self._table: TableFollower
        self._keeper: ViewKeeper
        self._asker: ViewAsker
        self._peer: PouchPeer | None = None

    def play(self, stack: ExitStack) -> None:
        """Play it all."""
        stack.enter_context(self._nodes)
        self._found()
        self._start_followers(stack)
        self._loader = Loader(
            self._nodes.kv_addresses, BUCKET, self._replay, LOAD_S, self._timeline.failed
        )
        over = threading.Event()
        noting = threading.Thread(target=self._note_often, args=(over,), daemon=True)
        noting.start()
        try:
            with self._loader:
                self._upset()
                wait_until(self._is_loaded, "all flights are written", LOAD_S + CATCH_UP_S)
            self._step("load", f"{self._loader.written:,} changes acknowledged by a majority")
            self._settle()
        finally:
            over.set()
            noting.join()
        self._check()

    def _step(self, name: str, text: str) -> None:
        seconds = self._timeline.seconds
        self._outcome.steps.append((name, seconds, text))
        self._timeline.mark(name)
        self._console.print(f"[green]{seconds:6.1f} s[/]  [bold]{name:9}[/] {text}")

    # -- what runs ---------------------------------------------------------------------------

    def _found(self) -> None:
        nodes = self._nodes
        nodes.found("n1", "n2", "n3")
        # An empty bucket that is made anew has its copies at once; they need not be moved.
        nodes.command("n1", "bucket", "drop", BUCKET, "--yes")
        copies = ("--partitions", str(PARTITIONS), "--replicas", str(COPIES - 1), "--strict")
        nodes.command("n1", "bucket", "create", BUCKET, *copies)
        nodes.command("n1", "cluster", "rebalance", "--wait", "--json")
        nodes.until_whole("n1", BUCKET)
        database = Database(nodes.http("n1"), BUCKET)
        for name, design in DESIGNS.items():
            engine = "spark" if name == SPARK_VIEW else "node"
            database.put(name, {**design, "engine": engine})
        self._step("cluster", f"n1, n2, n3 at {nodes.kv_addresses}: {PARTITIONS} partitions, "
                              "two copies of each besides the active one")  # fmt: skip

    def _start_followers(self, stack: ExitStack) -> None:
        nodes = self._nodes
        addresses = nodes.kv_addresses
        with errors_to(self._work_dir / "spark.log"):
            session = local_session("millstream-demo", work_dir=self._work_dir / "spark")
        stack.callback(session.stop)
        self._table = TableFollower(session, addresses, BUCKET, self._work_dir / "spark")
        stack.callback(self._table.query.stop)
        directory = self._work_dir / "spark" / "views"
        self._keeper = ViewKeeper(session, addresses, BUCKET, SPARK_VIEW, directory)
        stack.enter_context(self._keeper)
        path = self._view_path(f"{SPARK_VIEW}/flights_by_hour")
        self._asker = ViewAsker(
            self._asked, path, self._outcome.truth.cancelled, self._timeline.failed
        )
        stack.enter_context(self._asker)
        folder = find_pouchdb()
        if folder is not None:
            url = f"http://{nodes.http('n1').address}/{quote(BUCKET)}"
            log = self._work_dir / "pouchdb.log"
            self._peer = stack.enter_context(PouchPeer(folder, url, log))
        with self._console.status("waiting for Spark"):
            # The design documents are changes, too.
            wait_until(lambda: self._streamed > 0, "the first batch of Spark", CATCH_UP_S)
        peer = "PouchDB at n1" if self._peer else "no PouchDB (node or tests/npm is not installed)"
        self._step("follow", f"a Spark table, views of Spark and of the nodes, {peer}")

    def _upset(self) -> None:
        """Kill, add and remove nodes while the flights flow in."""
        nodes = self._nodes
        total = len(self._replay)
        wait_until(lambda: self._has_written(total // 10), "the first flights", CATCH_UP_S)
        killed_s = time.monotonic()
        nodes.kill("n2")
        self._timeline.mark("n2 is killed")
        nodes.until_served("n1", BUCKET, without="n2")
        seconds = time.monotonic() - killed_s
        self._step("fail-over", f"n2 was killed; after {seconds:.1f} s the others serve all")
        nodes.start("n2")
        nodes.until_whole("n1", BUCKET)
        self._step("return", "n2 is back, and has its place again")
        nodes.start("n4")
        nodes.join("n4", "n1")
        nodes.command("n1", "cluster", "rebalance", "--wait", "--json")
        nodes.until_whole("n1", BUCKET)
        self._step("add", "n4 has joined, and has its share")
        nodes.command("n1", "cluster", "remove", "n3", "--json")
        nodes.until_out("n3", at="n1")
        nodes.stop("n3")
        self._step("remove", "n3 has moved all away, is out, and was stopped")

    # -- how far it is -----------------------------------------------------------------------

    def _asked(self) -> list[HttpClient]:
        return [self._nodes.http(name) for name in self._nodes.names]

    @property
    def _streamed(self) -> int:
        return self._table.applied["puts"] + self._table.applied["deletions"]

    def _has_written(self, count: int) -> bool:
        self._check_running()
        return self._loader.written >= count

    def _is_loaded(self) -> bool:
        self._check_running()
        return self._loader.is_over

    def _check_running(self) -> None:
        self._loader.check()
        self._asker.check()
        self._table.check()
        self._keeper.check()

    def _note_often(self, over: threading.Event) -> None:
        while not over.wait(_NOTE_S):
            active = {
                one["name"]: one["active"] or 0
                for one in self._nodes.status("n1").get("nodes", [])
            }
            self._timeline.note(
                written=self._loader.written,
                streamed=self._streamed,
                rollbacks=self._table.applied["rollbacks"],
                active=active,
            )

    def _settle(self) -> None:
        """Wait until the followers have everything, or no more comes in time: checks tell."""
        expected = self._expected()

        def is_level() -> bool:
            self._check_running()
            return self._asker.flights == len(expected) and self._table_rows() == expected

        try:
            wait_until(is_level, "the views and the Spark table are level", CATCH_UP_S)
        except MillstreamError as error:
            self._step("late", f"[bold red]{error}[/]")
        else:
            self._step("level", "the followers have all changes")

    def _table_rows(self) -> dict[str, Any]:
        return {
            key: msgspec.json.decode(value)
            for key, value in self._table.rows().items()
            if not key.startswith("_design/")
        }

    def _expected(self) -> dict[str, Any]:
        """Return the documents that there must be."""
        last = dict(self._replay.changes(0, len(self._replay)))
        return {
            key: msgspec.json.decode(value) for key, value in last.items() if value is not None
        }

    def _view_path(self, view: str) -> str:
        ddoc, _, name = view.partition("/")
        return f"/{quote(BUCKET)}/_design/{ddoc}/_view/{name}"

    def _rows_of(self, view: str) -> list[dict[str, Any]]:
        path = f"{self._view_path(view)}?group=true"
        found = self._nodes.http("n1").request("GET", path, timeout_s=_VIEW_S)
        rows: list[dict[str, Any]] = found["rows"]
        return rows

    # -- check -------------------------------------------------------------------------------

    def _check(self) -> None:
        outcome, truth, expected = self._outcome, self._outcome.truth, self._expected()
        outcome.written, outcome.streamed = self._loader.written, self._streamed
        outcome.rows = {view: self._rows_of(view) for view in VIEWS}
        outcome.checks += [
            check_number("changes written", truth.changes, outcome.written),
            check_number("documents, counted from the file", truth.documents, len(expected)),
            self._compare("documents that differ", self._documents([*expected]), expected),
            self._compare("rows of the Spark table that differ", self._table_rows(), expected),
            check_number("copies that differ from the active one", 0, self._odd_copies()),
            *check_views(truth, outcome.rows),
        ]
        if self._peer is not None:
            found = self._peer.documents()
            outcome.checks.append(
                self._compare("documents of PouchDB that differ", found, expected)
            )
        short = self._asker.short.total()
        outcome.checks += [
            check_number("view answers that were short", 0, short),
            check_that("view answers", "at least 1", self._asker.answers,
                       is_right=self._asker.answers > 0),
            check_number("Spark queries that ended", 0, int(not self._table.query.isActive)),
            check_number("Spark views that ended", 0, int(self._keeper.is_over)),
            check_that("commits of the view that Spark keeps", "at least 1", self._keeper.commits,
                       is_right=self._keeper.commits > 0),
        ]  # fmt: skip
        wrong = [check.name for check in outcome.checks if not check.is_right]
        said = f"[bold red]{len(wrong)} checks failed[/]: {', '.join(wrong)}"
        self._step("check", said if wrong else "everything equals the truth")

    def _documents(self, keys: list[str]) -> dict[str, Any]:
        with millstream.connect(self._nodes.kv_addresses, bucket=BUCKET, timeout_s=30.0) as client:
            found = {str(key): one.value for key, one in client.get_many(keys).items()}
            there = {key.decode() for key in scan(client, with_values=False)}
        more = {key for key in there - found.keys() if not key.startswith("_design/")}
        return found | dict.fromkeys(more, "not expected")

    def _odd_copies(self) -> int:
        """Return how many copies are not at the place of the active one, once writes are over."""
        copies: dict[int, list[tuple[str, Any]]] = {}
        path = f"/_millstream/buckets/{quote(BUCKET)}/standings"
        for name in self._nodes.names:
            for one in self._nodes.http(name).request("GET", path)["standings"]:
                if one["state"] in ("active", "replica"):
                    place = one["branch_at_end"], one["complete_end"]
                    copies.setdefault(one["partition"], []).append((one["state"], place))
        wrong = PARTITIONS - len(copies)
        for found in copies.values():
            actives = [place for state, place in found if state == "active"]
            wrong += len(actives) != 1 or len(found) != COPIES
            wrong += sum(place != actives[0] for _, place in found) if actives else 0
        return wrong

    def _compare(self, name: str, found: dict[str, Any], expected: dict[str, Any]) -> Check:
        wrong = [
            key
            for key in sorted(found.keys() | expected.keys())
            if found.get(key) != expected.get(key)
        ]
        check = check_number(name, 0, len(wrong))
        check.differences = len(wrong)
        check.samples = [
            f"{key}: expected {expected.get(key)}, found {found.get(key)}"
            for key in wrong[:DIFFERENCES_SHOWN_MAX]
        ]
        return check
