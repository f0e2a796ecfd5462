import json

import pytest

from millstream.cli.main import main
from millstream.node.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    path = tmp_path_factory.mktemp("status") / "d"
    with EmbeddedNode(path, buckets=["orders:4"], users=["ada:secret"]) as node:
        yield node


def run(*words):
    with pytest.raises(SystemExit) as caught:
        main(["status", *words])
    return caught.value.code


@pytest.fixture(autouse=True)
def environment(node, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_CONNECT", node.kv)
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "secret")


def test_health_as_json(node, capsys):
    assert run("--user", "ada", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["listeners"]["http"] == node.http
    assert [bucket["name"] for bucket in found["buckets"]] == ["orders"]
    orders = found["buckets"][0]
    assert orders["state"] == "ready"
    assert orders["figures"]["changes_high"] == orders["high_seqno"] == 0
    assert found["loop_lag_ms"] >= 0
    assert isinstance(found["warnings"], list)


def test_health_for_people(capsys):
    assert run("--user", "ada") == 0
    text = capsys.readouterr().out
    assert "up" in text
    assert "orders" in text


def test_a_failed_bucket_is_a_failure(node, capsys):
    buckets = node._node.engine._buckets
    buckets._table.failures["orders"] = "its disk failed"
    try:
        assert run("--user", "ada") == 1
    finally:
        del buckets._table.failures["orders"]
    assert "orders is not served: its disk failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--user"),
        (["--user", "eve"], "eve"),
        (["--connect", "127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_no_answer_is_a_failure(words, reason, capsys):
    assert run(*words) == 1
    assert reason in capsys.readouterr().err
