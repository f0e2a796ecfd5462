import asyncio
import os

import pytest

from millstream.errors import UnavailableError
from millstream.node.processes.index_process import IndexProcess
from millstream.node.processes.orders import IndexOrder


async def test_the_link_is_there_while_the_process_is(tmp_path):
    order = IndexOrder(
        os.getpid(), str(tmp_path), f"unix:{tmp_path}/kv.sock", f"{tmp_path}/i.sock", (), "info",
        False,
    )  # fmt: skip
    changes = asyncio.Queue()
    process = IndexProcess(order, changes.put_nowait)
    with pytest.raises(UnavailableError, match="being started"):
        process.there()
    process.start()
    link = await changes.get()
    assert process.there() is link
    assert await link.ask("tasks") == {"tasks": []}
    await process.stop()
    assert changes.get_nowait() is None
    with pytest.raises(UnavailableError):
        process.there()
