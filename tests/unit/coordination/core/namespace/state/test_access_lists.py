"""Who may do what with an element is decided as POSIX does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.state.access_lists import (
    READ,
    WRITE,
    Acl,
    Grant,
    decode_acl,
    encode_acl,
    parse_grant,
)

STAFF = (b"staff",)


def allows(acl: Acl, name: bytes, groups: tuple[bytes, ...], wanted: int) -> bool:
    return bool(acl.bits(name, groups) & wanted)


def test_the_owner_is_judged_as_owner_even_if_others_may_more() -> None:
    acl = Acl(b"ann", b"staff", 0o077)
    assert not allows(acl, b"ann", STAFF, READ)
    assert allows(acl, b"bob", STAFF, WRITE)


def test_a_named_user_is_judged_before_groups() -> None:
    acl = Acl(b"ann", b"staff", 0o777, (Grant(False, b"bob", READ),))
    assert allows(acl, b"bob", STAFF, READ)
    assert not allows(acl, b"bob", STAFF, WRITE)


def test_any_group_that_grants_is_enough_and_none_is_the_end() -> None:
    both = (b"staff", b"guests")
    named = Acl(b"ann", b"staff", 0o707, (Grant(True, b"guests", READ),))
    assert allows(named, b"bob", both, READ)
    assert not allows(named, b"bob", both, WRITE)
    assert allows(named, b"eve", (), WRITE)
    assert not allows(Acl(b"ann", b"staff", 0o704), b"bob", STAFF, READ)


def test_no_user_is_in_the_group_without_a_name() -> None:
    assert not allows(Acl(b"ann", b"", 0o770), b"eve", (b"",), READ)


def test_a_child_begins_with_what_its_parent_says() -> None:
    grants = (Grant(True, b"guests", READ),)
    parent = Acl(b"ann", b"staff", 0o700, (Grant(False, b"bob", READ),), 0o640, grants)
    assert parent.of_child(b"bob") == Acl(b"bob", b"staff", 0o640, grants, 0o640, grants)


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (b"user:bob:rw-", (False, Grant(False, b"bob", 6))),
        (b"group:g:--x", (False, Grant(True, b"g", 1))),
        (b"default:user:bob:r--", (True, Grant(False, b"bob", 4))),
        (b"user:idp:17:r--", (False, Grant(False, b"idp:17", 4))),
        (b"user:bob:rwz", None),
        (b"user::rw-", None),
        (b"user:a b:rw-", None),
        (b"user:bob", None),
        (b"other:bob:rw-", None),
        (b"user:" + b"x" * 256 + b":rw-", None),
    ],
)
def test_a_spec_is_an_entry_or_none(spec: bytes, found: tuple[bool, Grant] | None) -> None:
    assert parse_grant(spec) == found
    if found is not None:
        assert found[1].text == spec.removeprefix(b"default:")
        assert parse_grant(spec, with_bits=False) == (found[0], found[1]._replace(bits=0))


def test_to_remove_an_entry_its_name_is_enough() -> None:
    assert parse_grant(b"default:group:g", with_bits=False) == (True, Grant(True, b"g", 0))


NAMES = st.binary(max_size=4)
GRANTS = st.lists(st.builds(Grant, st.booleans(), NAMES, st.integers(0, 7)), max_size=4)
MODES = st.integers(0, 0o777)
ACLS = st.builds(
    Acl, NAMES, NAMES, MODES, GRANTS.map(tuple), MODES, GRANTS.map(tuple)
)  # fmt: skip


@given(ACLS)
def test_a_list_is_read_as_it_was_written(acl: Acl) -> None:
    assert decode_acl(encode_acl(acl)) == acl


@given(ACLS, st.booleans(), GRANTS, st.randoms())
def test_entries_have_one_order_whatever_order_they_came_in(
    acl: Acl, is_default: bool, grants: list[Grant], chance: object
) -> None:
    once = acl.with_grants(is_default, grants)
    kept = once.defaults if is_default else once.grants
    assert list(kept) == sorted(kept)
    assert len({(g.is_group, g.name) for g in kept}) == len(kept)
    assert acl.with_grants(is_default, reversed(kept)) == once


def plain_bits(acl: Acl, name: bytes, groups: tuple[bytes, ...]) -> int:
    """The classes one after the other, as the standard tells them."""
    if name == acl.owner:
        return acl.mode >> 6
    users = [grant.bits for grant in acl.grants if not grant.is_group and grant.name == name]
    if users:
        return users[0]
    chosen = [grant.bits for grant in acl.grants if grant.is_group and grant.name in groups]
    if acl.group and acl.group in groups:
        chosen.append(acl.mode >> 3)
    if chosen:
        return sum(bit for bit in (READ, WRITE) if any(bits & bit for bits in chosen))
    return acl.mode


@given(
    st.builds(Acl, st.sampled_from([b"a", b"b"]), st.sampled_from([b"", b"g", b"h"]), MODES),
    st.lists(st.builds(Grant, st.booleans(), st.sampled_from([b"a", b"b", b"g"]), MODES)),
    st.sampled_from([b"a", b"b", b"c"]),
    st.sampled_from([(), (b"g",), (b"g", b"h")]),
    st.sampled_from([READ, WRITE]),
)
def test_classes_are_chosen_as_the_standard_says(
    acl: Acl, grants: list[Grant], name: bytes, groups: tuple[bytes, ...], wanted: int
) -> None:
    acl = acl.with_grants(is_default=False, grants=[g._replace(bits=g.bits & 7) for g in grants])
    expected = bool(plain_bits(acl, name, groups) & wanted)
    assert allows(acl, name, groups, wanted) == expected
