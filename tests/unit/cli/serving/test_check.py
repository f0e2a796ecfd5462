import json

import pytest

from millstream.cli.main import main
from millstream.cluster.cluster_state import BucketState
from millstream.cluster.cluster_state_files import keep_learned
from millstream.coordination.aio.node_file import begin_incarnation
from millstream.coordination.aio.pool_copies import keep_pool_file
from millstream.coordination.core.pool.file_format import Hosted, NodeFile, Phase, encode_node_file
from millstream.coordination.core.pool.messages import Address, NodeInfo, Tables
from millstream.node.embedded import EmbeddedNode
from millstream.runtime.disk import OsDisk
from millstream.vsr.core.disk.journal import Journal, format_group
from support.coordination.simulated_journal import GROUP, STANDING, JournalWorld
from support.views.filled_index import SHAPE, filled_index


def run(*words):
    with pytest.raises(SystemExit) as caught:
        main(["check", *map(str, words)])
    return caught.value.code


@pytest.fixture
def directory(tmp_path):
    with EmbeddedNode(tmp_path / "d", buckets=["orders:4"]):
        pass
    return tmp_path / "d"


def test_a_sound_directory(directory, capsys):
    assert run(directory) == 0
    assert "bucket orders: ok" in capsys.readouterr().out
    segment = next(directory.glob("buckets/*/log/*.seg"))
    with segment.open("ab") as file:
        file.write(b"torn")
    assert run(directory) == 0
    assert "torn tail of 4 bytes" in capsys.readouterr().out


def test_all_engines_of_a_machine_are_read(directory, capsys):
    with EmbeddedNode(directory / "engine-2", buckets=["orders:8"]):
        pass
    assert run(directory) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{directory}:\n")
    assert f"{directory}/engine-2:\n" in printed
    assert printed.count("bucket orders: ok") == 2
    (segment,) = directory.glob("engine-2/buckets/*/log/*.seg")
    segment.write_bytes(b"")
    assert run(directory) == 1
    assert f"millstream check {directory}/engine-2 --accept" in capsys.readouterr().out
    assert run(directory, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["is_sound"], [one["is_sound"] for one in found["engines"]]) == (True, [False])


def test_a_damaged_directory(directory, capsys):
    segment = next(directory.glob("buckets/*/log/*.seg"))
    content = bytearray(segment.read_bytes())
    content[100] ^= 0xFF
    segment.write_bytes(content)
    assert run(directory) == 1
    captured = capsys.readouterr()
    assert "orders: DAMAGED" in captured.out
    assert captured.err.endswith("1 of 1 buckets are damaged\n")
    assert run(directory, "--json") == 1
    assert json.loads(capsys.readouterr().out)["is_sound"] is False


def test_what_is_lost_is_accepted_and_the_rest_checked(directory, capsys):
    (segment,) = directory.glob("buckets/*/log/*.seg")
    segment.write_bytes(b"")
    assert run(directory) == 1
    captured = capsys.readouterr()
    what = segment.parent.relative_to(directory)
    assert f"millstream check {directory} --accept {what}" in captured.out
    assert run(directory, "--accept", what) == 0
    captured = capsys.readouterr()
    assert "accepted: bucket orders: its log is taken as it is" in captured.err
    assert "bucket orders: ok" in captured.out
    assert run(directory, "--accept", "nonsense") == 2
    (directory / "users.json").write_text("{}")
    assert run(directory) == 1
    assert "DAMAGED: " in capsys.readouterr().out


def test_a_check_shows_at_a_terminal_how_far_it_is(directory, capsys, monkeypatch):
    shares = []

    def update(progress, bar, *, completed):
        (task,) = progress.tasks
        assert (task.id, task.description) == (bar, "bucket orders")
        shares.append(completed)

    monkeypatch.setattr("millstream.cli.serving.check.Progress.update", update)
    assert run(directory) == 0
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert any(0 < share < 1 for share in shares)
    assert capsys.readouterr().err == ""


def test_a_damaged_index_is_named_beside_sound_documents(directory, capsys):
    folder = next(directory.glob("buckets/*")) / "indexes" / SHAPE.signature
    store = filled_index(folder)
    store.close()
    assert run(directory) == 0
    printed = capsys.readouterr().out
    assert "bucket orders: ok" in printed
    assert f"index {SHAPE.signature}: ok, 300 rows of 200 documents in 2 trees" in printed
    with (folder / "1" / "data.mdb").open("r+b") as file:
        file.truncate(8192)
    assert run(directory) == 1
    captured = capsys.readouterr()
    assert "bucket orders: ok" in captured.out
    assert f"index {SHAPE.signature}: DAMAGED" in captured.out
    assert "remove that directory" in captured.out
    assert run(directory, "--json") == 1
    assert json.loads(capsys.readouterr().out)["is_sound"] is False


def test_indexes_of_what_other_nodes_have(directory, capsys):
    kept = directory / "followed" / "u9"
    keep_learned(kept, BucketState("theirs", "u9", 4, [], []))
    folder = kept / "indexes" / SHAPE.signature
    filled_index(folder).close()
    assert run(directory) == 0
    printed = capsys.readouterr().out
    assert "bucket theirs: its documents are on other nodes" in printed
    assert f"index {SHAPE.signature}: ok, 300 rows" in printed
    with (folder / "1" / "data.mdb").open("r+b") as file:
        file.truncate(8192)
    assert run(directory) == 1
    assert f"index {SHAPE.signature}: DAMAGED" in capsys.readouterr().out


def test_no_directory(tmp_path, capsys):
    assert run(tmp_path / "none") == 2
    assert "no data directory" in capsys.readouterr().err


def kept_by_node(directory, phase=Phase.OPEN):
    node_id = begin_incarnation(directory / "coord").node_id
    me = NodeInfo(node_id, 1, 0, Address("h", 1), Address("h", 0))
    tables = Tables((b"p" * 16,), (me,), (), (), is_answer=False)
    hosted = (Hosted(GROUP, phase, is_founder=True),)
    keep_pool_file(directory / "coord", encode_node_file(NodeFile(node_id, tables, hosted)))
    return node_id.hex()


def test_coordination_groups_are_checked(directory, capsys):
    folder = directory / "coord" / GROUP.hex()
    node_id = kept_by_node(directory)
    format_group(OsDisk(folder), STANDING)
    journal = Journal(OsDisk(folder))
    journal.append(JournalWorld(1).entries(journal.image.link, 3))
    journal.close()
    assert run(directory) == 0
    own = f"coordination: ok, node {node_id}, 1 starts, 1 groups\n"
    line = f"{own}group {GROUP.hex()}: ok, epoch 0, view 0, entries 1 to 3\n"
    assert line in capsys.readouterr().out
    segment, slots = folder / "journal-00000002", folder / "headers-00000001"
    whole = segment.read_bytes().rstrip(b"\0")  # zeros are room for what comes
    segment.write_bytes(whole + b"torn")
    slots.write_bytes(slots.read_bytes()[:-1])
    (folder / "journal-00000009").touch()
    assert run(directory) == 0
    assert (
        "1 damaged twins that the next start writes again, a torn tail of 4 bytes that the next "
        "start cuts, 1 files that the next start removes\n"
    ) in capsys.readouterr().out
    segment.write_bytes(whole[:-1])
    (folder / "superblock").write_bytes(b"")
    assert run(directory) == 1
    captured = capsys.readouterr()
    assert "DAMAGED: both copies of the superblock are damaged" in captured.out
    assert captured.err.endswith("1 of 1 groups are damaged\n")
    assert "bucket orders: ok" in captured.out
    assert run(directory, "--json") == 1
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert group["folder"] == GROUP.hex()


def test_a_nodes_own_files_and_what_the_next_start_does_about_groups(directory, capsys):
    kept_by_node(directory, Phase.FORMATTING)
    coord = directory / "coord"
    (coord / GROUP.hex()).mkdir()
    (coord / f"{'ab' * 16}.restored").mkdir()
    (coord / "pool").write_bytes(b"rubbish")
    assert run(directory) == 0
    printed = capsys.readouterr().out
    assert "1 groups, 1 files that the next start writes again" in printed
    assert "being founded; the next start goes on with it" in printed
    assert ".restored: ok, 0 files that the next start removes" in printed
    kept_by_node(directory)
    (coord / GROUP.hex()).rmdir()
    assert run(directory) == 1
    assert "its folder is gone" in capsys.readouterr().out
    for name in ("pool", "pool.copy"):
        (coord / name).write_bytes(b"rubbish")
    assert run(directory) == 1
    captured = capsys.readouterr()
    assert "coordination: DAMAGED: both copies" in captured.out
    assert captured.err.endswith("the node's own files of coordination are damaged\n")
