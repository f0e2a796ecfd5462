from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.pipelines.views import answer as view_answer
from millstream.pipelines.views.answer import ViewRow, ViewRows
from millstream.views.core.query.rendering import SEPARATOR, head_text, tail_text

ROWS = [
    (b'{"id":"a","key":["x",1],"value":null}', ViewRow('["x",1]', "null", "a")),
    (b'{"id":"\xc3\xa9","key":1.50,"value":"]}"}', ViewRow("1.50", '"]}"', "é")),
    (b'{"key":null,"value":{"a":[1]}}', ViewRow("null", '{"a":[1]}', None)),
]


def answer(count: int) -> bytes:
    return head_text(3, 0) + SEPARATOR.join(text for text, _ in ROWS[:count]) + tail_text()


@given(count=st.integers(0, 3), cuts=st.lists(st.integers(0, 200)))
def test_rows_wherever_the_answer_is_cut(count: int, cuts: list[int]) -> None:
    data = answer(count)
    edges = [0, *sorted(cuts), len(data)]
    rows = ViewRows()
    found = [row for at, to in pairwise(edges) for row in rows.feed(data[at:to])]
    rows.close()
    assert found == [row for _, row in ROWS[:count]]


@pytest.mark.parametrize("size", [0, 5, 25, 60, len(answer(3)) - 4])
def test_an_answer_that_ends_early_is_an_error(size: int) -> None:
    rows = ViewRows()
    rows.feed(answer(3)[:size])
    with pytest.raises(UnavailableError) as caught:
        rows.close()
    assert caught.value.code == "cut_off"


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":"x"}\n',
        head_text() + b"nonsense\n",
        head_text() + b'{"id":"a","key":1}\r\n',
        head_text() + b'{"key":"\xff","value":1}\r\n',
        head_text() + tail_text() + b"more\n",
        head_text() + tail_text() + ROWS[0][0] + b"\n",
    ],
)
def test_invalid_answers_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ViewRows().feed(data)
    assert caught.value.code == "bad_answer"


def test_a_row_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_answer, "ROW_BYTES_MAX", 100)
    rows = ViewRows()
    rows.feed(head_text())
    rows.feed(bytes(60))
    with pytest.raises(RemoteProtocolError) as caught:
        rows.feed(bytes(60))
    assert caught.value.code == "too_large"
