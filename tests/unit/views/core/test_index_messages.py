import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import errors
from millstream.errors import MillstreamError, RemoteProtocolError
from millstream.views.core.index_messages import (
    END,
    FrameCutter,
    error_from,
    failure,
    frame,
    message,
)


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(1, 20))
def test_frames_come_out_as_they_went_in_however_bytes_arrive(pieces, step):
    data = b"".join(map(frame, pieces)) + END
    cutter = FrameCutter(100)
    found = [f for at in range(0, len(data), step) for f in cutter.receive(data[at : at + step])]
    assert found == [*pieces, b""]
    assert cutter.pending_bytes == 0


def test_a_frame_that_is_too_long_is_refused_by_its_length():
    cutter = FrameCutter(10)
    assert cutter.receive(frame(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(RemoteProtocolError):
        cutter.receive(frame(b"x" * 11)[:4])


@pytest.mark.parametrize(
    "kind", ["UsageError", "ConditionError", "UnavailableError", "StreamError", "MillstreamError"]
)
def test_an_error_arrives_as_it_left(kind):
    left = getattr(errors, kind)("why", code="c", retry="same")
    head, data = FrameCutter(1000).receive(failure(left))
    assert head is None
    found = error_from(data)
    assert (type(found), str(found), found.code, found.retry) == (type(left), "why", "c", "same")


def test_an_unknown_kind_of_error_is_an_error_all_the_same():
    (data,) = FrameCutter(1000).receive(
        message({"kind": "NoSuch", "code": "c", "retry": "never", "reason": "r"})
    )
    assert type(error_from(data)) is MillstreamError


def test_a_rollback_is_told_without_its_numbers():
    left = errors.RollbackRequiredError("why", partition_id=1, seqno=2)
    _, data = FrameCutter(1000).receive(failure(left))
    assert error_from(data).code == "rollback_required"
