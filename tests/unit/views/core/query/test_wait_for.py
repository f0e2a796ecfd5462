"""What an index has reached: the rule word by word, and the two forms of a vector."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.model.position import FailoverEntry, Position
from millstream.views.core.query.wait_for import (
    VECTOR_TEXT_BYTES_MAX,
    Wanted,
    has_reached,
    judge,
    not_reached,
    unreachable,
    vector_from_json,
    vector_to_json,
    vector_to_text,
)

OLD, NEW = FailoverEntry(0xA, 0, 1), FailoverEntry(0xB, 50, 2)
FIRST, FORKED = (OLD,), (NEW, OLD)


def closed(uuid, seqno):
    return Position(uuid, seqno, seqno, seqno)


def token(uuid, seqno):
    return Wanted(closed(uuid, seqno), is_token=True)


def test_a_closed_position_has_reached_its_seqno():
    assert has_reached(closed(0xA, 10), 10)
    assert not has_reached(closed(0xA, 10), 11)


def test_inside_a_snapshot_only_what_lies_before_it_is_reached():
    inside = Position(0xA, 30, 20, 40)
    assert has_reached(inside, 20)
    assert not has_reached(inside, 21)
    assert not has_reached(inside, 30)
    # At the end of a snapshot that was not closed yet: its start still is the older one.
    assert not has_reached(Position(0xA, 40, 20, 40), 30)


def test_an_empty_index_reaches_an_empty_vector():
    assert judge(token(0xA, 0), Position(), ()) == "reached"
    assert judge(token(0xA, 1), Position(), ()) == "waiting"


def test_reached_on_the_same_history():
    assert judge(token(0xA, 40), closed(0xA, 40), FIRST) == "reached"
    assert judge(token(0xA, 40), closed(0xB, 60), FORKED) == "reached"
    assert judge(token(0xA, 41), closed(0xA, 40), FIRST, FIRST) == "waiting"


def test_a_larger_seqno_of_another_branch_is_not_reached():
    # The index still stands on the old branch; the write was made on the new one.
    assert judge(token(0xB, 60), closed(0xA, 90), FIRST) == "waiting"
    assert judge(token(0xB, 60), closed(0xA, 90), FIRST, FORKED) == "waiting"
    # The index went over to the new branch; the write was lost with the old one.
    assert judge(token(0xA, 60), closed(0xB, 90), FORKED, FORKED) == "unreachable"


def test_positions_unknown_to_the_source_are_unreachable():
    assert judge(token(0xA, 51), closed(0xA, 10), FIRST, FORKED) == "unreachable"
    assert judge(token(0xC, 5), closed(0xA, 10), FIRST, FIRST) == "unreachable"
    assert judge(token(0xA, 50), closed(0xA, 10), FIRST, FORKED) == "waiting"
    open_one = Wanted(Position(0xA, 45, 40, 60))
    assert judge(open_one, closed(0xA, 10), FIRST, FORKED) == "unreachable"


def test_the_purge_point_is_compared_for_positions_only():
    assert judge(token(0xA, 5), closed(0xA, 2), FIRST, FIRST, 8) == "waiting"
    assert judge(Wanted(closed(0xA, 5)), closed(0xA, 2), FIRST, FIRST, 8) == "unreachable"
    first_load = Wanted(Position(0xA, 5, 0, 9, 8))
    assert judge(first_load, closed(0xA, 2), FIRST, FIRST, 8) == "waiting"


def test_forms_of_a_vector():
    form = {"0": ["00000000000a", 7], "12": ["00000000000b", 7, 5, 9], "3": ["a", 7, 0, 9, 4]}
    vector = vector_from_json(form)
    assert vector == {
        0: token(0xA, 7), 12: Wanted(Position(0xB, 7, 5, 9)), 3: Wanted(Position(0xA, 7, 0, 9, 4))
    }  # fmt: skip
    assert vector_from_json(vector_to_json(vector)) == vector


positions = st.builds(
    lambda uuid, numbers, purge: Position(uuid, numbers[1], numbers[0], numbers[2], purge),
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**48), min_size=3, max_size=3).map(sorted),
    st.none() | st.integers(0, 2**48),
)


@given(st.dictionaries(st.integers(0, 1023), positions, max_size=5))
def test_the_text_of_a_vector_is_read_again(vector):
    text = vector_to_text(vector)
    assert text.partition("-")[0] == str(sum(position.seqno for position in vector.values()))
    assert vector_from_json(text) == {p: Wanted(position) for p, position in vector.items()}


def test_the_largest_text_is_within_its_bound():
    vector = dict.fromkeys(range(1024), Position(2**63, 2**47, 2**47 - 1, 2**47 + 1))
    assert len(vector_to_text(vector)) < VECTOR_TEXT_BYTES_MAX


@pytest.mark.parametrize(
    "form",
    [
        1, [], {"x": ["a", 1]}, {"1024": ["a", 1]}, {"-1": ["a", 1]}, {"9" * 5000: ["a", 1]},
        {"0": []}, {"0": ["a"]}, {"0": ["a", 1, 2]}, {"0": ["a", -1]}, {"0": ["a", True]},
        {"0": ["x", 1]}, {"0": [1, 1]}, {"0": ["a", 5, 6, 7]}, {"0": ["a", 2**60]},
        {"0": ["f" * 17, 1]}, {"0": ["-1", 1]}, {str(n): ["a", 1] for n in range(1025)},
        "", "5", "5-", "5-!!", "5-\u00e9", "5-kA0", "5-" + "A" * VECTOR_TEXT_BYTES_MAX,
    ],
)  # fmt: skip
def test_texts_that_are_not_vectors_are_refused(form):
    with pytest.raises(UsageError) as caught:
        vector_from_json(form)
    assert caught.value.code == "query_parse_error"


@given(st.text(max_size=40) | st.binary(max_size=30).map(lambda body: "1-" + body.hex()))
def test_any_text_is_decoded_or_refused(text):
    with suppress(UsageError):
        vector_from_json(text)


def test_errors_name_the_positions_not_reached():
    wanted = {n: token(0xA, 9) for n in range(8)}
    late = not_reached(wanted, {0: closed(0xA, 3)}, set(wanted))
    assert (late.code, late.retry) == ("timeout", "backoff")
    assert "8 partitions: partition 0 is at 3, wanted 9, partition 1 is at 0" in str(late)
    assert str(not_reached({}, {}, ())).startswith(
        "the index did not reach the requested changes in time: ask again"
    )
    gone = unreachable(wanted, [3])
    assert gone.code == "seq_unreachable"
    assert "partition 3 at ['00000000000a', 9, 9, 9]" in str(gone)


def test_positions_before_a_new_branch_are_reached_before_it_is_known():
    """A restart of the source begins a branch; nothing new may ever come to tell the index."""
    assert judge(token(0xB, 50), closed(0xA, 50), FIRST) == "waiting"
    assert judge(token(0xB, 50), closed(0xA, 50), FIRST, FORKED) == "reached"
    assert judge(token(0xB, 51), closed(0xA, 50), FIRST, FORKED) == "waiting"
    # An index that is itself to be rolled back has not reached what it seems to have.
    assert judge(token(0xB, 50), closed(0xA, 60), FIRST, FORKED) == "waiting"
    assert judge(token(0xB, 50), closed(0xA, 50), FIRST, FORKED, 55) == "waiting"
