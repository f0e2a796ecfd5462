"""Commands of coordination over HTTP. A real group: tests/e2e/test_coordination_over_http.py."""

from functools import partial

import pytest

from millstream.errors import UsageError
from millstream.gateway.aio.answers import NODE_API
from millstream.gateway.aio.node import coordination_pages
from millstream.gateway.aio.node.coordination_pages import COORDINATION, SESSIONS_MAX

PATH = "/_millstream/coordination/command"


class FalseClient:
    """Remembers who it is and what it was told."""

    def __init__(self, made, addresses, *, user, password, deadline_s, tls):
        self.who, self.said, self.is_closed = (addresses, user, password), [], False
        made.append(self)

    async def __aenter__(self):
        return self

    async def close(self):
        self.is_closed = True

    async def execute(self, *words, is_change):
        self.said.append((words, is_change))
        return {b"data": b"\xff", b"n": [1, None, b"text"]}


@pytest.fixture
def made(monkeypatch):
    made = []
    monkeypatch.setattr(coordination_pages, "AsyncClient", partial(FalseClient, made))
    return made


def port(host, monkeypatch):
    monkeypatch.setattr(host, "coordination_port", lambda: ("127.0.0.1:1", None), raising=False)


async def test_requests_of_one_session_share_a_client(client, body, made, monkeypatch):
    port(client.app[NODE_API], monkeypatch)
    for session, words in (("x", ["LOCK", "/a"]), ("x", ["GET", "/a"]), ("y", ["LIST", "/a"])):
        found = await body(await client.post(PATH, json={"words": words, "session": session}))
        assert found == {"reply": {"data": {"base64": "/w=="}, "n": [1, None, "text"]}}
    assert [one.said for one in made] == [
        [((b"LOCK", b"/a"), True), ((b"GET", b"/a"), False)], [((b"LIST", b"/a"), False)],
    ]  # fmt: skip
    await client.app[COORDINATION].stop()
    assert all(one.is_closed for one in made)


async def test_sessions_are_bounded(client, body, made, monkeypatch):
    port(client.app[NODE_API], monkeypatch)
    for number in range(SESSIONS_MAX):
        asked = {"words": ["GET", "/a"], "session": str(number)}
        await body(await client.post(PATH, json=asked))
    over = await body(await client.post(PATH, json={"words": ["GET", "/a"], "session": "z"}), 503)
    assert over["error"] == "too_many_sessions"
    await client.app[COORDINATION].stop()


@pytest.mark.parametrize("name", ["MULTI", "subscribe", "AUTH", "HELLO", "CSN"])
async def test_what_is_about_a_connection_is_refused(client, body, made, name):
    found = await body(await client.post(PATH, json={"words": [name]}), 400)
    assert found["error"] == "not_supported"
    assert not made


@pytest.mark.parametrize(
    "content", [{}, {"words": []}, {"words": [1]}, {"words": ["GET"], "x": 1}]
)
async def test_other_bodies_are_refused(client, body, content):
    await body(await client.post(PATH, json=content), 400)


async def test_it_is_said_as_the_user_with_the_password(guarded, body, bob, made, monkeypatch):
    port(guarded.app[NODE_API], monkeypatch)
    await body(await guarded.post(PATH, json={"words": ["GET", "/a"]}), 401)
    await body(await guarded.post(PATH, json={"words": ["GET", "/a"]}, headers=bob))
    assert [one.who for one in made] == [(["127.0.0.1:1"], "bob", "secret")]
    cookie = await guarded.post("/_session", json={"name": "bob", "password": "secret"})
    assert cookie.status == 200
    session = await body(await guarded.get("/_session"))
    headers = {"X-CSRF-Token": session["csrf"]}
    needed = await guarded.post(PATH, json={"words": ["GET", "/a"]}, headers=headers)
    assert (await body(needed, 403))["error"] == "password_needed"
    await guarded.app[COORDINATION].stop()


async def test_a_watch_names_an_element(client, body):
    found = await body(await client.get("/_millstream/coordination/watch?path=a"), 400)
    assert found["error"] == "query_parse_error"


@pytest.mark.parametrize(
    ("reply", "is_short"),
    [
        ([1, [2, 3]], True),
        ([1, [2, 3, 4]], False),
        ([[], [], [], []], True),
        ([[], [], [], [], []], False),
        ([{}, [b""], b""], True),
        ([b"1234", b"5678"], True),
        ([b"1234", b"56789"], False),
        ({b"1234": b"5678"}, True),
        ({b"12345": b"5678"}, False),
    ],
)
def test_a_reply_of_too_many_values_or_bytes_is_refused(monkeypatch, reply, is_short):
    monkeypatch.setattr(coordination_pages, "REPLY_VALUES_MAX", 5)
    monkeypatch.setattr(coordination_pages, "REPLY_BYTES_MAX", 8)
    if is_short:
        coordination_pages._shown(reply, coordination_pages._Left())
        return
    with pytest.raises(UsageError) as refused:
        coordination_pages._shown(reply, coordination_pages._Left())
    assert refused.value.code == "too_large"
