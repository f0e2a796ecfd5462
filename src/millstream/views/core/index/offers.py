"""Builds of indexes that are offered to a Spark pipeline before the node does them itself.

    nothing -- large, a pipeline is attached --> offered -- taken --> taken -- built --> nothing
                                                    |                   |
                                  no pipeline took it, or its pipeline left
                                                    v                   v
                                              declined: the node builds it

A pipeline is attached as long as it asks for offers. With each request it reports what it builds.

Invariants:
1. A build waits at most `OFFER_S` for a pipeline, before that at most as long until its size is
   known, and `ATTACHED_S` after its pipeline last reported it.
2. Only builds that are known to be large and needed now are offered, and only offered builds are
   declined.
3. A declined build is not offered again for `DECLINED_S`; the node does it.

Elsewhere: who asks whether to build (`views.aio.indexing.indexing`), who takes a build
(`views.aio.serving.outside_writer`), the pipeline (`millstream.pipelines.index.offered`).

Source: docs/design/0017-views-on-spark.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["ATTACHED_S", "DECLINED_S", "OFFER_CHANGES_MIN", "OFFER_S", "Offers"]

OFFER_CHANGES_MIN: Final = 1_000_000
"""Changes that an index lacks at which its build is offered: half a minute of the node."""
OFFER_S: Final = 10.0
"""How long an offer waits to be taken."""
ATTACHED_S: Final = 15.0
"""How long after it was last heard of a pipeline counts as attached, or at work."""
DECLINED_S: Final = 600.0
"""How long a build that was declined is not offered again."""


@dataclass
class _Offer:
    held_at: float
    """Since when the build waits."""
    offered_at: float | None = None
    """Since when it counts as offered: since it was first known to be large."""
    is_offered: bool = False
    """Whether it is known to be large now."""


class Offers:
    """Of one bucket; times are seconds of any one clock, indexes are known by their signatures."""

    def __init__(self) -> None:
        self._heard_at: float | None = None
        self._held: dict[str, _Offer] = {}
        self._waited: dict[str, float] = {}
        """How long builds waited that are wanted no more for now."""
        self._taken: dict[str, float] = {}
        """When it was last heard to be at work."""
        self._declined: dict[str, float] = {}

    def heard(self, building: Collection[str], now: float) -> list[str]:
        """A pipeline asks, and says what it builds; return what is offered."""
        self._heard_at = now
        for signature in self._taken.keys() & set(building):
            self._taken[signature] = now
        return sorted(signature for signature in self._held if self.is_held(signature))

    def is_attached(self, now: float) -> bool:
        """Whether a pipeline asked lately."""
        return self._heard_at is not None and now - self._heard_at < ATTACHED_S

    def holds(self, signature: str, changes: int | None, now: float) -> bool:
        """Return whether the build of an index that is to be built now is to wait.

        Args:
            signature: of the index.
            changes: how many it lacks; None: that is not known yet.
            now: the time.
        """
        if signature in self._taken:
            return True
        if now - self._declined.get(signature, now - DECLINED_S) < DECLINED_S:
            return False
        is_small = changes is not None and changes < OFFER_CHANGES_MIN
        if is_small or not self.is_attached(now):
            self.withdraw(signature, now, is_needed=False)
            return False
        offer = self._held.setdefault(signature, _Offer(now))
        offer.is_offered = changes is not None
        if offer.is_offered and offer.offered_at is None:
            offer.offered_at = now - self._waited.pop(signature, 0.0)
        since = offer.held_at if offer.offered_at is None else offer.offered_at
        if now - since < OFFER_S:
            return True
        if offer.is_offered:
            self._decline(signature, now)
        return False

    def withdraw(self, signature: str, now: float, *, is_needed: bool) -> None:
        """An index is not to be built now.

        Args:
            signature: of the index.
            now: the time.
            is_needed: nobody waits for its build, but the next who does needs one; what it was
                offered counts then.
        """
        offer = self._held.get(signature)
        if not is_needed:
            self._waited.pop(signature, None)
        elif offer is None or offer.offered_at is None:
            return  # how long it waited to be known stays known
        else:
            self._waited[signature] = now - offer.offered_at
        self._held.pop(signature, None)

    def take(self, signature: str, now: float) -> bool:
        """A writer wants to do a build; return whether it may."""
        if signature not in self._taken and not self.is_held(signature):
            return False
        self._held.pop(signature, None)
        self._taken[signature] = now
        self._check(signature)
        return True

    def is_held(self, signature: str) -> bool:
        """Whether its build waits to be taken."""
        return signature in self._held and self._held[signature].is_offered

    def is_taken(self, signature: str) -> bool:
        """Whether a pipeline builds it."""
        return signature in self._taken

    def lapsed(self, now: float) -> list[str]:
        """Return the indexes that were taken and that a pipeline builds no more."""
        return [each for each, heard_at in self._taken.items() if now - heard_at >= ATTACHED_S]

    def ended(self, signature: str) -> None:
        """The pipeline has built it, or tried to."""
        if signature in self._taken:
            self._taken[signature] = -math.inf

    def taken_back(self, signature: str, now: float) -> None:
        """The node keeps it again."""
        self._decline(signature, now)

    def forget(self, signature: str) -> None:
        """The index is gone, or is kept by another rule."""
        for known in (self._held, self._waited, self._taken, self._declined):
            known.pop(signature, None)

    def _decline(self, signature: str, now: float) -> None:
        self.forget(signature)
        self._declined[signature] = now
        self._check(signature)

    def _check(self, signature: str) -> None:
        """Assert that a build is in one state: held, taken or neither."""
        assert not (signature in self._held and signature in self._taken), "held and taken"
        assert not (signature in self._waited and signature in self._held), "waited and held"
