"""What the HTTP front door needs of the node around it.

Elsewhere: the node that has this shape (`node.engine`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from millstream.access.users import UserStore
from millstream.errors import MillstreamError
from millstream.gateway.core.api.changes import ChangesHost, PartHost
from millstream.gateway.core.api.coverage import CoverageHost
from millstream.gateway.core.api.documents import DocumentHost
from millstream.gateway.core.api.replications import ReplicationHost
from millstream.gateway.core.api.shared import SharedHost
from millstream.gateway.core.api.stored import StoredHost
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.kv.core.statistics import Figures
from millstream.model.bucket_map import BucketMap
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog
from millstream.model.standing import Standing
from millstream.views.core.design.design_code import Revised, Updated

__all__ = [
    "BucketStatus", "DesignHost", "DocumentScan", "FrontHost", "FunctionHost", "IndexHost",
    "NodeHost", "NodeMetrics", "PartRequest", "PartitionStatus", "ViewAnswer", "WriterCall",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """One bucket as shown to people."""

    name: str
    uuid: str
    partitions: int
    created: str
    state: Literal["ready", "failed"]
    reason: str = ""
    """Why it failed: names file and offset."""
    high_seqno: int = 0
    """Sum over all partitions: changes ever made."""
    persisted_seqno: int = 0
    """The same of what is durable."""
    memory_quota_bytes: int = 0
    """What its documents may occupy in memory."""
    index_replicas: bool = False
    """Whether views index the replicas here too, so that a fail-over finds them ready."""


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """Which node a copy follows, whether changes come from it, and why not."""

    node: str
    is_streaming: bool
    failure: str


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """This node's copy of one partition as shown to people."""

    partition: int
    state: str
    high_seqno: int
    """Of a copy that follows another: the end of its last complete snapshot."""
    persisted_seqno: int
    purge_seqno: int
    received_seqno: int
    """The newest change it holds; above `high_seqno` inside a snapshot."""
    failover_log: FailoverLog
    places: tuple[str | None, ...]
    """The map's row: the node that is to have the active copy, then replicas; empty if alone."""
    follows: FollowStatus | None
    """None: nobody."""


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Figures of the engine, read in one step; names as `kv.core.statistics` describes them."""

    node: Mapping[str, float]
    buckets: Mapping[str, Figures]
    """By the name of the bucket."""


class DesignHost(Protocol):
    """The design documents of a node's buckets, named without `_design/`.

    Every call may raise `ConditionError` (`bucket_not_found`), `UsageError` (`illegal_docid`) and
    `UnavailableError` (`bucket_failed`; `not_my_partition`: the message names the node to ask;
    `temporarily_unavailable`).
    """

    async def read(self, bucket: str, name: str) -> StoredDesign | None:
        """Return a document, or what its deletion left; None if there was never one."""

    async def check(self, bucket: str, name: str, content: dict[str, Any]) -> None:
        """Refuse what is no design document, or has functions that do not compile.

        Raises:
            UsageError: `invalid_design_doc`, `compilation_error`, `unknown_function`.
        """

    async def write(
        self, bucket: str, name: str, body: bytes | None, rev: str | None, *, is_durable: bool
    ) -> StoredDesign:
        """Replace the revision `rev` (None: there is no document) by a body; None deletes.

        Raises:
            ConditionError: `conflict`; `not_found`, there is nothing to delete.
            UnavailableError: `ambiguous`, it may have got lost again.
        """

    async def all(self, bucket: str) -> list[StoredDesign]:
        """Return those that are not deleted, by name."""


class ViewAnswer(Protocol):
    """The answer to a query of a view, as it arrives."""

    @property
    def head(self) -> Mapping[str, Any]:
        """What is known before the first row, as `etag`."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the JSON text in pieces; an error in the course of it is raised here."""

    async def close(self) -> None:
        """No more of it is wanted; to be called at the end in any case."""


class PartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node asks of another one's view."""

    design: str
    """Without `_design/`."""
    view: str
    options: dict[str, Any]
    partitions: list[int]
    """That the answer is for."""
    form: Literal["part", "json"]
    """A part to be merged, or the whole answer where the node has all partitions."""


WriterCall = Literal["index", "take_over", "judge", "keep", "place", "staged", "load", "publish"]


class FunctionHost(Protocol):
    """The functions of design documents that are no views.

    Every call may raise `ConditionError` (`bucket_not_found`), `UnavailableError` (as
    `DesignHost`), and what the function ends with: `compilation_error`, `function_failed`, or the
    name of what it threw.
    """

    async def validate(
        self, bucket: str, changes: Sequence[Revised], user: bytes, security: bytes
    ) -> list[MillstreamError | None]:
        """Ask all design documents about changes; return why each is refused, None if it is not.

        Args:
            bucket: its name.
            changes: `new` with `_id`, `_rev`, `_revisions` and, of a deletion, `_deleted`; no
                design documents.
            user: JSON `{"db", "name", "roles"}`.
            security: the security object of the database, JSON.

        Returns:
            `AccessError`s with the codes `forbidden` and `unauthorized`; other errors are faults
            of a function.
        """

    async def validates(self, bucket: str) -> bool:
        """Return whether changes have to be asked of any design document."""

    async def filter(
        self, bucket: str, design: str, name: str, documents: Sequence[bytes], request: bytes
    ) -> list[bool]:
        """Return which documents a filter passes.

        Args:
            bucket: its name.
            design: name of the design document, without `_design/`.
            name: of the filter.
            documents: JSON texts with `_id` and `_rev`.
            request: JSON, as filters see it; `query` has the parameters.

        Raises:
            ConditionError: `not_found`: there is no such design document, or filter.
        """

    async def filter_by_view(
        self, bucket: str, design: str, view: str, documents: Sequence[bytes]
    ) -> list[bool]:
        """Return for which documents the map of a view emits anything; raises as `filter`."""

    async def update(
        self, bucket: str, design: str, name: str, document: bytes | None, request: bytes
    ) -> Updated:
        """Call an update function; raises as `filter`, and AccessError where it throws so."""


class DocumentScan(Protocol):
    """All documents of a bucket, one after the other."""

    def documents(
        self,
        bucket: str,
        first: str | None,
        last: str | None,
        *,
        descending: bool,
        conflicts: bool,
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield id and text of documents in the order of the bytes of their ids.

        Those that are deleted are left out, and design documents, too.

        Args:
            bucket: its name.
            first: the lowest id, included; None: all.
            last: the highest id, included; None: all.
            descending: whether the highest comes first.
            conflicts: whether the texts have `_conflicts`, where there are any.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `not_my_partition`: some are on another node.
        """


class IndexHost(Protocol):
    """The views of a node as the pages see them; all calls run in the loop.

    Every call may raise `UnavailableError` (`index_unavailable`: the index process is being
    started again), and `ConditionError` (`bucket_not_found`; `missing`: no such design document).
    """

    async def query(
        self, bucket: str, design: str, view: str, options: Mapping[str, object]
    ) -> ViewAnswer:
        """Ask a view.

        Args:
            bucket: its name.
            design: name of the design document, without `_design/`.
            view: its name.
            options: parameters by their names in the address, values decoded from JSON.

        Raises:
            UsageError: a parameter that is refused, `missing_named_view`.
        """

    async def part(self, bucket: str, asked: PartRequest) -> ViewAnswer:
        """Answer another node for some partitions; raises as `query`.

        Raises:
            RoutingError: `not_my_partition`.
        """

    async def info(self, bucket: str, design: str) -> dict[str, Any]:
        """Return what `_info` shows as `view_index`."""

    async def write(
        self, bucket: str, design: str, call: WriterCall, arguments: Mapping[str, object]
    ) -> dict[str, Any]:
        """Do what a writer of an index outside the node asks for.

        Raises:
            ConditionError: `index_fenced`, `not_spark_engine`, `run_missing`.
            UsageError: `bad_run`, `bad_parts`, `index_not_empty`, `too_large`.
        """

    async def stage(
        self, bucket: str, design: str, fence: int, run: str, pieces: AsyncIterator[bytes]
    ) -> None:
        """Keep a file that such a writer will have committed.

        Raises:
            ConditionError: `index_fenced`.
            UsageError: `bad_run_name`, `too_large`.
            UnavailableError: `too_many_runs`, `disk_full`.
        """

    async def offers(self, bucket: str, building: Sequence[str]) -> list[str]:
        """Return the design documents whose builds a pipeline may do; it says which it does."""

    async def compact(self, bucket: str, design: str) -> None:
        """Have an index written anew, densely; returns once it has begun."""

    async def cleanup(self, bucket: str) -> None:
        """Remove the files of indexes that no design document has any more."""

    async def tasks(self) -> list[dict[str, Any]]:
        """Return what is being built and compacted, as `_active_tasks` shows it."""


class FrontHost(Protocol):
    """What every node has, also one without data; all calls run in the loop."""

    @property
    def indexes(self) -> IndexHost:
        """The views."""

    @property
    def designs(self) -> DesignHost:
        """The design documents."""

    @property
    def uuid(self) -> str:
        """The node's own id, fixed when its directory was made."""

    @property
    def users(self) -> UserStore:
        """Who may do what."""

    @property
    def hosts(self) -> frozenset[str]:
        """Host names under which the node may be addressed, lower case, without ports."""

    @property
    def origins(self) -> frozenset[str]:
        """Sites whose pages may use the node from a browser; `*`: all."""

    def drop_user(self, name: str) -> None:
        """End what a user whose rights changed has open: they log in again."""

    def addresses(self) -> dict[str, str | None]:
        """Return listener -> HOST:PORT, None for closed ones."""

    def bucket_statuses(self) -> list[BucketStatus]:
        """Return all buckets, sorted by name."""

    def metrics(self) -> NodeMetrics:
        """Return the engine's figures."""

    def replication_tasks(self) -> list[dict[str, Any]]:
        """Return the replications that run, as `_active_tasks` shows them."""


class NodeHost(FrontHost, Protocol):
    """A node with data as the pages see it; all calls run in the loop."""

    @property
    def documents(self) -> DocumentHost:
        """The documents of its databases."""

    @property
    def shared(self) -> SharedHost:
        """What other nodes are told."""

    @property
    def stored(self) -> StoredHost:
        """What other nodes ask of documents."""

    @property
    def functions(self) -> FunctionHost:
        """The functions of design documents."""

    @property
    def scan(self) -> DocumentScan:
        """All documents of a bucket."""

    @property
    def changes(self) -> ChangesHost:
        """What happens in the databases."""

    @property
    def parts(self) -> PartHost:
        """What it says of its partitions to nodes that answer for all of a bucket."""

    @property
    def coverage(self) -> CoverageHost:
        """What the databases have of others."""

    @property
    def replications(self) -> ReplicationHost:
        """Jobs that bring databases in step."""

    async def create_bucket(
        self, name: str, partitions: int, memory_quota_bytes: int | None = None
    ) -> BucketStatus:
        """Create a bucket, durably; without a memory quota it has that of the node.

        Raises:
            UsageError: `bad_bucket_name`, `bad_partitions`, `bad_memory_quota`.
            ConditionError: `bucket_exists`.
            UnavailableError: `too_many_buckets`.
        """

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket and all it holds.

        Raises:
            ConditionError: `bucket_not_found`.
        """

    async def set_index_replicas(self, name: str, wanted: bool) -> None:
        """Say whether a bucket's replicas here are indexed too, durably.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `disk_error`.
        """

    def compact_bucket(self, name: str) -> None:
        """Have a bucket's log compacted soon.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    def cluster_config(self, name: str | None) -> bytes | None:
        """Return the map that SDKs read, as JSON: of a bucket that is served, or of the nodes."""

    def silent_nodes(self) -> set[str]:
        """Return HOST:PORT of the HTTP pages of nodes that do not answer this one."""

    def bucket_map(self, name: str) -> tuple[BucketMap, str] | None:
        """Return a bucket's map and the name of this node in it, None if it has none.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    async def set_bucket_map(
        self, name: str, uuid: str, partitions: int, bucket_map: BucketMap, node_name: str
    ) -> None:
        """Give a bucket its map, durably; make it with this uuid if there is none of the name.

        Raises:
            UsageError: `bad_bucket_name`, `bad_bucket_uuid`, `bad_partitions`, `bad_map_rows`.
            ConditionError: `other_uuid`, `uuid_taken`, `other_partitions`, `other_node_name`,
                `older_map`, `other_map`.
            UnavailableError: `too_many_buckets`, `bucket_failed`, `disk_error`, `disk_full`,
                `disk_failed`.
        """

    def partition_statuses(self, name: str) -> list[PartitionStatus]:
        """Return the copies of a bucket's partitions, by number.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    async def set_partition_state(self, name: str, number: int, state: PartitionState) -> None:
        """Give a copy another state, durably.

        Raises:
            UsageError: `illegal_move`.
            UnavailableError: `disk_full`, `disk_failed`, `stopping`.
        """

    async def take_over(self, name: str, number: int) -> None:
        """Make a copy active that follows another node, which stops for it.

        Raises:
            UsageError: `not_following`.
            ConditionError: `taking_over`.
            UnavailableError: `not_taken_over`, `unreachable`, `disk_full`, `disk_failed`,
                `stopping`.
        """

    def standings(self, name: str) -> list[Standing]:
        """Return how the copies of a bucket's partitions stand, by number.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    async def promise(self, name: str, branch: int, numbers: Collection[int]) -> list[int]:
        """Let copies promise a branch, and stand down; return those that did.

        Raises:
            UnavailableError: `disk_full`, `disk_failed`, `stopping`.
        """

    async def activate(self, name: str, branch: int, ends: Mapping[int, int]) -> list[int]:
        """Make copies active in the branch they promised; return those that are.

        Args:
            name: of the bucket.
            branch: as promised.
            ends: partition -> the least complete end that the copy must have.

        Raises:
            UsageError: `illegal_move`.
            UnavailableError: `disk_full`, `disk_failed`, `stopping`.
        """

    async def roll_back_partition(self, name: str, number: int, seqno: int) -> int:
        """Go back to the newest state at or below `seqno` that can be restored; return its seqno.

        Raises:
            UnavailableError: `disk_full`, `disk_failed`, `stopping`.
        """
