"""A naive model of revision trees, and paths to feed both with: every node by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from millstream.documents.revisions import Path, sort_key

Node = tuple[int, str]


@dataclass
class NaiveTree:
    """Nodes with their parents; a parent that is not known is None."""

    parents: dict[Node, Node | None] = field(default_factory=dict)
    deleted: set[Node] = field(default_factory=set)

    def merge(self, path: Path, *, is_deleted: bool) -> None:
        nodes = [(path.start - i, one) for i, one in enumerate(path.ids)]
        for node, parent in zip(nodes, [*nodes[1:], None], strict=True):
            if self.parents.get(node) is None:
                self.parents[node] = parent
        if is_deleted:
            self.deleted.add(nodes[0])

    def leaves(self) -> set[Node]:
        return set(self.parents) - set(self.parents.values())

    def path(self, node: Node | None) -> list[str]:
        found = []
        while node is not None:
            found.append(f"{node[0]}-{node[1]}")
            node = self.parents[node]
        return found

    def seen(self) -> dict[str, tuple[bool, list[str]]]:
        """Return what is known of each leaf: whether it is deleted, and its path."""
        return {
            f"{node[0]}-{node[1]}": (node in self.deleted, self.path(node))
            for node in self.leaves()
        }

    def stemmed(self, limit: int) -> NaiveTree:
        """Return the paths of all leaves, each cut to its newest generations, brought together."""
        short = NaiveTree()
        for generation, signature in self.leaves():
            path = self.path((generation, signature))[:limit]
            short.merge(
                Path(generation, [rev.partition("-")[2] for rev in path]), is_deleted=False
            )
        short.deleted = self.deleted & short.parents.keys()
        return short

    def purge(self, leaf: Node) -> None:
        assert leaf in self.leaves()
        node: Node | None = leaf
        while node is not None and node not in self.parents.values():
            above = self.parents.pop(node)
            node = above


def order(seen: dict[str, tuple[bool, list[str]]]) -> list[str]:
    """Return leaves as `RevisionTree.leaves` has them."""
    return sorted(seen, key=lambda rev: (not seen[rev][0], *sort_key(rev)), reverse=True)


@st.composite
def worlds(draw: st.DrawFn, max_nodes: int = 14) -> list[tuple[Path, bool]]:
    """Return paths, with whether each is a deletion, cut out of one true history."""
    truth: dict[Node, Node | None] = {}
    for number in range(draw(st.integers(1, max_nodes))):
        above = draw(st.sampled_from([None, *truth])) if truth else None
        generation = above[0] + 1 if above else draw(st.sampled_from([1, 1, 1, 3]))
        foreign = draw(st.sampled_from([False, False, False, True]))
        signature = f"f{number}" if foreign else f"{number * 7919 % 251:032x}"
        truth[generation, signature] = above
    deleted = {node for node in truth if draw(st.sampled_from([False, False, True]))}
    sent = []
    for _ in range(draw(st.integers(1, 8))):
        node = draw(st.sampled_from(list(truth)))
        ids, at = [], node
        for _ in range(draw(st.integers(1, max_nodes))):
            if at is None:
                break
            ids.append(at[1])
            at = truth[at]
        sent.append((Path(node[0], ids), node in deleted))
    return sent
