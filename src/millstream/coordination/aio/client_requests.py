"""What clients of this node ask, given to its groups: the shell's side of `core.backend`.

Invariants:
1. A group that is not here is answered as by a node that does not lead it.
2. Nothing waits here: each question goes to a replica, or is answered at once.

Elsewhere: who asks (`core.front`), who answers (`aio.group_runner`).
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.coordination.aio.group_runner import GroupRunner
from millstream.coordination.aio.pool_runner import PoolRunner
from millstream.coordination.core.backend import Done, ValueDone, Where
from millstream.coordination.core.effects import Code, Reply, Resume
from millstream.coordination.core.entries import NOBODY, Body, Kind
from millstream.coordination.core.pool_effects import FIRST_GROUP
from millstream.coordination.core.pool_replies import coord_of
from millstream.coordination.core.sessions import Shown
from millstream.coordination.core.values import array, bulk, integer, mapping

__all__ = ["ClientRequests"]

_ELSEWHERE = Reply(0, Code.NOTPRIMARY)
_AMBIGUOUS = Reply(0, Code.CONFLICT)


class ClientRequests:
    """Has the shape of `core.backend.Backend`.

    Args:
        groups: those that run here, by id.
        pool: what the node knows of groups.
    """

    def __init__(self, groups: Mapping[bytes, GroupRunner], pool: PoolRunner) -> None:
        self._groups, self._pool = groups, pool

    def group_of(self, key: bytes) -> int:
        """Return the group that has a key."""
        return FIRST_GROUP

    def _runner(self, gid: int, done: Done) -> GroupRunner | None:
        """Return the group that is called so, or say that it is not here, or which one it is."""
        called = self._pool.pool.called(gid)
        runner = self._groups.get(called[0]) if len(called) == 1 else None
        if runner is None:
            done(_AMBIGUOUS if len(called) > 1 else _ELSEWHERE)
        return runner

    def request(
        self, gid: int, body: Body, done: Done, kind: Kind = Kind.REQUEST,
        instance: bytes = NOBODY, session: int = 0, csn: int = 0, *, is_counted: bool = False,
    ) -> None:  # fmt: skip
        """Have something changed."""
        if runner := self._runner(gid, done):
            runner.request(
                body, done, instance=instance, session=session, csn=csn, kind=kind,
                is_counted=is_counted,
            )  # fmt: skip

    def read(
        self, gid: int, body: Body, done: Done, seen: int | None = None, session: int = 0
    ) -> None:
        """Have something read."""
        if runner := self._runner(gid, done):
            runner.read(body, done, seen, session)

    def resume(self, gid: int, instance: bytes, session: int, secret: bytes, done: Done) -> None:
        """Ask what is known of a session."""
        if runner := self._runner(gid, done):
            runner.ask(Resume(0, instance, session, secret), done)

    def touch(self, gid: int, session: int) -> None:
        """Note that a session's client lives."""
        if runner := self._runner(gid, _nobody_asks):
            runner.touch(session)

    def list_sessions(self, gid: int, after: int, done: Done) -> None:
        """List some sessions, if this node leads the group."""
        if runner := self._runner(gid, done):
            replica = runner.replica
            rows = [_session_row(one) for one in replica.sessions_after(after)]
            done(Reply(0, Code.OK, array(rows)) if replica.leading else _ELSEWHERE)

    def where(self, gid: int) -> Where:
        """Return where a group's primary is, as this node has heard."""
        pool = self._pool.pool
        for group_id in pool.called(gid):
            if seen := pool.directory.get(group_id):
                return Where(seen.epoch, seen.view, coord_of(pool.tables, seen.primary) or "")
        return Where()

    def vds(self, argv: tuple[bytes, ...]) -> bytes:
        """Return the map of groups."""
        return self._pool.pool.vds(argv)

    def admin(self, argv: tuple[bytes, ...], done: ValueDone) -> None:
        """Carry out an administrator's command."""
        self._pool.admin(argv[1:], done)

    def figures(self) -> dict[str, dict[str, str]]:
        """Return what INFO shows."""
        shown, pool = {}, self._pool.pool
        for group_id, runner in sorted(self._groups.items()):
            report = runner.replica.report()
            if group_id not in pool.tables.foundings:
                continue
            shown[f"group_{pool.name_of(group_id)}"] = (
                f"role={report.role},status={report.status},epoch={report.epoch},"
                f"view={report.view},op={report.op_lsn},commit={report.commit_lsn},"
                f"sessions={report.sessions}"
            )
        return {"coordination": {"node_id": pool.id.hex(), **shown}}


def _nobody_asks(_: Reply) -> None:
    pass


def _session_row(one: Shown) -> bytes:
    client_id = b"%b-%d" % (one.instance.hex().encode(), one.number)
    return mapping((
        (b"client_id", bulk(client_id)), (b"ttl", integer(one.time_out_ms)),
        (b"csn", integer(one.highest)), (b"silent_ms", integer(int(one.silent_ms))),
    ))  # fmt: skip
