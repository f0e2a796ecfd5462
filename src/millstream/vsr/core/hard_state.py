"""What a member has promised and keeps through a restart, besides its log.

Invariants:
1. Epochs, and views within an epoch, only grow.
2. `last_normal` is the newest epoch and view in which the log was the one of that view's primary.
   Logs of equal `last_normal` are prefixes of one another. It grows together with the log's
   contents in one step, or not at all; what the view itself has brought may come after it.
3. Nothing is sent that depends on a hard state before that is durable.

Elsewhere: its bytes and files (`durable_steps`), when it changes (`vsr.core.replica.storage`).

Source: Liskov and Cowling 2012, section 4.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.vsr.core.configuration import Configuration

__all__ = ["HardState", "founded"]


class HardState(NamedTuple):
    """The promises of one member.

    `commit_hint`: so far the log was known to be committed; a restart learns the rest anew.
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
        """Whether this member's log counts; a learner's may be cut where it is damaged."""
        return self.node_id in self.configuration.members and self.retired is None


def founded(
    group_id: bytes, node_id: bytes, members: tuple[bytes, ...], journalled: bool = True
) -> HardState:
    """Return that of a member of a new group: view 0 is nobody's, view 1 is voted for."""
    assert list(members) == sorted(set(members))
    configuration = Configuration(0, members, journalled=journalled)
    return HardState(group_id, node_id, 0, 0, (0, 0), configuration)
