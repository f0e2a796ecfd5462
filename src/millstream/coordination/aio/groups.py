"""The groups of one node, as files and as what runs: formatted, opened, dropped, closed.

Layout: one directory for each group, named after its id in hexadecimal.

Invariants:
1. A group is formatted once; who does it again changes nothing.
2. A group runs at most once, and not while its directory is being removed.
3. The name of a directory that is removed is changed first, so that a crash leaves no group of
   which half is there.

Elsewhere: which groups there are to be (`core.pool`), one of them (`aio.group_runner`).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from millstream.coordination.aio.group_runner import GroupRunner, SendTo
from millstream.coordination.core.careful_files import CarefulFiles
from millstream.coordination.core.entries import ID_BYTES
from millstream.coordination.core.group_check import REMOVED
from millstream.coordination.core.journal import format_group, is_formatted
from millstream.coordination.core.pool_effects import GroupChanged
from millstream.coordination.core.register import Registers
from millstream.coordination.core.standing import Standing
from millstream.runtime.disk import OsDisk
from millstream.runtime.files import sync_directory

__all__ = ["Groups"]


class Groups:
    """Ended by `close`.

    Args:
        directory: of coordination.
        send: tries to deliver a message to a node.
        on_change: called when a group's standing has changed.
        on_fatal: called when the disk failed.
    """

    def __init__(
        self,
        directory: Path,
        send: SendTo,
        on_change: Callable[[GroupChanged], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.directory = directory
        self.running: dict[bytes, GroupRunner] = {}
        self._numbers: dict[bytes, int] = {}
        self._send, self._on_change, self._on_fatal = send, on_change, on_fatal

    def formatted(self) -> tuple[bytes, ...]:
        """Return the groups whose files are here; remove what is left of others. Blocks."""
        found = []
        for path in sorted(self.directory.iterdir()):
            if path.name.endswith(REMOVED):
                shutil.rmtree(path)
            elif path.is_dir() and len(path.name) == 2 * ID_BYTES and is_formatted(OsDisk(path)):
                found.append(bytes.fromhex(path.name))
        return tuple(found)

    def disk(self, group_id: bytes) -> OsDisk:
        """Return the directory of a group, made if it is missing. Blocks."""
        return OsDisk(self.directory / group_id.hex())

    async def format(self, standing: Standing) -> None:
        """Make the files of a group; harmless if they are there.

        Raises:
            UnavailableError: `disk_full`, `disk_failed`.
        """
        await asyncio.to_thread(self._format, standing)

    def _format(self, standing: Standing) -> None:
        disk = self.disk(standing.group_id)
        if is_formatted(disk):
            settled = CarefulFiles(disk)  # a process that was killed may not have come to that
            settled.settle()
            settled.close()
        else:
            format_group(disk, standing)
        sync_directory(self.directory)

    async def open(self, group_id: bytes, number: int) -> None:
        """Have a formatted group run; harmless if it does.

        Raises:
            CorruptionError: `promises_lost`.
            UnavailableError: `disk_full`, `disk_failed`.
        """
        if group_id in self.running:
            return
        runner = await GroupRunner.open(
            await asyncio.to_thread(self.disk, group_id), Registers(), send=self._send,
            on_fatal=self._on_fatal, on_change=self._on_change,
        )  # fmt: skip
        self.running[group_id], self._numbers[group_id] = runner, number

    @property
    def numbered(self) -> dict[int, GroupRunner]:
        """The same by the numbers that people know them by, but those that two are called by."""
        numbers = list(self._numbers.values())
        return {
            number: self.running[group_id]
            for group_id, number in self._numbers.items()
            if numbers.count(number) == 1
        }

    async def drop(self, group_id: bytes) -> None:
        """End a group and remove its files; harmless if there are none. Raises OSError."""
        runner = self.running.pop(group_id, None)
        if runner is not None:
            del self._numbers[group_id]
            await runner.close()
        await asyncio.to_thread(self._remove, self.directory / group_id.hex())

    @staticmethod
    def _remove(path: Path) -> None:
        if path.exists():
            removed = path.rename(path.with_name(path.name + REMOVED))
            sync_directory(path.parent)
            shutil.rmtree(removed)

    async def close(self) -> None:
        """End them all."""
        running = dict(self.running)
        self.running.clear()
        self._numbers.clear()
        for runner in running.values():
            await runner.close()
