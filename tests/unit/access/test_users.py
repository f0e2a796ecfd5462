import os
import re
import stat

import pytest

from millstream.access.failed_logins import FAILED_LOGINS_MAX, PAUSE_S, FailedLogin
from millstream.access.scram_client import ScramClient
from millstream.access.users import NODE_USER, REMEMBERED_MAX, UserStore
from millstream.errors import AccessError, ConditionError, CorruptionError, UsageError


@pytest.fixture(scope="module")
def users():
    store = UserStore()
    store.put("ada", "secret", ["admin"])
    store.put("bob", "hidden", ["read:orders", "stream:*"])
    return store


def test_rights(users):
    ada, bob = users.get("ada"), users.get("bob")
    assert ada.may("admin", "")
    assert ada.may("write", "orders")
    assert bob.may("read", "orders")
    assert not bob.may("read", "other")
    assert bob.may("stream", "other")
    assert not bob.may("write", "orders")
    assert not bob.may("admin", "orders")


def test_passwords(users):
    assert users.check_password("ada", "secret").name == "ada"
    assert users.check_password("ada", "Secret") is None
    assert users.check_password("nobody", "secret") is None
    assert users.check_password("ada", "") is None
    assert users.check_password("ada\x00", "secret") is None
    assert users.check_password("ada", "\ud800") is None
    assert users.check_password("ada", "x" * 5000) is None


def test_a_remembered_check_ends_with_time_and_with_the_user():
    now = [0.0]
    store = UserStore(now=lambda: now[0])
    store.put("ada", "secret")
    store.put("root", "x")
    first = store.check_password("ada", "secret")
    assert store._recall(next(iter(store._remembered))) is first
    now[0] = 61.0
    assert store._recall(next(iter(store._remembered))) is None
    assert store.check_password("ada", "secret") is first
    store.put("ada", "other")
    assert store.check_password("ada", "secret") is None
    assert store.delete("ada")
    assert not store.delete("ada")
    assert store.check_password("ada", "other") is None


def test_remembered_checks_are_bounded(users):
    for number in range(REMEMBERED_MAX + 5):
        users._remember(b"%d" % number, users.get("bob"))
    assert len(users._remembered) == REMEMBERED_MAX


def test_the_file_survives_and_is_private(tmp_path):
    path = tmp_path / "users.json"
    store = UserStore(path)
    assert store.is_empty
    store.put("ada", "secret")
    store.put("bob", "x", ["write:*"])
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert b"secret" not in path.read_bytes()
    again = UserStore(path)
    assert again.names == ["ada", "bob"]
    assert again.check_password("ada", "secret").is_admin
    assert again.get("bob").roles == ("write:*",)
    assert again._find("nobody", "SCRAM-SHA1") == store._find("nobody", "SCRAM-SHA1")


def test_ensure_admin_writes_only_what_changed(tmp_path):
    store = UserStore(tmp_path / "users.json")
    store.ensure_admin("ada", "secret")
    user = store.get("ada")
    store.ensure_admin("ada", "secret")
    assert store.get("ada") is user
    store.ensure_admin("ada", "other")
    assert store.check_password("ada", "other")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format":1}', b'{"format":9}', b"\xff"])
def test_a_foreign_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "users.json"
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match="users"):
        UserStore(path)


@pytest.mark.parametrize("name", ["", "a:b", "@node", "_admin", "x" * 200])
def test_bad_names(name):
    with pytest.raises(UsageError, match="user name"):
        UserStore().put(name, "x")


@pytest.mark.parametrize(
    "role", ["root", "read", "read:", "admin:x", ":x", "group:", "group:a b", "group:" + "x" * 200]
)
def test_bad_roles(role):
    with pytest.raises(UsageError, match="role"):
        UserStore().put("ada", "x", [role])


def test_the_last_administrator_stays():
    store = UserStore()
    with pytest.raises(ConditionError):
        store.put("bob", "x", ["read:*"])
    assert store.is_empty
    store.put("ada", "x")
    store.put("bob", "x", ["read:*"])
    with pytest.raises(ConditionError):
        store.delete("ada")
    with pytest.raises(ConditionError):
        store.put("ada", "x", ["read:*"])
    assert store.get("ada").is_admin


def test_empty_password_and_unknown_mechanism():
    store = UserStore()
    with pytest.raises(UsageError):
        store.put("ada", "")
    with pytest.raises(AccessError):
        store.scram_server("PLAIN")


# -- the nodes' own user

SECRET = "correct horse battery"


def test_the_nodes_log_in_with_their_secret(tmp_path):
    store = UserStore(tmp_path / "users.json", node_secret=SECRET)
    assert store.is_empty, "it makes nobody log in"
    store.put("ada", "x")
    node = store.check_password(NODE_USER, SECRET)
    assert node is store.check_password(NODE_USER, SECRET), "remembered"
    assert all(node.may(right, "b") for right in ("admin", "stream", "read"))
    assert store.check_password(NODE_USER, "x") is None
    assert store.names == ["ada"]
    assert store.get(NODE_USER) is node
    assert "@node" not in (tmp_path / "users.json").read_text()
    assert not store.delete(NODE_USER)
    with pytest.raises(UsageError):
        store.put(NODE_USER, "y")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1"])
def test_the_nodes_may_use_every_mechanism(mechanism):
    store = UserStore(node_secret=SECRET)
    store.put("ada", "x")
    for password, is_right in ((SECRET, True), ("another", False)):
        client = ScramClient(mechanism, NODE_USER, password)
        server = store.scram_server(mechanism)
        challenge, user = server.step(client.first())
        assert user is None
        if is_right:
            assert server.step(client.next(challenge))[1].name == NODE_USER
        else:
            with pytest.raises(AccessError):
                server.step(client.next(challenge))


def test_without_a_secret_there_is_no_such_user(tmp_path):
    store = UserStore()
    store.put("ada", "x")
    assert store.get(NODE_USER) is None
    assert store.check_password(NODE_USER, "") is None
    assert store.check_password(NODE_USER, SECRET) is None


def test_a_record_of_the_nodes_user_in_the_file_counts_for_nothing(tmp_path):
    path = tmp_path / "users.json"
    UserStore(path).put("ada", "x")
    text = path.read_text().replace('"ada"', '"@node"')
    path.write_text(re.sub(r',\s*"crc32": \d+', "", text))
    assert UserStore(path).check_password(NODE_USER, "x") is None


class Note:
    """What a data directory's inventory says of the users, and whether it was asked to."""

    def __init__(self):
        self.is_said = False

    def has_users(self):
        return self.is_said

    def note_users(self):
        self.is_said = True


@pytest.mark.parametrize("how", ["missing", "empty", "no users", "flipped", "no checksum"])
def test_a_node_that_had_users_does_not_go_on_without_their_file_as_it_was_written(tmp_path, how):
    path, note = tmp_path / "users.json", Note()
    UserStore(path, note=note).put("ada", "x")
    assert note.is_said
    whole = path.read_text()
    UserStore(path, note=note)
    if how == "missing":
        path.unlink()
    else:
        path.write_text({
            "empty": "",
            "no users": '{"format": 1, "decoy_key": "", "users": []}',
            "flipped": whole.replace('"ada"', '"adb"'),
            "no checksum": re.sub(r',\s*"crc32": \d+', "", whole),
        }[how])  # fmt: skip
    with pytest.raises(CorruptionError, match=rf"millstream check {tmp_path} --accept users.json"):
        UserStore(path, note=note)


def test_the_users_of_an_older_program_are_missed_once_they_were_seen(tmp_path):
    path, note = tmp_path / "users.json", Note()
    UserStore(path).put("ada", "x")
    old = re.sub(r',\s*"crc32": \d+', "", path.read_text())
    path.write_text(old)
    users = UserStore(path, note=note)
    assert (users.names, note.is_said, path.read_text()) == (["ada"], False, old)
    users.protect()
    assert note.is_said
    assert "crc32" in path.read_text()
    assert UserStore(path, note=note).names == ["ada"]
    path.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        UserStore(path, note=note)


def test_what_another_process_made_of_the_users_is_read_again(tmp_path):
    path = tmp_path / "users.json"
    mine, its = UserStore(path), UserStore(path)
    assert mine.refresh() == []
    its.put("admin", "one")
    assert mine.refresh() == ["admin"]
    assert mine.refresh() == []
    assert mine.check_password("admin", "one")
    its.put("admin", "two")
    its.put("other", "three", ("read:*",))
    assert mine.refresh() == ["admin", "other"]
    assert mine.check_password("admin", "one") is None
    its.delete("other")
    assert mine.refresh() == ["other"]
    path.write_text("rubbish")
    with pytest.raises(CorruptionError):
        mine.refresh()
    assert mine.names == ["admin"]


def test_a_user_is_changed_in_part():
    store = UserStore()
    store.change("ada", password="pw", rights=["admin"])
    store.change("bob", password="pw", groups=["staff"])
    store.change("bob", rights=["read:b"])
    assert store.get("bob").roles == ("group:staff", "read:b")
    store.change("bob", groups=[])
    assert store.get("bob").roles == ("read:b",)
    assert store.check_password("bob", "pw").name == "bob"
    store.change("bob", password="other")
    assert store.check_password("bob", "pw") is None
    with pytest.raises(UsageError, match="password"):
        store.change("eve", rights=["admin"])
    with pytest.raises(ConditionError):
        store.change("ada", rights=[])


def test_a_user_is_changed_only_if_it_is_as_expected(tmp_path):
    """Judged is what the file says when it is changed, also by another process."""
    mine, theirs = (UserStore(tmp_path / "users.json") for _ in range(2))
    mine.put("ada", "pw", ["admin"])
    theirs.change("bob", password="pw", rights=["read:b"])
    seen = []

    def refuse(user):
        seen.append(user.roles if user is not None else None)
        raise ConditionError("no", code="conflict")

    for call in (
        lambda: mine.change("bob", rights=["write:b"], expect=refuse),
        lambda: mine.change("eve", password="pw", rights=[], expect=refuse),
        lambda: mine.delete("bob", refuse),
    ):
        with pytest.raises(ConditionError, match="no"):
            call()
    assert seen == [("read:b",), None, ("read:b",)]
    assert mine.names == ["ada", "bob"]
    assert mine.delete("bob", seen.append)
    assert mine.names == ["ada"]


def test_two_processes_change_users(tmp_path):
    one, other = (UserStore(tmp_path / "users.json") for _ in range(2))
    one.put("ada", "pw")
    other.put("bob", "pw")
    one.delete("bob")
    other.put("eve", "pw")
    one.put("joe", "pw")
    assert one.names == ["ada", "eve", "joe"]
    assert other.refresh() == ["ada", "bob", "joe"]
    assert one.refresh() == ["eve"]
    assert (one.refresh(), other.refresh()) == ([], [])
    assert other.check_password("joe", "pw").name == "joe"


def test_who_guesses_is_refused_slowly_and_the_right_password_gets_in():
    store = UserStore(now=lambda: 0.0)
    store.put("ada", "pw")

    def scram(password, *, is_refused=False):
        client = ScramClient("SCRAM-SHA256", "ada", password)
        server = store.scram_server("SCRAM-SHA256", "here")
        challenge, _ = server.step(client.first())
        if is_refused:
            with pytest.raises(AccessError, match="wrong"):
                server.step(client.next(challenge))
            return server
        return server.step(client.next(challenge))[1]

    for number in range(FAILED_LOGINS_MAX):
        if number % 2:
            assert store.check_password("ada", "no", "here") is None
        else:
            with pytest.raises(AccessError, match="wrong"):
                scram("no")
    assert store.judge_password("ada", "no", "here") == (None, PAUSE_S)
    server = scram("no", is_refused=True)
    assert server.pause_s == 2 * PAUSE_S
    assert scram("pw").name == "ada"
    assert store.judge_password("ada", "pw", "here")[1] == 0.0


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_new_password_lets_in_who_failed_with_the_old_one(tmp_path, is_elsewhere):
    path = tmp_path / "users.json"
    mine = UserStore(path)
    mine.put("ada", "secret")
    for _ in range(FAILED_LOGINS_MAX):
        assert mine.check_password("bob", "new", "here") is None
    assert mine.judge_password("bob", "new", "here")[1] > 0
    (UserStore(path) if is_elsewhere else mine).put("bob", "new")
    mine.refresh()
    assert mine.judge_password("bob", "no", "here") == (None, 0.0)
    assert mine.check_password("bob", "new", "here") is not None


def test_what_another_process_of_the_node_counted_is_among_the_failed_logins():
    users = UserStore()
    for name in ("eve", "eve", "mallory"):
        assert users.check_password(name, "guess", "here") is None
    users.failed_elsewhere = lambda: (
        FailedLogin("eve", "here", 3, 50.0), FailedLogin("eve", "there", 1, 60.0),
    )  # fmt: skip
    told = [one[:3] for one in users.failed_logins(9)]
    assert sorted(told[:2]) == [("eve", "here", 5), ("mallory", "here", 1)]
    assert told[2:] == [("eve", "there", 1)]
    assert len(users.failed_logins(2)) == 2
