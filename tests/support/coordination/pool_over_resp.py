"""A pool on a false network as `cli.coordination.coord` sees it: replies are what its parser
makes of them."""

from __future__ import annotations

from typing import Any, Self

from millstream.cli.coordination.coord import error_of
from millstream.coordination.core.resp.protocol import render
from millstream.coordination.core.shell.replies import ReplyCutter
from millstream.vsr.core.effects import Code
from support.coordination.pool_driver import Node, World


class FalseCoordination:
    """One node of a world; stands in for `Coordination`."""

    def __init__(self, world: World, node: Node) -> None:
        self.world, self.node = world, node
        self.address = node.coord.text
        self.asked: list[tuple[str, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, *words: str, timeout_s: float = 1.0) -> Any:
        assert timeout_s > 0
        self.asked.append(words)
        (reply,) = ReplyCutter().feed(render(self._value(words), 3))
        if reply.is_error:
            raise error_of(reply.text.decode())
        return reply.value

    def _value(self, words: tuple[str, ...]) -> bytes:
        if words[0] == "VDS":
            return self.node.running.discovery.vds(tuple(word.encode() for word in words))
        ticket = self.world.admin(self.node, " ".join(words[1:]))
        for _ in range(20):
            if ticket in self.world.answers:
                break
            self.world.answer_questions(Code.OK, b"1")
            self.world.run(self.world.now_ms + 1000)
        return self.world.answers[ticket]

    def elsewhere(self, address: str) -> FalseCoordination:
        node = next(one for one in self.world.nodes if one.coord.text == address)
        return FalseCoordination(self.world, node)
