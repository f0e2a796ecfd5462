"""What one process makes of the users, another one sees."""

import asyncio
from pathlib import Path

import pytest

from millstream.access.users import UserStore
from millstream.node import known_users
from millstream.node.known_users import keep_users


async def test_changes_are_seen_and_a_damaged_file_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(known_users, "USERS_S", 0.01)
    path = tmp_path / "users.json"
    here, there, dropped = UserStore(path), UserStore(path), asyncio.Queue[str]()
    task = asyncio.ensure_future(keep_users(here, dropped.put_nowait))
    there.put("ada", "pw")
    assert await asyncio.wait_for(dropped.get(), 60) == "ada"
    good = path.read_bytes()
    path.write_bytes(b"{")
    async with asyncio.timeout(60):
        while "cannot be read" not in caplog.text:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert here.names == ["ada"]
    path.write_bytes(good)
    there = UserStore(path)
    there.delete("bob")
    there.put("bob", "pw")
    assert await asyncio.wait_for(dropped.get(), 60) == "bob"
    task.cancel()
