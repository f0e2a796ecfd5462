"""The clients of the cluster's fault runs notice every kind of mistake; nodes are made up here."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from simulators.cluster_faults.askers import STILL, Asker, ChangesReader
from simulators.cluster_faults.plants import EVERY, PLANTS, Plants
from simulators.cluster_faults.truth import Stop, Truth, content_of, repeated
from support.cluster.managed_followers import History
from support.node.waiting import WAIT_S, until

QUESTIONS = 40 * EVERY


class MadeUpNode:
    """Answers as a node whose documents are all written and all indexed."""

    def __init__(self, documents: dict[str, dict[str, Any]]) -> None:
        self.documents = {f"p{number}": {"still": number} for number in range(STILL)} | documents

    def request(self, _: str, path: str, *, timeout_s: float) -> dict[str, Any]:
        assert timeout_s
        documents = self.documents
        docs = [{"_id": key, **one} for key, one in documents.items()]
        asked = urlsplit(path).path
        if asked.endswith("/still"):
            return {"rows": [{"key": n} for n in range(STILL)]}
        if asked.endswith("/written"):
            return {"rows": [{"id": k, "value": d["n"]} for k, d in documents.items() if "k" in d]}
        if asked.endswith("/_all_docs"):
            return {"rows": [{"doc": doc} for doc in docs]}
        changes = [{"id": doc["_id"], "changes": [{"rev": "1-a"}], "doc": doc} for doc in docs]
        return {"results": changes[-10:] if "since" in path else changes, "last_seq": "1-x"}


def written(count: int = 20) -> tuple[Truth, dict[str, dict[str, Any]]]:
    truth, documents = Truth(), {}
    for number in range(count):
        key = f"w{number}"
        truth.acknowledges(key, truth.tries(key))
        documents[key] = content_of(key, 1)
    return truth, documents


def wrong_with(node: MadeUpNode, truth: Truth, plant: str = "") -> list[str]:
    stop, plants = Stop(), Plants(plant)
    asker = Asker(lambda: {1: node}, truth, stop, "7", plants.answer)  # type: ignore[dict-item]
    for _ in range(QUESTIONS // 5):
        assert not asker.ask_all(1)
        if stop.wrong:
            break
    return stop.wrong


def test_an_honest_node_is_right() -> None:
    truth, documents = written()
    assert not wrong_with(MadeUpNode(documents), truth)


@pytest.mark.parametrize("plant", [one for one in PLANTS if one.startswith("short")])
def test_an_answer_that_lacks_a_row_is_found(plant: str) -> None:
    truth, documents = written()
    assert wrong_with(MadeUpNode(documents), truth, plant)


def test_a_change_that_comes_twice_in_an_answer_is_found() -> None:
    truth, documents = written()

    class Repeating(MadeUpNode):
        def request(self, method: str, path: str, *, timeout_s: float) -> dict[str, Any]:
            answer = super().request(method, path, timeout_s=timeout_s)
            if "results" in answer:
                answer["results"] += answer["results"][:1]
            return answer

    assert wrong_with(Repeating(documents), truth)


def test_a_change_that_a_reader_misses_is_found() -> None:
    _, documents = written()
    node, stop = MadeUpNode(documents), Stop()
    expected = {key: one["n"] for key, one in list(documents.items())[-10:]}
    for plant, is_equal in (("", True), ("missed change", False)):
        reader = ChangesReader(
            lambda: {1: node},  # type: ignore[dict-item]
            stop, "7", Plants(plant, every=1).answer,
        )  # fmt: skip
        reader.start()
        until(lambda reader=reader: len(reader.state()) >= 9)  # type: ignore[misc]
        reader.is_over.set()
        reader.join()
        assert (reader.state() == expected) == is_equal


def test_an_answer_that_nobody_can_read_is_wrong_and_no_refusal() -> None:
    truth, documents = written()

    class Unreadable(MadeUpNode):
        def request(self, _: str, path: str, *, timeout_s: float) -> dict[str, Any]:
            return {}

    stop = Stop()
    for made in (
        Asker(lambda: {1: Unreadable(documents)}, truth, stop, "7", Plants("").answer),  # type: ignore[dict-item]
        ChangesReader(lambda: {1: Unreadable(documents)}, stop, "7", Plants("").answer),  # type: ignore[dict-item]
    ):
        made.start()
        made.join(WAIT_S)
        assert not made.is_alive()
    assert [one.partition(":")[0] for one in stop.wrong] == ["asker failed", "changes failed"]
    assert "KeyError" in stop.wrong[0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda documents: documents.pop("w3"),
        lambda documents: documents.update(w3=content_of("w3", 0)),
        lambda documents: documents.update(w3=content_of("w3", 2)),
        lambda documents: documents.update(never=content_of("never", 1)),
    ],
    ids=["lost", "older", "invented", "never written"],
)
def test_a_document_that_no_write_explains_is_found(spoil: Any) -> None:
    truth, documents = written()
    spoil(documents)
    assert wrong_with(MadeUpNode(documents), truth)


def test_a_write_may_be_seen_before_it_is_acknowledged_and_not_undone_after() -> None:
    truth, _ = written(1)
    floors = truth.floors()
    number = truth.tries("w0")
    assert not truth.judge(floors, {"w0": 1})
    assert not truth.judge(floors, {"w0": number})
    truth.acknowledges("w0", number)
    assert not truth.judge(floors, {"w0": 1})  # asked before
    assert truth.judge(truth.floors(), {"w0": 1})


def test_a_deletion_may_come_back_only_before_it_is_acknowledged() -> None:
    truth, _ = written(1)
    floors, number = truth.floors(), truth.tries("w0", deletes=True)
    assert not truth.judge(floors, {"w0": 1})
    assert not truth.judge(floors, {})
    truth.acknowledges("w0", number)
    assert truth.judge(truth.floors(), {"w0": 1})
    assert not truth.judge(truth.floors(), {})


def test_a_deletion_that_was_refused_explains_no_loss() -> None:
    truth, _ = written(1)
    truth.takes_back("w0", truth.tries("w0", deletes=True))
    assert truth.judge(truth.floors(), {})


def test_a_key_that_comes_twice_is_found() -> None:
    assert repeated(["a", "b", "a"]) == ["a is there 2 times"]


def test_a_change_that_comes_again_is_found_unless_it_was_rolled_back() -> None:
    history = History()
    for seqno in (1, 2, 3):
        history.take(0, seqno, "a", seqno)
    history.undo(0, 1)
    history.take(0, 2, "a", 2)
    assert not history.repeated
    history.take(0, 2, "a", 2)
    assert history.repeated
