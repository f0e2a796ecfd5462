from __future__ import annotations

from struct import Struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.documents.stored import StoredDocument, load, pack
from millstream.kv.core.partition.with_meta import LINEAGE_BYTES_MAX, NUMBER_MAX
from millstream.kv.core.session.session import KvSession
from millstream.model.limits import VALUE_BYTES_MAX
from millstream.model.lineage import Lineage, born, decode, encode
from millstream.model.partitions import partition_of
from millstream.model.revision import Revisions
from millstream.model.sides import lineage_of, sidecar_of
from millstream.wire.frames import change_of
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, request
from support.http.revised_documents import attachment, signature, with_leaf
from support.kv.log_double import NOW, SECOND
from support.kv.session_double import UserDouble, UsersDouble, ask, new_session

KEY = b"k"
PARTITION = partition_of(KEY, 4)
FIELDS = Struct(">IIQQ")
FORCE, NEW_CAS, EXPIRED = 0x08, 0x04, 0x10
FOREIGN = encode(Lineage(77, 5, ((77, 1), (78, 4))))


def meta_of(lineage: bytes) -> bytes:
    return b"\1\x80" + len(lineage).to_bytes(2, "big") + lineage


def one(
    opcode: int = Opcode.SET_WITH_META,
    *,
    flags: int = 7,
    expiry: int = 0,
    rev: int = 5,
    cas: int = 1000,
    options: int | None = None,
    meta: bytes | None = None,
    value: bytes = b"v",
    header_cas: int = 0,
    datatype: int = 0,
) -> bytes:
    extras = FIELDS.pack(flags, expiry, rev, cas)
    if options is not None:
        extras += options.to_bytes(4, "big")
    if meta is not None:
        extras += len(meta).to_bytes(2, "big")
    if opcode in (Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META):
        value = b""
    return request(
        opcode, vbucket=PARTITION, key=KEY, extras=extras, value=value + (meta or b""),
        cas=header_cas, datatype=datatype,
    )  # fmt: skip


def do(session: KvSession, *words: int, **fields: object) -> Packet:
    return ask(session, one(*words, **fields))[0]  # type: ignore[arg-type]


def stored(session: KvSession) -> Packet:
    return ask(session, request(Opcode.SET, vbucket=PARTITION, key=KEY, extras=bytes(8)))[0]


def ours() -> KvSession:
    session = new_session()
    session.features = frozenset((Feature.MILLSTREAM,))
    return session


def newest(session: KvSession) -> tuple[bytes, bytes]:
    assert session.bucket is not None
    entry = session.bucket.partitions[PARTITION].entry(KEY)
    assert entry is not None
    return entry.frame, entry.side


def test_a_document_has_what_it_had_elsewhere() -> None:
    session = ours()
    expiry = NOW // SECOND + 99
    reply = do(session, expiry=expiry, meta=meta_of(FOREIGN), options=FORCE)
    assert (reply.status, reply.cas) == (0, 1000)
    frame, lineage = newest(session)
    change = change_of(frame)
    assert (change.cas, change.rev, change.expiry, change.flags) == (1000, 5, expiry, 7)
    assert change.value == b"v"
    assert decode(lineage).runs[:2] == ((77, 1), (78, 4))
    revisions = Revisions("b0")
    for generation in range(1, 6):
        assert revisions.of(KEY, lineage, generation) == revisions.of(KEY, FOREIGN, generation)
    assert ask(session, request(Opcode.GET, vbucket=PARTITION, key=KEY))[0].value == b"v"


def test_what_comes_next_is_this_nodes_own() -> None:
    session = ours()
    do(session, cas=NOW + 10**12, meta=meta_of(FOREIGN))
    assert stored(session).cas == NOW + 10**12 + 1
    frame, lineage = newest(session)
    assert change_of(frame).rev == 6
    assert session.bucket is not None
    branch = session.bucket.partitions[PARTITION].failover_log[0].branch
    assert decode(lineage).runs[2:] == ((branch, 6),)
    assert Revisions("b0").of(KEY, lineage, 6) != Revisions("b0").of(KEY, FOREIGN, 6)


def test_without_a_lineage_it_was_born_here() -> None:
    session = new_session()
    do(session)
    assert session.bucket is not None
    partition = session.bucket.partitions[PARTITION]
    assert newest(session)[1] == born(partition.failover_log[0].branch, 1)
    do(session, rev=9)
    assert newest(session)[1] == born(partition.failover_log[0].branch, 1)


def shown(session: KvSession) -> str:
    """The revision id of the document."""
    frame, lineage = newest(session)
    return Revisions("b0").of(KEY, lineage, change_of(frame).rev)


def test_no_revision_has_two_bodies_however_often_an_old_version_comes_back() -> None:
    session = ours()
    ids = []
    for _ in range(3):
        assert do(session, options=FORCE, meta=meta_of(FOREIGN)).status == 0
        ids.append(shown(session))
        stored(session)
        ids.append(shown(session))
    assert [int(id_.partition("-")[0]) for id_ in ids] == [5, 6, 7, 8, 9, 10]
    assert change_of(newest(session)[0]).cas > 1000
    lineage = newest(session)[1]
    revisions = Revisions("b0")
    assert [revisions.of(KEY, lineage, g) for g in range(5, 11)] == ids


def test_an_old_version_of_a_document_of_this_bucket_is_a_write_on_top() -> None:
    session = ours()
    stored(session)
    frame, lineage = newest(session)
    stored(session)
    second = shown(session)
    cas = change_of(frame).cas
    assert do(session, rev=1, cas=cas, options=FORCE, meta=meta_of(lineage)).status == 0
    assert shown(session).startswith("3-")
    stored(session)
    assert shown(session).startswith("4-")
    assert Revisions("b0").of(KEY, newest(session)[1], 2) == second


def test_a_deletion_that_is_there_counts() -> None:
    session = ours()
    do(session, Opcode.DEL_WITH_META, rev=8)
    deleted = shown(session)
    assert do(session, Opcode.ADD_WITH_META, options=FORCE, meta=meta_of(FOREIGN)).status == 0
    assert change_of(newest(session)[0]).rev == 9
    assert shown(session) != deleted


def forget(session: KvSession) -> None:
    """Purge the key, which was deleted."""
    assert session.bucket is not None
    partition = session.bucket.partitions[PARTITION]
    partition.residents.ring.remove(partition.residents.table.pop(KEY))
    partition.purge_seqno = partition.queue.high_seqno


@pytest.mark.parametrize("is_purged", [False, True])
def test_where_a_deletion_was_forgotten_an_old_version_is_born_anew(is_purged: bool) -> None:
    """Nobody knows how far its revs went: what follows it would have their ids."""
    session = ours()
    stored(session)
    frame, lineage = newest(session)
    first = shown(session)
    stored(session)
    second = shown(session)
    if is_purged:
        forget(session)
    cas = change_of(frame).cas
    options = 0 if is_purged else FORCE
    assert do(session, rev=1, cas=cas, options=options, meta=meta_of(lineage)).status == 0
    if is_purged:
        assert shown(session).startswith("1-")
        assert shown(session) != first
    stored(session)
    assert shown(session).startswith("2-" if is_purged else "4-")
    assert shown(session) != second


def test_so_is_one_that_finds_the_key_born_again_since() -> None:
    session = ours()
    stored(session)
    stored(session)
    frame, lineage = newest(session)
    stored(session)
    third = shown(session)
    forget(session)
    stored(session)
    assert shown(session).startswith("1-")
    old = change_of(frame)
    assert do(session, rev=old.rev, cas=old.cas, meta=meta_of(lineage)).status == 0
    assert shown(session).startswith("2-")
    stored(session)
    assert shown(session).startswith("3-")
    assert shown(session) != third


def test_what_was_born_with_what_is_there_keeps_its_lineage() -> None:
    session = ours()
    assert session.bucket is not None
    session.bucket.partitions[PARTITION].purge_seqno = 1
    stored(session)
    _, lineage = newest(session)
    given = lineage + encode(Lineage(99, 3, ((99, 1),)))
    assert do(session, rev=4, meta=meta_of(given)).status == 0
    assert Revisions("b0").of(KEY, newest(session)[1], 4) == Revisions("b0").of(KEY, given, 4)
    assert do(session, rev=7).status == 0
    assert decode(newest(session)[1])[:2] == decode(lineage)[:2]


@pytest.mark.parametrize("meta", [None, meta_of(FOREIGN)])
def test_an_equal_rev_that_wins_is_another_revision(meta: bytes | None) -> None:
    session = ours()
    ids = []
    for cas in (1000, 1001, 1002):
        assert do(session, cas=cas, value=b"%d" % cas, meta=meta).status == 0
        ids.append(shown(session))
        assert (change_of(newest(session)[0]).rev, len(set(ids))) == (5, len(ids))
    assert do(session, cas=1001, meta=meta).status == Status.KEY_EEXISTS


def test_what_is_there_already_as_it_is_keeps_its_revision() -> None:
    session = ours()
    for _ in range(2):
        do(session, options=FORCE, meta=meta_of(FOREIGN))
        assert shown(session) == Revisions("b0").of(KEY, FOREIGN, 5)
    stored(session)
    assert change_of(newest(session)[0]).rev == 6


def test_the_newer_version_stays() -> None:
    session = new_session()
    assert do(session).status == 0
    for fields in ({"rev": 4, "cas": 2000}, {"cas": 999}, {}, {"flags": 6}):
        assert do(session, **fields).status == Status.KEY_EEXISTS
    for fields in ({"rev": 6, "cas": 1}, {"rev": 6, "cas": 2}, {"rev": 6, "cas": 2, "flags": 8}):
        assert do(session, **fields).status == 0
    assert do(session, rev=2, cas=3, options=FORCE, value=b"older").status == 0
    assert change_of(newest(session)[0]).value == b"older"


def test_a_deletion_and_what_it_beats() -> None:
    session = new_session()
    assert do(session, Opcode.DEL_WITH_META, rev=8, expiry=50).status == 0
    change = change_of(newest(session)[0])
    assert (change.is_deleted, change.rev, change.cas) == (True, 8, 1000)
    assert do(session, rev=7).status == Status.KEY_EEXISTS
    assert do(session, rev=9).status == 0
    assert do(session, Opcode.DEL_WITH_META, rev=10, options=EXPIRED).status == 0
    assert newest(session)[0][1] == Opcode.DCP_EXPIRATION
    assert do(session, rev=11, cas=12).status == 0


def test_an_insert_wants_no_document() -> None:
    session = new_session()
    assert do(session, Opcode.ADD_WITH_META).status == 0
    assert do(session, Opcode.ADD_WITH_META, rev=9, options=FORCE).status == Status.KEY_EEXISTS
    do(session, Opcode.DEL_WITH_META, rev=9)
    assert do(session, Opcode.ADD_WITH_META, rev=3, options=FORCE).status == 0


def test_a_cas_and_a_lock_are_respected() -> None:
    session = new_session()
    assert do(session, header_cas=5).status == Status.KEY_ENOENT
    cas = stored(session).cas
    assert do(session, rev=9, header_cas=5).status == Status.KEY_EEXISTS
    assert do(session, rev=9, cas=4, header_cas=cas).status == 0
    ask(session, request(Opcode.GET_LOCKED, vbucket=PARTITION, key=KEY))
    assert do(session, rev=10).status in (Status.LOCKED, Status.KEY_EEXISTS)
    assert change_of(newest(session)[0]).rev == 9


def test_a_new_cas_may_be_asked_for() -> None:
    session = new_session()
    assert do(session, cas=0, options=NEW_CAS | FORCE).cas >= NOW
    assert do(session, cas=0, options=NEW_CAS).status == Status.EINVAL


def test_quiet_ones_speak_only_when_they_must() -> None:
    session = new_session()
    data = one(Opcode.SETQ_WITH_META) + one(Opcode.ADDQ_WITH_META)
    data += one(Opcode.DELQ_WITH_META, rev=9) + request(Opcode.NOOP)
    assert [reply.opcode for reply in ask(session, data)] == [Opcode.ADDQ_WITH_META, Opcode.NOOP]


@pytest.mark.parametrize(
    "fields",
    [
        {"options": 0x20}, {"rev": 0}, {"rev": NUMBER_MAX + 1}, {"cas": 0},
        {"cas": NUMBER_MAX + 1}, {"meta": b"\2"}, {"meta": b"\1\x80\0\5\1"}, {"meta": b"\1\x80\0"},
        {"meta": meta_of(b"\1")}, {"meta": meta_of(b"\1\x80")}, {"datatype": 2},
        {"meta": meta_of(bytes([1]) * (LINEAGE_BYTES_MAX + 2))},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_changes_nothing(fields: dict[str, int]) -> None:
    session = ours()
    assert do(session, **fields).status == Status.EINVAL
    assert session.bucket is not None
    assert session.bucket.partitions[PARTITION].high_seqno == 0


def test_lengths_that_do_not_fit() -> None:
    session = ours()
    for extras in (b"", bytes(23), bytes(31)):
        frame = request(Opcode.SET_WITH_META, vbucket=PARTITION, key=KEY, extras=extras)
        assert ask(session, frame)[0].status == Status.EINVAL
    extras = FIELDS.pack(0, 0, 1, 1) + b"\0\5"
    frame = request(Opcode.SET_WITH_META, vbucket=PARTITION, key=KEY, extras=extras, value=b"v")
    assert ask(session, frame)[0].status == Status.EINVAL
    frame = request(
        Opcode.DEL_WITH_META,
        vbucket=PARTITION,
        key=KEY,
        extras=FIELDS.pack(0, 0, 1, 1),
        value=b"v",
    )
    assert ask(session, frame)[0].status == Status.EINVAL


def test_the_largest_value_has_room_for_its_lineage() -> None:
    session = ours()
    value = bytes(VALUE_BYTES_MAX)
    assert do(session, value=value, meta=meta_of(FOREIGN)).status == 0
    assert do(session, rev=9, value=value + b"x").status == Status.E2BIG


def test_lineages_are_for_our_own_clients_and_sections_of_others_are_passed_over() -> None:
    session = new_session()
    assert do(session, meta=meta_of(FOREIGN)).status == Status.EINVAL
    assert do(session, meta=b"\1\2\0\1\0").status == 0


@pytest.mark.parametrize(("rights", "status"), [
    (("write",), Status.EACCESS), (("read", "stream"), Status.EACCESS), (("write", "stream"), 0),
])  # fmt: skip
def test_it_takes_the_rights_to_write_and_to_stream(rights: tuple[str, ...], status: int) -> None:
    session = new_session()
    users = UsersDouble()
    users.is_empty = False
    session.host.users = users  # type: ignore[misc, assignment]
    session.user = UserDouble(*rights)  # type: ignore[assignment]
    session.select(session.bucket)
    assert do(session).status == status


@given(st.binary(max_size=60), st.sampled_from([24, 26, 28, 30]), st.binary(min_size=30))
def test_no_bytes_make_it_fail(value: bytes, size: int, extras: bytes) -> None:
    session = ours()
    frame = request(
        Opcode.SET_WITH_META, vbucket=PARTITION, key=KEY, extras=extras[:size], value=value
    )
    assert ask(session, frame)[0].status in (0, Status.EINVAL, Status.KEY_EEXISTS)


SIDECAR = 0x80000000


def with_sidecar(sidecar: bytes, value: bytes = b"v") -> bytes:
    return value + sidecar + len(sidecar).to_bytes(4, "big")


def revised(session: KvSession) -> StoredDocument:
    assert session.bucket is not None
    entry = session.bucket.partitions[PARTITION].entry(KEY)
    assert entry is not None
    return load(session.bucket.uuid, KEY, entry.frame, entry.side)


def test_a_sidecar_is_stored_as_it_was_elsewhere() -> None:
    session = ours()
    two, one_rev = "2-" + signature(2), "1-" + signature(1)
    document = with_leaf(with_leaf(None, two, b'{"a":2}'), one_rev, b'{"a":1}')
    value, sidecar = pack(document)
    assert value is not None
    given = with_sidecar(sidecar, value)
    answer = do(session, options=SIDECAR, meta=meta_of(FOREIGN), value=given)
    assert answer.status == Status.SUCCESS
    assert session.bucket is not None
    partition = session.bucket.partitions[PARTITION]
    entry = partition.table[KEY]
    assert sidecar_of(entry.side) == sidecar
    assert decode(lineage_of(entry.side)).birth_branch == 77
    assert change_of(entry.frame).value == value
    assert not partition.is_linear
    assert revised(session).winner.rev == two
    assert revised(session).contents[one_rev].body == b'{"a":1}'


def test_a_given_sidecar_is_marked_as_the_purge_that_it_supersedes_unstored() -> None:
    session = ours()
    two = "2-" + signature(2)
    purged = with_leaf(None, "1-" + signature(1))
    purged.is_purged = True
    given = with_sidecar(pack(purged).sidecar, b"{}")
    assert do(session, options=SIDECAR, value=given).status == Status.SUCCESS
    given = with_sidecar(pack(with_leaf(None, two)).sidecar, b"{}")
    assert do(session, rev=9, options=SIDECAR, value=given).status == Status.SUCCESS
    assert revised(session).winner.rev == two
    assert revised(session).is_purged
    assert session.bucket is not None
    partition = session.bucket.partitions[PARTITION]
    partition.freeze()
    partition.persisted(partition.queue.frozen_seqno)
    assert do(session, rev=10, options=SIDECAR, value=given).status == Status.SUCCESS
    assert not revised(session).is_purged


def test_attachments_that_a_sidecar_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    session, relied_on = ours(), []
    assert session.bucket is not None
    partition = session.bucket.partitions[PARTITION]
    missing = SimpleNamespace(missing=lambda names: relied_on.extend(names) or list(names))
    monkeypatch.setattr(partition, "blobs", missing)
    packed = pack(with_leaf(None, "1-" + signature(1), blobs=(b"data",)))
    given = with_sidecar(packed.sidecar, b"{}")
    assert do(session, options=SIDECAR, value=given).status == Status.SUCCESS
    assert relied_on == [attachment(b"data").sha256]


def test_without_one_the_document_goes_on_as_by_kv() -> None:
    session = ours()
    two = "2-" + signature(2)
    given = with_sidecar(pack(with_leaf(None, two)).sidecar, b"{}")
    assert do(session, options=SIDECAR, value=given).status == Status.SUCCESS
    assert do(session, rev=9, value=b'{"b":1}').status == Status.SUCCESS
    assert revised(session).tree.path(revised(session).winner.rev).ids[1:] == [two[2:]]
    assert do(session, Opcode.DEL_WITH_META, rev=10).status == Status.SUCCESS
    assert revised(session).winner.is_deleted


@pytest.mark.parametrize(
    "value", [b"", b"v", b"\0\0\0\0", b"\0\0\0\7abc", with_sidecar(b"none"), b"\2\0\0\0\1"]
)
def test_what_is_no_sidecar_is_refused(value: bytes) -> None:
    session = ours()
    assert do(session, options=SIDECAR, value=value).status == Status.EINVAL
    assert session.bucket is not None
    assert session.bucket.partitions[PARTITION].high_seqno == 0


def test_a_given_value_is_no_json_because_its_sidecar_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.documents.stored.LARGE_BYTES", 1)
    session, rev = ours(), "1-" + signature(1)
    marked = pack(with_leaf(None, rev, b'{"a":1}')).sidecar
    given = with_sidecar(marked, b"no object")
    assert do(session, options=SIDECAR, value=given).status == Status.SUCCESS
    content = revised(session).contents[rev]
    assert (content.body, content.value) == (b"{}", b"no object")


def test_a_sidecar_of_a_deleted_document_stands_beside_no_value() -> None:
    session, rev = ours(), "1-" + signature(1)
    given = with_sidecar(pack(with_leaf(None, rev, is_deleted=True)).sidecar, b"{}")
    assert do(session, options=SIDECAR, value=given).status == Status.EINVAL


def test_only_our_own_give_sidecars() -> None:
    given = with_sidecar(pack(with_leaf(None, "1-" + signature(1))).sidecar, b"{}")
    assert do(new_session(), options=SIDECAR, value=given).status == Status.EINVAL
