"""No large text keeps the engine's loop waiting longer than `LAG_MS_MAX`, whatever is in it.

`test_loop_turns` measures what the loop does by itself. Here counts what its clients notice, so
also a thread that keeps the interpreter's lock, as a decoder of JSON does until it ends.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, request
from support.http.raw_http import RawHttp
from support.node.loop_lag import LoopLag
from support.node.node_process import NodeProcess
from support.processor_speed import slowness

LAG_MS_MAX = 5.0 * slowness()
TRIES = 100
"""Of each request the best counts: other programs take the processor, too."""
SHORT_OF = 8
"""Where the best of `TRIES_SURE` tries took this many times too long, no more are made."""
TRIES_SURE = 3
TRIES_SECONDS_MAX = 150.0
"""No new try is begun after this time."""
MIB = 1024 * 1024
PARTITIONS = 4
JSON = {"Content-Type": "application/json"}


def listed(item: bytes, size: int) -> bytes:
    return b'{"a":[%b]}' % b",".join([item] * (size // (len(item) + 1)))


LONG = {
    "numbers": listed(b"1234567", 8 * MIB),
    "escapes": b'{"a":"%b"}' % (rb"\u00e9\n\"" * (8 * MIB // 10)),
    "letters": b'{"a":"%b"}' % ("é".encode() * (9 * MIB)),
    "words": listed(b'"a word or two"', 8 * MIB),
}
"""Letters take the least time by far, so only they are as long as a document may be."""
MANY = {
    "members": b"{%b}" % b",".join(b'"member-%d":1' % n for n in range(100_000)),
    "objects": listed(b'{"b":{"c":[1]}}', MIB),
    "nested": listed(b"[" * 200 + b"]" * 200, MIB),
}
ALL = LONG | MANY


class Served(NamedTuple):
    node: NodeProcess
    client: RawHttp
    lag: LoopLag

    def ask(self, method: str, path: str, body: bytes, status: int) -> None:
        answer = self.client.ask(method, path, body, JSON)
        assert answer.status == status, answer.body[:300]

    def set(self, key: bytes, value: bytes) -> None:
        """Write as kv clients do."""
        partition = partition_of(key, PARTITIONS)
        with socket.create_connection(self.node.kv) as client:
            client.sendall(request(Opcode.SELECT_BUCKET, key=b"db"))
            client.sendall(
                request(Opcode.SET, key=key, vbucket=partition, value=value, extras=bytes(8))
            )
            assert client.recv(48, socket.MSG_WAITALL)[30:32] == b"\0\0"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("lag") / "node"
    buckets = ("--bucket", f"db:{PARTITIONS}", "--bucket", f"few:{PARTITIONS}")
    with NodeProcess(path, *buckets) as node:
        client = RawHttp(node.address("http"))
        with client, LoopLag(node) as lag:
            found = Served(node, client, lag)
            found.ask("PUT", "/db/first", LONG["letters"], 201)  # the process is started
            for kind, body in ALL.items():
                found.ask("PUT", f"/db/{kind}", body, 201)
            for number in range(9):
                found.ask("PUT", f"/few/d{number}", b"{}", 201)
            view = b'{"views":{"v":{"map":"function (doc) { emit(doc._id); }"}}}'
            found.ask("PUT", "/few/_design/v", view, 201)
            yield found


def check_lag(
    served: Served, method: str, path: str, body: bytes, status: int, kv_value: bytes = b""
) -> None:
    """Ask until one try holds up the loop for less than `LAG_MS_MAX`.

    A kv client writes `kv_value` as the document `first-N` before each try.
    """
    longest_ms = list[float]()
    until_s = time.monotonic() + TRIES_SECONDS_MAX
    for number in range(TRIES):
        if kv_value:
            served.set(b"first-%d" % number, kv_value)
        served.lag.longest_ms()
        served.ask(method, path.format(number), body, status)
        longest_ms.append(served.lag.longest_ms())
        if longest_ms[-1] < LAG_MS_MAX or time.monotonic() > until_s:
            break
        is_sure = len(longest_ms) >= TRIES_SURE and min(longest_ms) > SHORT_OF * LAG_MS_MAX
        if is_sure:
            break
    best_ms = min(longest_ms)
    assert best_ms < LAG_MS_MAX, (
        f"{method} {path}: a client of the kv port waited {best_ms:.1f} ms in the best of "
        f"{len(longest_ms)} tries, at most {LAG_MS_MAX:.1f} ms are allowed"
    )


@pytest.mark.parametrize("kind", ALL)
def test_a_document_that_is_written_holds_up_no_loop(served: Served, kind: str) -> None:
    check_lag(served, "PUT", f"/db/new-{kind}-{{}}", ALL[kind], 201)


DESIGNS = {
    "a long map": b'{"views":{"v":{"map":"function (doc) { emit(1); } //%b"}}}' % (b"x" * 900_000),
    "a validation": b'{"validate_doc_update":"function () {} //%b"}' % (b"x" * 900_000),
    "members": b'{"lib":{%b}}' % b",".join(b'"member-%d":1' % n for n in range(45_000)),
}


@pytest.mark.parametrize("kind", DESIGNS)
def test_a_design_document_holds_up_no_loop(served: Served, kind: str) -> None:
    name = kind.replace(" ", "-")
    check_lag(served, "PUT", f"/db/_design/{name}-{{}}", DESIGNS[kind], 201)


def test_a_replicated_design_document_holds_up_no_loop_and_no_query(served: Served) -> None:
    """Each query asks all design documents for indexes, each change for validations."""
    doc = b'{"_id":"_design/large","_rev":"1-%032d",%b' % (7, MANY["members"][1:])
    body = b'{"docs":[%b],"new_edits":false}' % doc
    check_lag(served, "POST", "/db/_bulk_docs", body, 201)
    query = b'{"selector":{"_id":"none"}}'
    for method, path, body, status in (
        ("POST", "_find", query, 200), ("PUT", "small-{}", b"{}", 201),
        ("GET", "_design_docs?include_docs=true", b"", 200), ("GET", "_index", b"", 200),
    ):  # fmt: skip
        check_lag(served, method, f"/db/{path}", body, status)


@pytest.mark.parametrize("kind", ["numbers", "members", "nested"])
def test_a_query_over_a_document_holds_up_no_loop(served: Served, kind: str) -> None:
    query = b'{"selector":{"_id":"%b","b":1},"fields":["_id"]}' % kind.encode()
    check_lag(served, "POST", "/db/_find", query, 200)


@pytest.mark.parametrize("kind", MANY)
def test_documents_that_are_written_together_hold_up_no_loop(served: Served, kind: str) -> None:
    body = b'{"docs":[%b,%b]}' % (ALL[kind], ALL[kind])
    check_lag(served, "POST", "/db/_bulk_docs", body, 201)


def test_small_documents_that_are_written_together_hold_up_no_loop(served: Served) -> None:
    body = b'{"docs":[%b]}' % b",".join([b'{"a":[%b1]}' % (b"1," * 2000)] * 500)
    check_lag(served, "POST", "/db/_bulk_docs", body, 201)


REV = b'"1-%b"' % (b"a" * 32)
IDS = [b'"id-%07d"' % number for number in range(200_000)]
CONDITIONS = b",".join([b'{"a":%d}' % number for number in range(60_000)])
LISTS: dict[str, tuple[str, bytes, int]] = {
    "revisions to compare": (
        "_revs_diff", b"{%b}" % b",".join([b"%b:[%b]" % (one, REV) for one in IDS[:50_000]]), 200,
    ),
    "revisions that are missing": (
        "_missing_revs",
        b"{%b}" % b",".join([b"%b:[%b]" % (one, REV) for one in IDS[:50_000]]), 200,
    ),
    "revisions to purge": (
        "_purge", b"{%b}" % b",".join([b"%b:[%b]" % (one, REV) for one in IDS[:10_000]]), 201,
    ),
    "documents to read": (
        "_bulk_get", b'{"docs":[%b]}' % b",".join([b'{"id":%b}' % one for one in IDS[:30_000]]),
        200,
    ),
    "conditions of a query": ("_find", b'{"selector":{"$or":[%b]}}' % CONDITIONS, 200),
    "members of a query": (
        "_find", b'{"selector":{%b}}' % b",".join([b"%b:1" % one for one in IDS[:60_000]]), 200,
    ),
    "fields of a query": (
        "_find", b'{"selector":{"a":1},"fields":[%b]}' % b",".join(IDS[:60_000]), 200,
    ),
    "conditions to explain": ("_explain", b'{"selector":{"$or":[%b]}}' % CONDITIONS, 200),
    "ids of a feed": ("_changes", b'{"doc_ids":[%b]}' % b",".join(IDS), 200),
    "conditions of a feed": (
        "_changes?filter=_selector&since=now", b'{"selector":{"$or":[%b]}}' % CONDITIONS, 200,
    ),
    "keys": ("_all_docs", b'{"keys":[%b]}' % b",".join(IDS[:70_000]), 200),
    "queries with keys": (
        "_all_docs/queries", b'{"queries":[{"keys":[%b]}]}' % b",".join(IDS[:70_000]), 200,
    ),
    "short keys": ("_all_docs?limit=1", b'{"keys":[%b]}' % b",".join([b"[]"] * 300_000), 200),
    "keys of a view": (
        "_design/v/_view/v", b'{"keys":[%b]}' % b",".join([b"[]"] * 300_000), 200,
    ),
    "what nobody knows": ("_design_docs", b'{"x":[%b]}' % b",".join([b"{}"] * 300_000), 200),
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTS)
def test_a_long_list_holds_up_no_loop(served: Served, kind: str) -> None:
    page, body, status = LISTS[kind]
    check_lag(served, "POST", f"/few/{page}", body, status)


ENDS = b'"source":"http://127.0.0.1:1/x","target":"few"'
REFUSED: dict[str, tuple[str, str, bytes, int]] = {
    "attachments": (
        "PUT", "/few/refused", b'{"_attachments":{%b}}' % b",".join(
            [b'%b:{"stub":true}' % one for one in IDS[:100_000]]
        ), 400,
    ),
    "ids of a job": (
        "PUT", "/_replicator/job", b'{%b,"doc_ids":[%b]}' % (ENDS, b",".join(IDS)), 413,
    ),
    "ids to replicate": (
        "POST", "/_replicate", b'{%b,"doc_ids":[%b]}' % (ENDS, b",".join(IDS[:30_000])), 400,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_too_many_is_refused_and_holds_up_no_loop(served: Served, kind: str) -> None:
    method, path, body, status = REFUSED[kind]
    check_lag(served, method, path, body, status)


def test_a_local_document_holds_up_no_loop(served: Served) -> None:
    check_lag(served, "PUT", "/db/_local/x{}", MANY["members"], 201)


@pytest.mark.parametrize("page", ["first-{}", "_all_docs?include_docs=true&key=%22first-{}%22"])
def test_what_kv_wrote_is_looked_at_beside_the_loop(served: Served, page: str) -> None:
    """It is looked at once."""
    check_lag(served, "GET", f"/db/{page}", b"", 200, kv_value=LONG["numbers"])
