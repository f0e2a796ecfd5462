import os

import pytest

from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.node.data_directory import DataDirectory, as_text, read_toml


def test_a_directory_keeps_its_uuid(tmp_path):
    path = tmp_path / "a" / "b"
    first = DataDirectory.open(path)
    first.close()
    second = DataDirectory.open(path)
    second.close()
    assert first.uuid == second.uuid
    assert sorted(os.listdir(path)) == ["buckets", "lock", "node.toml"]
    assert as_text(read_toml(path / "node.toml")["created"]).endswith("Z")


def test_a_directory_has_one_user_at_a_time(tmp_path):
    first = DataDirectory.open(tmp_path / "d")
    with pytest.raises(UnavailableError, match="another server"):
        DataDirectory.open(tmp_path / "d", patience_s=0)
    first.close()
    DataDirectory.open(tmp_path / "d", patience_s=0).close()


def test_what_a_first_start_left_behind_is_no_obstacle(tmp_path):
    for name in ("lock", "node.toml.new"):
        (tmp_path / name).write_text("")
    DataDirectory.open(tmp_path).close()


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
