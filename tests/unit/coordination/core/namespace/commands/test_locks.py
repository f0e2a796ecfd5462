"""LOCK and ELECT, as the reference has them."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.commands.locks import ELECTED_BYTES_MAX, PATHS_MAX
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.vsr.core.values import items
from simulators.namespace_clients import Client, Group, word


@pytest.fixture
def group() -> Group:
    made = Group()
    made.do("CREATENAMESPACE", "/ns", session=0)
    for path in ("/ns/a", "/ns/a/x", "/ns/b"):
        made.do("CREATE", "BINARY", path, session=0)
    return made


@pytest.fixture
def ann(group: Group) -> Client:
    return Client(group, 11)


@pytest.fixture
def bob(group: Group) -> Client:
    return Client(group, 12)


@pytest.fixture
def cyd(group: Group) -> Client:
    return Client(group, 13)


def shown(value: bytes) -> dict[bytes, bytes]:
    flat = items(value)
    return {name[1:]: value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def token_of(value: bytes) -> bytes:
    ok, token = items(value)
    assert ok == b"=OK"
    return token[1:]


def test_example_of_the_paper(group: Group, ann: Client, bob: Client) -> None:
    assert ann.do("LOCK", "/ns/a") == b"+OK"
    assert bob.do("LOCK", "READ", "/ns/a") == b"+PENDING"
    assert ann.do("LOCK", "RELEASE", "/ns/a") == b"+OK"
    assert group.retried == [(12, b"/ns/a", b"LOCK")]
    assert bob.do("LOCK", "READ", "/ns/a") == b"+OK"
    assert bob.final(1) == b"+OK"


def test_group_example_of_the_paper(group: Group, ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a")
    pending = bob.do("LOCK", "READ", "GROUP", "/ns/b", "/ns/a")
    assert items(pending) == [b"=PENDING", b"=/ns/a", b"=LOCKED"]
    assert ann.do("LOCK", "READ", "/ns/b", "NOWAIT") == b"+OK"  # who waits for a group holds none
    ann.do("LOCK", "RELEASE", "/ns/a", "/ns/b")
    assert group.retried == [(12, b"/ns/b", b"LOCK")]
    assert bob.do("LOCK", "READ", "GROUP", "/ns/b", "/ns/a") == b"+OK"
    assert ann.do("LOCK", "/ns/b", "NOWAIT").startswith(b"-LOCKED /ns/b READ ")


def test_a_claim_is_answered_by_its_wait_even_if_the_element_was_moved(
    group: Group, ann: Client, bob: Client
) -> None:
    ann.do("LOCK", "/ns/a/x")
    assert bob.do("LOCK", "/ns/a/x", "TOKEN") == b"+PENDING"
    assert ann.do("MOVE", "/ns/a/x", "/ns/b/x") == b"+OK"
    ann.do("LOCK", "RELEASE", "/ns/b/x")
    assert group.retried == [(12, b"/ns/b/x", b"LOCK")]
    assert bob.repeat(1, is_claim=False) == b"+PENDING"
    assert token_of(bob.repeat(1)) == b"1:2:%d" % group.lsn


def test_the_token_is_that_of_the_claim_and_grows(group: Group, ann: Client, bob: Client) -> None:
    first = token_of(ann.do("LOCK", "/ns/a", "TOKEN"))
    assert first == b"1:2:%d" % group.lsn
    bob.do("LOCK", "/ns/a", "TOKEN")
    ann.do("LOCK", "RELEASE", "/ns/a")
    offered = group.lsn
    second = token_of(bob.repeat(1))
    assert second == b"1:2:%d" % (offered + 1)
    assert token_of(bob.do("LOCK", "/ns/a", "TOKEN")) == second  # again is the same
    assert token_of(bob.do("LOCK", "READ", "/ns/a", "TOKEN")) == second  # it stays WRITE
    assert ann.do("LOCK", "READ", "/ns/a", "NOWAIT").startswith(b"-LOCKED /ns/a WRITE ")


def test_each_request_of_a_wait_gets_the_reply_it_asked_for(ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a")
    for words in (("TOKEN",), (), ()):
        assert bob.do("LOCK", "/ns/a", *words) == b"+PENDING"
    assert bob.final(2) == b"+PENDING"
    assert bob.final(1) == bob.final(3) == b""
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert bob.repeat(3) == b"+OK"
    assert token_of(bob.final(1)).startswith(b"1:2:")


def test_waits_keep_their_order(group: Group, ann: Client, bob: Client, cyd: Client) -> None:
    ann.do("LOCK", "READ", "/ns/a")
    assert bob.do("LOCK", "/ns/a/x") == b"+PENDING"
    assert cyd.do("LOCK", "READ", "/ns/a/x") == b"+PENDING"  # bob waits for longer
    assert cyd.do("LOCK", "READ", "/ns/a/x", "NOWAIT").startswith(b"-LOCKED ")
    assert ann.do("LOCK", "READ", "/ns/a/x") == b"+OK"  # covered by what ann holds
    ann.do("LOCK", "RELEASE", "/ns/a", "/ns/a/x")
    assert [notice[0] for notice in group.retried] == [12]


def test_an_upgrade_comes_first(group: Group, ann: Client, bob: Client, cyd: Client) -> None:
    first = token_of(ann.do("LOCK", "READ", "/ns/a", "TOKEN"))
    bob.do("LOCK", "READ", "/ns/a")
    assert cyd.do("LOCK", "/ns/a") == b"+PENDING"
    assert ann.do("LOCK", "WRITE", "/ns/a", "TOKEN") == b"+PENDING"
    assert word(bob.do("LOCK", "WRITE", "/ns/a")) == "DEADLOCK"
    bob.do("LOCK", "RELEASE", "/ns/a")
    assert [notice[0] for notice in group.retried] == [11]
    assert token_of(ann.repeat(2)) == b"1:2:%d" % group.lsn
    assert first != b"1:2:%d" % group.lsn
    alone = Client(group, 14)
    assert alone.do("LOCK", "READ", "/ns/b") == b"+OK"
    assert alone.do("LOCK", "WRITE", "/ns/b") == b"+OK"


def test_two_that_want_more_of_what_both_have_do_not_wait_for_each_other(
    group: Group, ann: Client, bob: Client
) -> None:
    for path in ("/ns/b/x", "/ns/b/y"):
        group.do("CREATE", "BINARY", "PARENTS", path)
    ann.do("LOCK", "READ", "/ns/b")
    assert bob.do("LOCK", "READ", "/ns/b/x") == b"+OK"
    assert ann.do("LOCK", "WRITE", "/ns/b/y") == b"+OK"
    assert word(bob.do("LOCK", "READ", "GROUP", "/ns/b", "/ns/b/x")) == "PENDING"
    assert word(ann.do("LOCK", "WRITE", "/ns/b")) == "DEADLOCK"


def test_sessions_that_would_wait_for_each_other_in_a_cycle_are_told_deadlock(
    group: Group, ann: Client, bob: Client, cyd: Client
) -> None:
    for path in ("/ns/b/x", "/ns/b/y", "/ns/b/z"):
        group.do("CREATE", "BINARY", "PARENTS", path)
    ann.do("LOCK", "WRITE", "/ns/b/x")
    bob.do("LOCK", "WRITE", "/ns/b/y")
    cyd.do("LOCK", "WRITE", "/ns/b/z")
    assert word(ann.do("LOCK", "WRITE", "/ns/b/y")) == "PENDING"
    assert word(bob.do("LOCK", "READ", "GROUP", "/ns/a", "/ns/b/z")) == "PENDING"
    for refused in ("LOCK WRITE /ns/b/x", "LOCK READ /ns/b/x", "LOCK GROUP /ns/a /ns/b/x"):
        assert word(cyd.do(*refused.split())) == "DEADLOCK"
    assert word(cyd.do("ELECT", "CAMPAIGN", "/ns/b/x")) == "DEADLOCK"
    assert word(cyd.do("LOCK", "WRITE", "/ns/b/x", "NOWAIT")) == "LOCKED"
    cyd.do("LOCK", "RELEASE", "/ns/b/z")  # as it was told: the others go on
    assert word(cyd.do("LOCK", "WRITE", "/ns/b/x")) == "PENDING"
    assert group.retried[-1][0] == 12


def test_a_reader_that_waits_behind_a_writer_of_its_own_lock_is_told_deadlock(
    group: Group, ann: Client, bob: Client
) -> None:
    group.do("CREATE", "BINARY", "PARENTS", "/ns/b/x")
    ann.do("LOCK", "READ", "/ns/b/x")
    assert word(bob.do("LOCK", "WRITE", "/ns/b")) == "PENDING"
    assert word(ann.do("LOCK", "READ", "/ns/b")) == "DEADLOCK"


def test_readers_that_want_more_wait_for_the_same_writer(
    group: Group, ann: Client, bob: Client, cyd: Client
) -> None:
    for path in ("/ns/b/x", "/ns/b/y", "/ns/b/z"):
        group.do("CREATE", "BINARY", "PARENTS", path)
    assert cyd.do("LOCK", "WRITE", "/ns/b/z") == b"+OK"
    for client, path in ((ann, "/ns/b/x"), (bob, "/ns/b/y")):
        assert client.do("LOCK", "READ", path) == b"+OK"
        assert word(client.do("LOCK", "READ", "GROUP", "/ns/b", path)) == "PENDING"
    cyd.do("LOCK", "RELEASE", "/ns/b/z")
    assert [notice[0] for notice in group.retried] == [11, 12]


def test_what_a_write_lock_forbids(group: Group, ann: Client, bob: Client) -> None:
    token = token_of(ann.do("LOCK", "/ns/a", "TOKEN"))
    locked = b"-LOCKED /ns/a WRITE %b %b" % (ann.name, token)
    assert bob.do("PUT", "/ns/a", "y") == locked
    assert bob.do("PUT", "/ns/a/x", "y") == locked
    assert bob.do("CREATE", "BINARY", "/ns/a/new") == locked
    assert bob.do("DELETE", "/ns/a/x") == locked
    assert bob.do("DELETE", "/ns/a", "RECURSIVE") == locked
    assert bob.do("MOVE", "/ns/b", "/ns/a/b") == locked
    assert group.read("GET", "/ns/a/x", session=12) == locked
    assert group.read("LIST", "/ns/a") == locked
    assert group.read("GET", "/ns/a/x", session=11) == b"="
    assert ann.do("PUT", "/ns/a/x", "mine") == b"+OK"
    assert bob.do("PUT", "/ns/b", "free") == b"+OK"
    assert group.read("LOOKUP", "/ns/a/x") == b"+OK"
    assert group.read("GET", "/ns/a", "ATTR", "NODATA").startswith(b"%")
    assert word(group.read("GET", "/ns/a", "ATTR")) == "LOCKED"


def test_what_a_read_lock_forbids(group: Group, ann: Client, bob: Client) -> None:
    ann.do("LOCK", "READ", "/ns/a")
    assert group.read("GET", "/ns/a/x", session=11) == b"="
    assert word(group.read("GET", "/ns/a/x", session=12)) == "LOCKED"
    assert word(ann.do("PUT", "/ns/a/x", "y")) == "LOCKED"
    assert word(bob.do("PUT", "/ns/a/x", "y")) == "LOCKED"
    opened = "CONFIG", "SET", "/ns/a", "LOCK.READ.OPEN", "true"
    assert word(ann.do(*opened)) == "LOCKED"
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert ann.do(*opened) == b"+OK"
    ann.do("LOCK", "READ", "/ns/a")
    assert group.read("GET", "/ns/a/x", session=12) == b"="
    assert word(bob.do("PUT", "/ns/a/x", "y")) == "LOCKED"
    ann.do("LOCK", "WRITE", "/ns/a")
    assert ann.do("PUT", "/ns/a/x", "y") == b"+OK"


def test_offers_keep_trees_where_they_are(group: Group, ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a")
    bob.do("LOCK", "/ns/a")
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert ann.do("DELETE", "/ns/a", "RECURSIVE") == b"-LOCKED /ns/a WRITE %b -" % bob.name
    assert word(ann.do("MOVE", "/ns/a/x", "/ns/b/x")) == "LOCKED"
    assert word(ann.do("MOVE", "/ns/b", "/ns/a/b")) == "LOCKED"
    assert ann.do("PUT", "/ns/a", "still free") == b"+OK"


def test_a_write_that_is_fenced(group: Group, ann: Client, bob: Client) -> None:
    token = token_of(ann.do("LOCK", "/ns/a", "TOKEN"))
    assert ann.do("PUT", "/ns/a/x", "1", "IFLOCK", token) == b"+OK"
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert word(ann.do("PUT", "/ns/a/x", "2", "IFLOCK", token)) == "FENCED"
    bob.do("LOCK", "/ns/a")
    assert word(bob.do("PUT", "/ns/a/x", "3", "IFLOCK", token)) == "FENCED"
    assert group.read("GET", "/ns/a/x", session=12) == b"=1"


def test_a_lock_of_another_place_fences_writes_whoever_holds_it(
    group: Group, ann: Client, bob: Client
) -> None:
    token = token_of(ann.do("LOCK", "/ns/a", "TOKEN"))
    assert ann.do("PUT", "/ns/b", "1", "IFLOCK", token) == b"+OK"
    assert bob.do("PUT", "/ns/b", "2", "IFLOCK", token) == b"+OK", "the grant is current"
    assert bob.do("LOCK", "/ns/a")[:1] != b"-"
    ann.do("LOCK", "RELEASE", "/ns/a")
    for client in (ann, bob):
        assert word(client.do("PUT", "/ns/b", "3", "IFLOCK", token)) == "FENCED"
    assert group.read("GET", "/ns/b", session=12) == b"=2"


def test_a_token_of_several_locks_is_current_until_the_last_one_is_let_go(
    group: Group, ann: Client, bob: Client
) -> None:
    token = token_of(ann.do("LOCK", "GROUP", "/ns/a", "/ns/b", "TOKEN"))
    check = ("CHECK", "/ns/b", "IFLOCK", token)
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert group.read(*check) == b"+OK"
    assert bob.do("LOCK", "READ", "/ns/b")[:1] != b"-"
    group.end(ann.session)
    assert word(group.read(*check)) == "CHECK_FAILED"


def test_known_tokens_are_undone_with_the_rest(group: Group, ann: Client, bob: Client) -> None:
    token = token_of(ann.do("LOCK", "/ns/a", "TOKEN"))
    assert bob.do("PUT", "/ns/b", "1", "IFLOCK", token) == b"+OK"
    release = pack_command([b"LOCK", b"RELEASE", b"/ns/a"])
    other = pack_command([b"LOCK", b"/ns/b"])
    failing = pack_command([b"CHECK", b"/ns/b", b"ABSENT"])
    assert word(ann.do("EXEC", release, other, failing)) == "EXECABORT"
    begin, _, lsn = token.rpartition(b":")
    later = b"%b:%d" % (begin, int(lsn) + 2)
    assert word(bob.do("PUT", "/ns/b", "2", "IFLOCK", later)) == "FENCED"
    assert bob.do("PUT", "/ns/b", "3", "IFLOCK", token) == b"+OK"


def test_letting_go(group: Group, ann: Client, bob: Client) -> None:
    assert word(ann.do("LOCK", "RELEASE", "/ns/a")) == "NOTHELD"
    assert word(ann.do("LOCK", "RELEASE", "/ns/none")) == "NOTHELD"
    assert word(ann.do("LOCK", "CANCEL", "/ns/a")) == "NOTHELD"
    ann.do("LOCK", "/ns/a")
    assert word(ann.do("LOCK", "RELEASE", "/ns/a", "/ns/b")) == "NOTHELD"  # all or none
    bob.do("LOCK", "/ns/a")
    bob.do("LOCK", "/ns/a")
    assert bob.do("LOCK", "CANCEL", "/ns/a") == b"+OK"
    assert word(bob.final(1)) == word(bob.final(2)) == "NOTHELD"
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert group.retried == []


def test_an_offer_is_given_back_and_goes_to_the_next(
    group: Group, ann: Client, bob: Client, cyd: Client
) -> None:
    for client in (ann, bob, cyd):
        client.do("LOCK", "/ns/a")
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert bob.do("LOCK", "CANCEL", "/ns/a") == b"+OK"
    assert [notice[0] for notice in group.retried] == [12, 13]


def test_an_offer_that_nobody_comes_for_lapses(
    group: Group, ann: Client, bob: Client, cyd: Client
) -> None:
    for client in (ann, bob, cyd):
        client.do("LOCK", "/ns/a")
    ann.do("LOCK", "RELEASE", "/ns/a")
    assert group.offers() == [(b"/ns/a", 12, group.lsn)]
    group.lapse("/ns/a", 12, group.lsn - 1, "/ns/gone", 12, 1, "no path", 1, 1, "/ns/a", "x", "y")
    assert group.offers() == [(b"/ns/a", 12, group.lsn - 1)]
    group.lapse("/ns/a", 12, group.lsn - 1)
    assert group.offers() == [(b"/ns/a", 13, group.lsn)]
    assert bob.final(1) == b""
    assert bob.repeat(1) == b"+PENDING"  # it is a new request, behind cyd
    assert cyd.repeat(1) == b"+OK"


def test_a_session_that_ends_lets_everything_go(
    group: Group, ann: Client, bob: Client, cyd: Client
) -> None:
    ann.do("LOCK", "/ns/a")
    ann.do("LOCK", "/ns/b")
    bob.do("LOCK", "/ns/a")
    cyd.do("LOCK", "GROUP", "/ns/a", "/ns/b")
    group.end(11)
    assert [notice[0] for notice in group.retried] == [12]
    assert [told.op for told in group.last.happened] == [b"unlock", b"unlock"]
    group.end(12)
    assert [notice[0] for notice in group.retried] == [12, 13]


def test_ephemeral_elements_stay_while_another_wants_them(
    group: Group, ann: Client, bob: Client
) -> None:
    ann.do("CREATE", "BINARY", "EPHEMERAL", "/ns/e")
    ann.do("LOCK", "/ns/e")
    bob.do("LOCK", "/ns/e")
    group.end(11)
    assert group.read("LOOKUP", "/ns/e") == b"+OK"
    assert bob.repeat(1) == b"+OK"
    bob.do("LOCK", "RELEASE", "/ns/e")
    assert word(group.read("LOOKUP", "/ns/e")) == "NOTFOUND"


def test_a_wait_above_an_ephemeral_element_gets_its_lock(
    group: Group, ann: Client, bob: Client
) -> None:
    ann.do("CREATE", "BINARY", "EPHEMERAL", "/ns/a/e")
    ann.do("LOCK", "READ", "/ns/a/e")
    assert bob.do("LOCK", "/ns/a") == b"+PENDING"
    group.end(11)
    assert word(group.read("LOOKUP", "/ns/a/e")) == "NOTFOUND"
    assert bob.repeat(1) == b"+OK"


def test_waits_end_with_their_element(group: Group, ann: Client, bob: Client) -> None:
    ann.do("LOCK", "/ns/a/x")
    bob.do("LOCK", "/ns/a/x")
    assert ann.do("DELETE", "/ns/a/x") == b"+OK"
    assert bob.final(1) == b"-ERROR_DOES_NOT_EXISTS /ns/a/x"
    assert group.retried == [(12, b"/ns/a/x", b"LOCK")]
    assert word(ann.do("LOCK", "RELEASE", "/ns/a/x")) == "NOTHELD"
    ann.do("CREATE", "BINARY", "/ns/a/x")
    assert bob.do("LOCK", "/ns/a/x") == b"+OK"


def test_a_move_sets_those_free_who_waited_where_it_was(
    group: Group, ann: Client, bob: Client
) -> None:
    ann.do("LOCK", "/ns/a/x")
    assert bob.do("LOCK", "/ns/a") == b"+PENDING"
    assert ann.do("MOVE", "/ns/a/x", "/ns/b/x") == b"+OK"
    assert bob.repeat(1) == b"+OK"
    assert word(bob.do("LOCK", "/ns/b", "NOWAIT")) == "LOCKED"


def test_what_is_shown(group: Group, ann: Client, bob: Client) -> None:
    assert group.read("LOCK", "INFO", "/ns/a") == b"_"
    token = token_of(ann.do("LOCK", "/ns/a", "TOKEN"))
    bob.do("LOCK", "READ", "/ns/a")
    info = shown(group.read("LOCK", "INFO", "/ns/a"))
    assert (info[b"kind"], info[b"state"]) == (b"=lock", b"=held")
    (holder,) = items(info[b"holders"])
    assert shown(holder) == {
        b"client": b"=" + ann.name, b"mode": b"=WRITE", b"token": b"=" + token,
    }  # fmt: skip
    assert items(info[b"waiting"]) == [b"=" + bob.name]
    attributes = shown(group.read("GET", "/ns/a", "ATTR", "NODATA"))
    assert shown(attributes[b"sync"]) == info
    assert word(group.read("LOCK", "INFO", "/ns/none", "STALEREAD")) == "ERROR_DOES_NOT_EXISTS"


def test_errors(group: Group, ann: Client) -> None:
    assert word(ann.do("LOCK", "/ns/none")) == "ERROR_DOES_NOT_EXISTS"
    assert word(ann.do("LOCK", "ns")) == "BADARG"
    assert word(ann.do("LOCK")) == "BADARG"
    assert word(ann.do("LOCK", "/ns//a")) == "BADPATH"
    assert word(ann.do("LOCK", "/ns/a", "/ns/b")) == "BADARG"
    assert word(ann.do("LOCK", "/ns/a", "NEVER")) == "BADARG"
    assert word(ann.do("LOCK", "RELEASE", "/ns/a", "NOWAIT")) == "BADARG"
    too_many = [f"/ns/{n}" for n in range(PATHS_MAX + 1)]
    assert word(ann.do("LOCK", "GROUP", *too_many)) == "BADARG"
    assert word(group.do("LOCK", "/ns/a", session=0)) == "ERR"
    ann.do("SEMAPHORE", "INIT", "1", "/ns/a")
    assert word(ann.do("LOCK", "/ns/a")) == "SYNCTYPE"


def test_a_session_waits_for_so_much(group: Group, ann: Client, bob: Client) -> None:
    for number in range(257):
        ann.do("CREATE", "BINARY", f"/ns/b/{number}")
        ann.do("LOCK", f"/ns/b/{number}")
    for number in range(256):
        assert bob.do("LOCK", f"/ns/b/{number}") == b"+PENDING"
    assert word(bob.do("LOCK", "/ns/b/256")) == "QUOTA"
    assert bob.do("LOCK", "CANCEL", "/ns/b/0") == b"+OK"
    assert bob.do("LOCK", "/ns/b/256") == b"+PENDING"


def test_the_leader(group: Group, ann: Client, bob: Client) -> None:
    assert group.read("ELECT", "LEADER", "/ns/a") == b"_"
    token = token_of(ann.do("ELECT", "CAMPAIGN", "/ns/a", "host1"))
    expected = [b"=" + ann.name, b"=" + token, b"=host1"]
    assert items(group.read("ELECT", "LEADER", "/ns/a", session=12)) == expected
    assert bob.do("ELECT", "CAMPAIGN", "/ns/a", "host2") == b"+PENDING"
    assert ann.do("ELECT", "RESIGN", "/ns/a") == b"+OK"
    assert group.read("ELECT", "LEADER", "/ns/a") == b"_"
    second = token_of(bob.repeat(1))
    assert second > token
    expected = [b"=" + bob.name, b"=" + second, b"=host2"]
    assert items(group.read("ELECT", "LEADER", "/ns/a")) == expected
    assert [told.op for told in group.last.happened] == [b"lock", b"put"]


def test_candidates_that_are_refused(group: Group, ann: Client) -> None:
    assert word(ann.do("ELECT", "CAMPAIGN", "/ns/a", "x" * (ELECTED_BYTES_MAX + 1))) == "TOOBIG"
    assert word(ann.do("ELECT", "CAMPAIGN", "/ns", "x")) == "WRONGTYPE"
    assert word(ann.do("ELECT", "CAMPAIGN", "/ns/a", "x", "y")) == "BADARG"
    assert word(ann.do("ELECT", "RESIGN", "/ns/a")) == "NOTHELD"
    assert word(ann.do("ELECT", "VOTE", "/ns/a")) == "BADARG"
    assert word(group.read("ELECT", "LEADER", "/ns/none")) == "ERROR_DOES_NOT_EXISTS"


def test_a_namespace_with_a_lock_of_another_one_is_not_deleted_by_force(
    group: Group, ann: Client, bob: Client
) -> None:
    ann.do("LOCK", "/ns/a/x")
    assert word(bob.do("DELETENAMESPACE", "/ns", "FORCE")) == "LOCKED"
    ann.do("LOCK", "RELEASE", "/ns/a/x")
    assert bob.do("DELETENAMESPACE", "/ns", "FORCE") == b"+OK"
