"""Schedules of writers at several nodes, whose connections break: what was told has to be true.

Every writer adds words of its own to documents, each word once. A word whose change was answered
as made stands in its document, once; one that was refused does not; of one that is `ambiguous`
nobody knows. What decides is no client's edit: one that is made twice would be refused by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import msgspec

from millstream.documents.stored import Content, StoredDocument
from millstream.documents.tree import EMPTY
from millstream.errors import MillstreamError, OutcomeUnknownError, UnavailableError
from millstream.gateway.core.api.documents import Decide
from millstream.gateway.core.api.stored import Asked
from millstream.runtime.tasks import Tasks
from support.http.sharing_nodes import BUCKET, SharingNodes, sharing_nodes

DOCUMENTS, WRITERS, CHANGES = 5, 6, 12
_REFUSED = "refused"


class Told:
    """What writers were told of their words, by document."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.unknown: list[tuple[str, str]] = []


def adds(word: str, noise: random.Random) -> Decide:
    """Return an edit that extends the winner by a word, and sometimes is refused."""

    def decide(document: StoredDocument | None) -> StoredDocument | None:
        if noise.random() < 0.05:
            raise MillstreamError("not now", code=_REFUSED)
        tree = EMPTY if document is None else document.tree
        words = words_of(document)
        parent = None if tree.is_empty else tree.winner.rev
        signature = f"{noise.getrandbits(128):032x}"
        grown = tree.extended(parent, signature)
        body = msgspec.json.encode({"words": [*words, word]})
        return StoredDocument(grown, {grown.winner.rev: Content(body, {})})

    return decide


def words_of(document: StoredDocument | None) -> list[str]:
    if document is None:
        return []
    found: list[str] = msgspec.json.decode(document.contents[document.winner.rev].body)["words"]
    return found


class Breaking:
    """Hooks of a network that loses and delays requests, and loses answers."""

    def __init__(self, nodes: SharingNodes, noise: random.Random, share: float) -> None:
        self._nodes, self._noise, self._share = nodes, noise, share
        self.late = Tasks()
        """Requests that arrive after who asked has given them up."""

    async def before(self, name: str, asked: Asked) -> None:
        await self._delay(4)
        if self._noise.random() < self._share / 2:
            raise UnavailableError("not reached", code="node_failed")
        if self._noise.random() < self._share:
            if self._noise.random() < 0.5:
                self.late.start(self._arrive(name, asked), name="late")
            raise OutcomeUnknownError("lost on its way", code="node_failed")

    async def after(self, name: str, asked: Asked) -> None:
        await self._delay(4)
        if self._noise.random() < self._share:
            raise OutcomeUnknownError("its answer was lost", code="node_failed")

    async def _arrive(self, name: str, asked: Asked) -> None:
        await self._delay(40)
        await self._nodes[name].stored.answer(BUCKET, asked)

    async def _delay(self, turns: int) -> None:
        for _ in range(self._noise.randrange(turns)):
            await asyncio.sleep(0)


async def run(path: Path, seed: int) -> Counter[str]:
    """Run one schedule, and check what was told; return how often what was."""
    noise = random.Random(seed)
    async with sharing_nodes(path, "abca", "abc") as nodes:
        for node in nodes.all:
            await node.distributed.settings(BUCKET)
        breaking = Breaking(nodes, noise, noise.choice([0.0, 0.05, 0.2]))
        nodes.network.before, nodes.network.after = breaking.before, breaking.after
        told = Told()
        await asyncio.gather(
            *(_write(nodes, told, random.Random(noise.random()), w) for w in range(WRITERS))
        )
        await breaking.late.finish()
        await _check(nodes, told)
    return Counter(made=len(told.made), refused=len(told.refused), unknown=len(told.unknown))


async def _write(nodes: SharingNodes, told: Told, noise: random.Random, writer: int) -> None:
    for number in range(CHANGES):
        distributed = noise.choice(nodes.all).distributed
        ids = [f"d{noise.randrange(DOCUMENTS)}" for _ in range(noise.randrange(1, 5))]
        words = [f"{writer}.{number}.{at}" for at in range(len(ids))]
        edits = [(doc_id, adds(word, noise)) for doc_id, word in zip(ids, words, strict=True)]
        done = await distributed.update(BUCKET, edits, is_durable=noise.random() < 0.5)
        for doc_id, word, one in zip(ids, words, done, strict=True):
            if not isinstance(one, MillstreamError):
                told.made.append((doc_id, word))
            elif one.code == "ambiguous":
                told.unknown.append((doc_id, word))
            else:
                told.refused.append((doc_id, word))


async def _check(nodes: SharingNodes, told: Told) -> None:
    found: Counter[tuple[str, str]] = Counter()
    for number in range(DOCUMENTS):
        doc_id = f"d{number}"
        document = await nodes[nodes.owner(doc_id)].own.read(BUCKET, doc_id)
        found.update((doc_id, word) for word in words_of(document))
    assert max(found.values(), default=1) == 1, "a change was made twice"
    assert not set(told.made) - found.keys(), "a change that was told to be made is not there"
    assert not set(told.refused) & found.keys(), "a change that was refused was made"
    assert found.keys() <= set(told.made) | set(told.unknown)
