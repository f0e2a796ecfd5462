"""A subscription is complete, in order, without a gap, and resuming it changes nothing of that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.coordination.core.namespace.audience import SUBSCRIPTIONS_MAX, Subscriber
from millstream.coordination.core.namespace.commands.command import Words
from millstream.coordination.core.namespace.commands.subscriptions import (
    MARK,
    Begun,
    SubscribeRequest,
    request_of,
    subscribe,
)
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.coordination.core.namespace.paths import joined
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.access_lists import ADMINS
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.updates import Place, Scope, Update
from support.budget import budget
from support.coordination.namespace_machine import Tree

ALL = 2**40

FORK = 1 << 16


class Client:
    """A connection that subscribes as a RESP session does."""

    def __init__(self, tree: Tree, user: bytes = b"", session: int = 7) -> None:
        self.tree, self.user, self.session = tree, user, session
        self.confirmed: list[bytes] = []
        self.subscriber = Subscriber(
            lambda: None, Asker(session=session, instance=b"i" * 16, principal=user)
        )

    def subscribe(self, command: str, *, is_primary: bool = True) -> bytes:
        words = command.split()
        request = request_of(Words([word.encode() for word in words], "SUBSCRIBE"))
        reply = self.tree.read("SUBSCRIBE", *words, user=self.user)
        if reply == MARK and is_primary:
            reply = self.tree.do(*request.mark, user=self.user, session=self.session)
        if reply.startswith(b"-"):
            return reply
        machine, lsn = self.tree.machine, self.tree.lsn
        try:
            subscribe(
                machine.state, machine.audience, self.subscriber, request, lsn,
                lambda path: self.confirmed.append(joined(path)), Begun(1, 0),
            )  # fmt: skip
        except Refused as refused:
            return refused.value
        return b"+OK"

    def take(self) -> list[dict[str, Any]]:
        return [json.loads(message.payload) for message in self.subscriber.take(ALL)]

    def told(self) -> list[tuple[str, str]]:
        return [(text["op"], text.get("path", "")) for text in self.take()]


@pytest.fixture
def tree() -> Tree:
    made = Tree()
    made.do("CREATENAMESPACE", "/ns")
    made.do("CREATE", "BINARY", "/ns/a", "one")
    made.do("CREATE", "BINARY", "/ns/a/b", "two")
    return made


def test_a_message_says_what_happened(tree: Tree) -> None:
    client = Client(tree)
    assert client.subscribe("/ns/a MODE DATA") == b"+OK"
    assert client.confirmed == [b"/ns/a"]
    assert client.take() == [{"op": "start", "lsn": 4}]
    tree.do("PUT", "/ns/a", "x", session=9)
    instance = (b"i" * 16).hex()
    assert client.take() == [
        {
            "lsn": 5, "version": "1:2:5", "op": "put", "path": "/ns/a", "type": "BINARY",
            "ts": 1005, "client": f"{instance}-9", "data": "eA==",
        }
    ]  # fmt: skip
    assert client.subscribe("/ns/a MODE META") == b"+OK"
    tree.do("PUT", "/ns/a", "y")
    assert "data" not in client.take()[-1]


ACTS = (
    "PUT /ns/a x", "PUT /ns/a/b x", "CREATE BINARY /ns/a/c", "CREATE BINARY /ns/d",
    "PUT /ns/a ATTR u.x 1", "MOVE /ns/a /ns/x", "DELETE /ns/x/c", "MOVE /ns/x/b /ns/y",
    "CREATE BINARY /ns/x/e", "DELETE /ns/x RECURSIVE",
)  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "told"),
    [
        (
            "",
            "put /ns/a, child /ns/a, attr /ns/a, move /ns/a, child /ns/x, child /ns/x, "
            "child /ns/x, delete /ns/x",
        ),
        (
            "CHILDREN",
            "put /ns/a, create /ns/a/c, attr /ns/a, move /ns/a, delete /ns/x/c, move /ns/x/b, "
            "create /ns/x/e, delete /ns/x/e, delete /ns/x",
        ),
        (
            "TREE",
            "put /ns/a, put /ns/a/b, create /ns/a/c, attr /ns/a, move /ns/a, delete /ns/x/c, "
            "move /ns/x/b, create /ns/x/e, delete /ns/x/e, delete /ns/x",
        ),
    ],
)
def test_a_scope_is_what_one_hears_of(tree: Tree, scope: str, told: str) -> None:
    client, later = Client(tree), Client(tree)
    assert client.subscribe(f"/ns/a {scope}") == b"+OK"
    lsn = tree.lsn
    for command in ACTS:
        if command == ACTS[-1]:
            assert later.subscribe(f"/ns/x {scope} FROM {lsn}") == b"+OK"
        assert tree.do(*command.split()) == b"+OK"
    expected = [tuple(each.split()) for each in told.split(", ")]
    assert client.told() == [("start", ""), *expected]
    assert later.told() == expected
    assert not client.subscriber.subscriptions
    assert tree.machine.audience.is_empty


def test_a_move_is_heard_where_it_came_from_and_where_it_went_once(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/t")
    clients = {}
    for command in ("/ns TREE", "/ns/a CHILDREN", "/ns/t CHILDREN", "/ns/t", "/ns/a/b"):
        clients[command] = Client(tree)
        assert clients[command].subscribe(command) == b"+OK"
        clients[command].take()
    tree.do("MOVE", "/ns/a/b", "/ns/t/c")
    for command in ("/ns TREE", "/ns/a CHILDREN", "/ns/t CHILDREN", "/ns/a/b"):
        (text,) = clients[command].take()
        assert (text["op"], text["path"], text["to"]) == ("move", "/ns/a/b", "/ns/t/c")
    (text,) = clients["/ns/t"].take()
    assert (text["op"], text["path"], "to" in text) == ("child", "/ns/t", False)


def test_updates_of_one_entry_come_in_parts(tree: Tree) -> None:
    client = Client(tree)
    client.subscribe("/ns TREE")
    client.take()
    words = ["PUT /ns/a x", "CREATE BINARY /ns/c", "PUT /ns/a y"]
    tree.do("EXEC", *(pack_command([w.encode() for w in each.split()]) for each in words))
    told = client.take()
    assert [(t["op"], t["lsn"], t["part"], t["parts"]) for t in told] == [
        ("put", tree.lsn, 0, 3), ("create", tree.lsn, 1, 3), ("put", tree.lsn, 2, 3),
    ]  # fmt: skip


def test_locks_are_heard_of_and_keep_others_from_subscribing(tree: Tree) -> None:
    client = Client(tree, session=9)
    assert client.subscribe("/ns/a TREE") == b"+OK"
    client.take()
    tree.do("LOCK", "/ns/a", session=8)
    tree.do("PUT", "/ns/a/b", "x", session=8)
    assert client.told() == [("lock", "/ns/a"), ("put", "/ns/a/b")]
    assert Client(tree, session=9).subscribe("/ns/a").startswith(b"-LOCKED /ns/a WRITE ")
    tree.end(8)
    assert client.told() == [("unlock", "/ns/a")]


def test_the_end_of_a_session_is_one_entry(tree: Tree) -> None:
    client = Client(tree)
    client.subscribe("/ns TREE")
    for name in ("y", "x"):
        tree.do("CREATE", "BINARY", "EPHEMERAL", f"/ns/{name}")
    client.take()
    tree.end(7)
    told = client.take()
    assert [(text["path"], text["del"], text["lsn"]) for text in told] == [
        ("/ns/x", True, tree.lsn), ("/ns/y", True, tree.lsn),
    ]  # fmt: skip


def test_history_that_is_lost_is_said_and_where_to_go_on(tree: Tree) -> None:
    client = Client(tree)
    assert client.subscribe("/ns/a FROM 2") == b"-HISTORY_LOST 4"
    assert client.confirmed == []
    tree.do("CONFIG", "SET", "/ns", "SUBS.MIN.HISTORY", "2")
    for text in "xyz":
        tree.do("PUT", "/ns/a", text)
    assert client.subscribe("/ns/a FROM 4") == b"-HISTORY_LOST 8"
    assert client.subscribe("/ns/a FROM 1:2:6") == b"+OK"
    assert [text["lsn"] for text in client.take()] == [7, 8]
    assert client.subscribe("/ns/a FROM 8") == b"+OK"
    tree.do("PUT", "/ns/a", "x")
    assert [text["lsn"] for text in client.take()] == [9]


def test_no_history_is_kept_where_none_is_wanted(tree: Tree) -> None:
    client = Client(tree)
    client.subscribe("/ns/a")
    tree.do("CONFIG", "SET", "/ns/a", "SUBS.MIN.HISTORY", "0")
    lsn = tree.lsn
    tree.do("PUT", "/ns/a", "x")
    assert client.told()[-1] == ("put", "/ns/a")
    assert client.subscribe(f"/ns/a FROM {lsn}").startswith(b"-HISTORY_LOST ")
    assert client.subscribe(f"/ns/a FROM {tree.lsn}") == b"+OK"
    assert tree.lsn == lsn + 1
    client.subscribe("/ns/a/b")
    tree.do("CONFIG", "SET", "/ns/a", "SUBS.MIN.HISTORY", "5")
    tree.do("PUT", "/ns/a/b", "x")
    assert client.told()[-1] == ("put", "/ns/a/b")


def test_another_element_at_the_same_path_has_a_history_of_its_own(tree: Tree) -> None:
    client = Client(tree)
    client.subscribe("/ns/a/b")
    lsn = tree.lsn
    tree.do("DELETE", "/ns/a/b")
    assert client.subscribe(f"/ns/a/b FROM {lsn}").startswith(b"-ERROR_DOES_NOT_EXISTS ")
    tree.do("CREATE", "BINARY", "/ns/a/b")
    assert client.subscribe(f"/ns/a/b FROM {lsn}") == b"-HISTORY_LOST %d" % tree.lsn


def test_a_member_without_the_mark_sends_to_the_primary(tree: Tree) -> None:
    client = Client(tree)
    assert client.subscribe("/ns/a", is_primary=False).startswith(b"-NOTPRIMARY ")
    assert client.subscribe("/ns/a") == b"+OK"
    assert Client(tree).subscribe("/ns/a", is_primary=False) == b"+OK"
    assert client.subscribe("/ns/a TREE", is_primary=False).startswith(b"-NOTPRIMARY ")
    durable = client.subscribe("/ns/a DURABLE d", is_primary=False)
    assert durable.startswith(b"-NOTPRIMARY ")


def test_of_several_paths_all_are_subscribed_to_or_none(tree: Tree) -> None:
    client = Client(tree)
    assert client.subscribe("/ns/a /ns/no").startswith(b"-ERROR_DOES_NOT_EXISTS ")
    assert not len(client.subscriber)
    assert client.subscribe("/ns/a /ns/a/b /ns/a") == b"+OK"
    assert client.confirmed == [b"/ns/a", b"/ns/a/b"]
    client.subscriber.subscriptions.update(
        {b"%d" % n: client.subscriber.subscriptions[b"/ns/a"] for n in range(SUBSCRIPTIONS_MAX)}
    )
    assert client.subscribe("/ns").startswith(b"-QUOTA ")


def test_who_may_not_read_hears_nothing(tree: Tree) -> None:
    client = Client(tree, b"eve")
    tree.do("ACL", "SET", "/ns/a", "OWNER", "ann")
    assert client.subscribe("/ns/a MODE DATA") == b"+OK"
    client.take()
    tree.do("ACL", "SET", "/ns/a", "MODE", "700")
    assert client.told() == [("denied", "")]
    tree.do("PUT", "/ns/a", "secret")
    assert client.told() == []
    assert client.subscribe("/ns/a") == b"-NOPERM /ns/a r"
    assert tree.do("MARK", "/ns/a", "TREE", user=b"eve") == b"-NOPERM /ns/a r"
    client.subscriber.asker = Asker(principal=b"eve", groups=(ADMINS,))
    assert client.tree.read("SUBSCRIBE", "/ns/a", user=b"eve", groups=(ADMINS,)) == b"+OK"


def secrets(client: Client) -> list[tuple[str, str, str]]:
    told = [(text["op"], text.get("path", ""), text.get("data", "")) for text in client.take()]
    return [one for one in told if one[0] not in ("start", "progress")]


def test_an_update_is_told_to_who_could_read_its_element_as_of_that_entry(tree: Tree) -> None:
    tree.do("ACL", "SET", "/ns", "OWNER", "ann")
    eve, ann = Client(tree, b"eve"), Client(tree, b"ann", session=8)
    for one in (eve, ann):
        assert one.subscribe("/ns MODE DATA TREE") == b"+OK"
    tree.do("CREATE", "BINARY", "/ns/p", "open", user=b"ann")
    tree.do("ACL", "SET", "/ns/p", "MODE", "600", user=b"ann")
    tree.do("PUT", "/ns/p", "secret", user=b"ann")
    tree.do("PUT", "/ns/p", "ATTR", "u.x", "1", user=b"ann")
    tree.do("ACL", "SET", "/ns/p", "MODE", "644", user=b"ann")
    tree.do("PUT", "/ns/p", "shown", user=b"ann")
    told = secrets(eve)
    assert told == [
        ("create", "/ns/p", "b3Blbg=="), ("attr", "/ns/p", ""), ("put", "/ns/p", "c2hvd24="),
    ]  # fmt: skip
    everything = secrets(ann)
    assert len(everything) == 6
    tree.again()
    for user, before in ((b"eve", told), (b"ann", everything)):  # what is kept tells no more
        again = Client(tree, user)
        assert again.subscribe("/ns MODE DATA TREE FROM 5") == b"+OK"
        assert secrets(again) == before


def test_parts_of_an_entry_are_counted_as_they_are_told(tree: Tree) -> None:
    tree.do("CREATE", "BINARY", "/ns/p")
    tree.do("ACL", "SET", "/ns/p", "OWNER", "ann", "MODE", "600")
    eve = Client(tree, b"eve")
    assert eve.subscribe("/ns TREE MODE DATA") == b"+OK"
    commands = [pack_command([b"PUT", path, b"x"]) for path in (b"/ns/p", b"/ns/a", b"/ns/a/b")]
    tree.do("EXEC", *commands, groups=(ADMINS,), user=b"ann")
    told = [(text["path"], text["part"], text["parts"]) for text in eve.take()[1:]]
    assert told == [("/ns/a", 0, 2), ("/ns/a/b", 1, 2)]


def test_a_name_is_told_where_the_parent_shows_it_and_nothing_else(tree: Tree) -> None:
    tree.do("ACL", "SET", "/ns", "DEFAULT", "MODE", "600", user=b"ann", groups=(ADMINS,))
    eve = Client(tree, b"eve")
    assert eve.subscribe("/ns MODE DATA TREE") == b"+OK"
    tree.do("CREATE", "BINARY", "/ns/p", "secret", user=b"ann", groups=(ADMINS,))
    tree.do("CREATE", "BINARY", "/ns/p/q", "secret", user=b"ann", groups=(ADMINS,))
    tree.do("MOVE", "/ns/p/q", "/ns/p/r", user=b"ann", groups=(ADMINS,))
    tree.do("MOVE", "/ns/p/r", "/ns/s", user=b"ann", groups=(ADMINS,))
    tree.do("DELETE", "/ns/s", user=b"ann", groups=(ADMINS,))
    told = eve.take()[1:]
    assert [(text["op"], text["path"]) for text in told] == [
        ("create", "/ns/p"), ("delete", "/ns/s"),
    ]  # fmt: skip
    assert not any("data" in text or "client" in text for text in told)


def test_data_under_a_write_lock_is_told_to_its_holder_only(tree: Tree) -> None:
    holder, other = Client(tree, session=9), Client(tree, session=8)
    for one in (holder, other):
        assert one.subscribe("/ns/a MODE DATA TREE") == b"+OK"
    tree.do("LOCK", "WRITE", "/ns/a", session=9)
    tree.do("PUT", "/ns/a/b", "half", session=9)
    tree.do("LOCK", "RELEASE", "/ns/a", session=9)
    tree.do("PUT", "/ns/a/b", "whole", session=9)
    assert [one[2] for one in secrets(holder)] == ["", "aGFsZg==", "", "d2hvbGU="]
    heard = [("lock", "/ns/a", ""), ("put", "/ns/a/b", ""), ("unlock", "/ns/a", ""),
             ("put", "/ns/a/b", "d2hvbGU=")]  # fmt: skip
    assert secrets(other) == heard
    again = Client(tree, session=8)
    assert again.subscribe("/ns/a MODE DATA TREE FROM 4") == b"+OK"
    assert secrets(again) == heard


def test_what_a_leader_says_of_itself_is_told_to_all_who_may_read(tree: Tree) -> None:
    other = Client(tree, session=8)
    assert other.subscribe("/ns/a MODE DATA") == b"+OK"
    tree.do("ELECT", "CAMPAIGN", "/ns/a", "me", session=9)
    assert ("put", "/ns/a", "bWU=") in secrets(other)


def test_history_that_an_earlier_version_kept_shows_no_data_to_users(tree: Tree) -> None:
    tree.do("MARK", "/ns/a")
    place = Place(tree.machine.state.elements.at((b"ns", b"a")), Scope.ELEMENT)
    old = Update(tree.lsn + 1, 1, 1, 0, b"put", b"/ns/a", b"", b"BINARY", b"", b"x", False)
    tree.machine.state.marks.record(place, [old], 9)
    tree.lsn += 1
    for user, data in ((b"eve", ""), (b"", "eA==")):
        client = Client(tree, user)
        assert client.subscribe(f"/ns/a MODE DATA FROM {tree.lsn - 1}") == b"+OK"
        assert secrets(client) == [("put", "/ns/a", data)]


def test_list_of_namespaces_has_those_that_the_user_may_read(tree: Tree) -> None:
    tree.do("CREATENAMESPACE", "/other")
    tree.do("ACL", "SET", "/other", "OWNER", "ann", "MODE", "700")
    assert b"other" not in tree.read("LIST", "/", user=b"eve")
    assert b"ns" in tree.read("LIST", "/", user=b"eve")
    assert b"other" in tree.read("LIST", "/", user=b"ann")


@pytest.mark.parametrize(
    ("come_from", "is_there"),
    [
        ("4", True), ("1:2:4", True), ("0:0:4", True), ("5", False), ("1:2:5", False),
        ("2:0:4", False), ("0:1:4", False), ("99999", False),
    ],
)  # fmt: skip
def test_what_has_not_happened_here_is_history_lost(
    tree: Tree, come_from: str, is_there: bool
) -> None:
    """The group is in epoch 1, which began behind LSN 3; it is at LSN 4."""
    client = Client(tree)
    assert client.subscribe("/ns/a") == b"+OK"
    request = request_of(Words([b"/ns/a", b"FROM", come_from.encode()], "SUBSCRIBE"))
    machine, began = tree.machine, Begun(1, 3)
    args = machine.state, machine.audience, client.subscriber, request, tree.lsn, lambda _: None
    if is_there:
        subscribe(*args, began)
    else:
        with pytest.raises(Refused) as refused:
            subscribe(*args, began)
        assert refused.value.value == b"-HISTORY_LOST 4"


@pytest.mark.parametrize(
    ("begun", "epoch", "lsn", "is_other"),
    [
        (Begun(FORK, 3, is_fork=True), 1, 3, False),  # what is kept of the group before it
        (Begun(FORK, 3, is_fork=True), 1, 4, True),
        (Begun(FORK, 3, is_fork=True), FORK, 4, False),
        (Begun(FORK, 3, is_fork=True), None, 3, False),
        (Begun(FORK, 3, is_fork=True), None, 4, True),  # nobody knows of which it is
        (Begun(FORK, 3, is_fork=True), 2 * FORK, 3, True),
        (Begun(FORK + 1, 9), 1, 8, True),  # members have changed: where it forked is not known
        (Begun(FORK + 1, 9), FORK, 8, False),
        (Begun(FORK + 1, 9), None, 8, False),
    ],
)  # fmt: skip
def test_what_may_be_of_the_group_before_a_fork_is_another_history(
    begun: Begun, epoch: int | None, lsn: int, is_other: bool
) -> None:
    assert begun.is_other(epoch, lsn) is is_other


@pytest.mark.parametrize(
    ("come_from", "is_there"),
    [("1:2:5", True), ("1:2:4", True), ("7:9:4", False), ("7:9:5", False), ("2:1:5", False)],
)
def test_a_version_that_the_kept_history_contradicts_is_history_lost(
    tree: Tree, come_from: str, is_there: bool
) -> None:
    """The group was restored behind LSN 6; two backups may come from one group and differ."""
    client = Client(tree)
    assert client.subscribe("/ns/a") == b"+OK"
    for text in "xy":
        tree.do("PUT", "/ns/a", text)
    request = request_of(Words([b"/ns/a", b"FROM", come_from.encode()], "SUBSCRIBE"))
    machine, began = tree.machine, Begun(128 * FORK, 6, is_fork=True)
    args = machine.state, machine.audience, client.subscriber, request, tree.lsn, lambda _: None
    if is_there:
        subscribe(*args, began)
    else:
        with pytest.raises(Refused) as refused:
            subscribe(*args, began)
        assert refused.value.value == b"-HISTORY_LOST 6"


def test_where_to_go_on_after_a_fork_names_its_epoch() -> None:
    begun = Begun(FORK, 3, is_fork=True)
    assert begun.text_at(4) == f"{FORK}:0:4"
    assert (begun.text_at(3), Begun(1, 3).text_at(4)) == ("3", "4")


def test_a_durable_subscription_goes_on_where_it_was_acknowledged(tree: Tree) -> None:
    client = Client(tree)
    assert client.subscribe("/ns/a DURABLE mine") == b"+OK"
    tree.do("PUT", "/ns/a", "x")
    tree.do("PUT", "/ns/a", "y")
    heard = [text["lsn"] for text in client.take()]
    assert tree.do("SUBACK", "mine", str(heard[0])) == b"+OK"
    again = Client(tree)
    assert again.subscribe("/ns/a DURABLE mine") == b"+OK"
    assert [text["lsn"] for text in again.take()] == heard[1:]
    other = Client(tree, session=8)
    assert other.subscribe("/ns/a DURABLE mine") == b"+OK"
    assert other.take() == []
    assert again.subscribe(f"/ns/a DURABLE mine FROM {heard[1]}") == b"+OK"
    assert again.take() == []


@pytest.mark.parametrize(
    "command",
    [
        "SUBSCRIBE",
        "SUBSCRIBE /ns/a MODE",
        "SUBSCRIBE /ns/a MODE ALL",
        "SUBSCRIBE /ns/a FROM yesterday",
        "SUBSCRIBE /ns/a FROM",
        "SUBSCRIBE /ns/a LOUDLY",
        "SUBSCRIBE /ns/a DURABLE " + "x" * 256,
        "SUBSCRIBE" + " /ns/a" * 129,
        "MARK /ns/a FROM 1",
        "MARK /ns/a MODE DATA",
        "SUBACK",
        "SUBACK name",
        "SUBACK name 1 more",
    ],
)
def test_an_unknown_command_is_refused(tree: Tree, command: str) -> None:
    assert tree.do(*command.split()).startswith(b"-BADARG ")
    assert tree.read(*command.split()).startswith(b"-BADARG ")


def test_a_request_is_parsed() -> None:
    text = b"/a /b/c tree mode data from 7 durable d"
    request = request_of(Words(text.split(), ""))
    assert request == SubscribeRequest(((b"a",), (b"b", b"c")), Scope.TREE, True, 7, b"d")
    assert request.mark == (b"MARK", b"/a", b"/b/c", b"TREE", b"DURABLE", b"d")
    with pytest.raises(Refused, match="BADPATH"):
        request_of(Words([b"a"], ""))


# ---- against a plain model


NAMES = st.sampled_from(["a", "b"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/".join(("/ns", *names)))
HISTORY = 4


def is_in(path: str, top: str) -> bool:
    return bool(top) and (path + "/").startswith(top + "/")


class Plain:
    """What one subscription to a tree hears, from paths alone; `top` is where its element is."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.heard: list[tuple[int, str, str]] = []
        self.is_over = False

    def note(self, lsn: int, op: str, path: str, to: str = "") -> None:
        if not self.is_over and (is_in(path, self.top) or is_in(to, self.top)):
            self.heard.append((lsn, op, path))
        if op == "move" and is_in(self.top, path):
            self.top = to + self.top[len(path) :]
        if op == "delete" and path == self.top:
            self.is_over = True


class Listening(RuleBasedStateMachine):
    """One client is never cut off, one resumes all the time, and a model says what they hear."""

    @initialize()
    def begin(self) -> None:
        self.tree = Tree()
        self.tree.do("CREATENAMESPACE", "/ns")
        self.tree.do("CREATE", "BINARY", "/ns/a", "x")
        self.tree.do("CONFIG", "SET", "/ns", "SUBS.MIN.HISTORY", str(HISTORY))
        self.there = {"/ns", "/ns/a"}
        self.steady, self.cut = Client(self.tree), Client(self.tree)
        self.steady.subscribe("/ns/a TREE")
        self.steady.take()
        self.plain = Plain("/ns/a")
        self.heard: list[tuple[int, str, str]] = []
        self.again: list[tuple[int, str, str]] = []
        self.at = self.lost_until = self.tree.lsn

    def do(self, *words: str) -> bool:
        return self.tree.do(*words) == b"+OK"

    @rule(path=PATHS)
    def create(self, path: str) -> None:
        if self.do("CREATE", "BINARY", path, "x"):
            self.there.add(path)
            self.plain.note(self.tree.lsn, "create", path)

    @rule(path=PATHS)
    def put(self, path: str) -> None:
        if self.do("PUT", path, "y"):
            self.plain.note(self.tree.lsn, "put", path)

    @rule(path=PATHS, times=st.integers(1, 6))
    def put_in_a_transaction(self, path: str, times: int) -> None:
        packed = pack_command([b"PUT", path.encode(), b"z"])
        if not self.tree.do("EXEC", *[packed] * times).startswith(b"-"):
            for _ in range(times):
                self.plain.note(self.tree.lsn, "put", path)

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        if self.do("DELETE", path, "RECURSIVE"):
            gone = [each for each in self.there if is_in(each, path)]
            for each in sorted(gone, key=lambda p: (p.count("/"), p.split("/")), reverse=True):
                self.there.remove(each)
                self.plain.note(self.tree.lsn, "delete", each)

    @rule(source=PATHS, destination=PATHS)
    def move(self, source: str, destination: str) -> None:
        if source != destination and self.do("MOVE", source, destination):
            self.there = {
                destination + each[len(source) :] if is_in(each, source) else each
                for each in self.there
            }
            self.plain.note(self.tree.lsn, "move", source, destination)

    @rule()
    def nothing_happens(self) -> None:
        self.tree.do("PUT", "/ns/no", "x")

    @rule(is_read=st.booleans())
    @precondition(lambda self: not self.plain.is_over)
    def resume(self, is_read: bool) -> None:
        """Be cut off, perhaps with messages that were not read, and go on."""
        if is_read:
            self.listen_again()
        self.cut.subscriber.end()
        reply = self.cut.subscribe(f"{self.plain.top} TREE FROM {self.at}")
        if reply.startswith(b"-HISTORY_LOST "):
            later = [each for each in self.plain.heard if each[0] > self.at]
            assert len(later) > HISTORY
            self.at = self.lost_until = int(reply.split()[1])
            self.again = [each for each in self.plain.heard if each[0] <= self.at]
            assert self.cut.subscribe(f"{self.plain.top} TREE FROM {self.at}") == b"+OK"
        else:
            assert reply == b"+OK"

    def listen_again(self) -> None:
        for text in self.cut.take():
            self.again.append((text["lsn"], text["op"], text["path"]))
            if text.get("part", 0) + 1 == text.get("parts", 1):
                self.at = text["lsn"]

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        before = self.tree.machine.audience
        self.tree.again()
        self.tree.machine.audience = before

    @invariant()
    def all_is_heard_once_and_in_order(self) -> None:
        self.heard += [(text["lsn"], text["op"], text["path"]) for text in self.steady.take()]
        assert self.heard == self.plain.heard
        assert self.again == self.plain.heard[: len(self.again)]


TestListening = Listening.TestCase
TestListening.settings = settings(max_examples=budget(100), stateful_step_count=30)
