"""Passes requests of this node's clients to its groups: implements `core.backend`.

Invariants:
1. A request for a group that is not here is answered as by a node that does not lead it.
2. Nothing waits here: each request goes to a replica, or is answered at once.
3. Only the group that has the namespace, or the system group if none has, answers that an element
   does not exist.

Elsewhere: connections (`core.resp.session`), answers (`aio.group_runner`, for names of namespaces
`aio.namespaces`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.coordination.aio.group_runner import GroupRunner
from millstream.coordination.aio.namespaces import Namespaces
from millstream.coordination.aio.pool_runner import PoolRunner
from millstream.coordination.core.backend import NO_ASKER, Done, ValueDone, Where
from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.commands.forcing import FORCE, without_force
from millstream.coordination.core.namespace.commands.subscriptions import Begun, SubscribeRequest
from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.pool.effects import FIRST_GROUP
from millstream.vsr.core.effects import Code, Reply, Resume
from millstream.vsr.core.entries import NOBODY, Body, Kind
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.session_expiry import Shown
from millstream.vsr.core.values import array, bulk, error, integer, mapping

__all__ = ["ClientRequests"]

_ELSEWHERE = Reply(0, Code.NOTPRIMARY)
_AMBIGUOUS = Reply(0, Code.CONFLICT)
_NAMING = frozenset({b"CREATENAMESPACE", b"DELETENAMESPACE"})
_NOT_HERE = Reply(
    0, Code.OK,
    error("BADARG", "no GROUP before this command: the group is named after the path"),
)  # fmt: skip
_ABSENT = (b"-ERROR_DOES_NOT_EXISTS", array((bulk(b"NOTFOUND"), bulk(b""))))


class ClientRequests:
    """Has the shape of `core.backend.Backend`.

    Args:
        groups: those that run here, by id.
        pool: what the node knows of groups.
        namespaces: which group has which, and how they are made.
        settings: what the node was started with.
    """

    def __init__(
        self, groups: Mapping[bytes, GroupRunner], pool: PoolRunner, namespaces: Namespaces,
        settings: dict[bytes, bytes],
    ) -> None:  # fmt: skip
        self._groups, self._pool, self._namespaces = groups, pool, namespaces
        self._settings = settings

    def group_of(self, key: bytes) -> int:
        """Return the group that has a key."""
        return self._namespaces.group_of(key)

    def _runner(self, gid: int, done: Done) -> GroupRunner | None:
        """Return the group that is called so, or say that it is not here, or which one it is."""
        called = self._pool.pool.discovery.called(gid)
        runner = self._groups.get(called[0]) if len(called) == 1 else None
        if runner is None:
            done(_AMBIGUOUS if len(called) > 1 else _ELSEWHERE)
        return runner

    def request(
        self, gid: int, body: Body, done: Done, kind: Kind = Kind.REQUEST,
        instance: bytes = NOBODY, session: int = 0, csn: int = 0, *, is_counted: bool = False,
    ) -> None:  # fmt: skip
        """Request a change."""
        if kind is Kind.REQUEST and _is_of_system(body.argv[1:]):
            if gid != FIRST_GROUP:
                done(_NOT_HERE)
                return
            if _is_naming(body.argv[1:]):
                placed = self._placed(body)
                if isinstance(placed, bytes):
                    done(Reply(0, Code.OK, placed))
                    return
                body, done = placed, self._settling(placed, done)
        if runner := self._runner(gid, done):
            if gid != FIRST_GROUP:
                done = self._doubting(gid, body.argv[1:], done)
            runner.request(
                body, done, instance=instance, session=session, csn=csn, kind=kind,
                is_counted=is_counted,
            )  # fmt: skip

    def read(
        self, gid: int, body: Body, done: Done, seen: int | None = None, session: int = 0
    ) -> None:
        """Request a read."""
        if gid != FIRST_GROUP and _is_of_system(body.argv):
            done(_NOT_HERE)
            return
        if runner := self._runner(gid, done):
            if gid != FIRST_GROUP:
                done = self._doubting(gid, body.argv, done)
            elif seen is not None:
                done = self._hoping(body.argv, done)
            runner.read(body, done, seen, session)

    def _placed(self, body: Body) -> Body | bytes:
        """Return a request for a name with the group of a new one, or why it makes no sense."""
        return self._namespaces.placed(body) if body.argv[1] == b"CREATENAMESPACE" else body

    def _settling(self, body: Body, done: Done) -> Done:
        return lambda reply: self._namespaces.settle(body, reply, done)

    def _doubting(self, gid: int, words: tuple[bytes, ...], done: Done) -> Done:
        """Return who takes replies of a group that may have a namespace no more."""

        def look(reply: Reply) -> None:
            if reply.value.startswith(_ABSENT):
                path = _path_in(words)
                if path and not self._namespaces.has_root(gid, path):
                    reply = self._elsewhere(reply, FIRST_GROUP)
            done(reply)

        return look

    def _hoping(self, words: tuple[bytes, ...], done: Done) -> Done:
        """Return a callback for the system group's answer about an unknown namespace.

        The member that was asked may be behind, and news of the namespace may be on its way.
        """
        path = _path_in(words)
        if not path or self._namespaces.is_known(path):
            return done

        def look(reply: Reply) -> None:
            if not reply.value.startswith(_ABSENT):
                return done(reply)
            return self.when_known(path, lambda: done(self._said_again(reply, path)))

        return look

    def _said_again(self, reply: Reply, path: bytes) -> Reply:
        is_known = self._namespaces.is_known(path)
        return self._elsewhere(reply, self.group_of(path)) if is_known else reply

    def _elsewhere(self, reply: Reply, gid: int) -> Reply:
        epoch, view, address = self.where(gid)
        text = f"{gid} {epoch}:{view} {address or '?'}"
        return reply._replace(value=error("NOTPRIMARY", text))

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

    def subscribe(
        self,
        gid: int,
        subscriber: Subscriber,
        request: SubscribeRequest,
        confirm: Callable[[Path], None],
    ) -> Reply:
        """Begin subscriptions on the member that is here."""
        refused: list[Reply] = []
        runner = self._runner(gid, refused.append)
        if runner is None:
            return refused[0]
        replica = runner.replica
        machine = replica.machine
        if replica.status is Status.RETIRED:
            return _ELSEWHERE
        if not replica.has_state or not isinstance(machine, GroupState):
            return Reply(0, Code.BEHIND, lsn=replica.commit_lsn)
        configuration = replica.configuration
        begun = Begun(configuration.epoch, configuration.closed_lsn, configuration.is_fork)
        return machine.subscribe(subscriber, request, replica.commit_lsn, confirm, begun)

    def told_lsn(self, gid: int) -> int | None:
        """Return up to where the group has committed, as its primary said a moment ago."""
        nobody: list[Reply] = []
        runner = self._runner(gid, nobody.append)
        return None if runner is None else runner.replica.told_commit_lsn

    def tick(self, now_ms: float) -> None:
        """Tell those who have heard nothing for long how far their groups are."""
        for runner in self._groups.values():
            replica = runner.replica
            if replica.has_state and isinstance(replica.machine, GroupState):
                replica.machine.audience.tick(now_ms, replica.commit_lsn)

    def where(self, gid: int) -> Where:
        """Return where a group's primary is, as this node has heard."""
        pool = self._pool.pool
        for group_id in pool.discovery.called(gid):
            if seen := pool.directory.get(group_id):
                return Where(seen.epoch, seen.view, pool.discovery.primary_of(group_id) or "")
        return Where()

    def vds(self, argv: tuple[bytes, ...], asker: Asker = NO_ASKER) -> bytes:
        """Return the map of groups, or of namespaces that the asker may read."""
        return self._pool.pool.discovery.vds(
            argv, lambda root: self._namespaces.may_see(root, asker)
        )

    def when_known(self, path: bytes, then: Callable[[], None]) -> None:
        """Call back once a path's namespace is known here, or was waited for."""
        self._namespaces.when_known(path, then)

    def admin(self, argv: tuple[bytes, ...], done: ValueDone) -> None:
        """Carry out an administrator's command."""
        self._pool.admin(argv[1:], done)

    def figures(self) -> dict[str, dict[str, str]]:
        """Return what INFO shows."""
        shown, pool = {}, self._pool.pool
        for group_id, runner in sorted(self._groups.items()):
            report = runner.replica.report()
            lags = [lag for _, lag in report.lags]
            if group_id not in pool.tables.foundings:
                continue
            shown[f"group_{pool.discovery.name_of(group_id)}"] = (
                f"role={report.role},status={report.status},epoch={report.epoch},"
                f"view={report.view},op={report.op_lsn},commit={report.commit_lsn},"
                f"sessions={report.sessions},quorum_ok={report.is_quorum_ok:d},"
                f"fault_tolerance={report.fault_tolerance},lag={max(lags, default=0)},"
                f"trouble={report.trouble.replace(',', ';')}"
            )
        return {"coordination": {"node_id": pool.id.hex(), **shown}}

    def settings(self) -> dict[bytes, bytes]:
        """Return what the node was started with."""
        return self._settings


def _is_of_system(words: tuple[bytes, ...]) -> bool:
    """Return whether a command is the system group's whatever it is about."""
    if words[:1] == (FORCE,):
        words = words[1:]
    name = words[0] if words else b""
    if name == b"CONFIG":
        return len(words) > 2 and words[2].upper() == b"GLOBAL"
    return name in _NAMING


def _is_naming(words: tuple[bytes, ...]) -> bool:
    """Return whether a command makes or deletes a namespace."""
    return any(word in _NAMING for word in without_force(words)[:1])


def _path_in(words: tuple[bytes, ...]) -> bytes:
    """Return the first path of a command. Empty if it has none."""
    return next((word for word in words if word.startswith(b"/")), b"")


def _nobody_asks(_: Reply) -> None:
    pass


def _session_row(one: Shown) -> bytes:
    client_id = b"%b-%d" % (one.instance.hex().encode(), one.number)
    return mapping((
        (b"client_id", bulk(client_id)), (b"ttl", integer(one.time_out_ms)),
        (b"csn", integer(one.highest)), (b"silent_ms", integer(int(one.silent_ms))),
    ))  # fmt: skip
