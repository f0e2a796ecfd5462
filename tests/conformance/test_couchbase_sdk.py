"""The official Couchbase Python SDK against the kv port: it bootstraps there and nowhere else."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess

pytest.importorskip("couchbase", reason="the couchbase SDK is not installed")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.diagnostics import PingState, ServiceType
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    AuthenticationException,
    BucketAlreadyExistsException,
    BucketDoesNotExistException,
    BucketNotFlushableException,
    BucketNotFoundException,
    CasMismatchException,
    CouchbaseException,
    DeltaInvalidException,
    DocumentExistsException,
    DocumentLockedException,
    DocumentNotFoundException,
    DocumentNotLockedException,
    TemporaryFailException,
    TimeoutException,
    UnAmbiguousTimeoutException,
    UnsupportedOperation,
)
from couchbase.management.buckets import CreateBucketSettings
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    DecrementOptions,
    DeltaValue,
    GetAndLockOptions,
    GetOptions,
    IncrementOptions,
    InsertOptions,
    PingOptions,
    RemoveOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertMultiOptions,
    UpsertOptions,
)
from couchbase.transcoder import RawBinaryTranscoder, RawStringTranscoder

Login = tuple[str, str]
LEVELS = (
    DurabilityLevel.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
    DurabilityLevel.PERSIST_TO_MAJORITY,
)
SOON = timedelta(seconds=3)
"""As an expiry: long enough for a busy machine to come back to the document before it."""
VALUE_BYTES_MAX = 20 * 1024 * 1024
FAULTS = Path(__file__).parents[1] / "e2e" / "faults"


def connect(node: NodeProcess, login: Login, timeout_s: float = 60) -> Cluster:
    timeouts = ClusterTimeoutOptions(
        bootstrap_timeout=timedelta(seconds=timeout_s),
        connect_timeout=timedelta(seconds=timeout_s),
        kv_timeout=timedelta(seconds=timeout_s),
        kv_durable_timeout=timedelta(seconds=timeout_s),
    )
    options = ClusterOptions(PasswordAuthenticator(*login), timeout_options=timeouts)
    return Cluster.connect("couchbase://{}:{}".format(*node.kv), options)


@pytest.fixture(scope="module")
def documents(node: NodeProcess, login: Login) -> Iterator[Collection]:
    cluster = connect(node, login)
    yield cluster.bucket("documents").default_collection()
    cluster.close()


@pytest.fixture
def key() -> str:
    return f"doc-{uuid4()}"


def wait_until(is_true: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.05)  # the SDK tells nobody: asked again


# -- documents


@pytest.mark.parametrize(
    "value",
    [{"name": "Ada", "born": 1815}, [1, None, True], "text", 12, {"Ω": "ü" * 10_000}, {}],
)
def test_json_value_returns_as_written(documents: Collection, key: str, value: Any) -> None:
    written = documents.upsert(key, value)
    read = documents.get(key)
    assert read.value == value
    assert read.cas == written.cas != 0


def test_binary_and_text_values(documents: Collection, key: str) -> None:
    binary, text = RawBinaryTranscoder(), RawStringTranscoder()
    documents.upsert(key, bytes(range(256)), UpsertOptions(transcoder=binary))
    assert documents.get(key, GetOptions(transcoder=binary)).value == bytes(range(256))
    documents.upsert(key, "grüße", UpsertOptions(transcoder=text))
    assert documents.get(key, GetOptions(transcoder=text)).value == "grüße"


def test_empty_value(documents: Collection, key: str) -> None:
    binary = RawBinaryTranscoder()
    documents.upsert(key, b"", UpsertOptions(transcoder=binary))
    assert documents.get(key, GetOptions(transcoder=binary)).value == b""


def test_missing_document(documents: Collection, key: str) -> None:
    with pytest.raises(DocumentNotFoundException):
        documents.get(key)
    with pytest.raises(DocumentNotFoundException):
        documents.remove(key)
    with pytest.raises(DocumentNotFoundException):
        documents.replace(key, {})
    with pytest.raises(DocumentNotFoundException):
        documents.touch(key, timedelta(seconds=60))


def test_insert_does_not_overwrite(documents: Collection, key: str) -> None:
    documents.insert(key, {"n": 1})
    with pytest.raises(DocumentExistsException):
        documents.insert(key, {"n": 2})
    assert documents.get(key).value == {"n": 1}
    documents.remove(key)
    documents.insert(key, {"n": 3})
    assert documents.get(key).value == {"n": 3}


def test_replace_obeys_cas(documents: Collection, key: str) -> None:
    first = documents.upsert(key, {"n": 1})
    second = documents.replace(key, {"n": 2}, ReplaceOptions(cas=first.cas))
    assert second.cas != first.cas
    with pytest.raises(CasMismatchException):
        documents.replace(key, {"n": 3}, ReplaceOptions(cas=first.cas))
    assert documents.get(key).value == {"n": 2}


def test_remove_obeys_cas(documents: Collection, key: str) -> None:
    first = documents.upsert(key, {"n": 1})
    second = documents.upsert(key, {"n": 2})
    with pytest.raises(CasMismatchException):
        documents.remove(key, RemoveOptions(cas=first.cas))
    documents.remove(key, RemoveOptions(cas=second.cas))
    assert not documents.exists(key).exists


def test_cas_only_grows(documents: Collection, key: str) -> None:
    seen = [documents.upsert(key, {"n": n}).cas for n in range(20)]
    seen.append(documents.remove(key).cas)
    seen.append(documents.insert(key, {}).cas)
    assert seen == sorted(set(seen))


def test_exists(documents: Collection, key: str) -> None:
    assert not documents.exists(key).exists
    cas = documents.upsert(key, {}).cas
    found = documents.exists(key)
    assert found.exists
    assert found.cas == cas
    documents.remove(key)
    assert not documents.exists(key).exists


def test_mutation_tokens_grow_within_a_partition(documents: Collection, key: str) -> None:
    first = documents.upsert(key, {"n": 1}).mutation_token()
    second = documents.upsert(key, {"n": 2}).mutation_token()
    assert first is not None
    assert second is not None
    assert first.partition_id == second.partition_id
    assert first.partition_uuid == second.partition_uuid != 0
    assert second.sequence_number > first.sequence_number


def test_many_documents_at_once(documents: Collection) -> None:
    run = uuid4()
    wanted = {f"many-{run}-{n}": {"n": n} for n in range(500)}
    assert documents.upsert_multi(wanted).all_ok
    found = documents.get_multi(list(wanted))
    assert {key: result.value for key, result in found.results.items()} == wanted


# -- expiry


def test_expired_document_is_gone(documents: Collection, key: str) -> None:
    documents.upsert(key, {}, UpsertOptions(expiry=SOON))
    assert documents.get(key).value == {}
    wait_until(lambda: not documents.exists(key).exists)
    with pytest.raises(DocumentNotFoundException):
        documents.get(key)
    documents.insert(key, {"again": True})
    assert documents.get(key).value == {"again": True}


def test_touch_moves_the_expiry(documents: Collection, key: str) -> None:
    cas = documents.upsert(key, {}, UpsertOptions(expiry=timedelta(seconds=60))).cas
    assert documents.touch(key, timedelta(seconds=1)).cas != cas
    wait_until(lambda: not documents.exists(key).exists)


def test_touch_with_zero_keeps_for_ever(documents: Collection, key: str) -> None:
    documents.upsert(key, {}, UpsertOptions(expiry=SOON))
    documents.touch(key, timedelta(seconds=0))
    other = f"{key}-other"
    documents.upsert(other, {}, UpsertOptions(expiry=SOON))
    wait_until(lambda: not documents.exists(other).exists)
    assert documents.exists(key).exists


def test_get_and_touch(documents: Collection, key: str) -> None:
    documents.upsert(key, {"n": 1})
    read = documents.get_and_touch(key, timedelta(seconds=1))
    assert read.value == {"n": 1}
    wait_until(lambda: not documents.exists(key).exists)
    with pytest.raises(DocumentNotFoundException):
        documents.get_and_touch(key, timedelta(seconds=1))


def test_preserved_expiry(documents: Collection, key: str) -> None:
    documents.upsert(key, {"n": 1}, UpsertOptions(expiry=SOON))
    documents.upsert(key, {"n": 2}, UpsertOptions(preserve_expiry=True))
    wait_until(lambda: not documents.exists(key).exists)


# -- counters, append


def test_counter(documents: Collection, key: str) -> None:
    counters = documents.binary()
    ten = SignedInt64(10)
    assert counters.increment(key, IncrementOptions(initial=ten)).content == 10
    assert counters.increment(key, IncrementOptions(delta=DeltaValue(5))).content == 15
    assert counters.decrement(key, DecrementOptions(delta=DeltaValue(4))).content == 11
    assert counters.decrement(key, DecrementOptions(delta=DeltaValue(100))).content == 0
    assert documents.get(key).value == 0


def test_counter_that_must_exist(documents: Collection, key: str) -> None:
    with pytest.raises(DocumentNotFoundException):
        documents.binary().increment(key, IncrementOptions(initial=SignedInt64(-1)))


def test_counter_on_a_document(documents: Collection, key: str) -> None:
    documents.upsert(key, {"no": "number"})
    with pytest.raises(DeltaInvalidException):
        documents.binary().increment(key)


def test_append_and_prepend(documents: Collection, key: str) -> None:
    text = RawStringTranscoder()
    documents.upsert(key, "b", UpsertOptions(transcoder=text))
    documents.binary().append(key, "c")
    documents.binary().prepend(key, "a")
    assert documents.get(key, GetOptions(transcoder=text)).value == "abc"


# -- locks


def test_locked_document_is_changed_by_its_holder_only(documents: Collection, key: str) -> None:
    before = documents.upsert(key, {"n": 1})
    locked = documents.get_and_lock(key, timedelta(seconds=15))
    assert locked.value == {"n": 1}
    assert documents.get(key).cas not in (before.cas, locked.cas)
    soon = timedelta(milliseconds=300)  # the SDK tries a locked document again until then
    with pytest.raises((DocumentLockedException, TimeoutException)):
        documents.upsert(key, {"n": 2}, UpsertOptions(timeout=soon))
    with pytest.raises((DocumentLockedException, TimeoutException)):
        documents.get_and_lock(key, timedelta(seconds=5), GetAndLockOptions(timeout=soon))
    written = documents.replace(key, {"n": 3}, ReplaceOptions(cas=locked.cas))
    assert documents.get(key).cas == written.cas
    documents.upsert(key, {"n": 4})


def test_unlock(documents: Collection, key: str) -> None:
    before = documents.upsert(key, {"n": 1})
    locked = documents.get_and_lock(key, timedelta(seconds=15))
    with pytest.raises(CasMismatchException):
        documents.unlock(key, before.cas)
    documents.unlock(key, locked.cas)
    with pytest.raises(DocumentNotLockedException):
        documents.unlock(key, locked.cas)
    with pytest.raises(DocumentNotFoundException):
        documents.unlock(f"{key}-absent", locked.cas)
    documents.upsert(key, {"n": 2})


def test_lock_ends_by_itself(documents: Collection, key: str) -> None:
    documents.upsert(key, {"n": 1})
    documents.get_and_lock(key, timedelta(seconds=1))
    documents.upsert(key, {"n": 2})  # tried again by the SDK until the lock is over
    assert documents.get(key).value == {"n": 2}


# -- durability


@pytest.mark.parametrize("level", LEVELS)
def test_durable_writes(documents: Collection, key: str, level: DurabilityLevel) -> None:
    durable = ServerDurability(level)
    inserted = documents.insert(key, {"n": 1}, InsertOptions(durability=durable))
    written = documents.upsert(key, {"n": 2}, UpsertOptions(durability=durable))
    assert written.cas > inserted.cas
    assert documents.get(key).value == {"n": 2}
    documents.remove(key, RemoveOptions(durability=durable))
    assert not documents.exists(key).exists


@pytest.mark.parametrize("level", LEVELS)
def test_durable_write_on_a_wrong_cas(
    documents: Collection, key: str, level: DurabilityLevel
) -> None:
    cas = documents.upsert(key, {"n": 1}).cas
    documents.upsert(key, {"n": 2})
    with pytest.raises(CasMismatchException):
        documents.replace(
            key, {"n": 3}, ReplaceOptions(cas=cas, durability=ServerDurability(level))
        )
    assert documents.get(key).value == {"n": 2}


# -- what is refused


def test_wrong_password(node: NodeProcess, login: Login) -> None:
    with pytest.raises((AuthenticationException, TimeoutException)) as caught:
        connect(node, (login[0], "wrong"), timeout_s=20)
    assert isinstance(caught.value, AuthenticationException), caught.value


def test_unknown_user(node: NodeProcess) -> None:
    with pytest.raises(AuthenticationException):
        connect(node, ("nobody", "any"), timeout_s=20)


def test_unknown_bucket(node: NodeProcess, login: Login) -> None:
    cluster = connect(node, login, timeout_s=20)
    with pytest.raises((BucketNotFoundException, AuthenticationException)):
        cluster.bucket("nowhere").default_collection().get("key")
    cluster.close()


def test_buckets_are_made_shown_and_dropped(node: NodeProcess, login: Login) -> None:
    cluster = connect(node, login)
    try:
        buckets = cluster.buckets()
        wanted = CreateBucketSettings(name="made", ram_quota_mb=100, num_replicas=1)
        buckets.create_bucket(wanted)
        with pytest.raises(BucketAlreadyExistsException):
            buckets.create_bucket(wanted)
        assert buckets.get_bucket("made").ram_quota_mb == 100
        made = cluster.bucket("made").default_collection()
        made.upsert("k", {"n": 1})
        assert made.get("k").value == {"n": 1}
        buckets.drop_bucket("made")
        with pytest.raises(BucketDoesNotExistException):
            buckets.drop_bucket("made")
    finally:
        cluster.close()


def test_value_over_the_limit(documents: Collection, key: str) -> None:
    binary = UpsertOptions(transcoder=RawBinaryTranscoder())
    documents.upsert(key, b"\0" * VALUE_BYTES_MAX, binary)
    with pytest.raises(CouchbaseException) as caught:
        documents.upsert(key, b"\0" * (VALUE_BYTES_MAX + 1), binary)
    assert not isinstance(caught.value, TimeoutException)
    read = documents.get(key, GetOptions(transcoder=RawBinaryTranscoder()))
    assert len(read.value) == VALUE_BYTES_MAX


def test_node_without_users(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("open") / "node"
    with NodeProcess(directory, "--bucket", "documents") as node:
        cluster = connect(node, ("anyone", "anything"))
        documents = cluster.bucket("documents").default_collection()
        documents.upsert("key", {"n": 1})
        assert documents.get("key").value == {"n": 1}
        cluster.close()


def test_a_partition_that_nobody_serves_for_a_while(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The SDK follows the map: to nobody, and back once there is an owner again."""
    directory = tmp_path_factory.mktemp("states") / "node"
    with NodeProcess(directory, "--bucket", "documents:8") as node:
        cluster = connect(node, ("anyone", "anything"))
        documents = cluster.bucket("documents").default_collection()
        mine, dead, active = partition_of(b"key", 8), b"\4", b"\1"
        documents.upsert("key", {"n": 1})
        with RawClient(node.kv, "documents") as admin:
            ask = partial(admin.ask, Opcode.SET_VBUCKET_STATE, vbucket=mine)
            assert ask(extras=dead).status == 0
            with pytest.raises(UnAmbiguousTimeoutException):
                documents.get("key", GetOptions(timeout=timedelta(seconds=1)))
            assert ask(extras=active).status == 0
        assert documents.get("key").value == {"n": 1}
        documents.upsert("key", {"n": 2})
        cluster.close()


# -- memory and disk run out


def test_documents_of_four_times_the_memory_quota(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Beyond the quota the SDK is slowed, nothing is refused; nothing acknowledged is lost."""
    directory = tmp_path_factory.mktemp("quota") / "node"
    options = ("--bucket", "documents:8", "--memory-quota", "16MiB", "--flush-interval", "60000")
    binary = RawBinaryTranscoder()
    wanted = {f"large-{number}": bytes([number]) * 1_000_000 for number in range(64)}
    with NodeProcess(directory, *options) as node:
        cluster = connect(node, ("anyone", "anything"))
        documents = cluster.bucket("documents").default_collection()
        for half in (list(wanted)[:32], list(wanted)[32:]):
            some = {key: wanted[key] for key in half}
            done = documents.upsert_multi(some, UpsertMultiOptions(transcoder=binary))
            assert done.all_ok, done.exceptions
        assert figure(node, b"memory_delayed_total") > 0, "the quota was never exhausted"
        assert figure(node, b"refused_total_etmpfail") == 0
        check_values(documents, wanted)
        cluster.close()
        assert node.stop() == 0
        cluster = connect(node.start(), ("anyone", "anything"))
        check_values(cluster.bucket("documents").default_collection(), wanted)
        cluster.close()


def test_a_disk_that_is_full_for_a_while(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Refused for longer than the SDK tries it is a time-out of what surely was not done."""
    directory = tmp_path_factory.mktemp("full")
    faults = directory / "faults"
    faults.mkdir()
    path = os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")])
    env = {"MILLSTREAM_TEST_FAULTS": str(faults), "PYTHONPATH": path}
    with NodeProcess(directory / "node", "--bucket", "documents:8", env=env) as node:
        cluster = connect(node, ("anyone", "anything"))
        documents = cluster.bucket("documents").default_collection()
        documents.upsert("before", {"n": 1})
        (faults / "write").write_text(str(errno.ENOSPC))
        documents.upsert("accepted", {"n": 2})
        soon = UpsertOptions(timeout=timedelta(seconds=1))
        wait_until(lambda: is_refused(documents, soon))
        assert documents.get("accepted").value == {"n": 2}
        (faults / "write").unlink()
        documents.upsert("after", {"n": 3})
        cluster.close()
        assert node.stop() == 0
        cluster = connect(node.start(), ("anyone", "anything"))
        documents = cluster.bucket("documents").default_collection()
        found = [documents.get(key).value for key in ("before", "accepted", "after")]
        assert found == [{"n": 1}, {"n": 2}, {"n": 3}]
        cluster.close()


def figure(node: NodeProcess, name: bytes) -> int:
    """A statistic of the bucket, 0 if it is not there."""
    with RawClient(node.kv, "documents") as client:
        packet = client.ask(Opcode.STAT)
        while packet.key or packet.value:
            if packet.key == name:
                return int(packet.value)
            packet = client.receive()
    return 0


def is_refused(documents: Collection, soon: UpsertOptions) -> bool:
    try:
        documents.upsert("refused", {}, soon)
    except (TemporaryFailException, UnAmbiguousTimeoutException):
        return True
    return False


def check_values(documents: Collection, wanted: dict[str, bytes]) -> None:
    binary = GetOptions(transcoder=RawBinaryTranscoder())
    for key, value in wanted.items():
        assert documents.get(key, binary).value == value


def test_ping(node: NodeProcess, login: Login) -> None:
    cluster = connect(node, login)
    cluster.bucket("documents").default_collection().exists("any")
    answers = cluster.bucket("documents").ping(PingOptions(service_types=[ServiceType.KeyValue]))
    states = [endpoint.state for endpoint in answers.endpoints[ServiceType.KeyValue]]
    assert states == [PingState.OK]
    cluster.close()


def test_a_cluster_becomes_ready_answers_pings_and_says_what_it_has_not(
    node: NodeProcess, login: Login
) -> None:
    cluster = connect(node, login)
    try:
        cluster.wait_until_ready(timedelta(seconds=60))
        found = cluster.ping().endpoints
        for service in (ServiceType.KeyValue, ServiceType.Management):
            assert {one.state for one in found[service]} == {PingState.OK}
        assert cluster.buckets().get_bucket("documents").name == "documents"
        with pytest.raises(BucketDoesNotExistException):
            cluster.buckets().get_bucket("none")
        with pytest.raises(UnsupportedOperation):
            list(cluster.bucket("documents").collections().get_all_scopes())
        with pytest.raises(BucketNotFlushableException):
            cluster.buckets().flush_bucket("documents")
        with pytest.raises(BucketDoesNotExistException):
            cluster.buckets().drop_bucket("none")
    finally:
        cluster.close()
