"""Interface of the node for the HTTP server.

Elsewhere: the implementation (`node.engine`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from millstream.access.users import UserStore
from millstream.errors import MillstreamError
from millstream.gateway.core.api.changes import ChangesApi
from millstream.gateway.core.api.cluster import ClusterApi
from millstream.gateway.core.api.coverage import CoverageApi
from millstream.gateway.core.api.documents import DocumentApi
from millstream.gateway.core.api.readers import LeaseShown, ReaderStatus
from millstream.gateway.core.api.replications import ReplicationApi
from millstream.gateway.core.api.shared import SharedApi
from millstream.gateway.core.api.stored import StoredApi
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.kv.core.statistics import Figures
from millstream.model.bucket_map import BucketMap
from millstream.model.cluster_maps import MapKey
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog
from millstream.model.standing import Standing
from millstream.views.core.design.design_code import DocumentChange, Updated
from millstream.views.core.design.known_designs import KnownDesign

__all__ = [
    "BucketStatus",
    "CommonNodeApi",
    "DesignApi",
    "DocumentScan",
    "FunctionApi",
    "IndexApi",
    "NodeApi",
    "NodeMetrics",
    "PartRequest",
    "PartitionStatus",
    "ViewAnswer",
    "WriterCall",
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
    """The same for durable changes."""
    memory_quota_bytes: int = 0
    """Limit of its documents' memory."""
    index_replicas: bool = False
    """Whether views index the replicas here too, so that indexes are ready after a fail-over."""


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """The source of a copy, whether changes arrive from it, and why not."""

    node: str
    is_streaming: bool
    failure: str


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """This node's copy of one partition as shown to people."""

    partition: int
    state: str
    high_seqno: int
    """For a copy that follows another: the end of its last complete snapshot."""
    persisted_seqno: int
    purge_seqno: int
    received_seqno: int
    """The newest change it has; above `high_seqno` inside a snapshot."""
    failover_log: FailoverLog
    places: tuple[str | None, ...]
    """The map's row: the node of the active copy, then replicas; empty without a map."""
    follows: FollowStatus | None
    """The source of the copy. None: it has no source."""


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Statistics of the engine, read bucket by bucket; names as in `kv.core.statistics`."""

    node: Mapping[str, float]
    buckets: Mapping[str, Figures]
    """The figures by the name of the bucket."""


class DesignApi(Protocol):
    """The design documents of a node's buckets, named without `_design/`.

    Every call may raise `ConditionError` (`bucket_not_found`), `UsageError` (`illegal_docid`) and
    `UnavailableError` (`bucket_failed`; `not_my_partition`: the message names the node to ask;
    `temporarily_unavailable`).
    """

    async def read(self, bucket: str, name: str) -> StoredDesign | None:
        """Return a document or its tombstone; None if there was never one."""

    async def known(self, bucket: str, stored: StoredDesign) -> KnownDesign:
        """Return what a design document that is not deleted says.

        Raises:
            UsageError: `invalid_design_doc`: it is no object.
            UnavailableError: `long_call_failed`.
        """

    async def check(self, bucket: str, name: str, body: bytes) -> None:
        """Reject a document that is no design document or whose functions do not compile.

        Raises:
            UsageError: `invalid_design_doc`, `compilation_error`, `unknown_function`.
        """

    async def write(
        self, bucket: str, name: str, body: bytes | None, rev: str | None, *, is_durable: bool
    ) -> StoredDesign:
        """Replace the revision `rev` (None: there is no document) by a body; None deletes.

        Raises:
            ConditionError: `conflict`; `not_found`, there is nothing to delete.
            UnavailableError: `ambiguous`, it may have been lost again.
        """

    async def all(self, bucket: str) -> list[StoredDesign]:
        """Return all that are not deleted, by name."""


class ViewAnswer(Protocol):
    """The answer to a query of a view, as it arrives."""

    @property
    def head(self) -> Mapping[str, Any]:
        """Return what is known before the first row, such as `etag`."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the JSON text in pieces; an error during the query is raised here."""

    async def close(self) -> None:
        """End the answer; must always be called at the end."""


class PartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's request to another node's view."""

    design: str
    """Without `_design/`."""
    view: str
    options: dict[str, Any]
    partitions: list[int]
    """Partitions that the answer must cover."""
    form: Literal["part", "json"]
    """A part to be merged, or the whole answer if the node has all partitions."""
    keys: dict[int, MapKey] | None = None
    """In a managed cluster, by partition: of the index record that names the node as the owner."""


WriterCall = Literal["index", "take_over", "judge", "keep", "place", "staged", "load", "publish"]


class FunctionApi(Protocol):
    """The functions of design documents other than views.

    Every call may raise `ConditionError` (`bucket_not_found`), `UnavailableError` (as
    `DesignApi`), and the error of the function: `compilation_error`, `function_failed`, or the
    name of what it threw.
    """

    async def validate(
        self, bucket: str, changes: Sequence[DocumentChange], user: bytes, security: bytes
    ) -> list[MillstreamError | None]:
        """Run all validation functions on changes; return why each is rejected, None if it is not.

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
        """Return whether any design document validates changes."""

    async def filter(
        self, bucket: str, design: str, name: str, documents: Sequence[bytes], request: bytes
    ) -> list[bool]:
        """Return which documents pass a filter.

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
        """Call an update function; raises as `filter`, and AccessError if it throws one."""


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

        Deleted documents and design documents are left out.

        Args:
            bucket: its name.
            first: the lowest id, included; None: all.
            last: the highest id, included; None: all.
            descending: whether the highest comes first.
            conflicts: whether the texts have `_conflicts`, if there are any.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `not_my_partition`: some are on another node.
        """


class IndexApi(Protocol):
    """The views of a node as the pages see them; all calls run in the loop.

    Every call may raise `UnavailableError` (`index_unavailable`: the index process is being
    started again), and `ConditionError` (`bucket_not_found`; `missing`: no such design document).
    """

    async def query(
        self, bucket: str, design: str, view: str, options: Mapping[str, object]
    ) -> ViewAnswer:
        """Query a view.

        Args:
            bucket: its name.
            design: name of the design document, without `_design/`.
            view: its name.
            options: parameters by their names in the address, values decoded from JSON.

        Raises:
            UsageError: a parameter that is refused, `missing_named_view`.
        """

    async def part(self, bucket: str, asked: PartRequest) -> ViewAnswer:
        """Answer a part of a query for another node; raises as `query`.

        Raises:
            RoutingError: `not_my_partition`.
        """

    async def info(self, bucket: str, design: str) -> dict[str, Any]:
        """Return the `view_index` of `_info`."""

    async def write(
        self, bucket: str, design: str, call: WriterCall, arguments: Mapping[str, object]
    ) -> dict[str, Any]:
        """Run an operation of an external index writer.

        Raises:
            ConditionError: `index_fenced`, `not_spark_engine`, `run_missing`.
            UsageError: `bad_run`, `bad_parts`, `index_not_empty`, `too_large`.
        """

    async def stage(
        self, bucket: str, design: str, fence: int, run: str, pieces: AsyncIterator[bytes]
    ) -> None:
        """Store a file that such a writer will have committed.

        Raises:
            ConditionError: `index_fenced`.
            UsageError: `bad_run_name`, `too_large`.
            UnavailableError: `too_many_runs`, `disk_full`.
        """

    async def offers(self, bucket: str, building: Sequence[str]) -> list[str]:
        """Return the design documents that a pipeline may build; `building`: what it builds."""

    async def compact(self, bucket: str, design: str) -> None:
        """Start to compact an index; returns once it has begun."""

    async def cleanup(self, bucket: str) -> None:
        """Remove the files of indexes that no design document uses."""

    async def tasks(self) -> list[dict[str, Any]]:
        """Return the running builds and compactions, as `_active_tasks` shows them."""


class CommonNodeApi(Protocol):
    """The part of the interface that nodes without data have, too; all calls run in the loop."""

    @property
    def cluster(self) -> ClusterApi | None:
        """The cluster that the node may be a member of; None: it takes no part in coordination."""

    @property
    def indexes(self) -> IndexApi:
        """The views."""

    @property
    def designs(self) -> DesignApi:
        """The design documents."""

    @property
    def uuid(self) -> str:
        """Return the node's own id, fixed when its directory was created."""

    @property
    def engine(self) -> tuple[int, int]:
        """Return which engine of its machine this is, from 1, and of how many."""

    @property
    def users(self) -> UserStore:
        """Return the users and their rights."""

    @property
    def hosts(self) -> frozenset[str]:
        """Return the host names of the node, lower case, without ports."""

    @property
    def origins(self) -> frozenset[str]:
        """Return the sites whose pages may use the node from a browser; `*`: all."""

    def drop_user(self, name: str) -> None:
        """Close the connections of a user whose rights changed: they log in again."""

    def addresses(self) -> dict[str, str | None]:
        """Return listener -> HOST:PORT, None for closed ones."""

    def bucket_statuses(self) -> list[BucketStatus]:
        """Return all buckets that are known here, sorted by name."""

    def check_buckets_known(self) -> None:
        """Return if `bucket_statuses` has all buckets.

        Raises:
            UnavailableError: `buckets_unknown`: the cluster has not told them yet.
        """

    def metrics(self, buckets: Collection[str] | None = None) -> NodeMetrics:
        """Return the engine's statistics, of these buckets or all; those not served have none."""

    def shown_settings(self) -> dict[str, Any]:
        """Return the settings that may be shown: no users, secrets or key files."""

    def coordination_port(self) -> tuple[str, Any]:
        """Return HOST:PORT of this node's coordination, and the TLS context to reach it, or None.

        Raises:
            ConditionError: `no_coord`: this node has no such port.
        """

    def replication_tasks(self) -> list[dict[str, Any]]:
        """Return the running replications as `_active_tasks` shows them."""


class NodeApi(CommonNodeApi, Protocol):
    """A node with data as the pages see it; all calls run in the loop."""

    @property
    def documents(self) -> DocumentApi:
        """The documents of its databases."""

    @property
    def shared(self) -> SharedApi:
        """Return the answers for other nodes about buckets."""

    @property
    def stored(self) -> StoredApi:
        """Return the answers for other nodes about documents."""

    @property
    def functions(self) -> FunctionApi:
        """The functions of design documents."""

    @property
    def scan(self) -> DocumentScan:
        """All documents of a bucket."""

    @property
    def changes(self) -> ChangesApi:
        """Return the changes of the databases."""

    @property
    def cluster(self) -> ClusterApi:
        """Return the cluster that the node is, or may become, a member of."""

    @property
    def coverage(self) -> CoverageApi:
        """Return what the databases know of others."""

    @property
    def replications(self) -> ReplicationApi:
        """Return the replication jobs."""

    async def create_bucket(
        self, name: str, partitions: int, memory_quota_bytes: int | None = None
    ) -> BucketStatus:
        """Create a bucket durably; without a memory quota it has the quota of the node.

        Raises:
            UsageError: `bad_bucket_name`, `bad_partitions`, `bad_memory_quota`.
            ConditionError: `bucket_exists`.
            UnavailableError: `too_many_buckets`.
        """

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket and all its data.

        Raises:
            ConditionError: `bucket_not_found`.
        """

    async def set_index_replicas(self, name: str, wanted: bool) -> None:
        """Set durably whether a bucket's replicas here are indexed too.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `disk_error`.
        """

    def cluster_config(self, name: str | None) -> bytes | None:
        """Return the map for SDKs as JSON: of a served bucket, or of the nodes."""

    def silent_nodes(self) -> set[str]:
        """Return HOST:PORT of the HTTP pages of nodes that do not answer this one."""

    def bucket_map(self, name: str) -> tuple[BucketMap, str] | None:
        """Return a bucket's map and the name of this node in it; None if it has none.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    async def set_bucket_map(
        self, name: str, uuid: str, partitions: int, bucket_map: BucketMap, node_name: str
    ) -> None:
        """Give a bucket its map durably; create it with this uuid if the name is not in use.

        Raises:
            UsageError: `bad_bucket_name`, `bad_bucket_uuid`, `bad_partitions`, `bad_map_rows`.
            ConditionError: `other_uuid`, `uuid_taken`, `other_partitions`, `other_node_name`,
                `older_map`, `other_map`.
            UnavailableError: `too_many_buckets`, `bucket_failed`, `disk_error`, `disk_full`,
                `disk_failed`.
        """

    async def partition_statuses(self, name: str) -> list[PartitionStatus]:
        """Return the copies of a bucket's partitions, by number.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    def past_rollbacks(self, name: str) -> list[tuple[str, Mapping[str, int]]]:
        """Return names and last rollbacks of readers that have gone; raises as `readers`."""

    async def readers(self, name: str) -> list[ReaderStatus]:
        """Return who streams a bucket from this node.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    def leases(self, name: str) -> list[LeaseShown]:
        """Return the leases on a bucket; raises as `readers`."""

    async def set_partition_state(self, name: str, number: int, state: PartitionState) -> None:
        """Set the state of a copy durably.

        Raises:
            UsageError: `illegal_move`.
            UnavailableError: `disk_full`, `disk_failed`, `stopping`.
        """

    async def take_over(self, name: str, number: int) -> None:
        """Make a following copy active, and stop its source's.

        Raises:
            UsageError: `not_following`.
            ConditionError: `taking_over`.
            UnavailableError: `not_taken_over`, `unreachable`, `disk_full`, `disk_failed`,
                `stopping`.
        """

    def standings(self, name: str) -> list[Standing]:
        """Return the standings of a bucket's copies, by partition number.

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
        """Go back to the newest restorable state at or below `seqno`; return its seqno.

        Raises:
            UnavailableError: `disk_full`, `disk_failed`, `stopping`.
        """
