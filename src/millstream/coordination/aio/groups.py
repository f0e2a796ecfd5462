"""The groups of one node, on disk and running: formatted, opened, dropped, closed.

Layout: one directory for each group, named after its id in hexadecimal. The position that each of
them had reached is stored beside the directory of all groups, in a directory with the suffix
`.reached`.

Invariants:
1. A group is formatted once. Formatting it again changes nothing.
2. A group runs at most once, and not while its directory is being removed.
3. A directory is renamed before it is removed, so a crash leaves no half of a group. A restored
   group is also made under another name, and gets its own when it is opened for the first time.
   Until the pool knows it, it is not visible.

Elsewhere: which groups there should be (`core.pool`), one of them (`aio.group_runner`).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final

from millstream.coordination.aio.group_runner import GroupRunner, SendTo
from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.state.run import Notice
from millstream.coordination.core.pool.effects import GroupChanged
from millstream.coordination.core.pool.group_check import REACHED, REMOVED, RESTORED
from millstream.runtime.disk import OsDisk, OsFile
from millstream.runtime.files import sync_directory
from millstream.runtime.tasks import in_thread
from millstream.vsr.core.disk.careful_files import CarefulFiles
from millstream.vsr.core.disk.journal import format_group, is_formatted
from millstream.vsr.core.disk.reached_file import ReachedFile
from millstream.vsr.core.entries import ID_BYTES
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.replica.member import Status

__all__ = ["Groups"]

_LOG = logging.getLogger(__name__)
_FOLDER: Final = re.compile(f"[0-9a-f]{{{2 * ID_BYTES}}}")


class _WatchedDisk(OsDisk):
    """A group's directory that says when a file is opened, and itself is open all the time.

    So it can be synced where no descriptor is left, and that is never taken for a failed disk.
    """

    _descriptor = -1

    def __init__(self, path: Path, on_open: Callable[[], None]) -> None:
        super().__init__(path)
        self._on_open = on_open
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_directory(self) -> None:
        """Make creations, renames and removals durable."""
        os.fsync(self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def open(self, name: str, *, create: bool = False) -> OsFile:
        """Open a file as any disk does."""
        self._on_open()
        return super().open(name, create=create)


class Groups:
    """Ended by `close`.

    Args:
        directory: of coordination.
        node_id: whose members these are.
        send: tries to deliver a message to a node.
        on_change: called when a group's hard state has changed.
        on_fatal: called when the disk failed.
        on_progress: called in any thread when a group's files are worked on.
        on_notice: called when a session of a group led here has a request worth repeating.
    """

    def __init__(
        self,
        directory: Path,
        node_id: bytes,
        send: SendTo,
        on_change: Callable[[GroupChanged], None],
        on_fatal: Callable[[BaseException], None],
        on_progress: Callable[[], None] = lambda: None,
        on_notice: Callable[[int, Notice], None] = lambda *_: None,
    ) -> None:
        self.directory, self._node_id = directory, node_id
        self._on_progress, self._on_notice = on_progress, on_notice
        self.running: dict[bytes, GroupRunner] = {}
        self._numbers: dict[bytes, int] = {}
        self._send, self._on_change, self._on_fatal = send, on_change, on_fatal

    def here(self) -> tuple[bytes, ...]:
        """Return the groups that have a folder, perhaps not formatted yet. Blocks.

        Of groups that were being removed the rest is.
        """
        found = []
        for path in sorted(self.directory.iterdir()):
            if path.name.endswith(REMOVED):
                shutil.rmtree(path)
            elif path.is_dir() and _FOLDER.fullmatch(path.name):
                found.append(bytes.fromhex(path.name))
        return tuple(found)

    def remove_unknown(self, known: Container[bytes]) -> None:
        """Remove what was restored of groups that are not known: a crash came between. Blocks."""
        for path in sorted(self.directory.glob(f"*{RESTORED}")):
            name = path.name.removesuffix(RESTORED)
            is_group = path.is_dir() and _FOLDER.fullmatch(name)
            if is_group and bytes.fromhex(name) not in known:
                _LOG.warning("removed %s: restoring it was not finished", path)
                shutil.rmtree(path)

    def making(self, group_id: bytes) -> Path:
        """Return where a restored group is made, until it is opened."""
        return self.directory / (group_id.hex() + RESTORED)

    def disk(self, group_id: bytes) -> OsDisk:
        """Return the directory of a group, made if it is missing. Blocks."""
        return _WatchedDisk(self.directory / group_id.hex(), self._on_progress)

    async def format(self, hard_state: HardState) -> None:
        """Make the files of a group; harmless if they are there.

        Raises:
            UnavailableError: `disk_full`, `disk_failed`.
        """
        await in_thread(self._format, hard_state)

    def _format(self, hard_state: HardState) -> None:
        disk = self.disk(hard_state.group_id)
        if is_formatted(disk):
            settled = CarefulFiles(disk)  # a process that was killed may not have come to that
            settled.settle()
            settled.close()
        else:
            self._forget_reached(hard_state.group_id)
            format_group(disk, hard_state)
        sync_directory(self.directory)

    async def open(self, group_id: bytes, number: int) -> None:
        """Run a formatted or restored group. Does nothing if it runs.

        Raises:
            CorruptionError: `promises_lost`, `set_back`.
            UnavailableError: `disk_full`, `disk_failed`.
        """
        if group_id in self.running:
            return
        state = GroupState()
        state.audience.on_notice = lambda notice: self._notify(group_id, notice)
        runner = await GroupRunner.open(
            await in_thread(self._place, group_id), state, send=self._send,
            on_fatal=self._on_fatal, on_change=self._changed,
            reached=await in_thread(self._reached, group_id),
        )  # fmt: skip
        state.audience.version_at = runner.version_at
        self.running[group_id], self._numbers[group_id] = runner, number

    def _notify(self, group_id: bytes, notice: Notice) -> None:
        runner = self.running.get(group_id)
        if runner is not None and runner.replica.leading:
            self._on_notice(self._numbers[group_id], notice)

    def _changed(self, change: GroupChanged) -> None:
        runner = self.running.get(change.group_id)
        if runner is not None and change.status is Status.RETIRED:
            _end_subscriptions(runner)
        self._on_change(change)

    def _place(self, group_id: bytes) -> OsDisk:
        """Return the directory of a group; what was restored is that from now on."""
        path, made = self.directory / group_id.hex(), self.making(group_id)
        if made.exists() and not path.exists():
            made.rename(path)
            sync_directory(self.directory)
        return self.disk(group_id)

    def _reached(self, group_id: bytes) -> ReachedFile | None:
        """Return where it is noted how far a group got, None if nothing can be noted. Blocks."""
        path = self.directory.with_name(self.directory.name + REACHED)
        try:
            return ReachedFile(OsDisk(path), self._node_id, group_id)
        except OSError as error:
            _LOG.warning("older copies of groups are not recognized: %s: %s", path, error)
            return None

    def _forget_reached(self, group_id: bytes) -> None:
        if (reached := self._reached(group_id)) is not None:
            reached.forget()

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
        """End a group and remove its files. Does nothing if there are none. Raises OSError."""
        runner = self.running.pop(group_id, None)
        if runner is not None:
            del self._numbers[group_id]
            await runner.close()
            _end_subscriptions(runner)
        for path in (self.directory / group_id.hex(), self.making(group_id)):
            await in_thread(self._remove, path)
        await in_thread(self._forget_reached, group_id)

    @staticmethod
    def _remove(path: Path) -> None:
        if path.exists():
            removed = path.rename(path.with_name(path.name + REMOVED))
            sync_directory(path.parent)
            shutil.rmtree(removed)

    async def stop_all(self) -> None:
        """End them all while the node goes on: who listens here goes on at other members."""
        for runner in list(self.running.values()):
            _end_subscriptions(runner)
        await self.close()

    async def close(self) -> None:
        """End them all."""
        running = dict(self.running)
        self.running.clear()
        self._numbers.clear()
        for runner in running.values():
            await runner.close()


def _end_subscriptions(runner: GroupRunner) -> None:
    """End the subscriptions here, so that clients go on at another member."""
    machine = runner.replica.machine
    if isinstance(machine, GroupState):
        machine.audience.skip()
