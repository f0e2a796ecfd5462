"""Access lists as records: who may read and who may write one element.

Invariants:
1. The class is chosen as in POSIX: the owner; else an entry that names the user; else the owning
   group and the entries that name a group of the caller, any of which may grant; else all others.
   If the chosen class does not grant, access is refused: no later class is tried.
2. A list has exactly one encoding: its entries are sorted, and no user or group has two.

Elsewhere: the list of each element (`permissions`), commands (`acl`).

Source: V2R2, "ACL"; POSIX.1e draft 17, section 23.1.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple, Protocol

from millstream.vsr.core.values import array, bulk, mapping

__all__ = [
    "ADMINS",
    "DEFAULT_MODE",
    "ENTRIES_MAX",
    "NAME_BYTES_MAX",
    "READ",
    "WRITE",
    "Acl",
    "Grant",
    "Readers",
    "decode_acl",
    "encode_acl",
    "parse_grant",
    "passes",
    "shown",
]

ADMINS: Final = b"admins"
"""The group that passes everything."""
ENTRIES_MAX: Final = 32
"""Named entries of one element, and as many that its children begin with."""
NAME_BYTES_MAX: Final = 255
"""Most bytes of a user's or a group's name in a list."""
READ: Final = 4
WRITE: Final = 2
DEFAULT_MODE: Final = 0o755
_HEAD: Final = Struct(">HHHHHH")
_GRANT: Final = Struct(">BBH")
_READERS: Final = Struct(">BBH")
_SIZE: Final = Struct(">I")
_SPEC: Final = re.compile(rb"(default:)?(user|group):([^\x00-\x20]{1,%d}):([r-][w-][x-])\Z" % 255)
_WHO: Final = re.compile(
    rb"(default:)?(user|group):([^\x00-\x20]{1,%d}?)(?::[r-][w-][x-])?\Z" % 255
)


class Caller(Protocol):
    """Somebody who asks; no principal: there are no users."""

    @property
    def principal(self) -> bytes:
        """The user's name."""

    @property
    def groups(self) -> tuple[bytes, ...]:
        """The groups that the user is in."""


def passes(caller: Caller) -> bool:
    """Return whether somebody may do everything."""
    return not caller.principal or ADMINS in caller.groups


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

    @property
    def is_open(self) -> bool:
        """Whether everybody may read."""
        return self.mode & 0o444 == 0o444 and all(grant.bits & READ for grant in self.grants)


class Readers(NamedTuple):
    """Who could read an element at the moment of an update.

    `lists`: the access lists of the element that did not let everybody read; all must allow it.
    `above`: those of its parent, whose readers see the names of its children. `holder`: the client
    that had a WRITE lock there; it alone could read the data.
    """

    lists: tuple[Acl, ...] = ()
    above: tuple[Acl, ...] = ()
    holder: bytes = b""

    def may_read(self, caller: Caller) -> bool:
        """Return whether somebody could read the element, locks apart."""
        return _all_allow(self.lists, caller)

    def may_see(self, caller: Caller) -> bool:
        """Return whether somebody could see that the element is there."""
        return _all_allow(self.above, caller)

    def narrowed(self, other: Readers) -> Readers:
        """Return those who are among both; only data that both let read is shown."""
        if self == other:
            return self
        lists, above = (*self.lists, *other.lists), (*self.above, *other.above)
        return Readers(
            tuple(dict.fromkeys(lists)), tuple(dict.fromkeys(above)), other.holder or self.holder
        )

    def encode(self) -> bytes:
        """Return the bytes of this."""
        lists = [encode_acl(one) for one in (*self.lists, *self.above)]
        head = _READERS.pack(len(self.lists), len(self.above), len(self.holder))
        return b"".join((head, self.holder, *(_SIZE.pack(len(one)) + one for one in lists)))

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[Readers, int]:
        """Return what `encode` wrote there, and where it ends.

        Raises:
            ValueError: it wrote something else.
        """
        own, above, size = _READERS.unpack_from(data, at)
        at += _READERS.size + size
        holder, found = data[at - size : at], []
        for _ in range(own + above):
            (length,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size + length
            found.append(decode_acl(data[at - length : at]))
        return cls(tuple(found[:own]), tuple(found[own:]), holder), at


def _all_allow(lists: tuple[Acl, ...], caller: Caller) -> bool:
    return passes(caller) or all(acl.bits(caller.principal, caller.groups) & READ for acl in lists)


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


def encode_acl(acl: Acl) -> bytes:
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


def decode_acl(data: bytes) -> Acl:
    """Return the list that `_encode` wrote."""
    owner, group, mode, grants, default_mode, defaults = _HEAD.unpack_from(data)
    at = _HEAD.size + owner + group
    found = []
    for _ in range(grants + defaults):
        is_group, bits, length = _GRANT.unpack_from(data, at)
        at += _GRANT.size + length
        found.append(Grant(bool(is_group), data[at - length : at], bits))
    if at != len(data):
        raise ValueError("an access list has a wrong length")
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
