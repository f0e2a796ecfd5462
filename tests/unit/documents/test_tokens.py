"""Tokens of `_changes`: their text, what refuses them, and how vectors are judged and compared."""

from base64 import urlsafe_b64encode
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.tokens import (
    History,
    TokenWriter,
    Vector,
    at_total,
    check_origin,
    closed_part,
    is_below,
    is_valid,
    judged,
    maximum,
    minimum,
    origin_of,
    parse_token,
    vector_at,
    vector_from_json,
    vector_to_json,
)
from millstream.errors import UsageError
from millstream.model.position import FailoverEntry, Position
from support.budget import budget

A, B, C = 0xA, 0xB, 0xC
LOG = (FailoverEntry(C, 300, 3), FailoverEntry(B, 200, 2), FailoverEntry(A, 0, 1))
HISTORY = History(LOG, 450, 0)
ORIGIN = origin_of("aa" * 16)

seqnos = st.integers(0, 2**53)


@st.composite
def positions(draw):
    low, middle, high = sorted(draw(st.tuples(seqnos, seqnos, seqnos)))
    if draw(st.booleans()):
        low = middle = high
    purge = draw(st.none() | seqnos)
    return Position(draw(st.integers(0, 2**48 - 1)), middle, low, high, purge)


vectors = st.builds(
    Vector,
    st.integers(0, 2**32 - 1),
    st.lists(positions(), min_size=1, max_size=5).map(tuple),
    st.integers(0, 300),
)


def vector(*found, epoch=0):
    return Vector(ORIGIN, found, epoch)


@given(vectors)
def test_a_token_comes_back_as_it_was(one):
    text = one.text()
    assert parse_token(text) == one
    assert parse_token(f'"{text}"') == one
    assert text.partition("-")[0] == str(one.total)
    assert vector_from_json(vector_to_json(one)) == one


@settings(max_examples=budget(50))
@given(vectors, st.lists(st.tuples(st.integers(0, 4), positions()), max_size=8))
def test_a_writer_has_the_text_of_where_it_stands(one, moves):
    writer = TokenWriter(one)
    for partition, position in moves:
        partition %= len(one.positions)
        writer.move(partition, position)
        assert writer.position(partition) == position
        assert writer.text(partition).decode() == writer.vector.text()
    writer.mark_purges(one.purge_epoch + 1)
    assert writer.text().decode() == writer.vector.text()


@given(vectors, st.data())
def test_a_damaged_token_is_refused_or_is_another_whole_one(one, data):
    text = one.text()
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = (
        text[:at] + data.draw(st.sampled_from(["", "A", "_", "-", "%", "é", "9"])) + text[at + 1 :]
    )
    with suppress(UsageError):
        found = parse_token(damaged)
        assert isinstance(found, int) or parse_token(found.text()) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-",
        "5-",
        "5-AAAA",
        "-1",
        "1.5",
        "now",
        "5-????",
        "²",
        "9" * 31,
        "1-" + "A" * 70000,
    ],
)
def test_what_is_no_token_is_refused(text):
    with pytest.raises(UsageError, match="Malformed sequence"):
        parse_token(text)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ('"0"', 0), ("17", 17)])
def test_a_number_is_a_number(text, number):
    assert parse_token(text) == number


@pytest.mark.parametrize("purge", [None, 7])
def test_the_text_is_what_is_written_down(purge):
    one = Vector(0x01020304, (Position(), Position(0x1234, 300, 200, 500, purge)), 2)
    head = bytes((1, 1, 2, 3, 4, 2, 2, 0, 0))
    first = bytes(6)
    second = bytes((0xB4, 0x24, 0xC8, 0x01, 100)) + bytes(
        (0x90, 0x03, 0, 0) if purge is None else (0x91, 0x03, 7, 0)
    )
    assert one.text() == "300-" + urlsafe_b64encode(head + first + second).decode()


def test_a_token_of_another_database_or_of_other_partitions_is_refused_with_the_reason():
    one = vector(Position(), Position())
    check_origin(one, [7, ORIGIN], 2)
    with pytest.raises(UsageError, match="of another database"):
        check_origin(one, [7], 2)
    with pytest.raises(UsageError, match="2 partitions, but this database has 16"):
        check_origin(one, [ORIGIN], 16)


@pytest.mark.parametrize(
    ("position", "goes_on_at", "restarts_at"),
    [
        (Position(), Position(), Position()),
        (Position(C, 400, 400, 400), Position(C, 400, 400, 400), Position(C, 400, 400, 400)),
        (Position(A, 210, 150, 210), Position(A, 200, 200, 200), Position()),
        (Position(B, 280, 260, 310), Position(B, 260, 260, 260), Position()),
        (Position(C, 500, 500, 500), Position(C, 450, 450, 450), Position()),  # of the future
        (Position(0xFF, 5, 5, 5), Position(), Position()),
    ],
)
def test_a_position_is_judged_by_the_rollback_rule_apart_from_the_others(
    position, goes_on_at, restarts_at
):
    sound = Position(B, 290, 250, 300)
    one, histories = vector(sound, position), [HISTORY, HISTORY]
    assert judged(one, histories).positions == (sound, goes_on_at)
    assert judged(one, histories, restarts=True).positions == (sound, restarts_at)
    assert judged(one._replace(purge_epoch=1), histories).positions == (sound, restarts_at)
    assert is_valid(one, histories) == (position == goes_on_at)


def test_a_count_stands_for_the_latest_vector_that_every_reader_of_so_many_changes_holds():
    histories = [History(LOG, 450, 0), History(LOG[-1:], 50, 0)]
    whole = at_total(ORIGIN, histories, [450, 50], 500)
    assert whole.positions == (Position(C, 450, 450, 450), Position(A, 50, 50, 50))
    part = at_total(ORIGIN, histories, [450, 50], 490)
    assert [p.seqno for p in part.positions] == [440, 40]
    assert [p.seqno for p in at_total(ORIGIN, histories, [450, 50], 400).positions] == [350, 0]
    for count in (0, 501):
        assert at_total(ORIGIN, histories, [450, 50], count).positions == (Position(),) * 2


@given(st.integers(0, 50), st.integers(0, 50))
def test_what_a_count_stands_for_lies_below_every_vector_of_that_total(first, second):
    histories = [History(LOG[-1:], 50, 0)] * 2
    held = vector_at(ORIGIN, histories, [first, second])
    assert is_below(at_total(ORIGIN, histories, [50, 50], first + second), held)


def test_vectors_are_compared_by_what_is_held_whole():
    low, high = vector(Position(A, 10, 10, 10)), vector(Position(C, 400, 400, 400))
    assert is_below(low, high)
    assert is_below(low, low)
    assert not is_below(high, low)
    inside = vector(Position(C, 420, 390, 430))
    assert is_below(inside, inside)
    assert not is_below(high, inside)  # of the snapshot under way something may be missing
    assert not is_below(inside, vector(Position(C, 425, 425, 425)))
    assert is_below(inside, vector(Position(C, 430, 430, 430)))
    assert is_below(vector(Position(C, 390, 390, 390)), inside)
    assert is_below(vector(Position(C, 390, 390, 999)), inside)  # nothing of it was received
    assert not is_below(low, high._replace(origin=1))
    assert not is_below(low, vector(Position(), Position()))


def test_the_closed_part_is_what_is_held_whole():
    one = vector(Position(C, 420, 390, 430), Position(C, 5, 0, 9, 3), Position(C, 7, 7, 7))
    held = vector(Position(C, 390, 390, 390), Position(), Position(C, 7, 7, 7))
    assert closed_part(one) == held
    assert not one.is_closed
    assert held.is_closed
    assert is_below(held, one)


@given(st.data())
def test_the_larger_and_the_smaller_of_two_vectors(data):
    ends = st.tuples(*[st.integers(0, 50)] * 3)
    histories = [History(LOG[-1:], 50, 0)] * 3
    one, other = (vector_at(ORIGIN, histories, data.draw(ends)) for _ in range(2))
    above, below = maximum(one, other), minimum(one, other)
    assert is_below(below, one)
    assert is_below(below, other)
    assert is_below(one, above)
    assert is_below(other, above)
    assert above.total + below.total == one.total + other.total


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"origin": 1, "purge_epoch": 0, "positions": []},
        {"origin": "1", "purge_epoch": 0, "positions": [None]},
        {"origin": 1, "purge_epoch": 0, "positions": [["00000000000a", 5, 6, 7]]},
        {"origin": 1, "purge_epoch": 0, "positions": [["00000000000a", 5]]},
        {"origin": 1, "purge_epoch": 0, "positions": [["0000000000000a", "x", 1, 1]]},
        {"origin": 1, "purge_epoch": 0, "positions": 7},
    ],
)
def test_what_is_no_vector_in_json_is_refused(form):
    with pytest.raises(ValueError):
        vector_from_json(form)
