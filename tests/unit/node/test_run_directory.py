import os
import socket
import tempfile

from millstream.node.run_directory import SOCKET_PATH_BYTES_MAX, RunDirectory


def long_below(path):
    name = "d" * (SOCKET_PATH_BYTES_MAX - len(os.fsencode(path)) - len("//run/index.sock") + 1)
    (path / name).mkdir()
    return path / name


def listen(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def test_it_lets_nobody_else_in_and_ends_without_sockets(tmp_path):
    (tmp_path / "run").mkdir(mode=0o777)
    run = RunDirectory(tmp_path)
    assert run.path == tmp_path / "run"
    assert run.path.stat().st_mode & 0o777 == 0o700
    listen(run.kv)
    listen(run.index)
    run.close()
    assert list((tmp_path / "run").iterdir()) == []


def test_what_an_earlier_node_left_is_removed(tmp_path):
    listen(RunDirectory(tmp_path).kv)
    run = RunDirectory(tmp_path)
    assert not run.kv.exists()
    listen(run.kv)


def test_where_the_path_is_too_long_sockets_are_elsewhere_and_go_with_the_node(tmp_path):
    just_right, too_long = tmp_path, long_below(tmp_path)
    assert RunDirectory(just_right).path == just_right / "run"
    first = RunDirectory(too_long)
    assert first.path.parent == type(tmp_path)(tempfile.gettempdir())
    assert first.path.stat().st_mode & 0o777 == 0o700
    listen(first.kv)
    second = RunDirectory(too_long)  # the first was killed
    assert not first.path.exists()
    assert second.path != first.path
    listen(second.index)
    second.close()
    assert not second.path.exists()
    assert list((too_long / "run").iterdir()) == []


def test_what_is_not_ours_is_left_alone(tmp_path):
    foreign = tmp_path / "millstream-run-x"
    foreign.mkdir()
    (foreign / "precious").write_text("")
    (tmp_path / "run").mkdir()
    for elsewhere in (foreign, tmp_path, tmp_path / "millstream-run-none"):
        (tmp_path / "run" / "elsewhere").write_bytes(os.fsencode(elsewhere))
        RunDirectory(tmp_path).close()
        assert (foreign / "precious").exists()
    assert not (tmp_path / "run" / "elsewhere").exists()


def test_where_the_file_system_has_no_sockets_they_are_elsewhere(tmp_path, monkeypatch):
    class Refused(socket.socket):
        def bind(self, path):
            raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Refused)
        run = RunDirectory(tmp_path)
    assert run.path.parent == type(tmp_path)(tempfile.gettempdir())
    listen(run.kv)
    run.close()
    assert not run.path.exists()
