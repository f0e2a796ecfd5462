"""Documents of a bucket that is spread over three nodes: each answers for all of them."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from types import MappingProxyType
from typing import Any, Self

import pytest

from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, Status
from support.kv.bucket_nodes import BUCKET, MAJORITY, BucketNodes
from support.kv.nodes_with_map import activate_first, ask, give_map
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess, kept_ports
from support.node.waiting import until

MakeNode = Callable[..., NodeProcess]
NAMES = "abc"
ROWS = [["a", "b"], ["b", "c"], ["c", "a"], ["a", "c"]]
VALIDATION = {
    "validate_doc_update": "function (doc, old, user) {"
    " if (doc.bad) { throw({forbidden: 'no bad documents'}); } }"
}


@pytest.fixture(scope="module")
def nodes(make_nodes: MakeNode) -> BucketNodes:
    found = BucketNodes([make_nodes("--no-memcached", name=name) for name in NAMES], ROWS)
    found.promote("a")
    return found


@pytest.fixture(scope="module")
def make_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeNode]:
    made: list[NodeProcess] = []
    place = tmp_path_factory.mktemp("nodes")

    def make(*options: str, name: str) -> NodeProcess:
        made.append(NodeProcess(place / name, *options))
        return made[-1]

    yield make
    for node in made:
        node.kill()


def call(
    node: NodeProcess,
    method: str,
    path: str,
    content: Any = None,
    kind: str = "application/json",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, Any]:
    """Ask for something of the database; return status, and JSON or bytes."""
    body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
    asked = urllib.request.Request(
        f"{node.http}/{BUCKET}{path}", body,
        {"Content-Type": kind, "Accept": "application/json", **headers}, method=method,
    )  # fmt: skip
    try:
        with urllib.request.urlopen(asked) as answer:
            data = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(data) if is_json and data else data
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def owner_of(doc_id: str) -> str:
    return ROWS[partition_of(doc_id.encode(), len(ROWS))][0]


def id_at(name: str, prefix: str = "doc") -> str:
    """An id of a document that a node has."""
    return next(f"{prefix}{n}" for n in range(1000) if owner_of(f"{prefix}{n}") == name)


def pairs(nodes: BucketNodes) -> Iterator[tuple[NodeProcess, str]]:
    """Every node, with every node that may be the owner."""
    for asked in NAMES:
        for owner in NAMES:
            yield nodes.nodes[asked], owner


def test_one_document_at_every_node(nodes: BucketNodes) -> None:
    for number, (node, owner) in enumerate(pairs(nodes)):
        doc_id = id_at(owner, f"one-{number}-")
        assert call(node, "GET", f"/{doc_id}")[0] == 404
        status, made = call(node, "PUT", f"/{doc_id}", {"n": 1})
        assert status == 201, made
        for other in nodes.nodes.values():
            status, found = call(other, "GET", f"/{doc_id}?revs=true")
            assert (status, found["n"], found["_rev"]) == (200, 1, made["rev"])
        assert call(node, "PUT", f"/{doc_id}", {"n": 2})[0] == 409
        status, later = call(node, "PUT", f"/{doc_id}", {"n": 2, "_rev": made["rev"]})
        assert (status, later["rev"][:2]) == (201, "2-")
        stale = call(node, "DELETE", f"/{doc_id}?rev={made['rev']}")
        assert (stale[0], stale[1]["error"]) == (409, "conflict")
        assert call(node, "DELETE", f"/{doc_id}?rev={later['rev']}")[0] == 200
        for other in nodes.nodes.values():
            assert call(other, "GET", f"/{doc_id}") == (
                404, {"error": "not_found", "reason": "deleted"}
            )  # fmt: skip


def test_what_kv_writes_is_seen_at_the_other_nodes(nodes: BucketNodes) -> None:
    for owner in NAMES:
        key = id_at(owner, "kv")
        nodes.put(owner, key.encode(), b'{"by":"kv"}')
        revs = set()
        for node in nodes.nodes.values():
            status, found = call(node, "GET", f"/{key}")
            assert (status, found["by"]) == (200, "kv")
            revs.add(found["_rev"])
        [rev] = revs
        for name, node in nodes.nodes.items():
            status, made = call(node, "PUT", f"/{key}", {"by": name, "_rev": rev})
            assert status == 201, made
            rev = made["rev"]
        assert json.loads(nodes.get(owner, key.encode()).value) == {"by": "c"}


def test_many_documents_at_once(nodes: BucketNodes) -> None:
    for name, node in nodes.nodes.items():
        ids = [f"many-{name}-{n}" for n in range(1000)]
        status, made = call(node, "POST", "/_bulk_docs", {"docs": [{"_id": one} for one in ids]})
        assert status == 201, made
        assert [one["id"] for one in made] == ids
        assert all(one["ok"] for one in made)
        asked = {"docs": [{"id": one["id"], "rev": one["rev"]} for one in made]}
        for other in nodes.nodes.values():
            status, found = call(other, "POST", "/_bulk_get", asked)
            assert status == 200
            assert [one["docs"][0]["ok"]["_rev"] for one in found["results"]] == [
                one["rev"] for one in made
            ]
            missing = "9-" + "0" * 32
            known = {one["id"]: [one["rev"], missing] for one in made}
            status, said = call(other, "POST", "/_revs_diff", known)
            assert said == {one: {"missing": [missing], "possible_ancestors": said[one][
                "possible_ancestors"]} for one in ids}  # fmt: skip


def test_the_same_document_twice_in_one_request(nodes: BucketNodes) -> None:
    for number, (node, owner) in enumerate(pairs(nodes)):
        doc_id = id_at(owner, f"twice-{number}-")
        _, made = call(
            node, "POST", "/_bulk_docs", {"docs": [{"_id": doc_id, "n": n} for n in range(3)]}
        )
        assert [one.get("error") for one in made] == [None, "conflict", "conflict"]
        rev = made[0]["rev"]
        deletions = [{"_id": doc_id, "_rev": rev, "_deleted": True}, {"_id": doc_id, "n": 9}]
        _, made = call(node, "POST", "/_bulk_docs", {"docs": deletions})
        assert [one["rev"][:2] for one in made] == ["2-", "3-"], "the second sees the first"


def test_conflicts_from_peers(nodes: BucketNodes) -> None:
    for number, (node, owner) in enumerate(pairs(nodes)):
        doc_id = id_at(owner, f"peer-{number}-")
        path = f"/{doc_id}"
        docs = [
            {"_id": doc_id, "_rev": f"1-{digit * 32}", "by": digit} for digit in "ab"
        ]  # fmt: skip
        for doc, other in zip(docs, (node, nodes.nodes["b"]), strict=True):
            said = call(other, "POST", "/_bulk_docs", {"docs": [doc], "new_edits": False})
            assert said == (201, [])
        for other in nodes.nodes.values():
            _, found = call(other, "GET", path + "?conflicts=true")
            assert (found["by"], found["_conflicts"]) == ("b", ["1-" + "a" * 32])
            _, leaves = call(other, "GET", path + "?open_revs=all")
            assert sorted(leaf["ok"]["by"] for leaf in leaves) == ["a", "b"]
        purge = {doc_id: ["1-" + "b" * 32]}
        status, said = call(node, "POST", "/_purge", purge)
        assert (status, said["purged"]) == (201, purge)
        for other in nodes.nodes.values():
            assert call(other, "GET", path)[1]["by"] == "a"
        status, copied = call_copy(node, doc_id, id_at("c", f"copy-{number}-"))
        assert status == 201, copied


def call_copy(node: NodeProcess, doc_id: str, target: str) -> tuple[int, Any]:
    asked = urllib.request.Request(
        f"{node.http}/{BUCKET}/{doc_id}", headers={"Destination": target}, method="COPY"
    )
    with urllib.request.urlopen(asked) as answer:
        return answer.status, json.load(answer)


def test_attachments(nodes: BucketNodes) -> None:
    photo = bytes(range(256)) * 3000
    for number, (node, owner) in enumerate(pairs(nodes)):
        doc_id = id_at(owner, f"attached-{number}-")
        text = f"text {number} ".encode() * 100
        data = base64.b64encode(text).decode()
        inline = {"a.txt": {"content_type": "text/plain", "data": data}}
        status, made = call(node, "PUT", f"/{doc_id}", {"_attachments": inline})
        assert status == 201, made
        status, made = call(
            node, "PUT", f"/{doc_id}/b.jpg?rev={made['rev']}", photo + text, "image/jpeg"
        )
        assert status == 201, made
        for other in nodes.nodes.values():
            assert call(other, "GET", f"/{doc_id}/b.jpg") == (200, photo + text)
            _, found = call(other, "GET", f"/{doc_id}?attachments=true")
            shown = found["_attachments"]
            assert base64.b64decode(shown["a.txt"]["data"]) == text
            assert base64.b64decode(shown["b.jpg"]["data"]) == photo + text
        status, made = call(node, "DELETE", f"/{doc_id}/a.txt?rev={made['rev']}")
        assert status == 200, made
        _, found = call(nodes.nodes["b"], "GET", f"/{doc_id}")
        assert list(found["_attachments"]) == ["b.jpg"]


def test_local_documents(nodes: BucketNodes) -> None:
    for number, (node, owner) in enumerate(pairs(nodes)):
        doc_id = id_at(owner, f"_local/{number}-")
        assert call(node, "GET", f"/{doc_id}")[0] == 404
        assert call(node, "PUT", f"/{doc_id}", {"seq": 1})[1]["rev"] == "0-1"
        for other in nodes.nodes.values():
            assert call(other, "GET", f"/{doc_id}")[1]["seq"] == 1
            assert call(other, "PUT", f"/{doc_id}", {"_rev": "0-7"})[0] == 409
            _, listed = call(other, "GET", "/_local_docs")
            assert [one["id"] for one in listed["rows"]].count(doc_id) == 1
        assert call(node, "PUT", f"/{doc_id}", {"seq": 2, "_rev": "0-1"})[1]["rev"] == "0-2"
        assert call(nodes.nodes["c"], "DELETE", f"/{doc_id}?rev=0-2")[0] == 200
        assert call(node, "GET", f"/{doc_id}")[0] == 404


def test_settings_are_the_same_everywhere(nodes: BucketNodes) -> None:
    for number, node in enumerate(nodes.nodes.values()):
        assert call(node, "PUT", "/_revs_limit", 900 + number)[0] == 200
        security = {"members": {"names": [f"n{number}"]}}
        assert call(node, "PUT", "/_security", security)[0] == 200
        for other in nodes.nodes.values():
            assert call(other, "GET", "/_revs_limit") == (200, 900 + number)
            assert call(other, "GET", "/_security") == (200, security)
    assert call(nodes.nodes["a"], "PUT", "/_revs_limit", 1000)[0] == 200
    for node in nodes.nodes.values():
        assert call(node, "POST", "/_ensure_full_commit")[0] == 201


def test_validation_at_every_node(nodes: BucketNodes) -> None:
    for name, node in nodes.nodes.items():
        design = id_at({"a": "b", "b": "c", "c": "a"}[name], "_design/v")
        status, made = call(node, "PUT", f"/{design}", VALIDATION)
        assert status == 201, made
        for other in nodes.nodes.values():
            assert call(other, "GET", f"/{design}")[1]["_rev"] == made["rev"]
        for number, (asked, owner) in enumerate(pairs(nodes)):
            doc_id = id_at(owner, f"judged-{name}-{number}-")

            def is_refused(asked: NodeProcess = asked, doc_id: str = doc_id) -> bool:
                status, said = call(asked, "PUT", f"/{doc_id}", {"bad": True})
                if status == 201:  # the design document is not known there yet
                    call(asked, "DELETE", f"/{doc_id}?rev={said['rev']}")
                return (status, said.get("reason")) == (403, "no bad documents")

            until(is_refused)
            assert call(asked, "PUT", f"/{doc_id}", {"good": True})[0] == 201
        assert call(node, "DELETE", f"/{design}?rev={made['rev']}")[0] == 200


def test_writers_of_one_document_at_all_nodes_lose_nothing(nodes: BucketNodes) -> None:
    doc_id = id_at("b", "counted")
    assert call(nodes.nodes["a"], "PUT", f"/{doc_id}", {"n": 0})[0] == 201
    done = dict.fromkeys(NAMES, 0)

    def count(name: str) -> None:
        while done[name] < 10:
            _, found = call(nodes.nodes[name], "GET", f"/{doc_id}")
            found["n"] += 1
            status, said = call(nodes.nodes[name], "PUT", f"/{doc_id}", found)
            assert status in (201, 409), said
            done[name] += status == 201

    writers = [threading.Thread(target=count, args=(name,)) for name in NAMES]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    _, found = call(nodes.nodes["c"], "GET", f"/{doc_id}")
    assert (found["n"], found["_rev"].partition("-")[0]) == (30, "31")


class Counting(threading.Thread):
    """Adds one, again and again, to what documents say of a node, at that node."""

    def __init__(self, nodes: BucketNodes, name: str, ids: Sequence[str]) -> None:
        super().__init__()
        self._node, self._name, self._ids = nodes.nodes[name], name, ids
        self.made: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            for doc_id in self._ids:
                try:
                    self._count(doc_id)
                except (OSError, HTTPException):  # the node was killed
                    self.refused["gone"] += 1

    def _count(self, doc_id: str) -> None:
        status, found = call(self._node, "GET", f"/{doc_id}")
        if status not in (200, 404):
            self.refused[found["error"]] += 1
            return
        found = {} if status == 404 else found
        found[self._name] = found.get(self._name, 0) + 1
        status, said = call(self._node, "PUT", f"/{doc_id}", found)
        if status == 201:
            self.made[doc_id] += 1
        else:
            self.refused[said["error"]] += 1


class Counters:
    """Such writers at all nodes, while something happens; checks what they were told."""

    def __init__(self, nodes: BucketNodes, prefix: str) -> None:
        self._nodes = nodes
        self._ids = [f"{prefix}-{n}" for n in range(6)]
        self._writers = {name: Counting(nodes, name, self._ids) for name in NAMES}

    def until_more(self, *names: str) -> None:
        """Wait until writers have made more changes."""
        for name in names:
            writer = self._writers[name]
            before = writer.made.total()
            until(lambda w=writer, b=before: w.made.total() > b + 10, lambda: self.refused)

    @property
    def refused(self) -> Counter[str]:
        return sum((writer.refused for writer in self._writers.values()), Counter())

    def __enter__(self) -> Self:
        for writer in self._writers.values():
            writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.is_over.set()
        for writer in self._writers.values():
            writer.join()

    def check(self) -> None:
        """What was made is there, and nothing twice."""
        unknown = self.refused["ambiguous"] + self.refused["gone"]
        for doc_id in self._ids:
            _, found = call(self._nodes.nodes["a"], "GET", f"/{doc_id}")
            for name, writer in self._writers.items():
                assert found.get(name, 0) >= writer.made[doc_id]
            generation = int(found["_rev"].partition("-")[0])
            total = sum(writer.made[doc_id] for writer in self._writers.values())
            assert total <= generation <= total + unknown


def test_while_partitions_move_nothing_is_lost_or_made_twice(nodes: BucketNodes) -> None:
    with Counters(nodes, "moving") as counters:
        for to, partition in (("c", 1), ("a", 2), ("b", 1), ("c", 2), ("c", 1), ("b", 1)):
            nodes.promote("a", "--to", to, "--partition", str(partition))
            counters.until_more(*NAMES)
    assert counters.refused.keys() <= {
        "conflict", "not_my_partition", "temporarily_unavailable", "ambiguous",
        "majority_awaited",
    }, counters.refused  # fmt: skip
    counters.check()


class DurableWrites(threading.Thread):
    """Writes over kv at each node that wait for a majority; whoever is refused tries again."""

    def __init__(self, nodes: BucketNodes, name: str) -> None:
        super().__init__()
        self._node, self._count = nodes.nodes[name], nodes.partitions
        self.answers: Counter[int] = Counter()
        self.is_over = threading.Event()

    def run(self) -> None:
        with RawClient(self._node.kv, BUCKET) as client:
            n = 0
            while not self.is_over.is_set():
                n += 1
                key = b"durable-%d" % (n % 40)
                found = client.ask(
                    Opcode.SET, vbucket=partition_of(key, self._count), key=key, value=b"%d" % n,
                    extras=bytes(8), framing=MAJORITY,
                )  # fmt: skip
                self.answers[found.status] += 1


def test_durable_writes_are_never_refused_for_good_while_partitions_move(
    nodes: BucketNodes,
) -> None:
    writers = [DurableWrites(nodes, name) for name in NAMES]
    for writer in writers:
        writer.start()
    for to, partition in (("c", 1), ("a", 2), ("b", 1), ("c", 2), ("c", 1), ("b", 1)):
        nodes.promote("a", "--to", to, "--partition", str(partition))
    for writer in writers:
        writer.is_over.set()
        writer.join()
    answers = sum((writer.answers for writer in writers), Counter[int]())
    assert answers.keys() <= {
        Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.ETMPFAIL, Status.SYNC_WRITE_AMBIGUOUS,
    }, answers  # fmt: skip
    assert answers[Status.SUCCESS] > 100


def test_while_a_node_is_killed_nothing_is_lost_or_made_twice(make_node: MakeNode) -> None:
    rows = ["abc", "bca", "cab", "abc"]
    nodes = BucketNodes([make_node("--no-memcached", name=name) for name in NAMES], rows)
    nodes.promote("a")
    with Counters(nodes, "killed") as counters:
        counters.until_more(*NAMES)
        nodes.until_whole(*NAMES)
        nodes.nodes["b"].kill()
        nodes.promote("a")
        counters.until_more("a", "c")
        nodes.nodes["b"].start()
        nodes.promote("a")
        counters.until_more(*NAMES)
    counters.check()


def test_after_partitions_have_moved(make_node: MakeNode) -> None:
    nodes = BucketNodes([make_node("--no-memcached", name=name) for name in NAMES], ROWS)
    nodes.promote("a")
    ids = [f"moved-{n}" for n in range(60)]
    local = id_at("b", "_local/moved")
    photo = bytes(range(200)) * 50
    node = nodes.nodes["a"]
    status, made = call(node, "POST", "/_bulk_docs", {"docs": [{"_id": one} for one in ids]})
    revs = {one["id"]: one["rev"] for one in made}
    attached = id_at("b", "moved-with-")
    assert call(node, "PUT", f"/{attached}/photo", photo, "image/png")[0] == 201
    assert call(node, "PUT", f"/{local}", {"seq": 7})[0] == 201
    status, _ = call(node, "PUT", "/_revs_limit", 777)
    assert status == 200

    nodes.promote("a", "--to", "c", "--partition", "1")
    assert nodes.actives(1) == ["c"]
    for name, asked in nodes.nodes.items():
        status, found = call(
            asked, "POST", "/_bulk_get", {"docs": [{"id": one, "rev": revs[one]} for one in ids]}
        )
        assert [one["docs"][0].get("ok", {}).get("_rev") for one in found["results"]] == [
            revs[one] for one in ids
        ]
        assert call(asked, "GET", f"/{attached}/photo") == (200, photo)
        assert call(asked, "GET", f"/{local}")[1]["seq"] == 7, f"at {name}"
        status, made = call(
            asked,
            "POST",
            "/_bulk_docs",
            {"docs": [{"_id": one, "_rev": revs[one]} for one in ids]},
        )
        assert status == 201
        revs = {one["id"]: one["rev"] for one in made}
    assert call(nodes.nodes["b"], "PUT", f"/{local}", {"seq": 8, "_rev": "0-1"})[0] == 201

    nodes.nodes["b"].kill()
    nodes.promote("a", "--force")
    for name in "ac":
        asked = nodes.nodes[name]
        for doc_id in ids:
            assert call(asked, "GET", f"/{doc_id}")[1]["_rev"] == revs[doc_id]
        assert call(asked, "GET", f"/{local}")[1]["seq"] == 8
        assert call(asked, "GET", f"/{attached}/photo") == (200, photo)
        status, refusal = call(asked, "PUT", "/_revs_limit", 5)
        assert (status, refusal["error"]) == (503, "node_failed"), "b has to hear of it"
        assert call(asked, "GET", "/_revs_limit") == (200, 777)


def test_users_ask_any_node_and_nodes_ask_each_other_with_their_secret(
    make_node: MakeNode,
) -> None:
    options = ("--user", "ada:secret word", "--no-memcached")
    login = ("ada", "secret word")
    rows = [["a"], ["b"]]
    two = {
        name: make_node(
            *options, *kept_ports(), name=name, env=secret("a secret of nodes")
        ).start()
        for name in "ab"
    }
    give_map(two, BUCKET, rows, login=login)
    activate_first(two, BUCKET, rows, login=login)
    there = next(f"doc{n}" for n in range(99) if partition_of(b"doc%d" % n, 2) == 1)

    def ask_for(method: str, path: str, content: Any = None) -> tuple[int, Any]:
        token = base64.b64encode(b"ada:secret word").decode()
        return call(two["a"], method, path, content, headers={"Authorization": f"Basic {token}"})

    until(lambda: ask_for("PUT", f"/{there}", {"n": 1})[0] == 201)
    assert ask_for("GET", f"/{there}")[1]["n"] == 1
    assert call(two["a"], "GET", f"/{there}")[0] == 401
    status, refusal = ask(two["b"], "POST", f"/buckets/{BUCKET}/stored", {})
    assert (status, refusal["error"]) == (401, "unauthorized")

    two["b"].stop()
    two["b"].env = secret("quite another secret")
    two["b"].start()
    activate_first(two, BUCKET, rows, login=login)
    for method, content in (("GET", None), ("PUT", {"n": 2})):
        status, refusal = ask_for(method, f"/{there}", content)
        assert (status, refusal["error"]) == (503, "node_failed"), "it is no fault of the user"


def secret(text: str) -> dict[str, str]:
    return {"MILLSTREAM_CLUSTER_SECRET": text}
