"""What administrators ask of a node: commands in, values out.

Invariants:
1. At most `ADMIN_MAX` commands are under way; what is not understood changes nothing.
2. A node is removed only by one that hears the pool: since it was asked most of the nodes have
   answered, and of each group a quorum, so that who has become a member is known.

Elsewhere: groups (`pool_groups`), arguments and answers (`pool_asking`), who may ask (the front).

Source: V2R2, "Administration".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from millstream.coordination.core.backup import OF_ONE
from millstream.coordination.core.pool.admin_requests import (
    RefusedError,
    Words,
    file_in,
    no_more,
    number_in,
    shown,
)
from millstream.coordination.core.pool.boots import IDLE, MEND
from millstream.coordination.core.pool.effects import (
    Admin,
    AskBackup,
    AskLog,
    AskReport,
    Refusal,
)
from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.gossip import REMOVED
from millstream.coordination.core.pool.group_commands import GroupCommands
from millstream.coordination.core.pool.messages import Address
from millstream.coordination.core.pool.replies import (
    double_row,
    header_row,
    node_row,
    value_of,
)
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.effects import CopyState, TakeSnapshot
from millstream.vsr.core.report import Report
from millstream.vsr.core.values import OK, error

__all__ = ["ADMIN_MAX", "LOG_ROWS_MAX", "SILENT_MS", "Administration"]

_QUESTIONS: Final = (b"NODES", b"STATUS")
ADMIN_MAX: Final = 64
"""Commands of administrators that may be under way; further ones are refused."""
LOG_ROWS_MAX: Final = 1000
"""Entries of a log that are shown at once."""
SILENT_MS: Final = 3000
"""A node that has not answered for so long may be removed: it is asked at each round of gossip,
and rounds are counted, so that a node that stood still itself takes nobody for silent."""


class Administration(GroupCommands):
    """Commands and discovery."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self._rounds: dict[int, int] = {}
        """Of the commands that ask whether a node is alive: how often it was asked."""
        self._commands: Final[dict[bytes, Callable[[int, Words], bytes | None]]] = {
            b"JOIN": self._join, b"LEAVE": self._leave, b"NODES": self._nodes,
            b"STATUS": self._status, b"SNAPSHOT": self.snapshot, b"BACKUP": self._backup,
            b"RESTORE": self.restore, b"LOG": self._log, b"GROUP CREATE": self.create,
            b"GROUP RECONFIG": self.reconfig, b"GROUP REPLACE": self.replace,
            b"GROUP ADD": self.add, b"GROUP REMOVE": self.remove,
            b"GROUP MOVE-PRIMARY": self.move_primary, b"GROUP DELETE": self.delete_group,
            b"GROUP FORCE": self.force,
        }  # fmt: skip

    def on_admin(self, asked: Admin) -> None:
        """Do what is asked for, or say why not."""
        words = 2 if asked.argv[:1] and asked.argv[0].upper() == b"GROUP" else 1
        name = b" ".join(word.upper() for word in asked.argv[:words])
        command = self._commands.get(name)
        try:
            if command is None:
                raise RefusedError("BADARG", f"there is no ADMIN {shown(name)}")
            if self.own_refusal and name not in _QUESTIONS:
                raise RefusedError("CONFLICT", f"{IDLE}: {self.own_refusal}; {MEND}")
            if len(self.pending) + len(self._asked) >= ADMIN_MAX:
                raise RefusedError("BUSY", f"{ADMIN_MAX} commands are under way")
            value = command(asked.ticket, asked.argv[words:])
        except RefusedError as refused:
            value = refused.value
        if value is not None:
            self.answer(asked.ticket, value)

    # ---- the pool

    def _join(self, ticket: int, words: Words) -> bytes | None:
        if not words or len(words) % 2:
            raise RefusedError("BADARG", "ADMIN JOIN <host> <port> [<host> <port> ...]")
        addresses = [
            Address(shown(host), number_in(port, 1, 65535))
            for host, port in zip(words[::2], words[1::2], strict=True)
        ]
        if addresses == [self.me.peer]:
            raise RefusedError("BADARG", "this is the node itself")
        if self.tables.is_removed:
            raise RefusedError("CONFLICT", REMOVED)
        self.join(tuple(addresses))
        attempt = self.me.turn

        def done() -> bytes | None:
            if self.join_refusal:
                return error("CONFLICT", self.join_refusal)
            return None if self.joining else OK

        def late() -> bytes:
            if self.me.turn == attempt:  # else it was said again, and goes on
                self.stop_joining()
            return error("ERR", "no node answers there; nothing has changed")

        self.wait(ticket, done, late)
        return None

    def _leave(self, ticket: int, words: Words) -> bytes | None:
        if words:
            return self._remove(ticket, words)
        for group_id in sorted(self.hosted):
            if self.is_member(group_id):
                number = self.tables.number_of(group_id)
                raise RefusedError(
                    "CONFLICT", f"this node is in group {number}: GROUP REPLACE or REMOVE it first"
                )
        self.leave()
        return OK

    def _remove(self, ticket: int, words: Words) -> bytes | None:
        """Refuse a node for ever that is in no group and does not answer."""
        no_more(words[1:])
        try:
            node = self.node_named(words[0])
        except RefusedError:
            if self.was_removed(words[0]):
                return OK
            raise
        if node == self.id:
            return self._leave(ticket, ())
        self.need_room_for_a_tombstone()
        if groups := self._groups_of(node):
            raise RefusedError(
                "CONFLICT", f"it is in group {groups[0]}: GROUP REPLACE or REMOVE it first"
            )
        asked_ms = self.now_ms
        self._rounds[ticket] = 0
        self.spread()

        def over(value: bytes) -> bytes:
            del self._rounds[ticket]
            return value

        def done() -> bytes | None:
            if self.tables.node(node) is None:
                return over(OK)
            if self.has_heard(node, asked_ms):
                return over(error("CONFLICT", "it is alive: say LEAVE to it, or stop it before"))
            # What waits to be taken may be its answer.
            if self._rounds[ticket] <= SILENT_MS // self.tick_ms or self.deferred:
                return None
            try:
                self._bury_node(node, asked_ms)
            except RefusedError as refused:
                return over(refused.value)
            return over(OK)

        def late() -> bytes:
            return over(error("BUSY", "this node was too slow to tell; nothing has changed"))

        self.wait(ticket, done, late)
        return None

    def _bury_node(self, node: bytes, asked_ms: float) -> None:
        if groups := self._groups_of(node):
            raise RefusedError("CONFLICT", f"it is in group {groups[0]} now")
        self.need_room_for_a_tombstone()
        if missing := self._not_heard_of(node, asked_ms):
            text = f"this node hears too little of the pool ({missing}); ask another one"
            raise RefusedError("CONFLICT", text)
        self.delete(node)
        self.spread()

    def _not_heard_of(self, node: bytes, asked_ms: float) -> str:
        """Return what a node has to hear, and has not since then, to remove this one."""
        nodes = [info.node_id for info in self.tables.others() if info.node_id != node]
        if (sum(self.has_heard(one, asked_ms) for one in nodes) + 1) * 2 <= len(nodes) + 1:
            return "most nodes are silent"
        for group_id in self.tables.foundings:
            seen, name = self.directory.get(group_id), self.name_of(group_id)
            if seen is None or not self.is_news(seen):
                return f"nothing new of group {name}"
            # A primary may be cut off from what its group has become; a quorum cannot be.
            heard = sum(one == self.id or self.has_heard(one, asked_ms) for one in seen.members)
            if heard < Configuration(seen.epoch, seen.members).quorum:
                return f"most members of group {name} are silent"
        return ""

    def tick_admin(self) -> None:
        """Also ask again who is to be removed, and all the others."""
        super().tick_admin()
        for ticket in self._rounds:
            self._rounds[ticket] += 1
        if self._rounds:
            self.spread()

    def _groups_of(self, node: bytes) -> list[int]:
        """Return the numbers of the groups that a node is a member of, as far as is known."""
        return sorted(
            self.tables.number_of(group)
            for group in self.tables.foundings
            if node in self.entry_of(group)["nodes"]
        )

    def _nodes(self, _: int, words: Words) -> bytes:
        no_more(words)
        rows = []
        for node_id in sorted(self.tables.nodes):
            info = self.tables.node(node_id)
            if info is None:
                continue
            heard_ms = self.heard_ms.get(node_id)
            ago = 0 if info is self.me else None if heard_ms is None else self.now_ms - heard_ms
            double = self.doubles.get(node_id)
            row = node_row(info, ago, self._groups_of(node_id), is_me=info is self.me)
            rows.append({**row, "refused": double and double_row(double, self.now_ms)})
        return value_of(rows)

    def _status(self, ticket: int, words: Words) -> None:
        if words:
            group_id = self.group_named(words[0])
            no_more(words[1:])

            def show_one(found: dict[bytes, dict[str, Any]]) -> None:
                known = found.get(group_id)
                gone = error("ERROR_DOES_NOT_EXISTS", "it was deleted meanwhile")
                self.answer(ticket, gone if known is None else value_of(known))

            return self._report([group_id], show_one)

        def show(found: dict[bytes, Any]) -> None:
            groups = {self.name_of(group): found[group] for group in found}
            tables = self.tables
            about = {
                "node": self.id,
                "pool": min(tables.pool_ids),
                "nodes": len(tables.others()) + 1,
                "is_removed": tables.is_removed,
                "refused": self.own_refusal or None,
            }
            self.answer(ticket, value_of({**about, "groups": groups}))

        return self._report(sorted(self.tables.foundings, key=self.tables.number_of), show)

    def _report(
        self, groups: list[bytes], then: Callable[[dict[bytes, dict[str, Any]]], None]
    ) -> None:
        """Collect what is known of groups: the replica's own report of those open here."""
        found: dict[bytes, dict[str, Any]] = {}

        def take(group_id: bytes, report: dict[str, Any]) -> None:
            found[group_id] = report
            if len(found) == len(groups):
                then({group: found[group] for group in groups if group in self.tables.foundings})

        if not groups:
            then({})
        for group_id in groups:
            entry, hosted = self.entry_of(group_id), self.hosted.get(group_id)
            if self.own_refusal:
                take(group_id, {**entry, "role": "none here", "why": self.own_refusal})
            elif hosted is None or hosted.phase is not Phase.OPEN:
                take(group_id, {**entry, "role": "none here"})
            else:
                take_answer = partial(self._take_report, group_id, entry, take)
                question = self.next_ticket(take_answer)
                self.reports[question] = None
                self.effects.append(AskReport(question, group_id))

    def _take_report(
        self,
        group_id: bytes,
        entry: dict[str, Any],
        take: Callable[[bytes, dict[str, Any]], None],
        answer: object,
    ) -> None:
        if isinstance(answer, Report):
            since_ms = max(0, self.now_ms - answer.view_changed_ms)
            lags = {member.hex(): lag for member, lag in answer.lags}
            own = {**answer._asdict(), "view_changed_ms": since_ms, "lags": lags}
            # Addresses are discovery's; the replica knows ids.
            own["nodes"], own["leader"] = own.pop("members"), own.pop("primary")
            take(group_id, {**entry, **own})
        else:
            why = {"why": answer.text} if isinstance(answer, Refusal) else {}
            take(group_id, {**entry, "role": "none here", **why})

    # ---- files and logs

    def _backup(self, ticket: int, words: Words) -> None:
        if len(words) != 2:
            raise RefusedError("BADARG", "ADMIN BACKUP <group> <file>")
        group_id, file = self.open_here(words[0]), file_in(words[1])

        def write(*, is_of_one: bool) -> None:
            def written(answer: object) -> None:
                said = [answer, OF_ONE] if is_of_one else answer
                value = error(*answer) if isinstance(answer, Refusal) else value_of(said)
                self.answer(ticket, value)

            question = self.next_ticket(written)
            self.effects.append(AskBackup(question, group_id, file, is_of_one))

        def copy() -> None:
            self.ask_group(ticket, group_id, CopyState, lambda _: write(is_of_one=True))

        if self.leads(group_id):
            self.ask_group(
                ticket, group_id, TakeSnapshot, lambda _: write(is_of_one=False), instead=copy
            )
        else:
            copy()

    def _log(self, ticket: int, words: Words) -> None:
        if len(words) != 3:
            raise RefusedError("BADARG", "ADMIN LOG <group> <from> <to>")
        group_id = self.open_here(words[0])
        first, last = (number_in(word, 0, (1 << 63) - 1) for word in words[1:])
        last = min(last, first + LOG_ROWS_MAX - 1)

        def told(answer: Any) -> None:
            if isinstance(answer, Refusal):
                self.answer(ticket, error(*answer))
            else:
                self.answer(ticket, value_of([header_row(header) for header in answer]))

        self.effects.append(AskLog(self.next_ticket(told), group_id, first, last))
