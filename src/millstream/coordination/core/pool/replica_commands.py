"""Commands that the replica of a group answers: STATUS, SNAPSHOT, BACKUP, LOG.

Elsewhere: the replica (`vsr.core.replica`), files (the shell).

Source: V2R2, "Administration".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from millstream.coordination.core.backup import OF_ONE
from millstream.coordination.core.pool.admin_arguments import (
    RefusedError,
    Words,
    file_in,
    first_of,
    no_more,
    number_in,
)
from millstream.coordination.core.pool.admin_requests import AdminRequests
from millstream.coordination.core.pool.continuations import Continuations
from millstream.coordination.core.pool.discovery import Discovery
from millstream.coordination.core.pool.effects import (
    AskBackup,
    AskGroup,
    AskLog,
    AskReport,
    Refusal,
)
from millstream.coordination.core.pool.incarnations import Incarnations
from millstream.coordination.core.pool.replies import header_row, value_of
from millstream.coordination.core.pool.state import PoolState
from millstream.vsr.core.effects import (
    Code,
    CopyState,
    Force,
    MovePrimary,
    Reconfigure,
    Reply,
    TakeSnapshot,
)
from millstream.vsr.core.report import Report
from millstream.vsr.core.values import bulk, error

__all__ = ["LOG_ROWS_MAX", "ReplicaCommands"]

LOG_ROWS_MAX: Final = 1000
"""Entries of a log that are shown at once."""


class ReplicaCommands:
    """Ask replicas, and pass on what they say."""

    def __init__(
        self,
        state: PoolState,
        continuations: Continuations,
        incarnations: Incarnations,
        discovery: Discovery,
        requests: AdminRequests,
    ) -> None:
        self.state = state
        self._continuations = continuations
        self._incarnations = incarnations
        self._discovery = discovery
        self._requests = requests

    # ---- asking

    def ask_group(
        self,
        ticket: int,
        group_id: bytes,
        event: Callable[[int], Reconfigure | MovePrimary | TakeSnapshot | CopyState | Force],
        then: Callable[[Reply], None],
        instead: Callable[[], None] | None = None,
    ) -> None:
        """Send a request to the replica. Continue if it succeeds, else report the error.

        `instead`, if given, is called where only a primary with a quorum could succeed.
        """

        def take(reply: Reply) -> None:
            if reply.code is Code.OK:
                then(reply)
            elif instead is not None and reply.code in (Code.NOQUORUM, Code.NOTPRIMARY):
                instead()
            elif reply.code is Code.NOTPRIMARY and group_id in self.state.tables.foundings:
                self._requests.answer(
                    ticket, error("NOTPRIMARY", self._discovery.where_text(group_id))
                )
            else:
                text = reply.value.decode(errors="replace")
                self._requests.answer(ticket, error(reply.code.value, text))

        question = self._continuations.next_ticket(take)
        self.state.effects.append(AskGroup(question, group_id, event(question)))

    # ---- reports

    def status(self, ticket: int, words: Words) -> None:
        """Tell how one group is, or this node and all groups."""
        if words:
            group_id = self._discovery.group_named(words[0])
            no_more(words[1:])

            def show_one(found: dict[bytes, dict[str, Any]]) -> None:
                known = found.get(group_id)
                gone = error("ERROR_DOES_NOT_EXISTS", "it was deleted meanwhile")
                self._requests.answer(ticket, gone if known is None else value_of(known))

            return self._report([group_id], show_one)

        def show(found: dict[bytes, Any]) -> None:
            groups = {self._discovery.name_of(group): found[group] for group in found}
            tables = self.state.tables
            about = {
                "node": self.state.id,
                "pool": min(tables.pool_ids),
                "nodes": len(tables.others()) + 1,
                "is_removed": tables.is_removed,
                "refused": self._incarnations.own_refusal or None,
            }
            self._requests.answer(ticket, value_of({**about, "groups": groups}))

        return self._report(
            sorted(self.state.tables.foundings, key=self.state.tables.number_of), show
        )

    def _report(
        self, groups: list[bytes], then: Callable[[dict[bytes, dict[str, Any]]], None]
    ) -> None:
        """Collect what is known of groups: the replica's own report of those open here."""
        found: dict[bytes, dict[str, Any]] = {}

        def take(group_id: bytes, report: dict[str, Any]) -> None:
            found[group_id] = report
            if len(found) == len(groups):
                then(
                    {
                        group: found[group]
                        for group in groups
                        if group in self.state.tables.foundings
                    }
                )

        if not groups:
            then({})
        for group_id in groups:
            entry = self._discovery.entry_of(group_id)
            if self._incarnations.own_refusal:
                take(
                    group_id, {**entry, "role": "none here", "why": self._incarnations.own_refusal}
                )
            elif not self._discovery.is_open_here(group_id):
                take(group_id, {**entry, "role": "none here"})
            else:
                take_answer = partial(self._take_report, group_id, entry, take)
                question = self._continuations.next_ticket(take_answer, is_read=True)
                self.state.effects.append(AskReport(question, group_id))

    def _take_report(
        self,
        group_id: bytes,
        entry: dict[str, Any],
        take: Callable[[bytes, dict[str, Any]], None],
        answer: object,
    ) -> None:
        if isinstance(answer, Report):
            lags = {member.hex(): lag for member, lag in answer.lags}
            own = {**answer._asdict(), "lags": lags}
            # Addresses are discovery's; the replica knows ids.
            own["nodes"], own["leader"] = own.pop("members"), own.pop("primary")
            take(group_id, {**entry, **own})
        else:
            why = {"why": answer.text} if isinstance(answer, Refusal) else {}
            take(group_id, {**entry, "role": "none here", **why})

    # ---- files and logs

    def snapshot(self, ticket: int, words: Words) -> None:
        """Take a snapshot now."""
        group_id = self._discovery.group_named(first_of(words))
        no_more(words[1:])
        self._discovery.led_here(group_id)
        self.ask_group(
            ticket,
            group_id,
            TakeSnapshot,
            lambda it: self._requests.answer(ticket, bulk(it.value)),
        )

    def backup(self, ticket: int, words: Words) -> None:
        """Write the state of a group to a file."""
        if len(words) != 2:
            raise RefusedError("BADARG", "ADMIN BACKUP <group> <file>")
        group_id, file = self._discovery.open_here(words[0]), file_in(words[1])

        def write(*, is_of_one: bool) -> None:
            def written(answer: object) -> None:
                said = [answer, OF_ONE] if is_of_one else answer
                value = error(*answer) if isinstance(answer, Refusal) else value_of(said)
                self._requests.answer(ticket, value)

            question = self._continuations.next_ticket(written)
            self.state.effects.append(AskBackup(question, group_id, file, is_of_one))

        def copy() -> None:
            self.ask_group(ticket, group_id, CopyState, lambda _: write(is_of_one=True))

        if self.state.leads(group_id):
            self.ask_group(
                ticket, group_id, TakeSnapshot, lambda _: write(is_of_one=False), instead=copy
            )
        else:
            copy()

    def log(self, ticket: int, words: Words) -> None:
        """Show the headers of a group's log."""
        if len(words) != 3:
            raise RefusedError("BADARG", "ADMIN LOG <group> <from> <to>")
        group_id = self._discovery.open_here(words[0])
        first, last = (number_in(word, 0, (1 << 63) - 1) for word in words[1:])
        last = min(last, first + LOG_ROWS_MAX - 1)

        def told(answer: Any) -> None:
            if isinstance(answer, Refusal):
                self._requests.answer(ticket, error(*answer))
            else:
                self._requests.answer(ticket, value_of([header_row(header) for header in answer]))

        self.state.effects.append(
            AskLog(self._continuations.next_ticket(told), group_id, first, last)
        )
