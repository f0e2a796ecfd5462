from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kv.core.session.session import KvSession
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, request
from support.budget import budget
from support.kv.log_double import NOW, SECOND
from support.kv.session_double import ask, new_session

COMMANDS = (
    Opcode.SETQ, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, Opcode.DELETE, Opcode.DELETEQ, Opcode.SET,
    Opcode.GET,
)  # fmt: skip


def frame(opcode: int, key: bytes = b"k", **fields: object) -> bytes:
    return request(opcode, vbucket=partition_of(key, 4), key=key, **fields)  # type: ignore[arg-type]


def test_quiet_commands_answer_only_what_cannot_be_guessed() -> None:
    session = new_session()
    sent = [
        frame(Opcode.SETQ, value=b"v", extras=bytes(8), opaque=1),
        frame(Opcode.GETQ, opaque=2),
        frame(Opcode.GETQ, b"none", opaque=3),
        frame(Opcode.GETKQ, opaque=4),
        frame(Opcode.DELETEQ, opaque=5),
        frame(Opcode.DELETEQ, opaque=6),
        frame(Opcode.GETKQ, opaque=7),
        request(Opcode.NOOP, opaque=8),
    ]
    replies = ask(session, b"".join(sent))
    assert [(r.opaque, r.status) for r in replies] == [
        (2, 0), (4, 0), (6, Status.KEY_ENOENT), (8, 0),
    ]  # fmt: skip
    assert [(r.key, r.value) for r in replies[:2]] == [(b"", b"v"), (b"k", b"v")]


def test_plain_quiet_commands_do_not_leave_the_short_way() -> None:
    """What does leave it needs care afterwards."""
    session = new_session()
    for opcode in COMMANDS:
        ask(session, frame(Opcode.SET, value=b"v", extras=bytes(8)))
        extras = bytes(8) if opcode in (Opcode.SET, Opcode.SETQ) else b""
        ask(session, frame(opcode, extras=extras))
        assert not session.needs_care, opcode


class LongWay(KvSession):
    """Answers everything by the table of commands."""

    def _answer(self, data: bytes, at: int, budget: int, now_ns: int) -> int:
        while len(data) - at >= 24:
            stop = at + 24 + int.from_bytes(data[at + 8 : at + 12], "big")
            self._answer_other(data, at, stop, now_ns)
            at = stop
        return at

    def receive(self, data: bytes, now_ns: int, at: int = 0, budget: int = 0) -> bytes:
        self._answer(data, at, budget, now_ns)
        return self.take_output() if self.out else b""


requests = st.builds(
    lambda opcode, key, expiry, opaque: frame(
        opcode, key, opaque=opaque,
        **({"extras": bytes(4) + expiry, "value": b"value"}
           if opcode in (Opcode.SET, Opcode.SETQ) else {}),
    ),
    st.sampled_from(COMMANDS), st.sampled_from([b"a", b"b", b"_c", b"_design/x"]),
    st.sampled_from([bytes(4), b"\0\0\0\2"]), st.integers(0, 9),
)  # fmt: skip


@settings(max_examples=budget(80), deadline=None)
@given(st.lists(requests, max_size=12), st.booleans(), st.booleans())
def test_the_short_way_answers_as_the_table_of_commands(
    sent: list[bytes], hashes_keys: bool, wants_tokens: bool
) -> None:
    seen: list[list[Packet]] = []
    for kind in (KvSession, LongWay):
        session = new_session(hashes_keys=hashes_keys, kind=kind)
        if wants_tokens:
            ask(session, request(Opcode.HELLO, value=Feature.MUTATION_SEQNO.to_bytes(2, "big")))
        seen.append(
            [
                reply
                for n, data in enumerate(sent)
                for reply in ask(session, data, NOW + n * SECOND)
            ]
        )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("opcode", [Opcode.DELETE, Opcode.DELETEQ])
def test_what_is_not_plain_is_left_to_the_table(opcode: int) -> None:
    session = new_session()
    stored = ask(session, frame(Opcode.SET, value=b"v", extras=bytes(8)))[0]
    assert ask(session, frame(opcode, cas=stored.cas + 1))[0].status == Status.KEY_EEXISTS
    assert session.needs_care
