"""Requests come out whole however they were divided, and as an outside parser cuts them."""

from collections.abc import Iterable
from itertools import pairwise

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.coordination.core.resp.protocol import (
    ARGUMENTS_MAX,
    INLINE_BYTES_MAX,
    REQUEST_BYTES_MAX,
    RequestCutter,
    render,
    render_message,
)
from millstream.errors import RemoteProtocolError
from millstream.vsr.core.values import (
    NULL,
    OK,
    array,
    bulk,
    error,
    integer,
    mapping,
    members,
    push,
    truth,
)

WORDS = st.lists(
    st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"\r\n", b"$3\r\nGET\r\n", b"*1"])),
    min_size=1, max_size=6,
)  # fmt: skip


def packed(argv: Iterable[bytes]) -> bytes:
    words = list(argv)
    head = b"*%d\r\n" % len(words)
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def divided(data: bytes, ends: list[int]) -> list[bytes]:
    places = sorted({end % (len(data) + 1) for end in ends} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


def cut_all(chunks: Iterable[bytes], most: int = 1000) -> list[list[bytes]]:
    cutter, found = RequestCutter(), []
    for chunk in chunks:
        cutter.feed(chunk)
        while (some := cutter.cut(most)) or cutter.empty:
            found += some
    return found


@given(st.lists(WORDS, max_size=5), st.lists(st.integers(0, 400), max_size=5), st.integers(1, 3))
@example([[b"SET", b"k", b"a\r\nb"], [b"GET", b"k"]], [17, 18, 30], 1)
def test_the_same_as_hiredis(requests: list[list[bytes]], ends: list[int], most: int) -> None:
    data = b"".join(map(packed, requests))
    reader = hiredis.Reader()
    reader.feed(data)
    cut = cut_all(divided(data, ends), most)
    assert cut == requests
    assert cut == [reader.gets() for _ in requests]


LINES = [
    (b"PING\r\n", [[b"PING"]]),
    (b"  SET k 'a b'  \n", [[b"SET", b"k", b"a b"]]),
    (b'SET k "a\\n\\x41\\"\\q"\r\n', [[b"SET", b"k", b'a\nA"q']]),
    (b"SET k 'it\\'s \\n'\n", [[b"SET", b"k", b"it's \\n"]]),
    (b'ECHO ""\n', [[b"ECHO", b""]]),
    (b"\r\n\n   \r\nPING\n", [[b"PING"]]),
    (b"SET k \xa0\x85\n", [[b"SET", b"k", b"\xa0\x85"]]),
    (b'SET k "\\x+1"\n', [[b"SET", b"k", b"x+1"]]),
    (b"*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\nPING\n", [[b"PING"], [b"PING"]]),
]


@pytest.mark.parametrize(("data", "wanted"), LINES)
def test_lines_of_words(data: bytes, wanted: list[list[bytes]]) -> None:
    assert cut_all([data]) == wanted
    assert cut_all([data[at : at + 1] for at in range(len(data))]) == wanted


NO_REQUESTS = [
    (b"*1\r\n:4\r\n", "bad_request_frame"),
    (b"*1\r\n+PING\r\n", "bad_request_frame"),
    (b"*1\r\n*1\r\n$4\r\nPING\r\n", "bad_request_frame"),
    (b"*x\r\n", "bad_request_frame"),
    (b"*1_0\r\n", "bad_request_frame"),
    (b"*1\r\n$-1\r\n", "bad_request_frame"),
    (b"*1\r\n$3\r\nPING\r\n", "bad_request_frame"),
    (b"*" + b"1" * 40, "bad_request_frame"),
    (b'SET k "open\n', "bad_request_frame"),
    (b"SET 'k'v\n", "bad_request_frame"),
    (b"*%d\r\n" % (ARGUMENTS_MAX + 1), "too_large"),
    (b"*99999999999\r\n", "too_large"),
    (b"*1\r\n$%d\r\n" % REQUEST_BYTES_MAX, "too_large"),
    (b"x" * INLINE_BYTES_MAX, "too_large"),
    (b"x " * (ARGUMENTS_MAX + 1) + b"\n", "too_large"),
]


@pytest.mark.parametrize(("data", "code"), NO_REQUESTS)
def test_what_is_no_request_is_found_after_those_before_it(data: bytes, code: str) -> None:
    cutter = RequestCutter()
    cutter.feed(packed([b"PING"]) + data)
    assert cutter.cut(10) == [[b"PING"]]
    for _ in range(2):
        with pytest.raises(RemoteProtocolError) as caught:
            cutter.cut(10)
        assert caught.value.code == code


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_nonsense_is_the_same_nonsense_however_divided(data: bytes, ends: list[int]) -> None:
    def outcome(chunks: list[bytes]) -> tuple[list[list[bytes]], str]:
        cutter, found = RequestCutter(), []
        try:
            for chunk in chunks:
                cutter.feed(chunk)
                while some := cutter.cut(1000):
                    found += some
        except RemoteProtocolError as failure:
            return found, failure.code
        return found, ""

    assert outcome(divided(data, ends)) == outcome([data])


def test_a_long_value_may_come_in_many_pieces() -> None:
    value = b"\r\n" * 700_000
    data = packed([b"SET", b"k", value]) + packed([b"GET", b"k"])
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    assert cut_all(pieces) == [[b"SET", b"k", value], [b"GET", b"k"]]


# ---- replies

VALUES = [
    (OK, b"+OK\r\n", b"+OK\r\n"),
    (error("ERR", "a\r\nb"), b"-ERR a  b\r\n", b"-ERR a  b\r\n"),
    (bulk(b"a\r\n"), b"$3\r\na\r\n\r\n", b"$3\r\na\r\n\r\n"),
    (NULL, b"$-1\r\n", b"_\r\n"),
    (truth(True), b":1\r\n", b"#t\r\n"),
    (truth(False), b":0\r\n", b"#f\r\n"),
    (integer(-5), b":-5\r\n", b":-5\r\n"),
    (integer(1 << 64), b"$20\r\n18446744073709551616\r\n", b"(18446744073709551616\r\n"),
    (array((OK, array((NULL,)))), b"*2\r\n+OK\r\n*1\r\n$-1\r\n", b"*2\r\n+OK\r\n*1\r\n_\r\n"),
    (members((integer(1),)), b"*1\r\n:1\r\n", b"~1\r\n:1\r\n"),
    (mapping(((b"a", OK),)), b"*2\r\n$1\r\na\r\n+OK\r\n", b"%1\r\n$1\r\na\r\n+OK\r\n"),
]


@pytest.mark.parametrize(("value", "second", "third"), VALUES)
def test_a_value_in_both_protocols(value: bytes, second: bytes, third: bytes) -> None:
    assert render(value, 2) == second
    assert render(value, 3) == third


@given(st.recursive(st.binary().map(bulk), lambda inner: st.lists(inner, max_size=3).map(array)))
def test_an_outside_parser_reads_what_was_meant(value: bytes) -> None:
    reader = hiredis.Reader()
    reader.feed(render(value, 3))
    assert packed_again(reader.gets()) == value


def packed_again(read: object) -> bytes:
    if isinstance(read, list):
        return array([packed_again(item) for item in read])
    assert isinstance(read, bytes)
    return bulk(read)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_message_is_a_push_of_three_strings(protocol: int) -> None:
    message = push((bulk(b"message"), bulk(b"/a"), bulk(b"{}")))
    assert render_message(b"/a", b"{}", protocol) == render(message, protocol)
    assert render(message, protocol).startswith(b">3" if protocol == 3 else b"*3")
