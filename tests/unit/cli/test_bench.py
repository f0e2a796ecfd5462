import json

import pytest

from millstream.cli.main import main
from millstream.client.kv import connect
from millstream.node.embedded import EmbeddedNode


@pytest.mark.parametrize("words", [["--json"], []])
def test_figures_are_shown_and_nothing_stays(tmp_path, capsys, words):
    with EmbeddedNode(tmp_path / "d", buckets=["b:4"]) as node:
        with pytest.raises(SystemExit) as caught:
            main(["bench", "b", "--connect", node.kv, "--documents", "50", *words])
        assert caught.value.code == 0
        with connect(node.kv, bucket="b") as client:
            assert client.get("millstream-bench::0") is None
    text = capsys.readouterr().out
    if words:
        rows = json.loads(text)
        assert len(rows) == 6
        assert all(row["per_second"] > 0 for row in rows)
    else:
        assert "write, pipelined" in text
