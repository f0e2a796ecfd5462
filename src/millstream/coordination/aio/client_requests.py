"""What clients of this node ask, given to its groups: the shell's side of `core.backend`.

Invariants:
1. A group that is not here is answered as by a node that does not lead it.
2. Nothing waits here: each question goes to a replica, or is answered at once.

Elsewhere: who asks (`core.front`), who answers (`aio.group_runner`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.coordination.aio.group_runner import GroupRunner
from millstream.coordination.core.backend import Done, ValueDone, Where
from millstream.coordination.core.effects import Code, Reply, Resume
from millstream.coordination.core.entries import NOBODY, Body, Kind
from millstream.coordination.core.pool_effects import FIRST_GROUP
from millstream.coordination.core.values import error

__all__ = ["ClientRequests"]

_ELSEWHERE = Reply(0, Code.NOTPRIMARY)


class ClientRequests:
    """Has the shape of `core.backend.Backend`.

    Args:
        groups: those that run here, by id.
        ids: of all groups that are known, by number.
        address_of: where clients reach a node; empty if that is not known.
    """

    def __init__(
        self,
        groups: Mapping[bytes, GroupRunner],
        ids: Mapping[int, bytes],
        address_of: Callable[[bytes], str],
    ) -> None:
        self._groups, self._ids, self._address_of = groups, ids, address_of

    def _runner(self, gid: int) -> GroupRunner | None:
        return self._groups.get(self._ids.get(gid, NOBODY))

    def group_of(self, key: bytes) -> int:
        """Return the group that has a key."""
        return FIRST_GROUP

    def request(
        self, gid: int, body: Body, done: Done, kind: Kind = Kind.REQUEST,
        instance: bytes = NOBODY, session: int = 0, csn: int = 0,
    ) -> None:  # fmt: skip
        """Have something changed."""
        if runner := self._runner(gid):
            runner.request(body, done, instance=instance, session=session, csn=csn, kind=kind)
        else:
            done(_ELSEWHERE)

    def read(
        self, gid: int, body: Body, done: Done, seen: int | None = None, session: int = 0
    ) -> None:
        """Have something read."""
        if runner := self._runner(gid):
            runner.read(body, done, seen, session)
        else:
            done(_ELSEWHERE)

    def resume(self, gid: int, instance: bytes, session: int, secret: bytes, done: Done) -> None:
        """Ask what is known of a session."""
        if runner := self._runner(gid):
            runner.ask(Resume(0, instance, session, secret), done)
        else:
            done(_ELSEWHERE)

    def where(self, gid: int) -> Where:
        """Return where a group's primary is, as this node's member of it knows."""
        runner = self._runner(gid)
        if runner is None:
            return Where()
        report = runner.replica.report()
        address = self._address_of(report.primary) if report.primary is not None else ""
        return Where(report.epoch, report.view, address)

    def vds(self, argv: tuple[bytes, ...]) -> bytes:
        """Return the map of groups."""
        return error("UNKNOWN_COMMAND", "VDS")

    def admin(self, argv: tuple[bytes, ...], done: ValueDone) -> None:
        """Carry out an administrator's command."""
        done(error("UNKNOWN_COMMAND", "ADMIN"))

    def figures(self) -> dict[str, dict[str, str]]:
        """Return what INFO shows."""
        return {}
