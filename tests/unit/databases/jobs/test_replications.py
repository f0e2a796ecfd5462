"""Replications of a real node, between its own databases."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from millstream.databases.jobs import replications
from millstream.databases.jobs.replicator import utc_text
from millstream.documents.sent import parse_sent
from millstream.documents.stored import StoredDocument
from millstream.documents.updating import interactive
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.node.engine import Engine
from millstream.node.settings import Settings
from millstream.replication.core.jobs import Job, parse_job


@pytest.fixture
async def node(make_settings: Callable[..., Settings]) -> AsyncIterator[Engine]:
    engine = await Engine.start(make_settings())
    for name in ("a", "b"):
        await engine.create_bucket(name, 4)
    yield engine
    await engine.stop()


def put(text: bytes) -> Callable[[StoredDocument | None], StoredDocument | None]:
    return lambda one: interactive(one, parse_sent(text), revs_limit=9).document


async def fill(node: Engine, database: str, *names: str) -> None:
    edits = [(name, put(b'{"n":1}')) for name in names]
    for one in await node.documents.update(database, edits, is_durable=True):
        assert not isinstance(one, Exception)


def job(**more: Any) -> Any:
    return parse_job({"source": "a", "target": "b", **more})


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what changes has no event here
            await asyncio.sleep(0.01)


async def test_a_job_is_run_once_and_has_nothing_to_do_then(node: Engine) -> None:
    await fill(node, "a", "x", "y")
    answer = await node.replications.run(job())
    assert answer["ok"] is True
    assert answer["history"][0]["docs_written"] == 2
    found = await node.documents.read("b", "x")
    assert found is not None
    again = await node.replications.run(job())
    assert again["no_changes"] is True
    assert node.replications.jobs() == []


async def test_a_continuous_job_is_told_and_cancelled(node: Engine) -> None:
    name = await node.replications.begin(job(continuous=True))
    assert name.endswith("+continuous")
    await fill(node, "a", "late")
    async with asyncio.timeout(60):
        while await node.documents.read("b", "late") is None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    [told] = node.replications.jobs()
    assert (told["id"], told["source"], told["continuous"]) == (name, "a", True)
    await until(node.replications.tasks)
    assert node.replications.tasks()[0]["type"] == "replication"
    await node.replications.cancel(name)
    assert node.replications.jobs() == []
    with pytest.raises(ConditionError):
        await node.replications.cancel(name)


async def test_a_job_that_a_document_has_is_not_begun_or_cancelled_by_requests(
    node: Engine,
) -> None:
    await node.replications.prepare()
    text = b'{"source":"a","target":"b","continuous":true}'
    await node.documents.update("_replicator", [("j", put(text))], is_durable=True)
    await until(lambda: [d["state"] for d in node.replications.documents()] == ["running"])
    name = await node.replications.begin(job(continuous=True))
    [told] = node.replications.jobs()
    assert (told["id"], told["doc_id"], told["database"]) == (name, "j", "_replicator")
    with pytest.raises(ConditionError):
        await node.replications.cancel(name)
    await until(node.replications.tasks)
    [task] = node.replications.tasks()
    assert (task["doc_id"], task["replication_id"]) == ("j", name)


async def test_a_job_that_was_begun_may_be_begun_again(node: Engine) -> None:
    first = await node.replications.begin(job(continuous=True))
    assert await node.replications.begin(job(continuous=True)) == first
    assert len(node.replications.jobs()) == 1
    await node.replications.cancel(first)
    broken = {"source": "a", "target": "b", "filter": "d/none", "continuous": True}
    failing = await node.replications.begin(parse_job(broken))
    await until(lambda: [j["state"] for j in node.replications.jobs()] == ["crashing"])
    assert "missing" in node.replications.jobs()[0]["info"]["error"]
    history = node.replications.jobs()[0]["history"]
    assert [event["type"] for event in history] == ["crashed", "started", "added"]
    assert "missing" in history[0]["reason"]
    await node.replications.cancel(failing)


async def test_a_run_that_somebody_waits_for_is_cancelled(node: Engine) -> None:
    started = asyncio.Event()
    original = node.replications._own

    def own() -> Any:
        started.set()
        return original()

    node.replications._own = own
    waiting = [asyncio.ensure_future(node.replications.run(job())) for _ in range(2)]
    await started.wait()
    [told] = node.replications.jobs()
    assert node.replications.metrics()["replicator_jobs_running"] == 1
    await node.replications.cancel(told["id"])
    for each in waiting:
        with pytest.raises(ConditionError, match="cancelled"):
            await each
    assert node.replications.jobs() == []


async def test_only_so_many_are_waited_for(node: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replications, "ONCE_MAX", 1)
    started, may_end = asyncio.Event(), asyncio.Event()
    original = node.replications._opened

    @contextlib.asynccontextmanager
    async def opened(one: Job) -> AsyncIterator[Any]:
        async with original(one) as ends:
            started.set()
            await may_end.wait()
            yield ends

    monkeypatch.setattr(node.replications, "_opened", opened)
    waiting = asyncio.ensure_future(node.replications.run(job()))
    await started.wait()
    with pytest.raises(UnavailableError) as caught:
        await node.replications.run(job(doc_ids=["x"]))
    assert caught.value.code == "too_many_jobs"
    may_end.set()
    assert (await waiting)["ok"] is True


async def test_figures(node: Engine) -> None:
    before = node.metrics().node
    assert {before[n] for n in before if n.startswith("replicator_")} == {0}
    await fill(node, "a", "x", "y")
    await node.replications.run(job())
    name = await node.replications.begin(job(continuous=True))
    await fill(node, "a", "z")
    await until(lambda: node.metrics().node["replicator_docs_written_total"] == 3)
    figures = node.metrics().node
    assert figures["replicator_jobs_running"] == 1
    assert figures["replicator_changes_read_total"] == 3
    assert figures["replicator_docs_read_total"] == 3
    assert figures["replicator_revisions_checked_total"] == 3
    assert figures["replicator_changes_skipped_total"] == 0
    await node.replications.cancel(name)
    figures = node.metrics().node
    assert (figures["replicator_jobs_running"], figures["replicator_docs_written_total"]) == (0, 3)
    await node.create_bucket("c", 4)
    await node.replications.run(parse_job({"source": "b", "target": "c"}))
    answer = await node.replications.run(parse_job({"source": "a", "target": "c"}))
    assert (answer["skipped"], len(answer["covered_through"])) == (2, 1)  # a's log to b ends there
    assert node.metrics().node["replicator_changes_skipped_total"] == 2


async def test_errors_of_an_end_are_those_of_the_run(
    node: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConditionError):
        await node.replications.run(parse_job({"source": "none", "target": "b"}))
    assert not [each for each in caplog.records if each.exc_info]


async def test_without_a_port_its_databases_have_no_address(node: Engine) -> None:
    closed = replications.Replications(
        lambda: replications.OwnAddress("", ""), node._jobs, clock_ns=lambda: 1
    )
    with pytest.raises(UsageError, match="port is closed"):
        await closed.run(job())
    await closed.stop()


async def test_documents_are_jobs(node: Engine) -> None:
    await fill(node, "a", "x")
    await node.replications.prepare()
    text = b'{"source":"a","target":"b"}'
    await node.documents.update("_replicator", [("job", put(text))], is_durable=True)
    await until(lambda: [d["state"] for d in node.replications.documents()] == ["completed"])
    assert await node.documents.read("b", "x") is not None
    bad = b'{"source":"a"}'
    await node.documents.update("_replicator", [("no job", put(bad))], is_durable=True)
    await until(lambda: len(node.replications.documents()) == 2)
    states = {d["doc_id"]: d["state"] for d in node.replications.documents()}
    assert states == {"job": "completed", "no job": "failed"}
    rev = (await node.documents.read("_replicator", "job")).winner.rev  # type: ignore[union-attr]
    gone = put(b'{"_deleted":true,"_rev":"%b"}' % rev.encode())
    await node.documents.update("_replicator", [("job", gone)], is_durable=True)
    await until(lambda: len(node.replications.documents()) == 1)


def test_times_are_told_as_couchdb_does() -> None:
    assert utc_text(1_767_323_045 * 10**9 + 5) == "2026-01-02T03:04:05Z"
