"""Nothing that members say or disks give back ends a replica; what cannot be is not taken."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from millstream.errors import RemoteProtocolError
from millstream.vsr.core.configuration import Configuration, closing_body, is_closing
from millstream.vsr.core.effects import Code, Message, TakeSnapshot
from millstream.vsr.core.entries import Body, Entry, Header, Kind, Link, chain, hash_of
from millstream.vsr.core.log import Mark
from millstream.vsr.core.messages import (
    LENGTH,
    Commit,
    DoViewChange,
    Entries,
    Envelope,
    EpochStarted,
    GetEntries,
    GetEpoch,
    GetSnapshot,
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
    SnapshotDone,
    SnapshotPart,
    StartEpoch,
    StartView,
    StartViewChange,
    TooOld,
    decode,
    encode,
)
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.snapshots import SnapshotId
from millstream.vsr.core.tuning import Tuning
from support.budget import budget
from support.coordination.coordination_group import Group
from support.coordination.coordination_logs import GROUP, chained


def filled(writes: int = 5, learners: int = 0) -> tuple[Group, int]:
    """A group that has written something, and a member that does not lead."""
    group = Group(3, learners)
    for ticket in range(writes):
        group.set(group.leader, ticket, b"%d" % ticket)
    group.settle()
    group.tick()
    return group, (group.leader + 1) % 3


def say(group: Group, sender: int, receiver: int, payload: Payload, **changed: int) -> None:
    """Have one node say something to another one, whatever it would say itself."""
    envelope = group.replicas[sender].state.sealed(payload)
    group.step(receiver, Message(envelope._replace(**changed)))  # type: ignore[arg-type]


def behind(
    link: Link, kind: Kind = Kind.REQUEST, group_id: bytes = GROUP, body: bytes | None = None
) -> Entry:
    """Return a whole entry, of a body that may be none."""
    entry = chain(link, group_id=group_id, epoch=0, view=1, kind=kind, ts_ms=0)
    if body is None:
        return entry
    header = entry.header._replace(body_length=len(body), body_hash=hash_of(body))
    return Entry(rehashed(header), body)


def rehashed(header: Header) -> Header:
    packed = bytearray(header.encoded[:-16])
    packed[4:8] = header.body_length.to_bytes(4, "big")
    packed[-16:] = header.body_hash
    return header._replace(encoded=bytes(packed) + hash_of(bytes(packed)))


def go_on(group: Group, ticket: int = 900) -> None:
    """The group still works, and all have one log."""
    group.tick(times=30)
    group.set(group.leader, ticket)
    group.settle()
    group.tick(times=3)
    assert group.replies[ticket].code is Code.OK
    assert len({replica.log.head.hash for replica in group.replicas[:3]}) == 1


def test_a_member_whose_log_differs_in_one_view_loses_it_and_gets_the_group_s() -> None:
    group, other = filled()
    log = group.replicas[other].log
    wrong = chained("x", log.link_at(log.op_lsn - 1) or log.base)
    commit = group.replicas[group.leader].parts.normal.sign_of_life()
    say(group, group.leader, other, Prepare(tuple(wrong), *commit[:2]))
    assert group.replicas[other].status is Status.LOST
    assert group.replicas[other].report().contradiction == "two logs in one view"
    go_on(group)
    assert group.replicas[other].status is Status.NORMAL


def test_a_commit_of_something_else_in_one_view_is_not_taken() -> None:
    group, other = filled()
    lsn = group.replicas[other].commit_lsn
    say(group, group.leader, other, Commit(lsn, b"?" * 16))
    assert group.replicas[other].status is Status.LOST
    go_on(group)


@pytest.mark.parametrize("beyond", [0, 3])
def test_an_acknowledgement_of_what_a_primary_has_not_is_not_counted(beyond: int) -> None:
    group, other = filled()
    leader = group.leader
    group.without(*{0, 1, 2} - {leader})
    group.set(leader, 50)
    group.settle()
    before, op_lsn = group.replicas[leader].commit_lsn, group.replicas[leader].log.op_lsn
    say(group, other, leader, PrepareOk(0, op_lsn + beyond, b"?" * 16, 1))
    assert group.replicas[leader].commit_lsn == before
    assert group.replicas[leader].contradiction
    group.whole()
    go_on(group)


def test_entries_of_another_group_are_not_taken() -> None:
    group, other = filled()
    replica = group.replicas[other]
    stranger = behind(replica.log.head, group_id=b"h" * 16)
    say(group, group.leader, other, Prepare((stranger,), *replica.parts.normal.sign_of_life()[:2]))
    assert replica.log.op_lsn == group.replicas[group.leader].log.op_lsn
    go_on(group)


def test_what_only_a_primary_says_is_not_taken_of_others() -> None:
    group, other = filled()
    leader, third = group.leader, ({0, 1, 2} - {group.leader, other}).pop()
    replica = group.replicas[other]
    head = replica.log.head
    start = StartView(head.lsn, head.hash, *replica.parts.normal.sign_of_life()[:2], ())
    own_view = replica.view + (other - leader) % 3
    say(group, third, other, start, view=own_view)
    say(
        group,
        third,
        other,
        Prepare(tuple(chained("x", head)), *replica.parts.normal.sign_of_life()[:2]),
    )
    assert (replica.status, replica.log.head) == (Status.NORMAL, head)
    go_on(group)


def test_a_view_s_log_that_lacks_what_is_committed_is_given_up() -> None:
    group, other = filled()
    replica, leader = group.replicas[other], group.leader
    wrong = chained("abcdefgh")
    commit = Commit(replica.commit_lsn, b"?" * 16)
    start = StartView(8, wrong[-1].header.hash, *commit[:2], tuple(wrong))
    say(group, leader, other, start, view=replica.view + 3)
    assert replica.contradiction == "a log lacks what is committed"
    assert replica.parts.repairs.repair is None
    go_on(group)


def test_a_log_that_begins_elsewhere_is_given_up() -> None:
    group, other = filled()
    replica, leader = group.replicas[other], group.leader
    wrong = chained("abcdefgh", Link(0, b"?" * 16, 0))
    start = StartView(
        8, wrong[-1].header.hash, *replica.parts.normal.sign_of_life()[:2], tuple(wrong)
    )
    say(group, leader, other, start, view=replica.view + 3)
    assert replica.contradiction == "a log lacks what a snapshot stands for"
    assert replica.parts.repairs.repair is None
    go_on(group)


def test_a_view_begins_with_no_log_that_contradicts_a_promise() -> None:
    group, other = filled()
    replica = group.replicas[other]
    view = replica.view + 1
    assert replica.configuration.primary(view) == replica.id
    third = ({0, 1, 2} - {group.leader, other}).pop()
    replica.parts.views.leave(view)
    group.step(other)
    mark = Mark(b"?" * 16, whole=True)
    say(group, third, other, DoViewChange(9, 9, 1, mark.hash, 0, bytes(16), (mark,)), view=view)
    assert not replica.leading
    assert "committed" in replica.contradiction
    go_on(group)


def test_lessons_that_hang_on_nothing_are_not_taken() -> None:
    group, _ = filled(learners=1)
    first, _, third = chained("abc")
    for lesson in ((first, third), tuple(chained("abc", Link(0, b"?" * 16, 0)))):
        say(group, group.leader, 3, Learn(0, bytes(16), lesson))
        assert group.replicas[3].log.op_lsn == 0
    say(group, group.leader, 3, Learn(0, bytes(16), (behind(first.header.link),)))
    go_on(group)


WRONG_BODIES = [
    b"", b"x", b"\xff" * 6, Body(argv=(b"x" * 40,)), Body(argv=()), Body(argv=(b"9" * 5000,)),
    Body(argv=(b"-1", b"y")),
]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.RECONFIG}))
def test_committed_nonsense_is_nothing_and_the_same_to_all(kind: Kind) -> None:
    """It was an end of each member, and of each of its restarts."""
    group, _ = filled()
    for wrong in WRONG_BODIES:
        leader = group.leader
        replica = group.replicas[leader]
        data = wrong if isinstance(wrong, bytes) else _encoded(wrong)
        entry = behind(replica.log.head, kind, body=data)
        replica.log.append(entry)
        replica.parts.normal.is_new = True
        group.tick(times=4)
        assert replica.commit_lsn >= entry.lsn
    go_on(group)
    states = {b"".join(replica.parts.execution.freeze()) for replica in group.replicas}
    assert len(states) == 1


def _encoded(body: Body) -> bytes:
    return chain(
        Link(0, bytes(16), 0), group_id=GROUP, epoch=0, view=1, kind=Kind.NOOP, ts_ms=0, body=body
    ).body


def test_an_end_of_an_epoch_that_is_none_ends_nothing() -> None:
    group, other = filled()
    replica = group.replicas[group.leader]
    entry = behind(replica.log.head, Kind.RECONFIG, body=b"?")
    assert not is_closing(entry)
    replica.log.append(entry)
    replica.parts.normal.is_new = True
    group.tick(times=4)
    assert replica.contradiction == "an end of an epoch that is none"
    assert group.replicas[other].commit_lsn == entry.lsn - 1


def test_what_ends_an_epoch_says_so() -> None:
    ids = tuple(bytes([number]) * 16 for number in range(1, 9))

    def closes(body: Body) -> bool:
        link = Link(0, bytes(16), 0)
        return is_closing(
            chain(link, group_id=GROUP, epoch=0, view=1, kind=Kind.RECONFIG, ts_ms=0, body=body)
        )

    assert closes(closing_body(ids[:3], ids[1]))
    for argv in [
        (), (b"0",), (b"3", *ids[:3]), (b"x", *ids[:3]), (b"0", *ids), (b"0", ids[1], ids[0]),
        (b"0", ids[0], ids[0]), (b"0", b"short"),
    ]:  # fmt: skip
        assert not closes(Body(argv=argv))


def test_a_log_that_ends_before_its_snapshot_is_lost() -> None:
    """Its member ended with each start: both ends of the log were damaged."""
    group, other = filled(20)
    group.step(group.leader, TakeSnapshot(500))
    group.tick()
    stable = group.stables[other]
    assert stable is not None
    del group.disks[other][stable.id.lsn - 2 :]
    group.start(other)
    assert group.replicas[other].status is Status.LOST
    go_on(group)


# ---- anything at all


class Nonsense:
    """Messages of right types: half of what they say is true, half is not."""

    def __init__(self, group: Group, rng: random.Random) -> None:
        self.group, self.rng = group, rng

    def number(self, *near: int) -> int:
        base = self.rng.choice([*near, 0, 1, 1 << 32, (1 << 64) - 1])
        return max(0, min((1 << 64) - 1, base + self.rng.choice([0, 0, 0, -1, 1, 2])))

    def small(self, *near: int) -> int:
        return min(self.number(*near), (1 << 32) - 1)

    def replica(self) -> Replica:
        return self.rng.choice(self.group.replicas)

    def lsn(self) -> int:
        replica = self.replica()
        return self.number(replica.commit_lsn, replica.log.op_lsn, replica.log.base.lsn)

    def digest(self) -> bytes:
        log = self.replica().log
        known = log.hash_at(self.rng.randint(log.base.lsn, log.op_lsn))
        return self.rng.choice([known or bytes(16), bytes(16), self.rng.randbytes(16)])

    def end(self) -> tuple[int, bytes]:
        log = self.replica().log
        if self.rng.random() < 0.7:
            lsn = self.rng.randint(log.base.lsn, log.op_lsn)
            return lsn, log.hash_at(lsn) or bytes(16)
        return self.lsn(), self.digest()

    def entries(self) -> tuple[Entry, ...]:
        log, rng = self.replica().log, self.rng
        lsn = rng.randint(log.base.lsn, log.op_lsn)
        if rng.random() < 0.4:
            return tuple(log.after(lsn, rng.randint(0, 4), 10_000))
        link = log.link_at(lsn) if rng.random() < 0.8 else Link(*self.end(), 0)
        found = []
        for _ in range(rng.randint(0, 3)):
            assert link is not None
            if link.lsn + 1 >= 1 << 64:
                break
            body = rng.choice([None, None, rng.randbytes(7)])
            found.append(behind(link, rng.choice(list(Kind)), body=body))
            link = found[-1].header.link if rng.random() < 0.9 else link
        return tuple(found)

    def marks(self) -> tuple[Mark, ...]:
        log = self.replica().log
        marks = log.marks(self.rng.randint(log.base.lsn, log.op_lsn))
        return marks if self.rng.random() < 0.8 else (*marks, Mark(self.digest(), whole=True))

    def snapshot(self) -> SnapshotId:
        stable = self.replica().state.stable_id
        if stable is not None and self.rng.random() < 0.6:
            return stable
        return SnapshotId(self.number(1, 2), Link(*self.end(), 0), self.rng.randbytes(32))

    def configuration(self) -> Configuration:
        known, rng = self.replica().configuration, self.rng
        if rng.random() < 0.4:
            return known
        members = tuple(sorted(rng.sample(self.group.ids, rng.randint(1, len(self.group.ids)))))
        return Configuration(self.small(known.epoch), members, rng.randint(0, 3), (), *self.end())

    def vote(self) -> DoViewChange:
        normal = self.replica().last_normal
        lsn, digest = self.end()
        marks = self.marks()
        op_lsn = min(lsn + len(marks), (1 << 64) - 1)
        return DoViewChange(
            self.small(normal[0]), self.small(normal[1]), op_lsn,
            marks[-1].hash if marks else digest, lsn, digest, marks, self.number(),
        )  # fmt: skip

    def nonce(self) -> int:
        return self.number(*(replica.parts.recovery._nonce for replica in self.group.replicas))

    def payload(self) -> Payload:
        rng = self.rng
        view = self.small(*(replica.view for replica in self.group.replicas))
        makers: list[Callable[[], Payload]] = [
            lambda: Prepare(self.entries(), *self.end()),
            lambda: PrepareOk(self.number(), *self.end(), self.small(1)),
            lambda: Commit(*self.end()),
            lambda: QuorumCheck(self.number()),
            lambda: QuorumCheckOk(self.number()),
            lambda: StartViewChange(view, rng.random() < 0.3),
            self.vote,
            lambda: StartView(*self.end(), *self.end(), self.entries()),
            lambda: GetView(self.lsn()),
            lambda: GetState(*self.end()),
            lambda: NewState(self.lsn(), *self.end(), self.entries()),
            lambda: GetEntries(*self.end(), self.small(3)),
            lambda: Entries(self.entries()),
            lambda: StartEpoch(self.configuration()),
            lambda: EpochStarted(self.small(1)),
            GetEpoch,
            lambda: Recovery(self.number(), view),
            lambda: RecoveryResponse(
                self.nonce(), view, rng.random() < 0.7, *self.end(), *self.end(),
                rng.choice([None, self.snapshot()]),
            ),
            lambda: Learn(*self.end(), self.entries()),
            lambda: LearnOk(*self.end(), self.small(1)),
            lambda: SnapshotDone(*self.snapshot()[::2]),
            lambda: GetSnapshot(*self.snapshot()[::2], self.number(30)),
            lambda: SnapshotPart(*self.snapshot()[::2], self.number(), self.number(), b"part"),
            lambda: TooOld(self.snapshot()),
        ]  # fmt: skip
        return rng.choice(makers)()

    def envelope(self) -> Envelope:
        sender, rng = self.replica(), self.rng
        view = sender.view if rng.random() < 0.6 else self.small(sender.view)
        epoch = sender.epoch if rng.random() < 0.8 else self.small(sender.epoch)
        return Envelope(GROUP, sender.id, sender.incarnation, epoch, view, self.payload())


@pytest.mark.parametrize("seed", range(budget(40)))
def test_whatever_members_say_none_ends(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "retain_entries", 3)
    monkeypatch.setattr(Tuning, "part_bytes", 40)
    group, other = filled(learners=2)
    rng = random.Random(seed)
    nonsense = Nonsense(group, rng)
    if rng.random() < 0.5:
        group.step(group.leader, TakeSnapshot(500))
        group.tick(times=2)
    if rng.random() < 0.3:
        group.start(other, lost=True)
    for _ in range(40):
        with suppress(RemoteProtocolError):
            envelope = decode(encode(nonsense.envelope())[LENGTH.size :])
            receivers = [n for n in range(5) if group.ids[n] != envelope.sender]
            group.step(rng.choice(receivers), Message(envelope))
        if rng.random() < 0.5:
            group.settle()
        if rng.random() < 0.3:
            group.tick(*rng.sample(range(5), 3))
    group.tick(times=5)
    for _, _, envelope in group.sent:
        encode(envelope)
