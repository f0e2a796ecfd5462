import doctest

import pytest

from millstream.cli.serving import health
from millstream.cli.serving.health import WIDTH, bucket_lines, figure_of, node_line, warnings_of

NODE = {"version": "1", "uptime": 3700, "curr_connections": 2, "buckets": []}
BUCKET = {
    "name": "orders",
    "state": "ready",
    "partitions": 64,
    "high_seqno": 1_000_000,
    "persisted_seqno": 999_990,
}


def test_examples():
    assert doctest.testmod(health).failed == 0


@pytest.mark.parametrize(
    ("text", "figure"), [("12", 12), ("0.25", 0.25), ("1e+07", 1e7), ("0.1.0-0000", "0.1.0-0000")]
)
def test_numbers_are_told_from_words(text, figure):
    assert figure_of(text) == figure
    assert type(figure_of(text)) is type(figure)


def lines_of(figures):
    return " ".join(line.strip() for line in bucket_lines({**BUCKET, "figures": figures}))


def test_a_bucket_fits_a_terminal_and_shows_active_and_replica_copies():
    figures = {
        "copies_active": 32, "copies_replica": 31, "copies_pending": 1, "copies_dead": 0,
        "documents_in_memory": 5000, "queue_bytes": 1536, "readers_connections": 2,
        "readers_lag": 7, "compaction_live_bytes": 3 * 2**20, "compaction_dead_bytes": 2**20,
    }  # fmt: skip
    lines = bucket_lines({**BUCKET, "figures": figures})
    assert all(len(line) <= WIDTH for line in lines)
    text = " ".join(line.strip() for line in lines)
    assert "orders: ready, 64 partitions, here 32 active, 31 replica, 1 pending" in text
    assert "1,000,000 changes, 10 not durable; documents in memory 5,000; memory 1.5 KiB" in text
    assert "log 4 MiB, 25% dead; readers 2, 7 changes behind" in text


def test_documents_in_memory_are_shown_as_a_part_of_all():
    for share, text in ((1.0, "in memory 5,000"), (0.23, "in memory 5,000, 23%")):
        assert lines_of({"documents_in_memory": 5000, "memory_resident_share": share}).endswith(
            text
        )


def test_memory_is_shown_with_its_quota():
    figures = {"memory_used_bytes": 3 * 2**30, "memory_quota_bytes": 4 * 2**30}
    assert lines_of(figures).endswith("memory 3 GiB of 4 GiB")


def test_what_a_node_does_not_tell_is_not_shown():
    failed = {**BUCKET, "state": "failed", "reason": "its disk failed"}
    assert bucket_lines(failed) == [
        "bucket orders: failed, 64 partitions",
        "  1,000,000 changes, 10 not durable; reason: its disk failed",
    ]
    assert node_line(NODE) == "version 1, up 1 h 1 min, 2 connections"
    assert list(warnings_of(NODE, [BUCKET])) == []


def test_what_to_look_at():
    node = {**NODE, "loop_lag_worst_ms": 250.0, "resident_bytes": 2**30}
    assert node_line(node).endswith("1 GiB of memory, loop late by up to 250.0 ms")
    figures = {
        "memory_is_refusing": 1, "flusher_disk_full_total": 1, "readers_lag": 2_000_000,
        "disk_free_bytes": 5 * 2**20, "map_not_active": 3, "map_left_over": 1, "map_not_first": 2,
        "serving_isolated_partitions": 21,
    }  # fmt: skip
    buckets = [{**BUCKET, "figures": figures}, {**BUCKET, "state": "failed", "reason": "damage"}]
    found = list(warnings_of(node, buckets))
    assert "is not served: damage" in found[0]
    for words in (
        "3 partitions",
        "21 partitions of bucket orders are active here and may not serve",
        "1 copies",
        "2 partitions",
        "takes no writes",
        "2,000,000 changes",
        "5 MiB of disk",
        "late by 250 ms",
    ):
        assert any(words in warning for warning in found), words
    assert len(found) == 10


def test_coordination_is_in_the_nodes_line_and_warnings():
    node = {**NODE, "coord_groups": 2.0, "coord_groups_leading": 1.0, "coord_process_up": 1.0}
    assert "coordination groups: 2, of which it leads 1" in node_line(node)
    assert list(warnings_of(node, [])) == []
    open_listeners = {"listeners": {"coord": "127.0.0.1:7379"}}
    assert "not there" in next(warnings_of({**node, **open_listeners, "coord_process_up": 0}, []))
    for figure, words in [
        ("coord_groups_diverged", "fetched anew"), ("coord_disk_full", "waits for space"),
        ("coord_groups_impaired", "no quorum"),
    ]:  # fmt: skip
        [warning] = warnings_of({**node, figure: 1.0}, [])
        assert words in warning


def test_buckets_that_are_not_known_are_no_empty_list() -> None:
    node = {"buckets_ready": 2, "buckets_failed": 1, "http_port": 0}
    (warning,) = warnings_of(node, [])
    assert warning.startswith("3 buckets are not shown, 1 of them are not served")
    assert list(warnings_of({**node, "http_port": 5984}, [])) == []
