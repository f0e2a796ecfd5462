import asyncio
import shutil

import pytest

from millstream.data_directory.acceptance import accept
from millstream.data_directory.bucket_files import find_records, store_record
from millstream.data_directory.check import check_directory
from millstream.data_directory.inventory import MAP, Inventory
from millstream.data_directory.map_file import PlacedMap, write_map
from millstream.data_directory.small_files import read_toml
from millstream.errors import CorruptionError, MillstreamError, UnavailableError, UsageError
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.node.embedded import EmbeddedNode, Node

DOCUMENTS = 100


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("accepting") / "d"
    with EmbeddedNode(path, buckets=["a:4", "b:1"], users=["ada:x"]) as node:
        engine = node._node.engine

        async def write():
            bucket = engine.served["a"]
            for number in range(DOCUMENTS):
                partition = bucket.partition_for(b"k%d" % number)
                partition.put(b"k%d" % number, b"v" * 100, 0, 0, 0, 0, 1)
            bucket.changed()
            await engine._buckets.running["a"].local.set("name", b"value")

        node._run(write())
    return path


@pytest.fixture
def directory(written, tmp_path):
    shutil.copytree(written, tmp_path / "d")
    return tmp_path / "d"


def uuid_of(directory, name):
    found = Inventory(directory).read().buckets
    return next(uuid for uuid, entry in found.items() if entry.name == name)


async def state_of(directory):
    """Users, and of each bucket its changes and whether it has its setting; or what is wrong."""
    try:
        async with Node(directory) as node:
            found = {"users": node.engine.users.names}
            for one in node.engine.bucket_statuses():
                if one.state == "failed":
                    found[one.name] = one.reason
                else:
                    local = node.engine._buckets.running[one.name].local
                    found[one.name] = (one.high_seqno, local.setting("name"))
            return found
    except MillstreamError as error:
        return str(error)


ALL = {"users": ["ada"], "a": (DOCUMENTS, b"value"), "b": (0, None)}


def lose(directory, what):
    """Lose something; return what an error must call it."""
    bucket = f"buckets/{uuid_of(directory, 'a')}"
    what = what.replace("BUCKET", bucket)
    path = directory / what
    if what == bucket or what.endswith("/log"):
        shutil.rmtree(path)
    elif what.endswith("/local"):
        (path / "data.mdb").write_bytes(b"")
    elif what.endswith("/map.json"):
        bucket_map = BucketMap(4, (NodeAddress("x", "h", 1, 2),), (("x", None),) * 4)
        write_map(path.parent, PlacedMap(bucket_map, "x"))
        record = next(one for one in find_records(directory / "buckets") if one.name == "a")
        store_record(directory / "buckets", record._replace(has_map=True))
        Inventory(directory).change(lambda contents: contents.with_part(path.parent.name, MAP))
        path.write_bytes(b"{}")
    else:
        path.unlink()
    return what


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ("node.toml", ALL),
        ("inventory.toml", ALL),
        ("users.json", {**ALL, "users": []}),
        ("BUCKET", {"users": ["ada"], "b": (0, None)}),
        ("BUCKET/bucket.toml", ALL),
        ("BUCKET/map.json", ALL),
        ("BUCKET/local", {**ALL, "a": (DOCUMENTS, None)}),
        ("BUCKET/log", {**ALL, "a": (0, b"value")}),
    ],
)
async def test_what_is_lost_stops_its_part_until_it_is_accepted(directory, lost, left):
    what = await asyncio.to_thread(lose, directory, lost)
    told = f"millstream check {directory} --accept {what}"
    for _ in range(2):  # also the second start begins nothing anew
        state = await state_of(directory)
        if isinstance(state, str):
            assert state.endswith(told)
        else:
            assert state["a"].endswith(told)
            assert {**state, "a": 0} == {**ALL, "a": 0}
        checked = check_directory(directory)
        assert not checked.is_sound
        damages = [*checked.damage, *(one.damage for one in checked.buckets if one.damage)]
        assert [damage.endswith(told) for damage in damages] == [True]
    assert accept(directory, what)
    assert check_directory(directory).is_sound
    assert await state_of(directory) == left


@pytest.mark.parametrize("is_noted", [True, False])
async def test_a_log_is_that_of_its_bucket_even_if_it_has_no_more_partitions(directory, is_noted):
    own, other = uuid_of(directory, "a"), uuid_of(directory, "b")
    inventory, what = Inventory(directory), f"buckets/{own}/log"
    if not is_noted:  # an older program wrote it; the next start takes the id in
        entry = inventory.read().buckets[own]._replace(log_id="")
        inventory.change(lambda contents: contents.with_bucket(own, entry))
        assert await state_of(directory) == ALL
    shutil.rmtree(directory / what)
    shutil.copytree(directory / "buckets" / other / "log", directory / what)
    shutil.rmtree(directory / "buckets" / own / "byid")
    told = f"--accept {what}"
    reason = (await state_of(directory))["a"]
    assert "the log of another bucket" in reason
    assert reason.endswith(told)
    damages = {one.name: one.damage for one in check_directory(directory).buckets}
    assert damages["a"] == reason
    assert damages["b"] == ""
    assert accept(directory, what)
    assert (await state_of(directory))["a"] == (0, b"value")
    assert inventory.read().buckets[own].log_id == inventory.read().buckets[other].log_id


async def test_the_same_may_be_said_again_and_what_is_whole_is_kept(directory):
    for name in ("node.toml", "inventory.toml", "users.json"):
        for _ in range(2):
            accept(directory, name)
    bucket = f"buckets/{uuid_of(directory, 'a')}"
    for part in ("bucket.toml", "local", "log"):
        for _ in range(2):
            accept(directory, f"{bucket}/{part}/")
    assert await state_of(directory) == ALL


def test_options_written_by_hand_are_taken_and_what_the_bucket_is_stays(directory):
    uuid = uuid_of(directory, "a")
    file = directory / "buckets" / uuid / "bucket.toml"
    text = file.read_text().replace("partitions = 4", "partitions = 8\npurge_age_s = 60")
    file.write_text(text.replace('"a"', '"c"'))
    assert "with its options" in accept(directory, f"buckets/{uuid}/bucket.toml")
    content = read_toml(file)
    assert (content["name"], content["partitions"], content["purge_age_s"]) == ("a", 4, 60)
    assert check_directory(directory).is_sound


def test_users_that_can_be_read_are_taken_others_set_aside(directory):
    file = directory / "users.json"
    file.write_text(file.read_text().replace('"ada"', '"adb"'))
    assert "adb" in accept(directory, "users.json")
    assert check_directory(directory).users == 1
    file.write_text("rubbish")
    assert "no users any more" in accept(directory, "users.json")
    assert (directory / "users.json.lost-1").read_text() == "rubbish"
    assert check_directory(directory).is_sound


def test_coordination_begins_anew_with_the_old_one_set_aside(directory):
    (directory / "coord").mkdir()
    (directory / "coord" / "pool").write_text("x")
    Inventory(directory).note_coordination()
    assert accept(directory, "coord").endswith("coord.lost-1")
    assert not Inventory(directory).read().coordinates
    assert not (directory / "coord").exists()


def test_what_is_no_part_of_a_directory_is_refused(directory, tmp_path):
    uuid = uuid_of(directory, "a")
    for what in ("", "buckets", "x.toml", f"buckets/{uuid}", f"buckets/{uuid}/x", "buckets/y/log"):
        with pytest.raises(UsageError) as raised:
            accept(directory, what)
        assert raised.value.code == "not_acceptable"
    with pytest.raises(UsageError, match="no data directory"):
        accept(tmp_path, "node.toml")
    file = directory / "buckets" / uuid / "bucket.toml"
    file.write_text("")
    Inventory(directory).change(lambda contents: contents.without_bucket(uuid))
    with pytest.raises(CorruptionError, match="its name and number of partitions are unknown"):
        accept(directory, f"buckets/{uuid}/bucket.toml")


async def test_a_directory_in_use_is_left_alone(directory):
    async with Node(directory):
        with pytest.raises(UnavailableError, match="another server"):
            accept(directory, "node.toml")
