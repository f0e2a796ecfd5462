"""`millstream replicate SOURCE TARGET`: bring a database in step with another one, from here.

Invariants:
1. Documents pass through this process, their attachments piece by piece.
2. A run that was interrupted goes on where both databases say that it was.
3. `--continuous` ends by what will not pass. If an end does not answer, it waits and begins again.

Elsewhere: what a run does (`replication.core.running`), jobs of a node
(`databases.jobs.replications`).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millstream.cli.connect import (
    JsonOption,
    LoginOptions,
    Who,
    at_node,
)
from millstream.cli.progress import progress_of
from millstream.errors import MillstreamError, UsageError
from millstream.replication.aio.peer import http_peers
from millstream.replication.aio.runner import Runner
from millstream.replication.core.asking import ReadLocal
from millstream.replication.core.jobs import Endpoint, Job, parse_job
from millstream.replication.core.reports import answer_of
from millstream.replication.core.running import Run
from millstream.replication.core.scheduling import crashes_after, penalty_ms
from millstream.replication.core.tasks import may_go_well
from millstream.runtime.tasks import Tasks

__all__ = ["command", "state_of", "summary"]

_MS_PER_S: Final = 1000
_LOOK_S: Final = 0.2
"""Interval between two reads of the progress of a run."""


@at_node
def command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Address of a database.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Address of a database.")],
    *,
    continuous: Annotated[
        bool,
        typer.Option("--continuous", help="Go on until interrupted; wait while an end is away."),
    ] = False,
    create_target: Annotated[
        bool, typer.Option("--create-target", help="Make the target if there is none.")
    ] = False,
    transitive: Annotated[
        bool, typer.Option(help="Skip what the target has by way of other databases.")
    ] = True,
    doc_ids: Annotated[
        list[str] | None, typer.Option("--doc-ids", metavar="ID", help="Only these documents.")
    ] = None,
    selector: Annotated[
        str | None, typer.Option("--selector", metavar="JSON", help="Only what it selects.")
    ] = None,
    at: LoginOptions,
    as_json: JsonOption = False,
) -> None:
    """Replicate a database into another one, over HTTP."""
    form: dict[str, Any] = {
        "source": source, "target": target, "continuous": continuous,
        "create_target": create_target, "transitive": transitive,
    }  # fmt: skip
    if doc_ids:
        form["doc_ids"] = doc_ids
    if selector is not None:
        form["selector"] = _decoded(selector)
    who = at.who
    job = parse_job(form)
    job = replace(job, source=_as(job.source, who), target=_as(job.target, who))
    tls = at.tls
    if tls is not None:
        tls.load_default_certs()  # the other end may be a public one
    answer = asyncio.run(_run(job, tls, is_quiet=as_json))
    print(json.dumps(answer) if as_json else summary(answer, job.source.shown))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--selector is not JSON: {error}", code="bad_arguments") from error


def _as(end: Endpoint, who: Who) -> Endpoint:
    """Return an end with who logs in there, unless its address says another one."""
    if not end.url:
        raise UsageError(
            f"{end.name!r} is no address: write http://HOST:PORT/{end.name}", code="bad_arguments"
        )
    if end.user or who.user is None:
        return end
    return replace(end, user=who.user, password=who.password)


async def _run(job: Job, tls: Any, *, is_quiet: bool) -> dict[str, Any]:
    crashes = 0
    while True:
        begun_s = time.monotonic()
        try:
            return await _once(job, tls, is_quiet=is_quiet)
        except MillstreamError as error:
            if not job.continuous or not may_go_well(error):
                raise
            crashes = crashes_after(crashes, (time.monotonic() - begun_s) * _MS_PER_S)
            wait_s = penalty_ms(crashes) / _MS_PER_S
            print(f"{error}: trying again in {wait_s:g} s", file=sys.stderr)
        await _pause(wait_s)


async def _pause(wait_s: float) -> None:
    await asyncio.sleep(wait_s)


async def _once(job: Job, tls: Any, *, is_quiet: bool) -> dict[str, Any]:
    tasks = Tasks()
    async with http_peers(job, tls) as (source, target):
        runner = Runner(job, source, target, time.time_ns)
        with _progress(is_quiet) as progress:
            tasks.start(_show(progress, runner.run), name="progress")
            try:
                run = await runner.finish()
            finally:
                await tasks.stop()
        assert run.pair is not None, "a run that went well knew both databases"
        return answer_of(run, await target.ask(ReadLocal(run.pair.log)))


def _progress(is_quiet: bool) -> Progress:
    return progress_of(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        is_quiet=is_quiet,
        is_transient=True,
    )


async def _show(progress: Progress, run: Run) -> None:
    task = progress.add_task("asking both databases", total=None)
    while True:
        await asyncio.sleep(_LOOK_S)
        if run.started is not None:
            text, done, total = state_of(run)
            progress.update(task, description=text, completed=done, total=total)


def state_of(run: Run) -> tuple[str, int, int | None]:
    """Return how far a run is in words, changes that are done, and all (None: not known)."""
    done = run.statistics
    text = f"{done.missing_checked:,} looked at, {done.docs_written:,} written"
    if done.doc_write_failures:
        text += f", {done.doc_write_failures:,} refused"
    if run.skipped:
        text += f", {run.skipped:,} skipped"
    return text, done.rows_read, None if run.pending is None else run.rows_seen + run.pending


def summary(answer: dict[str, Any], source: str) -> str:
    """Return in words what came of a run from `source`."""
    lines = _told(answer, source)
    lines += [
        f"refused: {each['id']}: {each['reason'] or each['error']}"
        for each in answer.get("refused", ())
    ]
    if dropped := answer.get("refusals_not_remembered"):
        lines.append(
            f"{dropped:,} refusals are not remembered, there were too many: these documents are "
            "not tried again; once the target takes them, name them by --doc-ids"
        )
    return "\n".join(lines)


def _told(answer: dict[str, Any], source: str) -> list[str]:
    if answer.get("no_changes") and "skipped" not in answer:
        return ["nothing to do: the target has all that the source has"]
    newest: dict[str, Any] = answer["history"][0] if answer["history"] else {}
    lines = []
    if "skipped" in answer:
        via = ", ".join(answer["covered_through"])
        lines.append(
            f"skipped {answer['skipped']:,} changes: covered through {via}, verified with {source}"
        )
    lines.append(
        f"{newest.get('missing_checked', 0):,} revisions looked at, "
        f"{newest.get('docs_written', 0):,} documents written, "
        f"{newest.get('doc_write_failures', 0):,} refused"
    )
    return lines
