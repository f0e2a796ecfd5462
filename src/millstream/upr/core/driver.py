"""Which streams of a bucket are requested, at which node, and when: decisions of one reader.

    driver = StreamDriver("orders", NodeAddress("127.0.0.1", 11210))
    driver.take_map(map_)                       # and again before each further round
    driver.begin(wanted)
    while driver.unfinished:
        for node, numbers in driver.by_node(driver.homeless).items():
            source = driver.open(node, name, has_extensions=...)    # once connected
            for number in numbers:
                driver.request(source, number, position, failover_log)
        ...wait driver.next_pause_s(); handle what `source.core` receives, each event by `on_event`

Invariants:
1. A partition is in `unfinished` until its stream reached its end. Then it is at one source, or
   homeless: each one that is homeless is requested again in the next round.
2. A stream that ends early, or is refused for now, makes its partition homeless. So does a source
   that is lost.
3. Pauses between rounds double up to `PROMPT_PAUSE_S_MAX`, after `PROMPT_S` up to `PAUSE_S_MAX`.
   An open stream resets them.
4. A map is replaced only by one that is not older, and never by that of another bucket.
5. A barrier is over once each of its partitions has come to its end, or was named in the answer
   to a cookie that was sent after the barrier began. A cookie of a lost source proves nothing.

Elsewhere: streams of one connection (`upr.core.consumer`), cookies at the source
(`upr.core.barriers`), connections and waits
(`upr.aio.streams`), what readers keep (`upr.core.bookkeeper`, `upr.core.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from millstream.errors import RoutingError, StreamError, UnavailableError, UsageError
from millstream.model.pauses import Pauses
from millstream.model.position import FailoverLog, Position
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    BarrierReached,
    ConsumerCore,
    Event,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.follower import StreamOptions
from millstream.upr.core.messages import Reached
from millstream.wire.cluster_map import ClusterMap, NodeAddress
from millstream.wire.mcbp import Status, StreamEndReason
from millstream.wire.replies import error_of_status

__all__ = [
    "PAUSE_S_MAX",
    "PAUSE_S_MIN",
    "PROMPT_PAUSE_S_MAX",
    "PROMPT_S",
    "Awaited",
    "Source",
    "StreamDriver",
    "recreated",
]

PAUSE_S_MIN: Final = 0.05
"""Pause before streams are requested again; doubled each time, until a stream is open."""
PAUSE_S_MAX: Final = 5.0
PROMPT_PAUSE_S_MAX: Final = 0.2
"""Longest pause at first: a partition that nobody serves is promoted soon."""
PROMPT_S: Final = 10.0
"""How long pauses stay so short."""


class Source:
    """A node that is read from, over one connection."""

    __slots__ = ("core", "node", "opened", "partitions")

    def __init__(self, node: NodeAddress, core: ConsumerCore) -> None:
        self.node, self.core = node, core
        self.partitions: set[int] = set()
        """Their streams were requested here."""
        self.opened: set[int] = set()
        """Their streams are open."""


class _Sent(NamedTuple):
    source: object
    partitions: dict[int, frozenset[int]]
    """Partitions by the number of the barrier."""


class Awaited:
    """The barriers that one reader waits for.

    number = awaited.add(partitions)
    while (cookie := awaited.cookie_for(source, its open streams)) is not None: send it
    awaited.on_reached(cookie, reached); awaited.on_lost(source); awaited.on_end(partition_id)
    awaited.take_done()
    """

    def __init__(self) -> None:
        self._missing: dict[int, set[int]] = {}
        self._reached: dict[int, dict[int, Reached]] = {}
        self._sent: dict[bytes, _Sent] = {}
        self._count = 0

    def add(self, partitions: Iterable[int]) -> int:
        """Begin a barrier of these partitions; return its number."""
        self._count += 1
        self._missing[self._count] = set(partitions)
        self._reached[self._count] = {}
        return self._count

    def cookie_for(self, source: object, streams: Collection[int]) -> bytes | None:
        """Return the cookie that a source must be sent now, None if there is nothing to ask.

        Args:
            source: a connection.
            streams: the partitions whose streams are open there.
        """
        wanted: dict[int, frozenset[int]] = {}
        for number, missing in self._missing.items():
            asked = [sent.partitions.get(number, ()) for sent in self._of(source)]
            partitions = missing.intersection(streams).difference(*asked)
            if partitions:
                wanted[number] = frozenset(partitions)
        if not wanted:
            return None
        self._count += 1
        cookie = self._count.to_bytes(8, "big")
        self._sent[cookie] = _Sent(source, wanted)
        return cookie

    def _of(self, source: object) -> Iterable[_Sent]:
        return (sent for sent in self._sent.values() if sent.source is source)

    def on_reached(self, cookie: bytes, reached: Mapping[int, Reached]) -> None:
        """Take a cookie that came back, and how far the partitions are that have passed it."""
        sent = self._sent.pop(cookie, None)
        for number, partitions in sent.partitions.items() if sent else ():
            if number in self._missing:
                passed = {p: reached[p] for p in partitions if p in reached}
                self._missing[number] -= passed.keys()
                self._reached[number] |= passed

    def on_lost(self, source: object) -> None:
        """Take note that a connection is gone."""
        self._sent = {k: sent for k, sent in self._sent.items() if sent.source is not source}

    def on_end(self, partition_id: int) -> None:
        """Take note that all of a partition was read that was to be read."""
        for missing in self._missing.values():
            missing.discard(partition_id)

    def clear(self) -> None:
        """Forget all barriers."""
        self._missing, self._reached, self._sent = {}, {}, {}

    def take_done(self) -> dict[int, dict[int, Reached]]:
        """Return the barriers that wait for nothing more, once.

        By number: how far each partition was, without those that have come to their end.
        """
        done = [number for number, missing in self._missing.items() if not missing]
        for number in done:
            del self._missing[number]
        return {number: self._reached.pop(number) for number in done}


class StreamDriver:
    """The streams of one reader of a bucket.

    Args:
        bucket: its name, for messages.
        seed: the node whose address was given.
        options: of every stream.
        window_bytes: bytes that may be under way or unhandled, per node.
        durable_only: deliver only what no stop of a machine can take away.
    """

    def __init__(
        self,
        bucket: str,
        seed: NodeAddress,
        *,
        options: StreamOptions = StreamOptions(),  # noqa: B008 - immutable
        window_bytes: int = WINDOW_BYTES,
        durable_only: bool = False,
    ) -> None:
        self.unfinished: set[int] = set()
        self.homeless: set[int] = set()
        self.sources: dict[NodeAddress, Source] = {}
        self.awaited = Awaited()
        self._bucket, self._seed = bucket, seed
        self._options, self._window_bytes = options, window_bytes
        self._durable_only = durable_only
        self._map: ClusterMap | None = None
        self._pauses, self._paused_s = Pauses(PAUSE_S_MIN, PAUSE_S_MAX), 0.0

    def check_invariants(self) -> None:
        """Assert invariant 1."""
        held = [number for source in self.sources.values() for number in source.partitions]
        assert len(set(held)) == len(held), "a partition is read at two nodes"
        assert self.homeless.isdisjoint(held), "a partition that is read is looked for"
        assert self.homeless.union(held) == self.unfinished, "a partition was forgotten"

    # -- the map

    @property
    def map(self) -> ClusterMap:
        """The newest map known; `take_map` was called before."""
        assert self._map is not None, "the map comes first"
        return self._map

    def nodes_to_ask(self) -> list[NodeAddress]:
        """Return the nodes that may know the map, the most likely first."""
        known = () if self._map is None else self._map.nodes
        return list(dict.fromkeys((*self.sources, *known, self._seed)))

    def take_map(self, found: ClusterMap) -> bool:
        """Take a map that a node sent; return whether it is newer than the one known.

        Raises:
            StreamError: `bucket_recreated`.
        """
        old = self._map
        if old is not None and found.bucket_uuid != old.bucket_uuid:
            raise recreated(self._bucket)
        is_newer = old is None or found.version > old.version
        if old is None or found.version >= old.version:
            self._map = found
        return is_newer

    def begin(self, partitions: Iterable[int] | None, known: Iterable[int] = ()) -> list[int]:
        """Begin with these partitions, or all; return them.

        Args:
            partitions: which to read.
            known: those that the reader has read before.

        Raises:
            UsageError: `unknown_partition`: the bucket has not so many.
        """
        count = self.map.partition_count
        wanted = list(range(count) if partitions is None else partitions)
        for number in (*wanted, *known):
            if not 0 <= number < count:
                raise UsageError(
                    f"bucket {self._bucket!r} has partitions 0 to {count - 1}, not {number}",
                    code="unknown_partition",
                )
        self.unfinished, self.homeless = set(wanted), set(wanted)
        self.sources.clear()
        self._restart_pauses()
        return wanted

    # -- requests

    def node_of(self, partition_id: int) -> NodeAddress | None:
        """Return the node to read a partition from; None if the map names none."""
        map_ = self.map
        if len(map_.nodes) == 1:  # the address given is known to work
            return self._seed
        owner = map_.owners[partition_id]
        return map_.nodes[owner] if owner >= 0 else None

    def by_node(self, partitions: Iterable[int]) -> Mapping[NodeAddress, list[int]]:
        """Return partitions by the node to read them from; those without one are left out."""
        found: dict[NodeAddress, list[int]] = {}
        for number in sorted(partitions):
            node = self.node_of(number)
            if node is not None:
                found.setdefault(node, []).append(number)
        return found

    def next_pause_s(self) -> float:
        """Return how long to wait before the next round, in seconds."""
        most_s = PROMPT_PAUSE_S_MAX if self._paused_s < PROMPT_S else PAUSE_S_MAX
        pause_s = self._pauses.next(most_s)
        self._paused_s += pause_s
        return pause_s

    def _restart_pauses(self) -> None:
        self._pauses.restart()
        self._paused_s = 0.0

    def open(self, node: NodeAddress, name: bytes, *, has_extensions: bool) -> Source:
        """Return the source at a node that was connected to.

        Raises:
            LocalProtocolError: `not_supported`: durable changes are for nodes of ours.
        """
        core = ConsumerCore(
            window_bytes=self._window_bytes,
            has_extensions=has_extensions,
            durable_only=self._durable_only,
        )
        core.start(name)
        source = self.sources[node] = Source(node, core)
        return source

    def request(
        self, source: Source, partition_id: int, position: Position, log: FailoverLog
    ) -> None:
        """Request the stream of a homeless partition."""
        assert partition_id in self.homeless, "a partition has one source at a time"
        self.homeless.discard(partition_id)
        source.partitions.add(partition_id)
        branch_min = log[0].branch if self._durable_only and log else 0
        options = self._options._replace(branch_min=branch_min)
        source.core.follow(partition_id, position, log, options)

    # -- what sources say

    def on_event(self, source: Source, event: Event) -> str:
        """Take note of an event; return why a stream is requested again, empty if it goes on.

        Raises:
            AccessError: a right is lacking or was lost.
            MillstreamError: the node refuses a stream for good.
        """
        match event:
            case StreamOpened(number):
                self._restart_pauses()
                source.opened.add(number)
            case StreamEnded(number, _, StreamEndReason.OK):
                self._leave(source, number)
                self.unfinished.discard(number)
                self.homeless.discard(number)
                self.awaited.on_end(number)
            case StreamEnded(number, _, reason):
                if reason == StreamEndReason.LOST_PRIVILEGES:
                    self._refused(source, number, Status.EACCESS)
                self._leave(source, number)
                return f"{self._what(number)} was ended by {_shown(source)} (reason {reason})"
            case StreamRefused(number, status):
                return self._refused(source, number, status)
            case BarrierReached(cookie, reached):
                self.awaited.on_reached(cookie, reached)
        return ""

    def give_up(self, source: Source, partition_id: int) -> None:
        """Do not go back as the source wants; look for the partition elsewhere."""
        source.core.give_up(partition_id)
        self._leave(source, partition_id)

    def lose(self, source: Source) -> None:
        """Take note that a connection is gone."""
        if self.sources.get(source.node) is source:
            del self.sources[source.node]
        self.homeless |= source.partitions & self.unfinished
        source.partitions.clear()
        source.opened.clear()
        self.awaited.on_lost(source)

    def send_cookies(self, source: Source) -> None:
        """Ask a source for what barriers still lack there.

        Raises:
            LocalProtocolError: `not_supported`: the node has no barriers.
        """
        while (cookie := self.awaited.cookie_for(source, source.opened)) is not None:
            source.core.ask_barrier(cookie)

    def _refused(self, source: Source, partition_id: int, status: int) -> str:
        error = error_of_status(status, address=_shown(source), what=self._what(partition_id))
        if not isinstance(error, UnavailableError | RoutingError):
            raise error
        self._leave(source, partition_id)
        return str(error)

    def _leave(self, source: Source, partition_id: int) -> None:
        source.partitions.discard(partition_id)
        source.opened.discard(partition_id)
        self.homeless.add(partition_id)

    def _what(self, partition_id: int) -> str:
        return f"stream of partition {partition_id} of bucket {self._bucket!r}"


def recreated(bucket: str) -> StreamError:
    """Return the error of a bucket that is another one than was read."""
    return StreamError(
        f"bucket {bucket!r} was deleted and created again: what was read of the old one is void; "
        "begin anew, without the checkpoint or with another sink",
        code="bucket_recreated",
    )


def _shown(source: Source) -> str:
    return f"{source.node.host}:{source.node.port}"
