"""What is set for a database, on three nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases.documents import distributed_settings as distributed_settings
from millstream.databases.documents.distributed_settings import ASK_PAUSE_S, DistributedSettings
from millstream.errors import UnavailableError
from millstream.gateway.core.api.stored import Asked, AskSettings, KeepSettings, Numbered
from support.http.sharing_nodes import BUCKET, SharingNode, SharingNodes, lost, sharing_nodes


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SharingNodes]:
    async with sharing_nodes(tmp_path, "abca", "abc") as found:
        yield found


async def test_what_is_set_anywhere_counts_everywhere(nodes: SharingNodes) -> None:
    for number, node in enumerate(nodes.all):
        await node.distributed.set_revs_limit(BUCKET, 10 + number)
        await node.distributed.set_security(BUCKET, b'{"n":%d}' % number)
        for other in nodes.all:
            found = await other.distributed.settings(BUCKET)
            assert found[:2] == (10 + number, b'{"n":%d}' % number)
    assert nodes["b"].own.shared_settings(BUCKET).revs_limit == (3, b"12")


async def test_setting_something_is_no_purge(nodes: SharingNodes) -> None:
    for node in nodes.all:
        await node.distributed.settings(BUCKET)
    await nodes["b"].running.count_purge()
    await nodes["b"].distributed.set_revs_limit(BUCKET, 5)
    await nodes["a"].distributed.set_security(BUCKET, b"{}")
    assert [one.running.purge_epoch for one in nodes.all] == [0, 1, 0]


async def test_who_joins_takes_over_how_often_was_purged(nodes: SharingNodes) -> None:
    await nodes["b"].running.count_purge()
    await nodes["a"].distributed.settings(BUCKET)
    assert [one.running.purge_epoch for one in nodes.all] == [1, 1, 0]


async def test_a_node_that_cannot_be_reached_has_to_hear(nodes: SharingNodes) -> None:
    nodes.network.down.add("c")
    with pytest.raises(UnavailableError, match="c is down"):
        await nodes["a"].distributed.set_revs_limit(BUCKET, 5)
    assert (await nodes["b"].distributed.settings(BUCKET)).revs_limit == 1000, "nothing was set"
    nodes.network.down.clear()
    nodes.network.before = lost(KeepSettings)
    with pytest.raises(UnavailableError, match="set it again"):
        await nodes["a"].distributed.set_revs_limit(BUCKET, 5)
    await nodes["a"].distributed.set_revs_limit(BUCKET, 6)
    for node in nodes.all:
        assert (await node.distributed.settings(BUCKET)).revs_limit == 6


async def test_a_node_that_has_nothing_of_the_bucket_need_not_hear(nodes: SharingNodes) -> None:
    nodes["c"].is_served = False
    await nodes["a"].distributed.set_revs_limit(BUCKET, 5)
    assert (await nodes["b"].distributed.settings(BUCKET)).revs_limit == 5
    nodes["c"].is_served = True
    assert (await nodes["c"].distributed.settings(BUCKET)).revs_limit == 5, "it asks when it has"


async def keep(node: SharingNode, limit: int) -> None:
    """Set a limit on one node alone."""
    known = node.own.shared_settings(BUCKET)
    newer = Numbered(known.revs_limit.number + 1, b"%d" % limit)
    await node.own.keep_settings(BUCKET, known._replace(revs_limit=newer))


async def test_who_was_silent_is_asked_again_later(nodes: SharingNodes) -> None:
    now = 100.0
    await keep(nodes["b"], 7)
    settings = DistributedSettings(nodes["a"].own, nodes["a"].route, lambda: now)
    nodes.network.down.add("b")
    await settings.learn(BUCKET)
    nodes.network.down.clear()
    await settings.learn(BUCKET)
    assert nodes.network.requests(AskSettings) == ["c"]
    now += ASK_PAUSE_S
    await settings.learn(BUCKET)
    await settings.learn(BUCKET)
    assert nodes.network.requests(AskSettings) == ["c", "b"]
    assert (await nodes["a"].own.settings(BUCKET)).revs_limit == 7


async def test_a_node_that_hangs_delays_nobody_for_long(
    nodes: SharingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed_settings, "ASK_S_MAX", 0.01)

    async def hang(name: str, asked: Asked) -> None:
        if name == "c":
            await asyncio.Event().wait()

    nodes.network.before = hang
    await keep(nodes["b"], 7)
    assert (await nodes["a"].distributed.settings(BUCKET)).revs_limit == 7


async def test_settings_of_before_they_were_numbered(nodes: SharingNodes) -> None:
    await nodes["a"].running.local.set("revs_limit", b"33")
    await nodes["a"].running.local.set("security", b'{"admins":{}}')
    assert (await nodes["a"].own.settings(BUCKET))[:2] == (33, b'{"admins":{}}')
    assert (await nodes["b"].distributed.settings(BUCKET))[:2] == (33, b'{"admins":{}}')
    await nodes["b"].distributed.set_revs_limit(BUCKET, 34)
    assert (await nodes["a"].distributed.settings(BUCKET)).revs_limit == 34
