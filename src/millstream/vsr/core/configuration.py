"""The members of a replication group, their epoch, and the proof that the epoch has begun.

Invariants:
1. Members are sorted, so all of them name the same primary for a view.
2. A configuration is its own proof: it names the entry that closed the epoch before it by LSN and
   hash, and that entry holds these members. A member may act on it, whoever sent it. A
   configuration that is only known by report, without that entry, is no proof and is never passed
   on.
3. A fork begins another generation of epochs: a group that was restored from a backup, or forced
   to go on without its majority. No change of members leads from one generation to the next. So
   entries of two generations share history only up to where the later one began.

Elsewhere: how one configuration follows another (`reconfiguration`), what is durable of it
(`hard_state`).

Source: Liskov and Cowling 2012, sections 2 and 7; V2R2, "Nomenclature".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.vsr.core.entries import (
    GENESIS,
    ID_BYTES,
    Body,
    Entry,
    Kind,
    argv_of,
    number_in,
)

__all__ = [
    "GENERATION_STEPS",
    "MEMBERS_MAX",
    "SIZES",
    "Configuration",
    "closing_body",
    "forked_epoch",
    "generation",
    "heard_of",
    "is_closing",
    "successor",
]

MEMBERS_MAX: Final = 7
"""Most members of one group. Three of them may fail."""
SIZES: Final = (3, 5, 7)
"""Fewest members that a change may lead to. Only a new node begins with a group of one."""
_GENERATION_BITS: Final = 16
"""Low bits of an epoch: the number of member changes between two generations."""
GENERATION_STEPS: Final = 128
"""Most generations by which a fork is ahead. Two forks of one group mostly differ in it."""
_EPOCH_MAX: Final = (1 << 32) - 1
_UNKNOWN_LSN: Final = (1 << 64) - 1


class Configuration(NamedTuple):
    """The members of an epoch. `closed_lsn` and `closed_hash` are the end of the epoch before.

    `first_view` begins without a vote, since its primary led the epoch before (or is the first
    member). `old`: the members of the epoch before. `journalled`: members keep the log on their
    disks. Without it a restart loses the log, and the others give it back (`replica.recovery`).
    """

    epoch: int
    members: tuple[bytes, ...]
    first_view: int = 0
    old: tuple[bytes, ...] = ()
    closed_lsn: int = GENESIS.lsn
    closed_hash: bytes = GENESIS.hash
    journalled: bool = True

    @property
    def quorum(self) -> int:
        """The number of members that decide. Two such sets have a member in common."""
        return len(self.members) // 2 + 1

    @property
    def everybody(self) -> tuple[bytes, ...]:
        """The members, and those of the epoch before."""
        return tuple(sorted({*self.members, *self.old}))

    @property
    def is_fork(self) -> bool:
        """Whether this epoch began by a fork, not by an entry that closed the epoch before."""
        return self.epoch > 0 and (self.epoch % (1 << _GENERATION_BITS) == 0 or not self.old)

    @property
    def is_hearsay(self) -> bool:
        """Whether the beginning of this epoch is unknown (see `heard_of`)."""
        return self.closed_lsn == _UNKNOWN_LSN

    def primary(self, view: int) -> bytes:
        """Return the only member that may lead `view`."""
        return self.members[view % len(self.members)]


def generation(epoch: int) -> int:
    """Return the generation of an epoch. Only forks raise it, never changes of members."""
    return epoch >> _GENERATION_BITS


def forked_epoch(epoch: int, salt: int) -> int | None:
    """Return the first epoch of a fork of a group in this epoch, None if no number is left.

    `salt` makes two forks of one group differ.
    """
    later = generation(epoch) + 1 + salt % GENERATION_STEPS
    found = later << _GENERATION_BITS
    return found if found <= _EPOCH_MAX else None


def heard_of(epoch: int, members: tuple[bytes, ...], journalled: bool) -> Configuration:
    """Return the configuration of a fork that others reported.

    It shows that this epoch is over.
    """
    return Configuration(epoch, members, 0, (), _UNKNOWN_LSN, GENESIS.hash, journalled)


def closing_body(members: tuple[bytes, ...], leader: bytes) -> Body:
    """Return the body of the entry that ends an epoch led by `leader`."""
    assert list(members) == sorted(set(members))
    assert len(members) <= MEMBERS_MAX
    first_view = members.index(leader) if leader in members else 0
    return Body(argv=(b"%d" % first_view, *members))


def is_closing(entry: Entry) -> bool:
    """Return whether a body says what `closing_body` says. Its sender may be wrong."""
    first_view, *members = argv_of(entry) or (b"",)
    number = number_in(first_view)
    sizes = {len(member) for member in members}
    is_list = members == sorted(set(members)) and sizes == {ID_BYTES}
    return is_list and number is not None and number < len(members) <= MEMBERS_MAX


def successor(current: Configuration, closing: Entry) -> Configuration:
    """Return the configuration that begins when `closing`, the end of `current`, is committed."""
    assert closing.header.kind is Kind.RECONFIG
    assert closing.header.epoch == current.epoch
    assert is_closing(closing)
    first_view, *members = closing.content.argv
    return Configuration(
        current.epoch + 1, tuple(members), int(first_view), current.members,
        closing.lsn, closing.header.hash, current.journalled,
    )  # fmt: skip
