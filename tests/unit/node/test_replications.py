"""Replications of a real node, between its own databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from millstream.documents.sent import parse_sent
from millstream.documents.stored import StoredDocument
from millstream.documents.updating import interactive
from millstream.errors import ConditionError, UsageError
from millstream.node import replications
from millstream.node.engine import Engine
from millstream.node.replicator import utc_text
from millstream.node.settings import Settings
from millstream.replication.core.jobs import parse_job


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
