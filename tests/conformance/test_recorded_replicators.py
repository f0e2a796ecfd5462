"""CouchDB's replicator and PouchDB, as they were recorded, with a node: request by request.

The recordings (`exchanges/`) were written by hand from what CouchDB 3.4 and PouchDB 9 send; how
they are played, and what is looked at in every answer, is in `tests/support/http/exchanges.py`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus

import pytest

from support.http.exchanges import FOLDER, Player, recorded
from support.node.node_process import NodeProcess

RECORDED = {
    "couchdb-pull": 40, "couchdb-push": 35, "pouchdb-pull": 12, "pouchdb-push": 12,
}  # fmt: skip
"""How many exchanges there are at least."""


@pytest.fixture
def player(node: NodeProcess, login: tuple[str, str]) -> Iterator[Player]:
    name, password = login
    known = {
        "NAME": name,
        "FORM": f"name={quote_plus(name)}&password={quote_plus(password)}",
        "BASIC": "Basic " + b64encode(f"{name}:{password}".encode()).decode(),
    }
    one = Player(node.address("http"), known)
    yield one
    one.close()


def test_all_recordings_are_played() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_answered_as_it_needs_it(node: NodeProcess, player: Player, name: str) -> None:
    begin = len(node.log())
    assert player.play(name) >= RECORDED[name]
    assert "Traceback" not in node.log()[begin:]


@pytest.mark.parametrize(
    "other",
    [
        {"status": 200}, {"answer": {"ok": True, "more": 1}}, {"answer": {"$more": 1, "no": 1}},
        {"answer": [1]},
        {"headers": {"x-other": "$*$"}}, {"headers": {"content-type": "text/plain"}},
        {"answer": {"ok": False}}, {"answer": {"ok": 1}}, {"answer": {"ok": "$seq:*$"}},
        {"plain": ""}, {"answer": {}},
    ],
)  # fmt: skip
def test_what_differs_is_found(player: Player, other: dict[str, Any]) -> None:
    """Of an answer that is `{"ok":true}`."""
    made = {"ask": "POST /documents/_compact", "with": {"Authorization": "$BASIC$"}, "json": {}}
    right = {"status": 202, "answer": {"ok": True}}
    player.play_all("right", [made | right])
    with pytest.raises(AssertionError, match="wrong, exchange 0"):
        player.play_all("wrong", [made | right | other])


def test_recordings_ask_for_what_replicators_ask_for() -> None:
    asked = {one["ask"].split("?")[0] for name in RECORDED for one in recorded(name)}
    pages = {path.rpartition("/")[2] for path in asked}
    assert {"_session", "_changes", "_revs_diff", "_bulk_get", "_bulk_docs", "_ensure_full_commit",
            "_missing_revs", "_all_docs"} <= pages  # fmt: skip
