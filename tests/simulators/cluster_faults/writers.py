"""Writers with the official Couchbase SDK: each write asks for a majority, reads follow some.

Elsewhere: what may be seen (`truth`).
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import CouchbaseException, DocumentNotFoundException
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    GetOptions,
    RemoveOptions,
    UpsertOptions,
)

from simulators.cluster_faults.truth import Client, Stop, Truth, content_of

__all__ = ["WRITERS", "SdkWriter", "connected"]

WRITERS = 4
KEYS = 150
"""Keys of one writer at a time."""
PAUSE_S = 0.02
"""Between two writes of a writer."""
DELETION_SHARE, READ_SHARE = 0.1, 0.2
TIMEOUT_S = 10
LEVELS = (DurabilityLevel.MAJORITY, DurabilityLevel.PERSIST_TO_MAJORITY)


def connected(addresses: list[str], login: tuple[str, str]) -> Cluster:
    """Return the SDK's connection with a cluster."""
    limit = timedelta(seconds=TIMEOUT_S)
    timeouts = ClusterTimeoutOptions(
        bootstrap_timeout=timedelta(seconds=60), connect_timeout=timedelta(seconds=60),
        kv_timeout=limit, kv_durable_timeout=limit,
    )  # fmt: skip
    options = ClusterOptions(PasswordAuthenticator(*login), timeout_options=timeouts)
    return Cluster.connect(f"couchbase://{','.join(addresses)}", options)


class SdkWriter(Client):
    """Writes keys of its own, one after the other."""

    def __init__(self, number: int, collection: Any, truth: Truth, stop: Stop, seed: str) -> None:
        super().__init__(f"writer {number}", stop)
        self._number, self._collection = number, collection
        self._truth = truth
        self._rng = random.Random(seed)
        self._keys = [f"w{number}-{place}" for place in range(KEYS)]
        self._given_up = 0
        self._durability = ServerDurability(LEVELS[number % len(LEVELS)])
        self.acknowledged = 0

    def work(self) -> None:
        """Write until all have to stop."""
        while not self._stop_all.event.wait(self._rng.uniform(0, 2 * PAUSE_S)):
            place = self._rng.randrange(KEYS)
            if not self._write(self._keys[place]):
                self._given_up += 1
                self._keys[place] = f"w{self._number}-{place}-{self._given_up}"
            if self._rng.random() < READ_SHARE:
                self._read(self._keys[place])

    def _write(self, key: str) -> bool:
        """Write a key; False if it is not known whether it was written."""
        deletes = self._truth.floor(key) > 0 and self._rng.random() < DELETION_SHARE
        number = self._truth.tries(key, deletes=deletes)
        try:
            if deletes:
                self._collection.remove(key, RemoveOptions(durability=self._durability))
            else:
                options = UpsertOptions(durability=self._durability)
                self._collection.upsert(key, content_of(key, number), options)
        except DocumentNotFoundException:  # only a deletion is refused so
            self._truth.takes_back(key, number)
            self._stop_all.tell("remove", self._truth.judge({key: self._truth.floor(key)}, {}))
        except CouchbaseException as error:
            self._stop_all.count(f"write {type(error).__name__}")
            return False
        else:
            self._truth.acknowledges(key, number)
            self.acknowledged += 1
        return True

    def _read(self, key: str) -> None:
        floor = self._truth.floor(key)
        try:
            seen = self._collection.get(key, GetOptions()).content_as[dict]["n"]
        except DocumentNotFoundException:
            seen = None
        except CouchbaseException as error:
            self._stop_all.count(f"read {type(error).__name__}")
            return
        self._stop_all.count("reads")
        if floor:
            self._stop_all.tell("get", self._truth.judge({key: floor}, {key: seen}))
