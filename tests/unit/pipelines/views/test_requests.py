from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.errors import ConditionError, RoutingError, UnavailableError, UsageError
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.views import requests as view_asking
from millstream.pipelines.views.requests import ViewOptions, shares_of, view_options, view_rows_of
from millstream.views.core.query.rendering import SEPARATOR, head_text, tail_text
from millstream.wire.cluster_map import NodeAddress

DESIGN = json.dumps({"views": {"v": {"map": "m", "reduce": "_sum"}, "w": {"map": "m"}}}).encode()
NODES = (NodeAddress("a", 1), NodeAddress("::2", 2))


def parsed(**given: str) -> ViewOptions:
    return view_options({"bucket": "b", "ddoc": "d", "view": "v", **given}, {})


class Nodes:
    """Two nodes: who has which partition, what they refuse, and what they were asked."""

    def __init__(self, owners: tuple[int, ...]) -> None:
        self.owners = owners
        self.asked: list[tuple[str, str, Any]] = []
        self.failures: list[Exception] = []
        self.on_failure = lambda: None
        self.documents = {"_design/d": SimpleNamespace(value=json.loads(DESIGN))}

    def client(self, options: SourceOptions) -> Any:
        map_ = SimpleNamespace(owners=self.owners, nodes=NODES)
        return nullcontext(
            SimpleNamespace(
                cluster_map=map_, bucket="b", get=self.documents.get, hosts=options.hosts
            )
        )

    def http(self, client: Any, **_: object) -> Any:
        def pieces(method: str, path: str, body: bytes, *, timeout_s: float) -> Iterator[bytes]:
            assert (method, timeout_s) == ("POST", 120.0)
            content = json.loads(body)
            self.asked.append((client.hosts, path, content))
            if self.failures:
                self.on_failure()
                raise self.failures.pop(0)
            mine = content.get("partitions", range(len(self.owners)))
            rows = SEPARATOR.join(b'{"id":"%d","key":1,"value":2}' % p for p in mine)
            yield head_text(9, 0)
            yield rows
            yield tail_text()

        return SimpleNamespace(pieces=pieces)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    made = Nodes((0, 1, 0, 1))

    monkeypatch.setattr(view_asking, "open_client", made.client)
    monkeypatch.setattr(view_asking, "open_again", made.client)
    monkeypatch.setattr(view_asking, "http_of", made.http)
    return made


def ids(options: ViewOptions, share: Any) -> list[str | None]:
    return [row.id for rows in view_rows_of(options, share) for row in rows]


def test_parameters_are_read_as_an_address_has_them() -> None:
    options = parsed(
        startkey='["a"]', endkey="null", descending="true", GROUP_LEVEL="2", ddoc="_design/d"
    )
    assert (options.ddoc, options.view, options.is_one_task) == ("d", "v", False)
    assert options.query == {
        "startkey": ["a"], "endkey": None, "descending": True, "group_level": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("update", {}),
        ("ok", {"update": "false"}),
        ('wait:{"1":["ab",7]}', {"update": "false", "at": {"1": ["0000000000ab", 7]}}),
    ],
)
def test_how_fresh_the_rows_are(text: str, query: dict[str, Any]) -> None:
    assert parsed(stale=text).query == query


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"view": ""}, "option view must be given"),
        ({"stale": "maybe"}, "option stale"),
        ({"stale": "wait:"}, "at"),
        ({"startkey": "["}, "startkey is not JSON"),
        ({"limit": "-1"}, "positive integer"),
        ({"numPartitions": "4"}, "option numPartitions"),
        ({"include_docs": "true"}, "unknown option include_docs"),
    ],
)
def test_invalid_queries_are_refused_when_options_are_read(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(**given)


@pytest.mark.parametrize(
    "given",
    [{"reduce": "false", "limit": "5"}, {"group": "true"}, {}, {"view": "w", "keys": "[1]"},
     {"view": "w", "numPartitions": "1"}],
)  # fmt: skip
def test_merged_results_are_requested_from_one_node(nodes: Nodes, given: dict[str, str]) -> None:
    options = parsed(**given)
    assert shares_of(options) == [None]
    assert ids(options, None) == ["0", "1", "2", "3"]
    ((hosts, path, content),) = nodes.asked
    assert (hosts, path) == ("127.0.0.1:11210", f"/b/_design/d/_view/{options.view}")
    assert content == options.query


@pytest.mark.parametrize("given", [{"reduce": "false"}, {"view": "w"}])
def test_rows_are_asked_of_the_node_that_has_them(nodes: Nodes, given: dict[str, str]) -> None:
    options = parsed(**given)
    shares = shares_of(options)
    assert shares == [[0, 2], [1, 3]]
    assert [ids(options, share) for share in shares] == [["0", "2"], ["1", "3"]]
    assert [hosts for hosts, _, _ in nodes.asked] == ["[a]:1", "[::2]:2"]
    assert nodes.asked[0][1] == "/_millstream/buckets/b/part"
    assert nodes.asked[0][2] == {
        "design": "d", "view": options.view, "options": options.query, "partitions": [0, 2],
        "form": "json",
    }  # fmt: skip


def test_each_node_waits_for_the_partitions_it_has(nodes: Nodes) -> None:
    options = parsed(reduce="false", stale='wait:{"0":["ab",7],"1":["ab",8]}')
    for share in shares_of(options):
        ids(options, share)
    assert [content["options"]["at"] for _, _, content in nodes.asked] == [
        {"0": ["0000000000ab", 7]}, {"1": ["0000000000ab", 8]},
    ]  # fmt: skip


def test_one_node_is_one_task(nodes: Nodes) -> None:
    nodes.owners = (0, 0)
    assert shares_of(parsed(reduce="false")) == [None]


def test_partitions_that_moved_are_asked_for_where_they_are(nodes: Nodes) -> None:
    nodes.failures = [UnavailableError("moved", code="not_my_partition")]

    def move() -> None:
        nodes.owners = (0, 1, 1, 1)

    nodes.on_failure = move
    assert ids(parsed(reduce="false"), [0, 2]) == ["0", "2"]
    assert [(hosts, content["partitions"]) for hosts, _, content in nodes.asked] == [
        ("[a]:1", [0, 2]), ("[a]:1", [0]), ("[::2]:2", [2]),
    ]  # fmt: skip


def test_a_permanent_failure_is_an_error_at_once(nodes: Nodes) -> None:
    nodes.failures = [ConditionError("gone", code="not_found")]
    with pytest.raises(ConditionError, match="gone"):
        ids(parsed(), None)
    assert len(nodes.asked) == 1
    nodes.owners = (-1, 1)
    with pytest.raises(RoutingError, match="partition 0"):
        shares_of(parsed(reduce="false"))
    with pytest.raises(RoutingError, match="partition 0"):
        ids(parsed(reconnectTimeout="0"), [0])


def test_a_move_that_does_not_end_is_an_error(nodes: Nodes) -> None:
    nodes.failures = [UnavailableError("moved", code="not_my_partition")] * 2
    with pytest.raises(UnavailableError, match="moved"):
        ids(parsed(reduce="false", reconnectTimeout="0"), [0])


def test_a_missing_view_or_design_document(nodes: Nodes) -> None:
    with pytest.raises(UsageError, match="no view 'x'"):
        shares_of(parsed(view="x"))
    nodes.documents.clear()
    with pytest.raises(ConditionError, match="no design document 'd'"):
        shares_of(parsed())
