from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import (
    ConditionError,
    MillstreamError,
    RollbackRequiredError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.gateway.core.api.documents import LocalDocument
from millstream.gateway.core.api.stored import (
    CHANGES_MAX,
    IDS_MAX,
    AskSettings,
    Change,
    Changed,
    Commit,
    Done,
    KeepLocal,
    KeepSettings,
    Lacking,
    ListLocals,
    LocalList,
    LocalVersion,
    Numbered,
    Placed,
    ReadLocal,
    ReadStored,
    Refused,
    SharedSettings,
    Stored,
    StoredList,
    WriteLocal,
    WriteStored,
    WrittenList,
    decode_answer,
    decode_asked,
    encode,
    error_of,
    refused,
)
from millstream.kv.core.revisions.revision_store import Version

TEXTS = st.text(max_size=5)
BYTES = st.binary(max_size=8)
NUMBERS = st.integers(0, 2**63)
NUMBERED = st.builds(Numbered, NUMBERS, BYTES)
SETTINGS = st.builds(SharedSettings, NUMBERED, NUMBERED, NUMBERS)
VERSIONS = st.builds(Version, NUMBERS, NUMBERS)
CHANGES = st.builds(Change, TEXTS, st.none() | VERSIONS, st.none() | BYTES, BYTES)
REFUSALS = st.builds(Refused, TEXTS, TEXTS, TEXTS)
ASKED = st.one_of(
    st.builds(ReadStored, TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.booleans()),
    st.builds(WriteStored, TEXTS, st.lists(CHANGES, min_size=1, max_size=3), st.booleans()),
    st.builds(ReadLocal, TEXTS, TEXTS),
    st.builds(WriteLocal, TEXTS, TEXTS, st.none() | BYTES, st.none() | NUMBERS),
    st.builds(
        KeepLocal, TEXTS, TEXTS, st.builds(LocalVersion, NUMBERS, BYTES, TEXTS, NUMBERS)
    ),
    st.builds(ListLocals, TEXTS, TEXTS),
    st.builds(AskSettings, TEXTS),
    st.builds(KeepSettings, TEXTS, SETTINGS),
    st.builds(Commit, TEXTS),
)  # fmt: skip
ANSWERS = st.one_of(
    st.builds(
        StoredList, st.lists(st.none() | st.builds(Stored, BYTES, BYTES) | REFUSALS, max_size=3)
    ),
    st.builds(
        WrittenList,
        st.lists(
            st.builds(Placed, NUMBERS)
            | st.builds(Changed)
            | st.builds(Lacking, st.lists(BYTES, max_size=2))
            | REFUSALS,
            max_size=3,
        ),
    ),
    st.builds(
        LocalList,
        st.lists(st.builds(LocalDocument, TEXTS, NUMBERS, BYTES), max_size=2),
        st.booleans(),
    ),
    st.builds(KeepSettings, TEXTS, SETTINGS),
    st.builds(Done, NUMBERS),
    REFUSALS,
)  # fmt: skip


@given(ASKED)
def test_requests_arrive_as_they_were_sent(asked: Any) -> None:
    assert decode_asked(encode(asked)) == asked


@given(ANSWERS)
def test_answers_arrive_as_they_were_sent(answer: Any) -> None:
    assert decode_answer(encode(answer)) == answer


@given(st.binary(max_size=40))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        decode_asked(data)
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        decode_answer(data)


@pytest.mark.parametrize(
    "asked",
    [
        ReadStored("u", [], False), ReadStored("u", ["x"] * (IDS_MAX + 1), False),
        WriteStored("u", [], False),
        WriteStored("u", [Change("x", None, None, b"")] * (CHANGES_MAX + 1), False),
    ],
)  # fmt: skip
def test_none_and_too_many_at_once(asked: Any) -> None:
    with pytest.raises(UsageError, match="at a time"):
        decode_asked(encode(asked))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConditionError("c", code="conflict"), ConditionError),
        (UnavailableError("u", code="ambiguous"), UnavailableError),
        (RollbackRequiredError("r", partition_id=1, seqno=2), StreamError),
        (StreamError("s"), StreamError),
    ],
)
def test_errors_arrive_as_they_were_sent(error: MillstreamError, kind: type[Any]) -> None:
    found = error_of(refused(error))
    assert (type(found), found.code, str(found)) == (kind, error.code, str(error))


def test_an_error_of_a_kind_that_is_not_known() -> None:
    assert type(error_of(Refused("Other", "x", "y"))) is UnavailableError


@given(SETTINGS, SETTINGS, SETTINGS)
def test_settings_come_to_be_the_same_in_whatever_order(
    one: SharedSettings, two: SharedSettings, three: SharedSettings
) -> None:
    assert one.joined(two) == two.joined(one)
    assert one.joined(two).joined(three) == one.joined(two.joined(three))
    assert one.joined(one) == one
    assert one.joined(two).revs_limit.number >= one.revs_limit.number
