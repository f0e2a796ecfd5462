"""One node is asked by itself, without a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.coordination.aio.client.asking import ask_node
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.errors import MillstreamError
from support.coordination.namespace_node import one_node


async def test_a_node_answers_without_a_session(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address:
        found = await ask_node(AsyncClient([address]), "VDS", "1")
        assert b"epoch" in found[b"1"]
        with pytest.raises(MillstreamError) as caught:
            await ask_node(AsyncClient([address]), "GET", "/nothing", "STALEREAD")
        assert caught.value.code == "error_does_not_exists"


async def test_a_node_that_is_not_there_is_told() -> None:
    with pytest.raises(MillstreamError) as caught:
        await ask_node(AsyncClient(["127.0.0.1:1"]), "VDS")
    assert caught.value.code == "unreachable"
