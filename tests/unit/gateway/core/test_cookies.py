import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.access.users import UserStore
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
    name, expires, signature = signer.make(users.get("ada")).split(".")
    for value in (
        f"{name}.{int(expires) + 1}.{signature}",
        f"{name}.{expires}.{signature[:-1]}",
        f"{name}.{expires}",
        f"YQ.{expires}.{signature}",
        f"{name}.{expires}.\xe4",
        "x" * 2000,
        f"///.{expires}.{signature}",
    ):
        assert signer.check(value, users.get) is None


@given(st.text())
def test_any_text_is_nobody(users, text):
    assert CookieSigner(b"key", lambda: 1000).check(text, users.get) is None
