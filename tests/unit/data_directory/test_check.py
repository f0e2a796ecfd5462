import hashlib
import shutil

import pytest

from millstream.data_directory.check import check_directory
from millstream.data_directory.map_file import MAP_FILE, PlacedMap, write_map
from millstream.errors import UnavailableError, UsageError
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.node.embedded import EmbeddedNode, Node


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("check") / "d"
    with EmbeddedNode(path, buckets=["a:4", "b:1"], users=["ada:x"]) as node:
        bucket = node._node.bucket("a")

        async def write():
            for number in range(1000):
                partition = bucket.partition_for(b"k%d" % number)
                partition.put(b"k%d" % number, b"v" * 100, 0, 0, 0, 0, 1)
            bucket.changed()

        node._run(write())
    return path


@pytest.fixture
def directory(written, tmp_path):
    shutil.copytree(written, tmp_path / "d")
    return tmp_path / "d"


def segment_of(directory, name):
    found = check_directory(directory)
    uuid = next(bucket.uuid for bucket in found.buckets if bucket.name == name)
    return max((directory / "buckets" / uuid / "log").glob("*.seg"))


def contents(directory):
    return {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_a_sound_directory_is_read_and_left_as_it_is(directory):
    before, seen = contents(directory), []
    found = check_directory(directory, lambda bucket, share: seen.append((bucket.name, share)))
    assert found.is_sound
    assert found.users == 1
    buckets = {bucket.name: bucket for bucket in found.buckets}
    assert [buckets["a"].total(name) for name in ("changes", "documents", "dead")] == [
        1000,
        1000,
        0,
    ]
    assert buckets["b"].total("changes") == 0
    assert [part.high_seqno > 200 for part in buckets["a"].log.partitions] == [True] * 4
    assert (buckets["a"].log.by_id, buckets["a"].log.by_id_keys) == ("rebuilt", 0), "a copied map"
    assert buckets["a"].torn_bytes == 0
    for name in ("a", "b"):
        shares = [share for bucket, share in seen if bucket == name]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert contents(directory) == before


def test_a_damaged_bucket_file_is_damage_of_its_bucket(directory):
    bad = next((directory / "buckets").iterdir())
    (bad / "bucket.toml").write_text("rubbish")
    found = check_directory(directory)
    assert not found.is_sound
    damage = {bucket.uuid: bucket.damage for bucket in found.buckets}
    assert "bucket.toml" in damage.pop(bad.name)
    assert list(damage.values()) == [""]


def test_a_map_is_told_and_its_damage_found(directory):
    bucket = next(b for b in check_directory(directory).buckets if b.name == "b")
    assert (bucket.map_revision, bucket.node_name) == (0, "")
    path = directory / "buckets" / bucket.uuid
    bucket_map = BucketMap(4, (NodeAddress("x", "h", 1, 2),), (("x", None),))
    write_map(path, PlacedMap(bucket_map, "x"))
    bucket = next(b for b in check_directory(directory).buckets if b.name == "b")
    assert (bucket.map_revision, bucket.node_name, bucket.damage) == (4, "x", "")
    (path / MAP_FILE).write_bytes(b"{}")
    found = check_directory(directory)
    assert [MAP_FILE in b.damage for b in found.buckets if b.name == "b"] == [True]


def test_a_torn_tail_is_told_and_left(directory):
    segment = segment_of(directory, "a")
    with segment.open("ab") as file:
        file.write(b"torn in the middle")
    before = contents(directory)
    found = check_directory(directory)
    assert found.is_sound
    assert {bucket.name: bucket.torn_bytes for bucket in found.buckets} == {"a": 18, "b": 0}
    assert contents(directory) == before


def test_damage_is_named_and_the_rest_is_checked(directory):
    segment = segment_of(directory, "a")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    found = check_directory(directory)
    assert not found.is_sound
    buckets = {bucket.name: bucket for bucket in found.buckets}
    assert str(segment) in buckets["a"].damage
    assert "offset" in buckets["a"].damage
    assert buckets["b"].damage == ""


def test_the_by_id_map_is_checked_where_a_start_believes_it(written):
    before = contents(written)
    found = {bucket.name: bucket for bucket in check_directory(written).buckets}
    assert (found["a"].log.by_id, found["a"].log.by_id_keys) == ("current", 1000)
    assert contents(written) == before


def test_what_a_compaction_left_is_told_and_left(directory):
    left = segment_of(directory, "a").with_name("00000001.seg.new")
    left.write_bytes(b"half")
    found = {bucket.name: bucket for bucket in check_directory(directory).buckets}
    assert (found["a"].leftover_files, found["b"].leftover_files) == (1, 0)
    assert left.exists()


async def test_a_directory_in_use_is_not_checked(directory):
    async with Node(directory):
        with pytest.raises(UnavailableError, match="another server"):
            check_directory(directory)


@pytest.mark.parametrize("kept", [0, 30, 64, None, "no directory"])
def test_a_segment_that_was_emptied_cut_or_lost_is_damage_and_nothing_is_changed(directory, kept):
    segment = segment_of(directory, "a")
    if kept == "no directory":
        shutil.rmtree(segment.parent)
        kept = None
    elif kept is None:
        segment.unlink()
    else:
        segment.write_bytes(segment.read_bytes()[:kept])
    before = contents(directory)
    found = {bucket.name: bucket for bucket in check_directory(directory).buckets}
    assert (segment.name if kept is not None else "all segments") in found["a"].damage
    part = segment.parent.relative_to(directory)
    assert found["a"].damage.endswith(f"millstream check {directory} --accept {part}")
    assert found["b"].damage == ""
    assert contents(directory) == before


@pytest.mark.parametrize("name", ["node.toml", "inventory.toml", "users.json"])
@pytest.mark.parametrize("how", ["missing", "empty", "flipped"])
def test_damage_of_the_nodes_own_files_is_told_and_the_rest_is_checked(directory, name, how):
    file = directory / name
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(
            b"" if how == "empty" else file.read_bytes().replace(b"format", b"farmat")
        )
    found = check_directory(directory)
    assert not found.is_sound
    (damage,) = found.damage
    assert damage.endswith(f"millstream check {directory} --accept {name}")
    assert [bucket.damage for bucket in found.buckets] == ["", ""]


def test_a_bucket_that_is_gone_is_told(directory):
    uuid = segment_of(directory, "a").parent.parent.name
    shutil.rmtree(directory / "buckets" / uuid)
    found = {bucket.name: bucket for bucket in check_directory(directory).buckets}
    assert found["a"].damage.endswith(f"--accept buckets/{uuid}")
    assert found["b"].damage == ""


def test_the_log_of_a_bucket_with_more_partitions_is_damage(directory):
    own, other = segment_of(directory, "b").parent, segment_of(directory, "a").parent
    shutil.rmtree(own)
    shutil.copytree(other, own)
    found = {bucket.name: bucket for bucket in check_directory(directory).buckets}
    assert "the log of another bucket" in found["b"].damage
    assert found["a"].damage == ""
    part = own.relative_to(directory)
    assert found["b"].damage.endswith(f"millstream check {directory} --accept {part}")


def test_attachments_that_are_not_what_they_are_named_by_are_counted(directory):
    blobs = segment_of(directory, "a").parent.parent / "blobs"
    digest = hashlib.sha256(b"bytes").hexdigest()
    (blobs / digest[:2]).mkdir(parents=True)
    (blobs / digest[:2] / digest[2:]).write_bytes(b"bytes")
    assert check_directory(directory).is_sound
    (blobs / digest[:2] / digest[2:]).write_bytes(b"byte5")
    found = {bucket.name: bucket for bucket in check_directory(directory).buckets}
    assert (found["a"].damaged_attachments, found["a"].is_sound) == (1, False)


def test_a_damaged_end_of_a_receipt_is_told(directory):
    receipt = segment_of(directory, "a").with_name("receipt")
    receipt.write_bytes(receipt.read_bytes()[:-3])
    found = {bucket.name: bucket for bucket in check_directory(directory).buckets}
    assert "begins a new history" in found["a"].damage


def test_other_directories_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no data directory"):
        check_directory(tmp_path)
