"""Who may read and who may write an element: owner, group, nine mode bits, named entries.

Invariants:
1. Only the element itself is looked at, never the path to it.
2. The class is chosen as POSIX does: the owner; else an entry that names the user; else the
   owning group and entries that name one of the caller's groups, of which any may grant; else the
   rest. A class that is chosen and does not grant is the end: none after it is asked.
3. One list has one encoding: entries are in order, and nobody has two.
4. A list that says nothing is not kept. So nothing is, where there are no users.

Elsewhere: commands (`acl`), who is asking (whoever logs the request: it puts `ADMINS` among the
groups of administrators and of nobody else; no principal is asked for where there are no users).

Source: V2R2, "ACL"; POSIX.1e draft 17, section 23.1.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.elements import Elements, Type, key_of
from millstream.coordination.core.namespace.family import Family, Want
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.run import Asker, Run
from millstream.coordination.core.namespace.tables import Tables
from millstream.coordination.core.values import array, bulk, mapping

__all__ = [
    "ADMINS",
    "ENTRIES_MAX",
    "NAME_BYTES_MAX",
    "READ",
    "WRITE",
    "Acl",
    "Grant",
    "Permissions",
    "parse_grant",
    "shown",
]

ADMINS: Final = b"admins"
"""The group that passes everything."""
ENTRIES_MAX: Final = 32
"""Named entries of one element, and as many that its children begin with."""
NAME_BYTES_MAX: Final = 255
"""Of a user's or a group's name in a list."""
READ: Final = 4
WRITE: Final = 2
DEFAULT_MODE: Final = 0o755
_HEAD: Final = Struct(">HHHHHH")
_GRANT: Final = Struct(">BBH")
_SPEC: Final = re.compile(rb"(default:)?(user|group):([^\x00-\x20]{1,%d}):([r-][w-][x-])\Z" % 255)
_WHO: Final = re.compile(
    rb"(default:)?(user|group):([^\x00-\x20]{1,%d}?)(?::[r-][w-][x-])?\Z" % 255
)


class Grant(NamedTuple):
    """What one named user or group may do."""

    is_group: bool
    name: bytes
    bits: int

    @property
    def text(self) -> bytes:
        """As clients see it: user:name:rw-."""
        bits = bytes(
            letter if self.bits & bit else 45
            for letter, bit in zip(b"rwx", (4, 2, 1), strict=True)
        )
        return b"%s:%s:%s" % (b"group" if self.is_group else b"user", self.name, bits)


class Acl(NamedTuple):
    """The list of one element; `default_mode` and `defaults` are what its children begin with."""

    owner: bytes
    group: bytes = b""
    mode: int = DEFAULT_MODE
    grants: tuple[Grant, ...] = ()
    default_mode: int = DEFAULT_MODE
    defaults: tuple[Grant, ...] = ()

    def bits(self, principal: bytes, groups: tuple[bytes, ...]) -> int:
        """Return what somebody may do: `READ`, `WRITE`; other bits mean nothing."""
        if principal == self.owner:
            return self.mode >> 6
        if not self.grants:
            return self.mode >> 3 if self.group and self.group in groups else self.mode
        granted, is_member = 0, False
        for grant in self.grants:
            if not grant.is_group and grant.name == principal:
                return grant.bits
            if grant.is_group and grant.name in groups:
                granted, is_member = granted | grant.bits, True
        if self.group and self.group in groups:
            granted, is_member = granted | self.mode >> 3, True
        return granted if is_member else self.mode

    def of_child(self, principal: bytes) -> Acl:
        """Return what an element begins with that this principal creates below."""
        return Acl(
            principal, self.group, self.default_mode, self.defaults, self.default_mode,
            self.defaults,
        )  # fmt: skip

    def with_grants(self, is_default: bool, grants: Iterable[Grant]) -> Acl:
        """Return a list with these named entries in place of its own."""
        ordered = tuple(sorted({(g.is_group, g.name): g for g in grants}.values()))
        return self._replace(defaults=ordered) if is_default else self._replace(grants=ordered)


def parse_grant(spec: bytes, with_bits: bool = True) -> tuple[bool, Grant] | None:
    """Return whether a spec is about the children to come, and the entry; None if it is no spec.

    Without bits they may be left out, as where an entry is to be removed.
    """
    found = (_SPEC if with_bits else _WHO).match(spec)
    if found is None:
        return None
    bits = 0
    if with_bits:
        bits = sum(bit for bit, letter in zip((4, 2, 1), found[4], strict=True) if letter != 45)
    return found[1] is not None, Grant(found[2] == b"group", found[3], bits)


def _encode(acl: Acl) -> bytes:
    """Return the bytes of a list."""
    parts = [
        _HEAD.pack(
            len(acl.owner), len(acl.group), acl.mode, len(acl.grants), acl.default_mode,
            len(acl.defaults),
        ),
        acl.owner,
        acl.group,
    ]  # fmt: skip
    for is_group, name, bits in (*acl.grants, *acl.defaults):
        parts += (_GRANT.pack(is_group, bits, len(name)), name)
    return b"".join(parts)


def _decode(data: bytes) -> Acl:
    """Return the list that `_encode` wrote."""
    owner, group, mode, grants, default_mode, defaults = _HEAD.unpack_from(data)
    at = _HEAD.size + owner + group
    found = []
    for _ in range(grants + defaults):
        is_group, bits, length = _GRANT.unpack_from(data, at)
        at += _GRANT.size + length
        found.append(Grant(bool(is_group), data[at - length : at], bits))
    if at != len(data):
        raise ValueError("an access list has another length")
    return Acl(
        data[_HEAD.size : _HEAD.size + owner], data[_HEAD.size + owner :][:group], mode,
        tuple(found[:grants]), default_mode, tuple(found[grants:]),
    )  # fmt: skip


def shown(acl: Acl) -> bytes:
    """Return a list as clients see it."""
    return mapping(
        (
            (b"owner", bulk(acl.owner)),
            (b"group", bulk(acl.group)),
            (b"mode", bulk(b"%04o" % acl.mode)),
            (b"entries", array([bulk(grant.text) for grant in acl.grants])),
            (b"default_mode", bulk(b"%04o" % acl.default_mode)),
            (b"default_entries", array([bulk(grant.text) for grant in acl.defaults])),
        )
    )


class Permissions(Family):
    """The lists, by element."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements = elements
        self._lists = tables.add(_encode, _decode)

    def of(self, element: int) -> Acl:
        """Return an element's list."""
        return self._lists.get(key_of(element)) or _NOBODYS

    def put(self, element: int, acl: Acl) -> None:
        """Let an element have this list."""
        if acl == _NOBODYS:
            self._lists.delete(key_of(element))
        else:
            self._lists.put(key_of(element), acl)

    def allow(self, asker: Asker, element: int, wanted: int) -> bool:
        """Return whether somebody may do this, or is an administrator."""
        return self.passes(asker) or bool(
            self.of(element).bits(asker.principal, asker.groups) & wanted
        )

    @staticmethod
    def passes(asker: Asker) -> bool:
        """Return whether somebody may everything."""
        return not asker.principal or ADMINS in asker.groups

    def guard(self, run: Run, element: int, want: Want) -> None:
        """Raise Refused (NOPERM) if the asker may not."""
        asker = run.asker
        if not asker.principal or self.passes(asker):
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
        """Let administrators only.

        Raises:
            Refused: NOPERM.
        """
        if not Permissions.passes(run.asker):
            raise Refused("NOPERM", f"{what.decode()} w: it is for administrators")

    def created(self, run: Run, element: int, parent: int, size: int) -> None:
        """Let an element begin with what its parent says; a namespace is its creator's."""
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
