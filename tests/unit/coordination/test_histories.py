"""The checker of histories: against brute force, on right histories, on wrong ones."""

from __future__ import annotations

import io
import random
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.histories import registers
from simulators.histories.__main__ import main
from simulators.histories.check import UNDECIDED_MAX, check, total
from simulators.histories.events import Operation, Recorder, operations, read_events, to_line
from simulators.histories.search import Answer, search
from simulators.histories.versions import disorders, pinned

VALUES = st.sampled_from(["a", "b"])


@st.composite
def small_histories(draw: st.DrawFn) -> list[Operation]:
    """Up to six operations on one register with any times and any answers."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        function = draw(st.sampled_from(["set", "get", "cas"]))
        count = {"set": 1, "get": 0, "cas": 2}[function]
        argument = ("k", *(draw(VALUES) for _ in range(count)))
        invoked = draw(st.integers(0, 12))
        returned = draw(st.none() | st.integers(invoked + 1, invoked + 8))
        result: Any = None
        if returned is not None and function == "get":
            result = draw(st.sampled_from(["", "a", "b"]))
        elif returned is not None and function == "cas":
            result = draw(st.booleans())
        found.append(Operation(f"p{number}", function, argument, result, invoked, returned))
    return found


def can_be(history: list[Operation]) -> bool:
    """Brute force: every order of all that was answered and any of what was not."""
    told = [each for each in history if not each.is_open]
    unknown = [each for each in history if each.is_open]
    for count in range(len(unknown) + 1):
        for some in combinations(unknown, count):
            if any(is_order(order) for order in permutations([*told, *some])):
                return True
    return False


def is_order(order: tuple[Operation, ...]) -> bool:
    state: str | None = registers.EMPTY
    for at, each in enumerate(order):
        if any(
            later.returned is not None and later.returned < each.invoked for later in order[at:]
        ):
            return False
        assert state is not None
        state = registers.after(state, each)
        if state is None:
            return False
    return True


@given(small_histories())
def test_the_search_finds_what_brute_force_finds(history: list[Operation]) -> None:
    found = search(history)
    assert (found.answer is Answer.YES) == can_be(history)
    assert bool(found.stuck) or found.answer is Answer.YES


def true_history(
    seed: int, count: int, clients: int = 6, keys: int = 1, lost: float = 0.1, versioned: float = 1
) -> list[Operation]:
    """What clients of registers that never err would see, with versions, in order of calls.

    Each operation happens at a moment between its call and its end; some ends are never heard.
    """
    rng = random.Random(seed)
    calls = []
    for client in range(clients):
        now = rng.randint(0, 20)
        for _ in range(count // clients):
            happens = now + rng.randint(0, 40)
            end = happens + rng.randint(1, 40)
            calls.append((happens, rng.random(), client, now, end))
            now = end + rng.randint(1, 10)
    state: dict[str, tuple[str, int]] = {}
    found = []
    for version, (_, dice, client, invoked, end) in enumerate(sorted(calls), 1):
        key = f"k{rng.randrange(keys)}"
        value, point = state.get(key, ("", 0))
        told_point = rng.choice((point, version - 1))
        new = f"v{version}"
        function = rng.choice(("set", "get", "cas"))
        argument, result, told = (key, new), None, version
        if function == "get":
            argument, result, told = (key,), value, told_point
        elif function == "cas":
            argument, result = (key, rng.choice((value, "old")), new), True
            result = argument[1] == value
        if result is not False and function != "get":
            if dice < lost / 2:  # not heard and never done
                found.append(Operation(f"{client}", function, argument, None, invoked, None))
                continue
            state[key] = new, version
        if dice < lost:
            found.append(Operation(f"{client}", function, argument, None, invoked, None))
            continue
        place = told if rng.random() < versioned else None
        found.append(Operation(f"{client}", function, argument, result, invoked, end, place))
    return sorted(found, key=lambda each: each.invoked)


@given(st.integers(0, 10**9), st.integers(1, 3), st.sampled_from([0.0, 0.1, 0.4]), st.booleans())
def test_what_never_errs_is_right(seed: int, keys: int, lost: float, versioned: bool) -> None:
    history = true_history(seed, 120, 6, keys, lost, 1 if versioned else 0.5)
    verdict = check(history)
    assert verdict.holds, str(verdict)
    assert verdict.undecided == 0


def test_a_thousand_operations_of_twelve_clients_are_few_steps() -> None:
    found = search(true_history(1, 1000, 12, lost=0.02))
    assert found.answer is Answer.YES
    assert found.steps < 200_000


def told(function: str, *argument: str, at: tuple[int, int], **more: Any) -> Operation:
    return Operation(f"p{at[0]}", function, ("k", *argument), more.get("result"), *at,
                     more.get("version"))  # fmt: skip


def unheard(function: str, *argument: str, invoked: int) -> Operation:
    return Operation(f"p{invoked}", function, ("k", *argument), None, invoked, None)


WRONG = {
    "stale read": [
        told("set", "a", at=(0, 1), version=1), told("set", "b", at=(2, 3), version=2),
        told("get", at=(4, 5), result="a", version=1),
    ],
    "a read takes back what was read": [
        told("set", "a", at=(0, 1), version=1), told("set", "b", at=(2, 20), version=2),
        told("get", at=(4, 5), result="b", version=2),
        told("get", at=(6, 7), result="a", version=1),
    ],
    "a lost write": [
        told("set", "a", at=(0, 1), version=1), told("get", at=(2, 3), result="", version=0),
    ],
    "a value that nobody wrote": [told("get", at=(2, 3), result="a", version=0)],
    "two take the same thing": [
        told("cas", "", "a", at=(0, 9), result=True, version=1),
        told("cas", "", "b", at=(1, 8), result=True, version=2),
    ],
    "a write before its time": [
        told("get", at=(0, 1), result="a", version=1), told("set", "a", at=(2, 3), version=1),
    ],
    "a refusal without a reason": [
        told("set", "a", at=(0, 1), version=1),
        told("cas", "a", "b", at=(2, 3), result=False, version=2),
    ],
    "an unheard write that happens twice": [
        unheard("set", "a", invoked=0), told("get", at=(2, 3), result="a"),
        told("set", "b", at=(4, 5), version=3), told("get", at=(6, 7), result="b", version=3),
        told("get", at=(8, 9), result="a"),
    ],
    "an unheard write before it was asked for": [
        told("get", at=(0, 1), result="a", version=1), unheard("set", "a", invoked=2),
    ],
}  # fmt: skip
ONLY_SEARCHED = {"an unheard write that happens twice"}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_histories_are_found(name: str) -> None:
    history = WRONG[name]
    assert search(history).answer is Answer.NO
    assert bool(disorders(history)) == (name not in ONLY_SEARCHED)
    verdict = check(history)
    assert not verdict.holds
    assert verdict.wrong[0] in str(verdict)


@given(st.integers(0, 10**9))
def test_one_wrong_answer_is_found_by_both_checks(seed: int) -> None:
    rng = random.Random(seed)
    history = true_history(seed, 60, 4, lost=0)
    reads = [at for at, each in enumerate(history) if each.function == "get"]
    if not reads:
        return
    at = rng.choice(reads)
    history[at] = history[at]._replace(result="never written")
    assert disorders(history)
    assert search(history).answer is Answer.NO


def test_versions_alone_are_found_wrong() -> None:
    early = [
        told("set", "a", at=(0, 1), version=(2, 1)),
        told("set", "a", at=(2, 3), version=(1, 9)),
    ]
    assert disorders(early)
    doubled = [told("set", "a", at=(0, 5), version=1), told("set", "b", at=(0, 5), version=1)]
    assert disorders(doubled)
    read = [
        unheard("set", "a", invoked=0), unheard("set", "b", invoked=0),
        told("get", at=(1, 9), result="a", version=4),
        told("get", at=(2, 8), result="b", version=4),
    ]  # fmt: skip
    assert disorders(read)
    assert search(read).answer is Answer.YES


def test_an_unheard_write_may_happen_whenever_or_never() -> None:
    history = [
        unheard("set", "a", invoked=0), told("get", at=(1, 2), result=""),
        told("set", "b", at=(3, 4)), told("get", at=(5, 6), result="a"),
        unheard("cas", "a", "c", invoked=7), told("cas", "a", "d", at=(8, 9), result=False),
    ]  # fmt: skip
    assert check(history).holds
    assert not check(history[:4] + history[5:]).holds  # the refusal has no other reason


def test_a_search_that_takes_too_long_is_undecided_and_counted() -> None:
    history = true_history(3, 60)
    verdict = check(history, steps_max=10)
    assert verdict.undecided == 1
    assert not verdict.wrong
    assert not verdict.holds
    many = total([check(history[:1])] * int(1 / UNDECIDED_MAX) + [verdict])
    assert many.holds
    assert not total([many, verdict, verdict]).holds


def test_a_history_is_written_down_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    recorder = Recorder(path)
    recorder.invoke("c1", "set", ("k", "a"), 1)
    recorder.invoke("c2", "get", ("k",), 2)
    recorder.ok("c1", None, 3, (1, 7))
    recorder.ok("c2", "a", 4, (1, 7))
    recorder.invoke("c1", "cas", ("k", "a", "b"), 5)
    recorder.invoke("c2", "set", ("k", "c"), 6)
    recorder.fail("c1", 7, "NOQUORUM")
    recorder.info("c2", 8, "time-out")
    recorder.invoke("c3", "set", ("k", "d"), 9)
    recorder.close()
    with path.open() as lines:
        events = list(read_events(lines))
    assert events == recorder.events
    assert operations(events) == [
        Operation("c1", "set", ("k", "a"), None, 1, 3, (1, 7)),
        Operation("c2", "get", ("k",), "a", 2, 4, (1, 7)),
        Operation("c2", "set", ("k", "c"), None, 6, None),
        Operation("c3", "set", ("k", "d"), None, 9, None),
    ]
    assert main([str(path)]) == 0
    stale = [*recorder.events]
    stale[3] = stale[3]._replace(result="b")
    path.write_text("".join(to_line(event) + "\n" for event in stale))
    assert main([str(path)]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "[]",
        '{"process": "a"}',
        '{"process": "a", "type": "ok", "function": "get", "argument": ["k"], "time": 1}',
        '{"process": "a", "type": "why", "function": "get", "argument": ["k"], "time": 1}',
    ],
)
def test_what_is_no_history_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"line 1|is told|no type"):
        operations(read_events(io.StringIO(text)))


def test_writes_without_versions_have_those_that_were_read() -> None:
    history = [
        told("set", "a", at=(0, 1)), told("set", "b", at=(2, 3)), unheard("set", "c", invoked=4),
        told("get", at=(10, 11), result="a", version=(1, 5)),
        told("get", at=(12, 13), result="b", version=(1, 2)),
        told("get", at=(14, 15), result="c", version=(1, 1)),
        told("set", "d", at=(16, 17)),
    ]  # fmt: skip
    assert not [line for line in disorders(history) if "set" in line]
    known = pinned(history)
    assert [each.version for each in known[:3]] == [(1, 5), (1, 2), (1, 1)]
    assert known[-1].version is None
    assert len(disorders(known)) == 4  # both other writes, and both other reads, are too early


@given(st.integers(0, 10**9))
def test_versions_that_were_read_are_no_disorder(seed: int) -> None:
    history = true_history(seed, 120, 6, 2, 0.2)
    state: dict[str, int] = {}
    for each in sorted(history, key=lambda each: each.version or 0):
        if registers.written(each) is not None and each.version is not None:
            state[str(registers.written(each))] = each.version
    own = [
        each._replace(version=state.get(each.result, 0) if each.function == "get" else None)
        for each in history
        if each.function != "get" or each.result in state or each.result == ""
    ]
    assert check(pinned(own)).holds
