"""The access list of each element, and what it allows a user to do.

Invariants:
1. Only the element itself is checked, never the path to it.
2. A default list is not stored. So nothing is stored where there are no users.

Elsewhere: the contents of a list (`access_lists`), commands (`acl`), the user of a request (the
member that logs it adds `ADMINS` to the groups of administrators, and of no others; without users
no principal is required).

Source: V2R2, "ACL".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.access_lists import (
    DEFAULT_MODE,
    READ,
    WRITE,
    Acl,
    decode_acl,
    encode_acl,
    passes,
    shown,
)
from millstream.coordination.core.namespace.state.elements import Elements, Type, key_of
from millstream.coordination.core.namespace.state.family import Family, Want
from millstream.coordination.core.namespace.state.run import Asker, Run
from millstream.coordination.core.namespace.tables import Tables

__all__ = ["Permissions"]


class Permissions(Family):
    """The lists, by element."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements = elements
        self._lists = tables.add(encode_acl, decode_acl)

    def of(self, element: int) -> Acl:
        """Return an element's list."""
        return self._lists.get(key_of(element)) or _NOBODYS

    def secret(self, element: int) -> tuple[Acl, ...]:
        """Return an element's list without what its children begin with; nothing if it is open."""
        acl = self._lists.get(key_of(element))
        if acl is None or acl.is_open:
            return ()
        return (acl._replace(default_mode=DEFAULT_MODE, defaults=()),)

    def put(self, element: int, acl: Acl) -> None:
        """Store an element's list."""
        if acl == _NOBODYS:
            self._lists.delete(key_of(element))
        else:
            self._lists.put(key_of(element), acl)

    def allow(self, asker: Asker, element: int, wanted: int) -> bool:
        """Return whether somebody may do this, or is an administrator."""
        return passes(asker) or bool(self.of(element).bits(asker.principal, asker.groups) & wanted)

    def guard(self, run: Run, element: int, want: Want) -> None:
        """Raise Refused (NOPERM) if the asker may not."""
        asker = run.asker
        if not asker.principal or passes(asker):
            return
        if want is Want.TREE:
            if self._elements.there(element).type is Type.ROOT:
                self.check_admin(run, self._elements.path(element))
        elif want is Want.RULE:
            if asker.principal != self.of(element).owner:
                raise self._refused(element, WRITE)
        else:
            wanted = READ if want in (Want.READ, Want.LOOK) else WRITE
            if not self.allow(asker, element, wanted):
                raise self._refused(element, wanted)

    def _refused(self, element: int, wanted: int) -> Refused:
        path = self._elements.path(element).decode()
        return Refused("NOPERM", f"{path} {'r' if wanted == READ else 'w'}")

    @staticmethod
    def check_admin(run: Run, what: bytes) -> None:
        """Allow administrators only.

        Raises:
            Refused: NOPERM.
        """
        if not passes(run.asker):
            raise Refused("NOPERM", f"{what.decode()} w: it is for administrators")

    def created(self, run: Run, element: int, parent: int, size: int) -> None:
        """Give a new element the defaults of its parent. A namespace belongs to its creator."""
        principal = run.asker.principal
        if principal or len(self._lists):
            above = self.of(parent) if parent else _NOBODYS
            self.put(element, above.of_child(principal))

    def deleted(self, run: Run, element: int) -> None:
        """Forget its list."""
        self._lists.delete(key_of(element))

    def attributes(self, run: Run, element: int) -> Iterable[tuple[bytes, bytes]]:
        """Give the list."""
        yield b"acl", shown(self.of(element))


_NOBODYS: Final = Acl(b"")
