import pytest

from millstream.cli import main as main_module
from millstream.cli.serving import serve
from millstream.cli.serving.serve import _announce
from millstream.node.processes import engines
from millstream.node.settings import Address, BucketSpec, Credential, Settings


@pytest.fixture
def started(monkeypatch):
    seen = []

    def run_node(settings, *, announce):
        assert announce is _announce
        seen.append(settings)
        return 0

    monkeypatch.setattr(engines, "run_node", run_node)

    def run(*words):
        with pytest.raises(SystemExit) as caught:
            main_module.main(["serve", *words])
        assert caught.value.code == 0
        return seen[-1]

    return run


def test_nothing_written_is_the_default(started):
    assert started() == Settings()


def test_what_is_written_arrives(started, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_SERVE_HTTP", "127.0.0.1:5")
    words = (
        "--data d --kv 127.0.0.1:0 --no-memcached --coord 127.0.0.1:1 --ninep 127.0.0.1:2 "
        "--peer 127.0.0.1:3 --advertise h --join h:7 --bucket a:4 --bucket b --user u:p "
        "--tls-cert c --tls-key k --tls-ca a --roles data --flush-interval 0 "
        "--memory-quota 1GiB --engines 2 --zone z "
        "--log-level error --log-json --insecure-plaintext"
    )
    settings = started(*words.split())
    assert settings.data == "d"
    assert settings.kv == Address("127.0.0.1", 0)
    assert settings.memcached is None
    assert settings.http == Address("127.0.0.1", 5)
    assert settings.peer == Address("127.0.0.1", 3)
    assert settings.join == Address("h", 7)
    assert settings.buckets == (BucketSpec("a", 4), BucketSpec("b"))
    assert settings.users == (Credential("u", "p"),)
    assert (settings.tls_cert, settings.tls_key, settings.tls_ca) == ("c", "k", "a")
    assert settings.roles == ("data",)
    assert settings.flush_interval_ms == 0
    assert (settings.engines, settings.zone) == (2, "z")
    assert settings.memory_quota_bytes == 1 << 30
    assert settings.log_json
    assert settings.insecure_plaintext


def test_the_ready_line_goes_to_stdout(capsys):
    _announce('{"event":"ready"}')
    assert capsys.readouterr().out == '{"event":"ready"}\n'


def test_a_node_in_the_background_gets_the_options_and_a_log_beside_its_data(
    monkeypatch, capsys, tmp_path
):
    seen = []

    def start(words, log):
        seen.append((words, log))
        return {"event": "ready", "pid": 7, "log": str(log)}

    monkeypatch.setattr(serve, "start", start)
    data = tmp_path / "d"
    for words, log in (((), tmp_path / "d.log"), (("--log-file", str(data)), data)):
        with pytest.raises(SystemExit) as caught:
            main_module.main(
                [
                    "serve",
                    "--data",
                    str(data),
                    "--no-http",
                    "--background",
                    "--bucket",
                    "a",
                    *words,
                ]
            )
        assert caught.value.code == 0
        assert seen[-1] == ([f"--data={data}", "--bucket=a", "--no-http"], log)
        captured = capsys.readouterr()
        assert captured.out == f'{{"event":"ready","pid":7,"log":"{log}"}}\n'
        assert "kill 7" in captured.err


def test_a_log_file_is_for_a_node_in_the_background(capsys):
    with pytest.raises(SystemExit) as caught:
        main_module.main(["serve", "--log-file", "x"])
    assert caught.value.code == 2
    assert "--background" in capsys.readouterr().err
