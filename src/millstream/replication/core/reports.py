"""What is told of replications: answers of `_replicate`, jobs of the scheduler, running tasks.

Invariants:
1. No secret of a job is told.
2. A job has one name for as long as what it asks for stays the same.

Elsewhere: pages (`gateway.aio.databases.replication_pages`), the log itself (`logs`).
Source: CouchDB's replicator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from millstream.errors import MillstreamError
from millstream.replication.core.jobs import Endpoint, Job, member_of, replication_id
from millstream.replication.core.logs import Statistics, parse_log
from millstream.replication.core.running import Run

__all__ = [
    "Totals", "answer_of", "figures_of", "job_name", "shortcut_of", "shown", "task_of",
]  # fmt: skip

_VERSION: Final = 4
_NS_PER_S: Final = 1_000_000_000


def job_name(job: Job) -> str:
    """Return how a job is named to people: by its two ends and what passes."""
    name = replication_id(
        job.source.identity, job.target.identity, member_of(job, job.filter),
        winning_revs_only=job.winning_revs_only,
    )  # fmt: skip
    suffixes = {"+continuous": job.continuous, "+create_target": job.create_target}
    return name + "".join(suffix for suffix, is_there in suffixes.items() if is_there)


def answer_of(run: Run, log: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what is answered of a run that went well; its own figures stand first in the history.

    Args:
        run: which is over.
        log: the document at the target; None: there is none.
    """
    history = [
        {"session_id": entry.ckpt_id, "recorded_seq": entry.place.seq, **entry.told}
        for entry in parse_log(log).entries
    ]
    if not run.has_changed_nothing or not run.job.use_checkpoints:
        own = {"session_id": run.entries[-1].ckpt_id if run.entries else ""}
        others = [each for each in history if each["session_id"] != own["session_id"]]
        history = [{**own, "recorded_seq": run.place.seq, **run.told}, *others]
    newest = history[0] if history else {"session_id": ""}
    return {
        "ok": True,
        **({"no_changes": True} if run.has_changed_nothing else {}),
        "session_id": newest["session_id"],
        "source_last_seq": run.place.seq,
        "replication_id_version": _VERSION,
        "history": history,
        **shortcut_of(run),
        **_refused_by(run),
    }


def _refused_by(run: Run) -> dict[str, Any]:
    """Return what the target did not get, and how much of it is forgotten; empty: nothing."""
    failed = [
        {"id": each.name, "error": each.error, "reason": each.reason}
        for each in run.failures.values()
    ]
    return {
        **({"refused": failed} if failed else {}),
        **({"refusals_not_remembered": run.dropped} if run.dropped else {}),
    }


def shortcut_of(run: Run) -> dict[str, Any]:
    """Return how much a run did not read since it came through others; empty: nothing."""
    if not run.skipped:
        return {}
    return {"skipped": run.skipped, "covered_through": sorted(run.via)}


def figures_of(run: Run | None) -> dict[str, Any]:
    """Return how far a run is, with CouchDB's names."""
    if run is None:
        return {}
    done = run.statistics
    recorded = run.entries[-1].place.seq if run.entries else None
    return {
        "revisions_checked": done.missing_checked,
        "missing_revisions_found": done.missing_found,
        "docs_read": done.docs_read,
        "docs_written": done.docs_written,
        "doc_write_failures": done.doc_write_failures,
        "changes_pending": run.pending,
        "checkpointed_source_seq": recorded,
        "source_seq": run.place.seq,
        "through_seq": run.place.seq,
        **shortcut_of(run),
        **_refused_by(run),
        **({"source_error": run.trouble} if run.trouble else {}),
    }


class Totals:
    """What all runs of a node did, those that are over and those under way."""

    def __init__(self) -> None:
        self._done = Statistics()
        self._skipped = self._crashes = 0
        self._runs: list[Run] = []

    @contextmanager
    def counting(self, run: Run) -> Iterator[None]:
        """Count a run, while it goes on and afterwards."""
        self._runs.append(run)
        try:
            yield
        finally:
            self._runs.remove(run)
            self._done = self._done.plus(run.statistics)
            self._skipped += run.skipped

    def ended(self, error: MillstreamError | None) -> None:
        """A run of a job is over, with an error or without."""
        self._crashes += error is not None

    def figures(self) -> dict[str, float]:
        """Return them by the names of metrics."""
        done = self._done
        for run in self._runs:
            done = done.plus(run.statistics)
        return {
            "replicator_changes_read_total": done.rows_read,
            "replicator_changes_skipped_total": sum(
                (r.skipped for r in self._runs), self._skipped
            ),
            "replicator_revisions_checked_total": done.missing_checked,
            "replicator_missing_revisions_found_total": done.missing_found,
            "replicator_docs_read_total": done.docs_read,
            "replicator_docs_written_total": done.docs_written,
            "replicator_doc_write_failures_total": done.doc_write_failures,
            "replicator_crashes_total": self._crashes,
        }


def shown(end: Endpoint) -> str:
    """Return an end as CouchDB shows it: with a slash behind addresses."""
    return end.shown + "/" if end.url else end.shown


def task_of(
    name: str, job: Job, run: Run | None, doc_id: str | None, *, since_ns: int, now_ns: int
) -> dict[str, Any]:
    """Return a job under way as `_active_tasks` shows it."""
    return {
        "type": "replication",
        "replication_id": name,
        "doc_id": doc_id,
        "source": shown(job.source),
        "target": shown(job.target),
        "continuous": job.continuous,
        "checkpoint_interval": job.checkpoint_interval_ms,
        "started_on": since_ns // _NS_PER_S,
        "updated_on": now_ns // _NS_PER_S,
        **figures_of(run),
    }
