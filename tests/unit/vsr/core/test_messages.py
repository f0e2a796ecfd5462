"""Messages survive the wire; nothing else passes for one."""

import contextlib
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.pool.messages import PoolPayload
from millstream.errors import RemoteProtocolError
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.entries import GENESIS, Body, Entry, Kind, Link, chain
from millstream.vsr.core.log import Mark
from millstream.vsr.core.messages import (
    FRAME_BYTES_MAX,
    FRAME_MARKS_MAX,
    LENGTH,
    MESSAGES,
    VIEW_MAX,
    Commit,
    DoViewChange,
    Entries,
    Envelope,
    EpochStarted,
    GetEntries,
    GetEpoch,
    GetState,
    GetView,
    Learn,
    LearnOk,
    NewState,
    Payload,
    Prepare,
    PrepareOk,
    QuorumCheck,
    QuorumCheckOk,
    Recovery,
    RecoveryResponse,
    StartEpoch,
    StartView,
    StartViewChange,
    TooOld,
    decode,
    encode,
)
from millstream.vsr.core.snapshots import SnapshotId

U32 = st.integers(0, 2**32 - 1)
VIEW = st.integers(0, VIEW_MAX)
U64 = st.integers(0, 2**64 - 1)
HASH = st.binary(min_size=16, max_size=16)


@st.composite
def entries(draw: st.DrawFn) -> tuple[Entry, ...]:
    link, made = GENESIS, []
    for arguments in draw(st.lists(st.lists(st.binary(max_size=9), max_size=3), max_size=4)):
        made.append(
            chain(
                link, group_id=b"g" * 16, epoch=1, view=2, kind=Kind.REQUEST, ts_ms=draw(U32),
                body=Body(argv=tuple(arguments)),
            )
        )  # fmt: skip
        link = made[-1].header.link
    return tuple(made)


members = st.sets(HASH, min_size=1, max_size=7).map(lambda found: tuple(sorted(found)))
marks = st.lists(st.builds(Mark, HASH, st.booleans()), max_size=5).map(tuple)
configurations = st.builds(
    Configuration, U32, members, st.just(0), members | st.just(()), U64, HASH, st.booleans()
)


def vote(*fields: Any) -> DoViewChange:
    """Return a vote as members make it: one mark for each entry above the commit."""
    *normal, lsn, digest, marks, wall_ms = fields
    op_hash = marks[-1].hash if marks else digest
    return DoViewChange(*normal, lsn + len(marks), op_hash, lsn, digest, marks, wall_ms)


snapshots = st.builds(
    SnapshotId, U64, st.builds(Link, U64, HASH, U64), st.binary(min_size=32, max_size=32)
)
payloads: st.SearchStrategy[Payload] = st.one_of(
    st.builds(Prepare, entries(), U64, HASH),
    st.builds(PrepareOk, U64, U64, HASH, U32),
    st.builds(Commit, U64, HASH, U32),
    st.builds(QuorumCheck, U64),
    st.builds(QuorumCheckOk, U64),
    st.builds(StartViewChange, VIEW, st.booleans()),
    st.builds(vote, U32, U32, U32, HASH, marks, U64),
    st.builds(StartView, U64, HASH, U64, HASH, entries()),
    st.builds(GetView, U64),
    st.builds(GetState, U64, HASH),
    st.builds(NewState, U64, U64, HASH, entries()),
    st.builds(GetEntries, U64, HASH, U32),
    st.builds(Entries, entries()),
    st.builds(StartEpoch, configurations),
    st.builds(EpochStarted, U32),
    st.just(GetEpoch()),
    st.builds(Recovery, U64, VIEW),
    st.builds(Learn, U64, HASH, entries()),
    st.builds(LearnOk, U64, HASH, U32),
    st.builds(
        RecoveryResponse, U64, VIEW, st.booleans(), U64, HASH, U64, HASH, st.none() | snapshots
    ),
    st.builds(TooOld, snapshots),
)
envelopes = st.builds(Envelope, HASH, HASH, U64, U32, VIEW, payloads)


@given(envelopes)
def test_what_was_sent_arrives(envelope: Envelope) -> None:
    frame = encode(envelope)
    assert LENGTH.unpack_from(frame)[0] == len(frame) - LENGTH.size
    assert decode(frame[LENGTH.size :]) == envelope


@given(envelopes, st.data())
def test_a_changed_or_cut_frame_is_refused(envelope: Envelope, data: st.DataObject) -> None:
    frame = bytearray(encode(envelope)[LENGTH.size :])
    at = data.draw(st.integers(0, len(frame) - 1))
    if data.draw(st.booleans()):
        frame[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del frame[at:]
    with pytest.raises(RemoteProtocolError) as raised:
        decode(bytes(frame))
    assert raised.value.code == "bad_frame"


@given(st.sampled_from(sorted(MESSAGES)) | st.integers(0, 255), st.binary(max_size=200))
def test_a_whole_frame_of_nonsense_is_refused_or_a_message(number: int, payload: bytes) -> None:
    head = encode(Envelope(b"g" * 16, b"s" * 16, 1, 2, 3, GetEpoch()))[LENGTH.size : -8]
    frame = _with_checksum(bytes((number,)) + head[1:] + payload)
    with contextlib.suppress(RemoteProtocolError):
        assert encode(decode(frame))[LENGTH.size :] == frame


@pytest.mark.parametrize("wrong", [
    Envelope(b"g" * 16, b"s" * 16, 1, 2, VIEW_MAX + 1, GetEpoch()),
    Envelope(b"g" * 16, b"s" * 16, 1, 2, 3, StartViewChange(VIEW_MAX + 1)),
    Envelope(b"g" * 16, b"s" * 16, 1, 2, 3, Recovery(1, VIEW_MAX + 1)),
    Envelope(b"g" * 16, b"s" * 16, 1, 2, 3, StartEpoch(Configuration(1, (b"a" * 16,), 1))),
    Envelope(b"g" * 16, b"s" * 16, 1, 2, 3, DoViewChange(0, 1, 2, b"h" * 16, 1, b"c" * 16, ())),
    Envelope(b"g" * 16, b"s" * 16, 1, 2, 3, DoViewChange(
        0, 1, 2, b"h" * 16, 1, b"c" * 16, (Mark(b"i" * 16, whole=True),)
    )),
])  # fmt: skip
def test_what_no_member_can_mean_is_refused(wrong: Envelope) -> None:
    """Each of these ended the replica that took it, or all that followed it."""
    with pytest.raises(RemoteProtocolError):
        decode(encode(wrong)[LENGTH.size :])


def _with_checksum(data: bytes) -> bytes:
    return data + blake2b(data, digest_size=8).digest()


def test_counts_are_refused_before_anything_is_made_of_them() -> None:
    vote = DoViewChange(0, 0, 0, b"h" * 16, 0, b"h" * 16, ())
    frame = encode(Envelope(b"g" * 16, b"s" * 16, 1, 2, 3, vote))[LENGTH.size : -8]
    lying = _with_checksum(frame[:-12] + (FRAME_MARKS_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="at most 524288"):
        decode(lying)


def test_every_message_has_a_number_and_the_largest_vote_fits() -> None:
    assert len({message for message, _ in MESSAGES.values()}) == len(MESSAGES) == 24
    assert FRAME_MARKS_MAX * 17 < FRAME_BYTES_MAX


def test_members_out_of_order_are_refused() -> None:
    start = StartEpoch(Configuration(1, (b"b" * 16, b"a" * 16)))
    with pytest.raises(RemoteProtocolError, match="not in order"):
        decode(encode(Envelope(b"g" * 16, b"s" * 16, 1, 2, 3, start))[LENGTH.size :])


def test_the_reference_has_every_message() -> None:
    page = Path(__file__).parents[4] / "docs" / "reference" / "coordination-messages.md"
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", page.read_text(), flags=re.MULTILINE)
    of_pools = {type_.__name__ for type_ in get_args(PoolPayload)}
    assert {name for _, name in rows if name in of_pools} == of_pools
    assert {int(number): name for number, name in rows if name not in of_pools} == {
        number: message.__name__ for number, (message, _) in MESSAGES.items()
    }
