"""The buckets of a node over doubles of their engines, and maps for them."""

from types import SimpleNamespace

import pytest

from millstream.data_directory.map_file import PlacedMap
from millstream.databases.bucket_table import BucketTable
from millstream.databases.buckets import Buckets
from millstream.errors import CorruptionError
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.limits import MEMORY_QUOTA_BYTES_MIN

NODE_QUOTA = 8 * MEMORY_QUOTA_BYTES_MIN
UUID = "0123456789abcdef" * 2
NODES = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))


def placed(revision=1, rows=(("a", "b"), ("b", "a")), this="b", nodes=NODES):
    return PlacedMap(BucketMap(revision, nodes, rows), this)


class FakeCopies:
    def __init__(self):
        self.asked, self.errors = 0, []

    async def take_places(self):
        self.asked += 1
        if self.errors:
            raise self.errors.pop()


class FakeEngine:
    """What a bucket's engine looks like from here."""

    def __init__(self, path, name, uuid, partition_count, on_fatal, on_corrupt):
        assert path.is_dir()
        partition = SimpleNamespace(high_seqno=2, persisted_seqno=1)
        self.bucket = SimpleNamespace(
            name=name, uuid=uuid, partitions=[partition] * partition_count, set_map=self.set_map
        )
        self.copies, self.store = FakeCopies(), SimpleNamespace(log_id=bytes(16))
        self.fail = on_fatal
        self.meet_damage = on_corrupt
        self.is_stopped = False
        self.asked = []
        self.compactor = SimpleNamespace(ask=lambda: self.asked.append(name))
        self.stop_error = None

    def set_map(self, bucket_map, node_name):
        self.bucket.map, self.bucket.node_name = bucket_map, node_name

    async def stop(self):
        if self.stop_error is not None:
            raise self.stop_error
        self.is_stopped = True


@pytest.fixture
def make(tmp_path):
    def made(damaged=(), errors=()):
        waiting = list(errors)

        made.purge_ages, made.quotas = {}, {}
        made.copy_errors = []

        async def open_bucket(
            path,
            *,
            name,
            uuid,
            partition_count,
            on_fatal,
            on_corrupt,
            purge_age_s,
            memory_quota_bytes,
            bucket_map,
            node_name,
            **_,
        ):
            made.purge_ages[name] = purge_age_s
            made.quotas[name] = memory_quota_bytes
            if waiting:
                (path / "log").mkdir()
                raise waiting.pop()
            if name in damaged:
                raise CorruptionError(f"{name} is damaged at offset 7")
            engine = FakeEngine(path, name, uuid, partition_count, on_fatal, on_corrupt)
            engine.bucket.map, engine.bucket.node_name = bucket_map, node_name
            engine.copies.errors = made.copy_errors
            return engine

        made.fatal, made.stopped = [], []
        table = BucketTable(
            tmp_path / "buckets",
            flush_interval_ms=1,
            memory_quota_bytes=NODE_QUOTA,
            on_persisted=lambda: None,
            on_fatal=lambda name, error: made.fatal.append((name, str(error))),
            on_stopped=lambda bucket: made.stopped.append(bucket.name),
            open_bucket=open_bucket,
        )
        return Buckets(table)

    return made


async def opened(make, **options):
    buckets = make(**options)
    await buckets.open_all()
    return buckets
