import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.access.users import UserStore
from millstream.gateway.core import cookies
from millstream.gateway.core.cookies import SESSION_SECONDS, CookieSigner


@pytest.fixture(scope="module")
def users():
    store = UserStore()
    store.put("ada", "secret")
    store.put("b=ö, c", "secret")
    return store


def test_a_cookie_stands_for_its_user(users):
    signer = CookieSigner(b"key", lambda: 1000)
    for name in users.names:
        assert signer.check(signer.make(users.get(name)), users.get) is users.get(name)


def test_a_cookie_ends_with_time_key_and_record():
    store = UserStore()
    store.put("ada", "secret")
    now = [1000]
    signer = CookieSigner(b"key", lambda: now[0])
    cookie = signer.make(store.get("ada"))
    assert CookieSigner(b"other", lambda: 1000).check(cookie, store.get) is None
    now[0] += SESSION_SECONDS
    assert signer.check(cookie, store.get) is None
    now[0] -= 1
    assert signer.check(cookie, store.get)
    store.put("ada", "secret")
    assert signer.check(cookie, store.get) is None


def test_changed_cookies_are_nobody(users):
    signer = CookieSigner(b"key", lambda: 1000)
    name, expires, serial, signature = signer.make(users.get("ada")).split(".")
    for value in (
        f"{name}.{int(expires) + 1}.{serial}.{signature}",
        f"{name}.{expires}.9{serial}.{signature}",
        f"{name}.{expires}.{signature}",
        f"{name}.{expires}.{serial}.{signature[:-1]}",
        f"{name}.{expires}",
        f"YQ.{expires}.{serial}.{signature}",
        f"{name}.{expires}.{serial}.\xe4",
        f"{name}.{expires}.\ud800.{signature}",
        "x" * 2000,
        f"///.{expires}.{serial}.{signature}",
    ):
        assert signer.check(value, users.get) is None


@given(st.text())
def test_any_text_is_nobody(users, text):
    assert CookieSigner(b"key", lambda: 1000).check(text, users.get) is None


def test_a_cookie_that_was_logged_out_with_is_nobody_and_others_stay(users):
    signer, ada = CookieSigner(b"key", lambda: 1000), users.get("ada")
    ended, other = signer.make(ada), signer.make(ada)
    signer.revoke(ended, users.get)
    assert signer.check(ended, users.get) is None
    assert signer.check(other, users.get) is ada
    assert signer.check(signer.make(ada), users.get) is ada, "in the same second"


def test_what_is_remembered_of_ended_cookies_is_bounded_and_none_works_again(users, monkeypatch):
    monkeypatch.setattr(cookies, "REVOKED_MAX", 2)
    now = [1000]
    signer, ada = CookieSigner(b"key", lambda: now[0]), users.get("ada")
    ended = []
    for _ in range(4):
        ended.append(signer.make(ada))
        signer.revoke(ended[-1], users.get)
        now[0] += 1
    assert len(signer._revoked) == 2
    assert [signer.check(one, users.get) for one in ended] == [None] * 4
    assert signer.check(signer.make(ada), users.get) is ada
