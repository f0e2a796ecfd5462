"""The steps of names, as entries of two groups."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.commands.naming import answer_in, words_of
from millstream.coordination.core.namespace.names import Do, NameKeeper, Step, step_after
from millstream.vsr.core.values import NULL, items
from millstream.vsr.core.versions import NEVER, Version
from support.coordination.namespace_machine import Tree


class Groups:
    """The system group and a target, and a node that carries steps between them."""

    def __init__(self) -> None:
        self.system, self.target = Tree(), Tree()

    def known(self, reply: bytes) -> list[bytes]:
        return [value[1:] for value in items(reply)]

    def reserve(self) -> str:
        return self.known(self.system.do("NAMESPACE", "RESERVE", "/ns", "4"))[2].decode()

    def go_on(self, keeper: NameKeeper, now_ms: float) -> int:
        steps = keeper.tick(self.system.machine.state.registry.unfinished(), now_ms)
        for step in steps:
            assert step.gid == 4
            answer = answer_in(self.target.do(*words_of(step)))
            assert answer is not None
            self.system.do(*words_of(step_after(step, answer)))
        return len(steps)


@pytest.fixture
def groups() -> Groups:
    return Groups()


def test_a_name_is_reserved_created_and_confirmed(groups: Groups) -> None:
    reservation = groups.reserve()
    create = ("NAMESPACE", "CREATE", "/ns", reservation, "ann", "data")
    assert groups.target.do(*create) == b"+CREATED"
    assert groups.target.do(*create) == b"+CREATED"
    assert groups.target.read("GET", "/ns") == b"=data"
    known = groups.known(groups.system.do("NAMESPACE", "CONFIRM", "/ns", reservation))
    assert known == [b"confirmed", b"4", reservation.encode(), b"0:0:0"]
    assert groups.known(groups.system.do("NAMESPACE", "RESERVE", "/ns", "5")) == known
    assert groups.target.do("ACL", "SET", "/ns", "MODE", "700", user=b"ann") == b"+OK"


def test_an_unconfirmed_reservation_is_undone_forever(groups: Groups) -> None:
    reservation, keeper = groups.reserve(), NameKeeper()
    assert groups.go_on(keeper, 0.0) == 0
    assert groups.go_on(keeper, 60_000.0) == 1
    create = ("NAMESPACE", "CREATE", "/ns", reservation, "ann")
    assert groups.target.do(*create) == b"+GONE"
    assert groups.target.read("LOOKUP", "/ns") != b"+OK"
    assert groups.system.do("NAMESPACE", "CONFIRM", "/ns", reservation) == NULL


def test_a_created_root_is_confirmed_later(groups: Groups) -> None:
    reservation, keeper = groups.reserve(), NameKeeper()
    groups.target.do("NAMESPACE", "CREATE", "/ns", reservation, "ann")
    groups.go_on(keeper, 0.0)
    groups.go_on(keeper, 60_000.0)
    known = groups.known(groups.system.do("NAMESPACE", "CONFIRM", "/ns", reservation))
    assert known[0] == b"confirmed"


def confirmed(groups: Groups) -> str:
    reservation = groups.reserve()
    groups.target.do("NAMESPACE", "CREATE", "/ns", reservation, "ann")
    groups.system.do("NAMESPACE", "CONFIRM", "/ns", reservation)
    return reservation


def test_a_deletion_is_refused_if_there_are_elements_and_for_ever(groups: Groups) -> None:
    reservation = confirmed(groups)
    groups.target.do("CREATE", "BINARY", "/ns/a")
    known = groups.known(groups.system.do("NAMESPACE", "DELETE", "/ns"))
    assert known[0] == b"deleting"
    drop = ("NAMESPACE", "DROP", "/ns", reservation, known[3])
    assert groups.target.do(*drop) == b"+NOTEMPTY"
    groups.target.do("DELETE", "/ns/a")
    assert groups.target.do(*drop) == b"+NOTEMPTY"
    kept = groups.system.do("NAMESPACE", "KEEP", "/ns", reservation, known[3])
    assert groups.known(kept)[0] == b"confirmed"


def test_a_deletion_is_worked_off_by_whoever_leads(groups: Groups) -> None:
    reservation = confirmed(groups)
    groups.target.do("CREATE", "BINARY", "/ns/a")
    groups.system.do("NAMESPACE", "DELETE", "/ns", "FORCE")
    assert groups.go_on(NameKeeper(), 0.0) == 1
    assert list(groups.system.machine.state.registry.names.after(b"")) == []
    assert groups.target.read("LOOKUP", "/ns/a") != b"+OK"
    create = ("NAMESPACE", "CREATE", "/ns", reservation, "ann")
    assert groups.target.do(*create) == b"+DELETED"


def test_a_deletion_passes_locks_if_it_is_to(groups: Groups) -> None:
    confirmed(groups)
    groups.target.do("CREATE", "BINARY", "/ns/a")
    groups.target.do("LOCK", "/ns/a", session=9)
    begun = groups.system.do("DELETENAMESPACE", "/ns", "FORCE")
    assert begun.endswith(b" 1 0")
    assert groups.go_on(NameKeeper(), 0.0) == 1
    assert groups.target.read("LOOKUP", "/ns/a") == b"+OK"
    begun = groups.system.do("FORCE", "DELETENAMESPACE", "/ns", "FORCE")
    assert begun.endswith(b" 1 1")
    assert groups.system.do("FORCE", "DELETENAMESPACE", "/ns", "FORCE") == begun
    groups.system.again()
    assert groups.go_on(NameKeeper(), 0.0) == 1
    assert groups.target.read("LOOKUP", "/ns/a") != b"+OK"


def test_a_namespace_without_elements_keeps_what_is_locked(groups: Groups) -> None:
    confirmed(groups)
    groups.target.do("LOCK", "/ns", session=9)
    begun = groups.system.do("FORCE", "DELETENAMESPACE", "/ns")
    assert begun.endswith(b" 0 1")
    assert groups.go_on(NameKeeper(), 0.0) == 1
    assert list(groups.system.machine.state.registry.names.after(b"")) == []


def test_a_root_with_too_many_elements_is_kept(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservation = confirmed(groups)
    groups.target.do("CREATE", "BINARY", "/ns/a")
    monkeypatch.setattr("millstream.coordination.core.namespace.state.elements.WORK_MAX", 1)
    drop = ("NAMESPACE", "DROP", "/ns", reservation, "1:1:1", "FORCE")
    assert groups.target.do(*drop) == b"+TOOBIG"
    monkeypatch.setattr("millstream.coordination.core.namespace.state.elements.WORK_MAX", 10)
    again = ("NAMESPACE", "DROP", "/ns", reservation, "1:1:2", "FORCE")
    assert groups.target.do(*drop) == b"+TOOBIG"
    assert groups.target.do(*again) == b"+GONE"


def test_steps_are_written_as_they_are_understood() -> None:
    one, other = Version(1, 2, 3), Version(4, 5, 6)
    assert words_of(Step(1, Do.UNDO, b"n", one)) == (b"NAMESPACE", b"UNDO", b"/n", b"1:2:3")
    assert words_of(Step(1, Do.DROP, b"n", one, other, True)) == (
        b"NAMESPACE", b"DROP", b"/n", b"1:2:3", b"4:5:6", b"FORCE",
    )  # fmt: skip
    assert words_of(Step(1, Do.DROP, b"n", one, other, False, True))[5:] == (b"LOCKED",)
    assert words_of(Step(None, Do.KEEP, b"n", one, other)) == (
        b"NAMESPACE", b"KEEP", b"/n", b"1:2:3", b"4:5:6",
    )  # fmt: skip
    assert words_of(Step(None, Do.FREE, b"n", one, NEVER))[1] == b"FREE"
    assert answer_in(b"-LOCKED x") is None


@pytest.mark.parametrize(
    "command",
    [
        "NAMESPACE",
        "NAMESPACE LOSE /ns",
        "NAMESPACE RESERVE /ns",
        "NAMESPACE RESERVE /ns -1",
        "NAMESPACE RESERVE /ns 1 more",
        "NAMESPACE CONFIRM /ns 7",
        "NAMESPACE FREE /ns 1:2:3 more",
        "NAMESPACE DELETE /ns LATER",
        "NAMESPACE KEEP /ns 1:2:3",
        "NAMESPACE CREATE /ns 1:2:3",
        "NAMESPACE CREATE /ns 1:2:3 " + "x" * 256,
        "NAMESPACE UNDO /ns",
        "NAMESPACE DROP /ns 1:2:3",
    ],
)
def test_an_invalid_step_is_refused(groups: Groups, command: str) -> None:
    assert groups.system.do(*command.split()).startswith(b"-BADARG ")


def test_steps_are_for_administrators_and_for_roots(groups: Groups) -> None:
    reserve = ("NAMESPACE", "RESERVE", "/ns", "1")
    assert groups.system.do(*reserve, user=b"eve").startswith(b"-NOPERM ")
    assert groups.system.do("NAMESPACE", "RESERVE", "/ns/a", "1").startswith(b"-BADPATH ")
