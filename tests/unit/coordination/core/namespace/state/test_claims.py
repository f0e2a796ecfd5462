"""Claims: who is in whose way, and how elements that have some are found."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.state.claims import Claim, Claims, Mode, Phase
from millstream.coordination.core.namespace.state.elements import key_of
from millstream.vsr.core.snapshots import Pieces
from support.coordination.namespace_machine import Tree

ONE, TWO = Claim(1, b"one"), Claim(2, b"two")


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/n")
    for path in ("/n/a", "/n/a/x", "/n/b"):
        made.do("CREATE", "BINARY", path)
    return made


@pytest.fixture
def claims(tree: Tree) -> Claims:
    return tree.machine.state.synchronisation.claims


def number(tree: Tree, *path: bytes) -> int:
    return tree.machine.state.elements.at(path)


def test_a_lock_is_in_the_way_of_those_above_and_below(tree: Tree, claims: Claims) -> None:
    a, x, b = number(tree, b"n", b"a"), number(tree, b"n", b"a", b"x"), number(tree, b"n", b"b")
    claims.hold(a, Mode.READ, ONE)
    for element in (a, x, number(tree, b"n")):
        assert claims.rival((element,), Mode.WRITE, 2) == (
            a, Phase.HELD, Mode.READ, ONE, key_of(1)
        )  # fmt: skip
        assert claims.rival((element,), Mode.WRITE, 1) is None
        assert claims.rival((element,), Mode.READ, 2) is None
    assert claims.rival((b,), Mode.WRITE, 2) is None
    assert claims.rival((b, x), Mode.WRITE, 2) is not None


def test_only_earlier_waits_conflict(tree: Tree, claims: Claims) -> None:
    a = number(tree, b"n", b"a")
    claims.put(a, Phase.WAITING, Mode.WRITE, b"5", ONE)
    assert claims.rival((a,), Mode.READ, 2, b"4") is None
    assert claims.rival((a,), Mode.READ, 2, b"6") is not None
    assert claims.rival((a,), Mode.READ, 2) is not None


def test_a_session_holds_one_thing_on_an_element(tree: Tree, claims: Claims) -> None:
    a = number(tree, b"n", b"a")
    claims.hold(a, Mode.READ, ONE)
    claims.hold(a, Mode.WRITE, ONE)
    assert [claims.number(a, Phase.HELD, mode) for mode in Mode] == [1, 0, 0, 0, 0, 0]
    assert claims.elements_of(1) == [a]
    assert claims.release(1, a) is not None
    assert claims.release(1, a) is None
    assert not claims.any_on(a)
    assert len(claims) == 0


def test_claims_below_an_element_are_found_after_moves(tree: Tree, claims: Claims) -> None:
    n, a, x = number(tree, b"n"), number(tree, b"n", b"a"), number(tree, b"n", b"a", b"x")
    b = number(tree, b"n", b"b")
    claims.hold(x, Mode.READ, ONE)
    assert list(claims.below(n)) == [a, x]
    assert list(claims.below(n, only_writes=True)) == []
    tree.do("MOVE", "/n/a/x", "/n/b/x", session=2)
    assert list(claims.below(n)) == [a, x]  # refused: it is locked
    claims.release(1, x)
    claims.hold(x, Mode.WRITE, TWO)
    assert tree.do("MOVE", "/n/a/x", "/n/b/x", session=2) == b"+OK"
    assert list(claims.below(n)) == [b, x]
    assert list(claims.below(b, only_writes=True)) == [x]
    claims.release(2, x)
    assert list(claims.below(n)) == []


def test_claims_are_part_of_the_state(tree: Tree, claims: Claims) -> None:
    a = number(tree, b"n", b"a")
    claims.hold(a, Mode.UNIT, ONE)
    claims.put(a, Phase.OFFERED, Mode.ITEM, b"name", TWO)
    tree.again()
    kept = tree.machine.state.synchronisation.claims
    assert list(kept.of(a, Phase.OFFERED, Mode.ITEM)) == [(b"name", TWO)]
    assert kept.waits_on(a) == [b"name"]
    assert kept.held_by(1, a) == (Mode.UNIT, ONE.token)
    assert Pieces([tree.bytes]) is not None
