"""Values come apart into what they were made of."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.vsr.core.values import (
    NULL,
    OK,
    array,
    bulk,
    error,
    integer,
    items,
    mapping,
    members,
    status,
    truth,
)


def test_simple_ones() -> None:
    assert (OK, NULL) == (b"+OK", b"_")
    assert (status(b"PONG"), bulk(b"\r\n"), integer(-7)) == (b"+PONG", b"=\r\n", b":-7")
    assert (truth(True), truth(False)) == (b"#t", b"#f")
    assert (error("BUSY"), error("BADARG", "no: it")) == (b"-BUSY", b"-BADARG no: it")


@given(st.lists(st.binary()))
def test_lists_and_sets_come_apart(data: list[bytes]) -> None:
    assert items(array([bulk(item) for item in data])) == [b"=" + item for item in data]
    assert items(members([bulk(item) for item in data])) == [b"=" + item for item in data]


def test_maps_are_names_and_values_in_turn() -> None:
    inner = array((OK, NULL))
    value = mapping(((b"a", integer(1)), (b"b", inner)))
    assert items(value) == [b"=a", b":1", b"=b", inner]
    assert items(items(value)[3]) == [OK, NULL]
