"""A node that the pages can be tried on without a socket of its own."""

from contextlib import asynccontextmanager

import msgspec
import pytest

from millstream.access.users import UserStore
from millstream.databases.design_reading import KnownDesigns
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.gateway.core.api.node import (
    BucketStatus,
    FollowStatus,
    NodeMetrics,
    PartitionStatus,
)
from millstream.gateway.core.api.stored import Done
from millstream.gateway.core.bucket_parts import Ended, framed
from millstream.kv.aio.documents.design_documents import DesignStore
from millstream.kv.aio.majority import MajorityWait
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.revisions.design_documents import DesignDocuments
from millstream.kv.core.statistics import Figures, Histogram
from millstream.model.bucket_names import checked_bucket_name, checked_partition_count
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.model.standing import Standing
from millstream.views.core.design.design_code import Updated
from support.http.false_documents import FalseDocuments
from support.streams.changing_bucket import ChangingBucket

NOW = 1_700_000_000 * 10**9


class FakeDesigns:
    """Real documents in memory; what `views` says is not compiled but believed."""

    def __init__(self):
        self.refusal = None
        self.known = KnownDesigns().of
        self.persisted = 0
        log = (FailoverEntry(0xA, 0, 1),)
        partitions = [
            Partition(
                number, failover_log=log, high_seqno=0, purge_seqno=0, is_resident=True, log=None
            )
            for number in range(4)
        ]
        bucket = Bucket(
            "orders", "u1", partitions,
            new_lease_id=lambda: 1, now_ns=lambda: NOW, monotonic_ns=lambda: 0,
        )  # fmt: skip

        async def until_persisted(partition_id, seqno):
            self.persisted += 1

        store = DesignStore(
            bucket,
            DesignDocuments(bucket),
            until_persisted,
            MajorityWait(lambda: NOW),
            lambda: NOW,
        )
        self.stores = {"orders": store, "a/b": store}

    def _store(self, bucket):
        if bucket not in self.stores:
            raise ConditionError(f"no bucket {bucket!r}", code="bucket_not_found")
        return self.stores[bucket]

    async def read(self, bucket, name):
        return await self._store(bucket).read(name)

    async def check(self, bucket, name, content):
        self._store(bucket)
        if self.refusal is not None:
            raise self.refusal

    async def write(self, bucket, name, body, rev, *, is_durable):
        return await self._store(bucket).write(name, body, rev, is_durable=is_durable)

    async def all(self, bucket):
        return await self._store(bucket).all()


class FakeAnswer:
    """A view's answer in pieces; `failure` comes after them."""

    def __init__(self, pieces, head, failure=None):
        self.head = head
        self.pieces = pieces
        self.failure = failure
        self.is_closed = False

    async def __aiter__(self):
        for piece in self.pieces:
            yield piece
        if self.failure is not None:
            raise self.failure

    async def close(self):
        self.is_closed = True


class FakeIndexes:
    """Answers every query with `pieces`, or raises `refusal`."""

    def __init__(self):
        self.refusal = None
        self.failure = None
        self.pieces = [b'{"total_rows":0,"offset":0,"rows":[', b"]}\n"]
        self.head = {"etag": "e1"}
        self.asked = []
        self.answers = []
        self.compacted = []
        self.cleaned = []
        self.written = []
        self.staged = []

    async def query(self, bucket, design, view, options):
        self.asked.append((bucket, design, view, dict(options)))
        if self.refusal is not None:
            raise self.refusal
        self.answers.append(FakeAnswer(self.pieces, self.head, self.failure))
        return self.answers[-1]

    async def part(self, bucket, asked):
        return await self.query(bucket, asked.design, asked.view, msgspec.structs.asdict(asked))

    async def info(self, bucket, design):
        if self.refusal is not None:
            raise self.refusal
        return {"signature": "s1", "updates_pending": {"total": 0}}

    async def write(self, bucket, design, call, arguments):
        if self.refusal is not None:
            raise self.refusal
        self.written.append((bucket, design, call, dict(arguments)))
        return {"call": call}

    async def offers(self, bucket, building):
        return [bucket, *building]

    async def stage(self, bucket, design, fence, run, pieces):
        data = b"".join([piece async for piece in pieces])
        self.staged.append((bucket, design, fence, run, data))

    async def compact(self, bucket, design):
        if self.refusal is not None:
            raise self.refusal
        self.compacted.append((bucket, design))

    async def cleanup(self, bucket):
        self.cleaned.append(bucket)

    async def tasks(self):
        return [{"type": "indexer", "database": "orders", "progress": 50}]


class FakeScan:
    """Documents in memory by id; counts what was read."""

    def __init__(self):
        self.texts = {}
        self.refusal = None
        self.read = []

    async def documents(self, bucket, first, last, *, descending, conflicts):
        if self.refusal is not None:
            raise self.refusal
        for doc_id in sorted(self.texts, key=str.encode, reverse=descending):
            if (first is None or doc_id >= first) and (last is None or doc_id <= last):
                self.read.append(doc_id)
                yield doc_id, self.texts[doc_id]


class FakeChanges:
    def __init__(self, bucket):
        self._bucket = bucket
        self.purges = []

    def of(self, bucket):
        if bucket != self._bucket.name:
            raise ConditionError(f"no bucket {bucket!r}", code="bucket_not_found")
        return self._bucket.changes

    async def whole(self, bucket):
        return self.of(bucket)

    @asynccontextmanager
    async def purging(self, bucket):
        self.of(bucket)
        self.purges.append("begun")
        yield
        self.purges.append("made")


class FakeShared:
    def listed(self):
        return {"uuid": "n", "kv": 1, "buckets": []}

    async def bucket(self, name):
        if name != "orders":
            raise ConditionError("none", code="bucket_not_found")
        return {"name": name}


class FakeStored:
    """What other nodes ask of documents: everything is done."""

    def __init__(self, documents):
        self.asked = []
        self.refusal = None
        self.put_blob, self.open_blob = documents.put_blob, documents.open_blob

    async def stream(self, bucket, asked):
        self.asked.append((bucket, asked))
        yield framed(Ended())

    async def answer(self, bucket, asked):
        self.asked.append((bucket, asked))
        if self.refusal is not None:
            raise self.refusal
        return Done(7)


class FakeFunctions:
    """`judge` is asked about each change, if it is set: (new text, old text) -> error or None.

    `updates` has functions by design document and name.
    """

    def __init__(self):
        self.judge = None
        self.asked = []
        self.updates = {}

    async def update(self, bucket, design, name, document, request):
        if (design, name) not in self.updates:
            raise ConditionError(f"_design/{design} has no update {name!r}", code="not_found")
        shown = None if document is None else msgspec.json.decode(document)
        return Updated(*self.updates[design, name](shown, msgspec.json.decode(request)))

    async def validates(self, bucket):
        return self.judge is not None

    async def validate(self, bucket, changes, user, security):
        self.asked.append((msgspec.json.decode(user), security))
        return [self.judge(*change) for change in changes]

    async def filter(self, bucket, design, name, documents, request):
        return [b'"pass":true' in text for text in documents]

    async def filter_by_view(self, bucket, design, view, documents):
        return [b'"pass":true' in text for text in documents]


class FakeCluster:
    """The node is in no cluster; other nodes are answered all the same."""

    is_managed = False

    def __init__(self):
        self.taken = []

    async def member(self):
        return {"cluster": "c1"}

    async def reign(self):
        return {"plan": None}

    async def held(self, content):
        self.taken.append(content)
        return b'{"node": "n1"}'

    async def orders(self, content):
        self.taken.append(content)
        return b'{"replies":[]}'


class FakeHost:
    uuid = "f" * 32
    hosts = frozenset({"127.0.0.1", "db.example"})
    engine = 1, 1
    origins = frozenset({"https://app.example"})

    def __init__(self, users=None):
        self.users = users or UserStore()
        self.designs = FakeDesigns()
        self.functions = FakeFunctions()
        self.indexes = FakeIndexes()
        self.shared = FakeShared()
        self.scan = FakeScan()
        self.cluster = FakeCluster()
        self.changing = ChangingBucket()
        self.changes = FakeChanges(self.changing)
        self.dropped = []
        self.states = ["active", "dead"]
        self.branches = [9, 9]
        self.rolled_back = []
        self.silent = set()
        self.map_revision = 1
        self.unknown = None
        self.maps = {}
        self.given = []
        self.buckets = {"orders": BucketStatus("orders", "u1", 64, "2026-01-01", "ready")}
        self.documents = FalseDocuments(self.buckets)
        self.stored = FakeStored(self.documents)

    def shown_settings(self):
        return {"tls_cert": None, "oidc_issuer": None}

    def replication_tasks(self):
        return [{"type": "replication", "doc_id": "job"}]

    def drop_user(self, name):
        self.dropped.append(name)

    def addresses(self):
        return {"kv": "127.0.0.1:1", "http": "127.0.0.1:2", "coord": None}

    def cluster_config(self, name):
        if name is not None and (name not in self.buckets or self.buckets[name].state != "ready"):
            return None
        nodes = [
            {"hostname": "127.0.0.1", "services": {"kv": 1, "mgmt": 2}, "thisNode": True},
            {"hostname": "fd00::2", "services": {"kv": 3, "mgmt": 4}},
        ]
        config = {"rev": self.map_revision, "revEpoch": 1, "nodesExt": nodes}
        if name is not None:
            rows = {"numReplicas": 1, "vBucketMap": [[0, 1]]}
            config |= {
                "name": name,
                "vBucketServerMap": rows,
                "nodes": [{"couchApiBase": "x"}] * 2,
            }
        return msgspec.json.encode(config)

    def silent_nodes(self):
        return self.silent

    def check_buckets_known(self):
        if self.unknown is not None:
            raise self.unknown

    def bucket_statuses(self):
        return [self.buckets[name] for name in sorted(self.buckets)]

    async def create_bucket(self, name, partitions, memory_quota_bytes=None):
        checked_bucket_name(name)
        checked_partition_count(partitions)
        if name in self.buckets:
            raise ConditionError("exists", code="bucket_exists")
        self.buckets[name] = BucketStatus(
            name, "u2", partitions, "2026-01-01", "ready",
            memory_quota_bytes=memory_quota_bytes or 7,
        )  # fmt: skip
        return self.buckets[name]

    async def delete_bucket(self, name):
        if self.buckets.pop(name, None) is None:
            raise ConditionError("none", code="bucket_not_found")

    async def set_index_replicas(self, name, wanted):
        if name not in self.buckets:
            raise ConditionError("none", code="bucket_not_found")
        self.indexes.replicas = wanted

    async def partition_statuses(self, name):
        if name not in self.buckets:
            raise ConditionError("none", code="bucket_not_found")
        log = (FailoverEntry(0xBEEF, 3, 9), FailoverEntry(0xA, 0, 1))
        bucket_map, _ = self.maps.get(name, (None, ""))
        rows = ((), ()) if bucket_map is None else bucket_map.rows
        follows = None if bucket_map is None else FollowStatus("other", False, "not there")
        return [
            PartitionStatus(number, state, 7, 6, 2, 8, log, rows[number], follows)
            for number, state in enumerate(self.states)
        ]

    def bucket_map(self, name):
        return self.maps.get(name)

    async def set_bucket_map(self, name, uuid, partitions, bucket_map, node_name):
        self.given.append((name, uuid, partitions))
        self.maps[name] = bucket_map, node_name

    async def set_partition_state(self, name, number, state):
        if state is PartitionState.PENDING:
            raise UsageError("no", code="illegal_move")
        self.states[number] = state.name.lower()

    async def take_over(self, name, number):
        if number:
            raise UnavailableError("no", code="not_taken_over")
        self.states[number] = "active"

    def standings(self, name):
        if name not in self.buckets:
            raise ConditionError("none", code="bucket_not_found")
        return [
            Standing(p, PartitionState[state.upper()], branch, 5, 7, 6, 4, True, False)
            for p, (state, branch) in enumerate(zip(self.states, self.branches, strict=True))
        ]

    async def promise(self, name, branch, numbers):
        done = [p for p in numbers if branch > self.branches[p]]
        for p in done:
            self.states[p], self.branches[p] = "replica", branch
        return done

    async def activate(self, name, branch, ends):
        done = [p for p, end in ends.items() if branch == self.branches[p] and end <= 7]
        for p in done:
            self.states[p] = "active"
        return done

    async def roll_back_partition(self, name, number, seqno):
        self.rolled_back.append((name, number, seqno))
        return seqno

    def metrics(self, buckets=None):
        commits = Histogram((1.0, 4.0))
        commits.observe(3)
        orders: Figures = {
            "changes_high": 9,
            "flusher_commits_total": 1,
            "flusher_commit_changes": commits,
            "refused_total": {"locked": 2},
            "memory_used_bytes": 4,
        }
        found = {"orders": orders} if buckets is None or "orders" in buckets else {}
        return NodeMetrics({"loop_lag_ms": 0.5, "processor_seconds_total": 7}, found)


@pytest.fixture
def open_node():
    return FakeHost()


@pytest.fixture(scope="session")
def guarding_users():
    """Users, made once: their passwords are hashed slowly on purpose."""
    users = UserStore()
    for name, roles in (("ada", ["admin"]), ("bob", ["read:orders"]), ("cleo", ["design:orders"])):
        users.put(name, "secret", roles)
    return users


@pytest.fixture
def guarded_node(guarding_users):
    return FakeHost(guarding_users)
