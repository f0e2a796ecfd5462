import os

import pytest

from millstream.data_directory.inventory import Contents, Entry
from millstream.data_directory.ownership import (
    DataDirectory,
    put_coordination_aside,
    refuse_lost_coordination,
)
from millstream.data_directory.small_files import as_text, read_toml, sealed
from millstream.errors import CorruptionError, UnavailableError, UsageError


def test_a_directory_keeps_its_uuid(tmp_path):
    path = tmp_path / "a" / "b"
    first = DataDirectory.open(path)
    first.close()
    second = DataDirectory.open(path)
    second.close()
    assert first.uuid == second.uuid
    assert sorted(os.listdir(path)) == ["buckets", "inventory.toml", "lock", "node.toml"]
    assert as_text(read_toml(path / "node.toml")["created"]).endswith("Z")


def test_a_directory_has_one_user_at_a_time(tmp_path):
    first = DataDirectory.open(tmp_path / "d")
    with pytest.raises(UnavailableError, match="another server"):
        DataDirectory.open(tmp_path / "d", patience_s=0)
    first.close()
    DataDirectory.open(tmp_path / "d", patience_s=0).close()


def test_what_a_first_start_left_behind_is_no_obstacle(tmp_path):
    for name in ("lock", "node.toml.new", "inventory.toml.new"):
        (tmp_path / name).write_text("")
    (tmp_path / "buckets").mkdir()
    first = DataDirectory.open(tmp_path)
    first.close()
    (tmp_path / "node.toml").unlink()  # the inventory is made before
    assert DataDirectory.open(tmp_path).inventory.read().is_empty


@pytest.mark.parametrize("what", ["buckets/x", "users.json", "coord/pool", "an inventory"])
def test_a_directory_that_has_lost_its_node_file_is_no_new_one(tmp_path, what):
    directory = DataDirectory.open(tmp_path)
    if what == "an inventory":
        entry = Entry("a", 4, "2026-01-02T03:04:05Z")
        directory.inventory.change(lambda contents: contents.with_bucket("u", entry))
    else:
        (tmp_path / "inventory.toml").unlink()
        (tmp_path / what).parent.mkdir(exist_ok=True)
        (tmp_path / what).write_text("")
    directory.close()
    (tmp_path / "node.toml").unlink()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(CorruptionError, match=rf"check {tmp_path} --accept node\.toml"):
        DataDirectory.open(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("how", ["missing", "empty", "flipped", "of another node"])
def test_a_lost_inventory_stops_the_node(tmp_path, how):
    DataDirectory.open(tmp_path).close()
    file = tmp_path / "inventory.toml"
    if how == "missing":
        file.unlink()
    elif how == "of another node":
        file.write_bytes(sealed('format = 1\nuuid = "other"\n'))
    else:
        file.write_text("" if how == "empty" else file.read_text().replace("format", "farmat"))
    for _ in range(2):
        with pytest.raises(CorruptionError, match=rf"millstream check {tmp_path} --accept "):
            DataDirectory.open(tmp_path, patience_s=0)


def test_a_directory_of_an_older_program_gets_an_inventory(tmp_path):
    (tmp_path / "buckets").mkdir()
    (tmp_path / "node.toml").write_text(
        'format = 1\nuuid = "abc"\ncreated = 2026-01-02T03:04:05Z\n'
    )
    directory = DataDirectory.open(tmp_path)
    directory.close()
    assert (directory.uuid, directory.inventory.read()) == ("abc", Contents("abc"))
    content = read_toml(tmp_path / "node.toml")
    assert (content["inventory"], as_text(content["created"])) == (True, "2026-01-02T03:04:05Z")


def test_coordination_is_missed_where_there_was_some(tmp_path):
    refuse_lost_coordination(tmp_path, Contents())
    with pytest.raises(CorruptionError, match=rf"check {tmp_path} --accept coord"):
        refuse_lost_coordination(tmp_path, Contents(coordinates=True))
    (tmp_path / "coord").mkdir()
    (tmp_path / "coord" / "node.toml.copy").write_text("")
    refuse_lost_coordination(tmp_path, Contents(coordinates=True))


def test_the_files_of_coordination_that_is_given_up_are_kept_aside(tmp_path):
    put_coordination_aside(tmp_path)
    for number in (1, 2):
        (tmp_path / "coord").mkdir()
        (tmp_path / "coord" / "log").write_text(str(number))
        put_coordination_aside(tmp_path)
        assert (tmp_path / f"coord.lost-{number}" / "log").read_text() == str(number)
        assert not (tmp_path / "coord").exists()


def test_foreign_directories_are_left_alone(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError, match="holds 'x'"):
        DataDirectory.open(tmp_path)
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_unusable_paths_are_named(tmp_path, path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be used"):
        DataDirectory.open(tmp_path / path)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("format = 99\n", UsageError),
        ("format = 1\n", CorruptionError),
        ('uuid = "x"\n', CorruptionError),
        ('format = "1"\n', CorruptionError),
        ("= 1", CorruptionError),
        ("\xff", CorruptionError),
    ],
)
def test_node_files_that_are_not_ours(tmp_path, content, error):
    (tmp_path / "node.toml").write_bytes(content.encode("latin-1"))
    for _ in range(2):  # the lock is let go each time
        with pytest.raises(error, match=r"node\.toml"):
            DataDirectory.open(tmp_path, patience_s=0)
