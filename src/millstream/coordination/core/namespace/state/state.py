"""The replicated state of a group, without sessions.

Invariants:
1. Tables are added in a fixed order. A new table comes last, with a higher state format.
2. Families are called in the order in which the end of a session is processed: waits and locks,
   taken items, ephemeral elements, subscriptions.

Elsewhere: changing it (`machine`).
"""

from __future__ import annotations

from millstream.coordination.core.namespace.state.access_lists import Readers
from millstream.coordination.core.namespace.state.configuration import Settings
from millstream.coordination.core.namespace.state.counter_values import Counters
from millstream.coordination.core.namespace.state.data import Data
from millstream.coordination.core.namespace.state.elements import Elements
from millstream.coordination.core.namespace.state.family import Family, Want, hearing
from millstream.coordination.core.namespace.state.holders import Synchronisation
from millstream.coordination.core.namespace.state.limits import Limits
from millstream.coordination.core.namespace.state.list_items import Lists
from millstream.coordination.core.namespace.state.marks import Marks
from millstream.coordination.core.namespace.state.permissions import Permissions
from millstream.coordination.core.namespace.state.queue_items import Queues
from millstream.coordination.core.namespace.state.registry import Registry
from millstream.coordination.core.namespace.state.run import Asker, Run
from millstream.coordination.core.namespace.state.set_members import Sets
from millstream.coordination.core.namespace.tables import Tables
from millstream.vsr.core.versions import Version

__all__ = ["Job", "State"]


class State:
    """The tables, and who reads and writes them."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.elements = Elements(self.tables)
        self.data = Data(self.tables, self.elements)
        self.permissions = Permissions(self.tables, self.elements)
        self.settings = Settings(self.tables, self.elements)
        self.limits = Limits(self.tables, self.elements, self.settings)
        self.counters = Counters(self.tables, self.elements)
        self.lists = Lists(self.tables)
        self.sets = Sets(self.tables, self.elements)
        self.queues = Queues(self.tables, self.elements)
        self.synchronisation = Synchronisation(self.tables, self.elements, self.data)
        self.synchronisation.ready = self.queues.ready
        self.synchronisation.is_read_open = self._is_read_open
        self.queues.freed = self.synchronisation.waits.free
        self.queues.wait = self.synchronisation.queue_wait
        self.elements.readers = self._readers
        self.marks = Marks(self.tables, self.elements, self.settings)
        self.registry = Registry(self.tables, self.elements)
        self.families: tuple[Family, ...] = (
            self.permissions, self.synchronisation, self.queues, self.elements, self.data,
            self.counters, self.lists, self.sets, self.settings, self.limits,
            self.registry, self.marks,
        )  # fmt: skip
        self.elements.tell_families(self.families)
        self._guarding = hearing("guard", self.families)
        self.finishing = hearing("finished", self.families)
        """The families that check at the end of an entry what has become possible."""

    def guard(self, run: Run, element: int, want: Want) -> None:
        """Raise Refused if the asker may not do this to an element now: NOPERM, LOCKED."""
        for family in self._guarding:
            family.guard(run, element, want)

    def items_max(self, element: int) -> int:
        """Return how many items an element may have."""
        return self.settings.number(element, b"LIMIT.ITEMS")

    def _readers(self, element: int) -> Readers:
        parent = self.elements.there(element).parent
        above = self.permissions.secret(parent) if parent else ()
        return Readers(
            self.permissions.secret(element), above, self.synchronisation.writer(element)
        )

    def _is_read_open(self, element: int) -> bool:
        return self.settings.truth(element, b"LOCK.READ.OPEN")

    def check_token(self, token: Version) -> None:
        """Raise Refused (FENCED) unless this grant of a lock, on any element, is a current one."""
        self.synchronisation.check_token(token)


class Job(Run):
    """A command at work, with the state that it is for."""

    def __init__(
        self, state: State, asker: Asker, version: Version, ts_ms: int, *, is_reading: bool = False
    ) -> None:
        super().__init__(state.tables, asker, version, ts_ms, is_reading=is_reading)
        self.state = state

    def tell(self, op: bytes, number: int, data: bytes | None = None) -> None:
        """Note what happens to an element, for subscribers."""
        self.state.elements.tell(self, op, number, data)
