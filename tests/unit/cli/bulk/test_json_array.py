"""JSON arrays read piece by piece."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.bulk import json_array
from millstream.cli.bulk.json_array import Element, elements, is_array

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(-9, 9) | st.text(max_size=9)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
SPACES = st.sampled_from(["", " ", "\n", "\r\n \t"])


def read(data: bytes, *, is_begun: bool = False, step: int = 0) -> list[Element]:
    file = BytesIO(data)

    def some(size: int) -> bytes:
        return file.read(min(size, step) if step else size)

    return list(elements(some, is_begun=is_begun))


@given(
    st.data(),
    st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), max_size=4),
    st.integers(1, 40),
    st.booleans(),
)
def test_elements_come_as_they_are_written_however_they_arrive(
    data: Any, objects: list[dict[str, Any]], step: int, is_ascii: bool
) -> None:
    texts = [json.dumps(one, ensure_ascii=is_ascii).encode("utf-8") for one in objects]
    parts = [data.draw(SPACES).encode() + b"[" + data.draw(SPACES).encode()]
    for number, text in enumerate(texts):
        if number:
            parts.append(data.draw(SPACES).encode() + b"," + data.draw(SPACES).encode())
        parts.append(text)
    whole = b"".join(parts)
    end = data.draw(SPACES).encode() + b"]" + data.draw(SPACES).encode()
    found = read(whole + end, step=step)
    assert [one.text for one in found] == texts
    if texts:
        assert b"".join(one.before + one.text for one in found) == whole
        first = found[0]
        rest = (whole + end)[len(first.before) + len(first.text) :]
        assert read(rest, is_begun=True, step=step) == found[1:]


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[", "[{}", "[{},", "[{},]", "[{} {}]", "[1]", "[[]]", "[{}]x", "[{}][]", "[,]",
        '[{"a"}]', '[{"a":NaN}]', '[{"a":1]', '[{"a":"]}', '[{"a":nul}]', "null",
        '[{"a":' + "[" * 100_000 + "]" * 100_000 + "}]",
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [0, 3])
def test_what_is_no_array_of_objects_is_an_error(text: str, step: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(text.encode(), step=step)


def test_bytes_that_are_no_utf8_are_an_error() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        read(b'[{"a":"\xff"}]')


def test_no_element_is_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "ELEMENT_BYTES_MAX", 1000)
    monkeypatch.setattr(json_array, "READ_BYTES", 100)
    assert len(read(b'[{"a":"' + b"x" * 900 + b'"}]')) == 1
    for data in (b'[{"a":"' + b"x" * 9000 + b'"}]', b"[" + b" " * 9000 + b"{}]"):
        with pytest.raises(ValueError, match="1000"):
            read(data)


def test_an_array_is_told_by_its_beginning() -> None:
    assert is_array(b" \n[{")
    assert is_array(b"\xef\xbb\xbf[]")
    assert not is_array(b'{"a":[]}')
    assert not is_array(b"")
    assert read(b'\xef\xbb\xbf[{"a":1}]')[0].text == b'{"a":1}'
