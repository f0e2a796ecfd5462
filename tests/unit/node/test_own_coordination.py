"""The coordination of a node: what is begun anew, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.cluster.core.identity import Identity
from millstream.coordination.aio.client.asking import ask_node
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.data_directory.cluster_file import write_identity
from millstream.data_directory.ownership import DataDirectory
from millstream.errors import CorruptionError
from millstream.node.listeners import bind_all
from millstream.node.own_coordination import OwnCoordination
from millstream.node.processes.coord_process import NO_FIGURES, CoordProcess
from millstream.node.settings import Address, Settings

FREE = Address("127.0.0.1", 0)
Make = Callable[..., Settings]


async def test_a_node_without_listeners_of_coordination_has_none(
    make_settings: Make, tmp_path: Path
) -> None:
    directory = DataDirectory.open(tmp_path)
    one = OwnCoordination(make_settings(), directory, lambda _: None)
    one.start({})
    await one.until_ready()
    assert (one.figures(), one.token_settings) == (NO_FIGURES, {})
    await one.stop()
    directory.close()


async def test_what_was_lost_is_begun_anew_only_to_join_the_cluster_again(
    make_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    monkeypatch.setattr(CoordProcess, "start", lambda one: begun.append(one._order.join))
    directory = DataDirectory.open(tmp_path)
    directory.inventory.note_coordination()
    settings = make_settings(coord=FREE, peer=FREE)
    bound = bind_all(settings, ("coord", "peer"))
    one = OwnCoordination(settings, directory, lambda _: None)
    with pytest.raises(CorruptionError) as caught:
        one.start(bound)
    assert caught.value.code == "coordination_lost"
    directory.identity = Identity("c", "flights", "10.0.0.1:7380")
    write_identity(tmp_path, directory.inventory, directory.identity)
    one.start(bound)
    assert begun == [("10.0.0.1", 7380)]
    for each in bound.values():
        each.close()
    directory.close()


async def test_coordination_is_founded_anew_and_the_old_files_stay(
    make_settings: Make, tmp_path: Path
) -> None:
    directory = DataDirectory.open(tmp_path)
    directory.identity = Identity("c", "flights", "127.0.0.1:1")  # nobody is there to be joined
    settings = make_settings(coord=FREE, peer=FREE)
    bound = bind_all(settings, ("coord", "peer"))
    one = OwnCoordination(settings, directory, lambda _: None)
    one.start(bound)
    await one.until_ready()
    await one.found()
    host, port = bound["coord"].getsockname()
    found = await ask_node(AsyncClient([f"{host}:{port}"]), "ADMIN", "NODES")
    assert len(found) == 1
    assert (tmp_path / "coord.lost-1").is_dir()
    await one.stop()
    for each in bound.values():
        each.close()
    directory.close()
