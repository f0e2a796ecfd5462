"""What a member has promised and keeps through a restart, besides its log.

Invariants:
1. Epochs, and views within an epoch, only grow.
2. `last_normal` is the newest epoch and view in which the log was that of the view's primary. Logs
   of equal `last_normal` are prefixes of one another. It grows together with the log's contents in
   one step, or not at all. Entries of the view itself may be added after it.
3. Nothing that depends on a hard state is sent before that is durable.

Elsewhere: its bytes and files (`durable_steps`), when it changes (`vsr.core.replica.storage`).

Source: Liskov and Cowling 2012, section 4.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.vsr.core.configuration import Configuration

__all__ = ["HardState", "founded"]


class HardState(NamedTuple):
    """The promises of one member.

    `commit_hint`: up to here the log was known to be committed. A restart learns the rest anew.
    `retired`: the configuration that went on without this member.
    """

    group_id: bytes
    node_id: bytes
    incarnation: int
    view: int
    last_normal: tuple[int, int]
    configuration: Configuration
    retired: Configuration | None = None
    commit_hint: int = 0

    @property
    def is_voting(self) -> bool:
        """Whether this member's log counts in votes.

        A learner's log may be cut where it is damaged.
        """
        return self.node_id in self.configuration.members and self.retired is None


def founded(
    group_id: bytes, node_id: bytes, members: tuple[bytes, ...], journalled: bool = True
) -> HardState:
    """Return the hard state of a member of a new group.

    View 0 has no primary. View 1 is voted for.
    """
    assert list(members) == sorted(set(members))
    configuration = Configuration(0, members, journalled=journalled)
    return HardState(group_id, node_id, 0, 0, (0, 0), configuration)
