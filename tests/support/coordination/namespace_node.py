"""One node with one namespace, /app, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream.coordination import AsyncClient
from support.coordination.coordinators import WAIT_S, Nodes, until

__all__ = ["addresses", "namespace_client", "one_node"]


def addresses(nodes: Nodes) -> list[str]:
    """Return where nodes serve clients."""
    return [f"127.0.0.1:{port}" for port in nodes.coord_ports.values()]


@asynccontextmanager
async def one_node(directory: Path) -> AsyncIterator[str]:
    """Serve; yields the address."""
    nodes = Nodes(directory, 1)
    await nodes.start(0)
    try:
        await until(lambda: nodes.group(0).replica.leading)
        yield addresses(nodes)[0]
    finally:
        await nodes.stop(0)


@asynccontextmanager
async def namespace_client(*places: str) -> AsyncIterator[AsyncClient]:
    """Yield a client whose calls may take a minute; the namespace is there."""
    async with AsyncClient(places, deadline_s=WAIT_S) as client:
        await client.create_namespace("/app")
        yield client
