"""Databases over HTTP, served by a double of CouchDB."""

import ssl
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millstream.errors import AccessError, ConditionError, RemoteProtocolError, UnavailableError
from millstream.replication.aio import peer as peers
from millstream.replication.aio.peer import http_peers
from millstream.replication.aio.runner import Runner
from millstream.replication.core import tasks
from millstream.replication.core.asking import (
    Changes,
    Create,
    Feed,
    ReadCode,
    ReadInfo,
    ReadLocal,
    ReadRecords,
    StoreRecords,
    Verify,
    WriteLocal,
)
from millstream.replication.core.jobs import parse_job
from support.http.couch_double import Base, Couch, failure, revision
from support.http.proxy_double import ProxyDouble


@pytest.fixture
async def couch():
    """A server with the databases `a` and `b`; `url` is where."""
    couch = Couch()
    couch.bases = {"a": Base(), "b": Base()}
    async with TestServer(couch.application()) as server:
        couch.server = server
        couch.url = f"http://127.0.0.1:{server.port}"
        yield couch


def job_of(couch, user="", **more):
    url = couch.url.replace("//", f"//{user}@") if user else couch.url
    return parse_job({"source": f"{url}/a", "target": f"{url}/b"} | more)


async def run(job):
    async with http_peers(job) as (source, target):
        return await Runner(job, source, target).finish()


def fill(couch, count=5):
    for number in range(count):
        couch.bases["a"].put(revision(f"n{number}", number, value=number))


async def test_documents_go_over(couch):
    fill(couch)
    first = couch.bases["a"].documents["n1"][f"1-{1:032x}"]
    couch.bases["a"].put(revision("n1", 77, parent=first, value="new"))
    done = await run(job_of(couch))
    assert done.statistics.docs_written == 5
    for name in couch.bases["a"].documents:
        assert couch.bases["b"].leaves(name) == couch.bases["a"].leaves(name)
    assert couch.bases["a"].locals.keys() == couch.bases["b"].locals.keys()
    assert (await run(job_of(couch))).has_changed_nothing


async def test_attachments_go_over_as_they_are(couch):
    files = [("a b.txt", "text/plain", b"x" * 200_000), ("e/f", "image/png", b""),
             ("g", "a/b", b"\r\n--")]  # fmt: skip
    couch.bases["a"].put(revision("n", 1, value=1), files)
    couch.bases["a"].put(revision("n", 2, value=2), files[:1])
    couch.bases["a"].put(revision("plain", 3))
    done = await run(job_of(couch))
    assert done.statistics.docs_written == 3
    assert couch.bases["b"].attachments == couch.bases["a"].attachments
    assert couch.bases["b"].leaves("n") == couch.bases["a"].leaves("n")


async def test_who_is_refused_is_listed(couch):
    fill(couch)
    couch.bases["a"].put(revision("file", 9), [("f", "a/b", b"1")])
    couch.bases["b"].refused = {"n2", "file"}
    done = await run(job_of(couch))
    assert done.statistics.doc_write_failures == 2
    assert done.entries[0].exceptions == ("file", "n2")
    couch.bases["b"].refused = set()
    await run(job_of(couch))
    assert couch.bases["b"].documents.keys() == couch.bases["a"].documents.keys()


@pytest.mark.parametrize("breaks_off", [False, True])
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (("POST", "/b/_revs_diff"), "n2"),
        (("POST", "/a/_bulk_get"), "n2"),
        (("GET", "/a/n2"), "open_revs"),
        (("POST", "/b/_bulk_docs"), "n2"),
        (("PUT", "/b/file"), "file"),
        (("GET", "/a/file"), "open_revs"),
    ],
)
async def test_a_document_that_breaks_whole_requests_does_not_stop_the_others(
    couch, monkeypatch, where, name, breaks_off
):
    monkeypatch.setattr(tasks, "RETRY_MIN_MS", 0)
    fill(couch)
    couch.bases["a"].put(revision("file", 9), [("f", "a/b", b"1")])
    couch.poison, couch.breaks_off = {where: {name}}, breaks_off
    if where == ("GET", "/a/n2"):
        couch.poison["POST", "/a/_bulk_get"] = {"n2"}
    refused = {"file"} if "file" in where[1] else {"n2"}
    if where == ("POST", "/a/_bulk_get"):
        refused = set()  # it can be read alone
    done = await run(job_of(couch))
    assert couch.bases["a"].documents.keys() - couch.bases["b"].documents.keys() == refused
    assert set(done.entries[0].exceptions) == refused
    couch.poison = {}
    assert not (await run(job_of(couch))).outcome.error
    assert couch.bases["b"].documents.keys() == couch.bases["a"].documents.keys()


async def test_who_may_no_longer_write_is_no_documents_fault(couch, monkeypatch):
    couch.bases["a"].put(revision("file", 9), [("f", "a/b", b"1")])

    async def refuse(*_):
        return failure(401, "unauthorized", "You are not a server admin.")

    monkeypatch.setattr(couch, "write", refuse)
    with pytest.raises(AccessError, match="not a server admin"):
        await run(job_of(couch))


async def test_a_target_is_created(couch):
    fill(couch)
    del couch.bases["b"]
    with pytest.raises(ConditionError, match="does not exist"):
        await run(job_of(couch))
    await run(job_of(couch, create_target=True))
    assert len(couch.bases["b"].documents) == 5


async def test_who_has_a_name_asks_for_a_cookie_once(couch):
    couch.users = {"me": "secret"}
    fill(couch)
    await run(job_of(couch, "me:secret"))
    assert len(couch.bases["b"].documents) == 5
    assert couch.logins == ["me", "me"]


async def test_an_old_cookie_is_renewed(couch):
    couch.users = {"me": "secret"}
    async with http_peers(job_of(couch, "me:secret")) as (source, _):
        await source.ask(ReadInfo())
        couch.cookies.clear()
        await source.ask(ReadInfo())
    assert couch.logins == ["me", "me"]


async def test_without_log_ins_each_request_has_the_password(couch):
    couch.users, couch.has_sessions = {"me": "secret"}, False
    fill(couch)
    await run(job_of(couch, "me:secret"))
    assert len(couch.bases["b"].documents) == 5


async def test_a_wrong_password_is_an_error(couch):
    couch.users = {"me": "secret"}
    with pytest.raises(AccessError) as caught:
        await run(job_of(couch, "me:wrong"))
    assert caught.value.code == "unauthorized"
    assert "wrong" not in str(caught.value)


async def test_what_answers_mean(couch):
    fill(couch, 2)
    design = {"filters": {"f": " function () {} "}}
    couch.bases["a"].put(revision("_design/d", 5, **design))
    async with http_peers(job_of(couch)) as (source, target):
        assert (await source.ask(ReadInfo())).identity.endswith("/a")
        assert await source.ask(ReadCode(("d", "filters", "f"))) == "function () {}"
        with pytest.raises(ConditionError, match="no filter"):
            await source.ask(ReadCode(("d", "filters", "g")))
        await target.ask(Create())
        assert await source.ask(ReadLocal("x")) is None
        await source.ask(WriteLocal("x", {"n": 1}))
        assert (await source.ask(ReadLocal("x")))["n"] == 1
        with pytest.raises(ConditionError) as caught:
            await source.ask(WriteLocal("x", {"n": 2}))
        assert caught.value.code == "conflict"
        page = await source.ask(Changes(0, 10, Feed(doc_ids=("n1",))))
        assert [row.name for row in page.rows] == ["n1"]
        for request in (ReadRecords(("o",)), Verify(()), StoreRecords()):
            with pytest.raises((ConditionError, RemoteProtocolError)):
                await source.ask(request)


async def test_answers_are_bounded(couch, monkeypatch):
    monkeypatch.setattr(peers, "ANSWER_BYTES_MAX", 2000)
    for number in range(12):
        couch.bases["a"].put(revision(f"n{number}", number, value="x" * 150))
    await run(job_of(couch, worker_batch_size=3))
    assert len(couch.bases["b"].documents) == 12


async def test_nobody_there(couch):
    job = job_of(couch)
    await couch.server.close()
    async with http_peers(job) as (source, _):
        with pytest.raises(UnavailableError) as caught:
            await source.ask(ReadInfo())
    assert (caught.value.code, caught.value.retry) == ("unreachable", "backoff")


TLS = Path(__file__).parents[3] / "e2e" / "tls"


@pytest.fixture
async def hidden():
    """The same behind TLS; `url` is where, `trust` believes its certificate."""
    couch = Couch()
    couch.bases = {"a": Base(), "b": Base()}
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "node.pem")
    runner = web.AppRunner(couch.application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    couch.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    couch.trust = ssl.create_default_context(cafile=TLS / "authority.pem")
    yield couch
    await runner.cleanup()


async def run_with(job, tls=None):
    async with http_peers(job, tls) as (source, target):
        return await Runner(job, source, target).finish()


async def test_plain_requests_pass_through_a_proxy(couch):
    fill(couch)
    couch.bases["a"].put(revision("file", 9), [("f", "a/b", b"1" * 100_000)])
    couch.users = {"me": "secret"}
    async with ProxyDouble("you:pass w\N{EURO SIGN}rd") as proxy:
        way = proxy.url("you:pass%20w%E2%82%ACrd")
        done = await run(job_of(couch, "me:secret", proxy=way))
        assert done.statistics.docs_written == 6
        assert proxy.requests[0].split()[1].startswith(couch.url)
        assert not proxy.tunnels
        assert len(proxy.requests) == len(couch.asked)
    assert not [name for name in couch.headers if name.startswith("proxy-")]


async def test_only_one_end_may_have_a_proxy(couch):
    fill(couch)
    async with ProxyDouble() as proxy:
        await run(job_of(couch, target_proxy=proxy.url()))
        assert {line.split()[1].split("/")[3].split("?")[0] for line in proxy.requests} == {"b"}
        before = len(proxy.requests)
        await run(job_of(couch, source_proxy=proxy.url()))
        later = proxy.requests[before:]
        assert {line.split()[1].split("/")[3].split("?")[0] for line in later} == {"a"}


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_encrypted_requests_pass_through_tunnels(hidden, is_encrypted):
    fill(hidden)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(TLS / "node.pem")
    hidden.users = {"me": "secret"}
    async with ProxyDouble("you:pass", own if is_encrypted else None) as proxy:
        job = job_of(hidden, "me:secret", proxy=proxy.url("you:pass"))
        done = await run_with(job, hidden.trust)
        assert done.statistics.docs_written == 5
        assert set(proxy.tunnels) == {hidden.url.removeprefix("https://")}
        assert not proxy.requests
    assert not [name for name in hidden.headers if name.startswith("proxy-")]


async def test_certificates_are_verified(hidden):
    fill(hidden)
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        await run_with(job_of(hidden), ssl.create_default_context())
    stranger = ssl.create_default_context(cafile=TLS / "stranger.pem")
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        await run_with(job_of(hidden), stranger)
    await run_with(job_of(hidden), hidden.trust)
    assert len(hidden.bases["b"].documents) == 5


@pytest.mark.parametrize("is_hidden", [False, True])
async def test_a_proxy_that_refuses_is_told_without_its_password(couch, hidden, is_hidden):
    server, trust = (hidden, hidden.trust) if is_hidden else (couch, None)
    place = server.url.partition("//")[2]
    async with ProxyDouble("you:right") as proxy:
        job = job_of(server, proxy=proxy.url("you:hushhush"))
        with pytest.raises(AccessError, match="407") as caught:
            await run_with(job, trust)
        assert caught.value.code == "unauthorized"
        assert "hush" not in str(caught.value)
        assert "hush" not in repr(job)
        proxy.wanted, proxy.closed = "", {place}
        job = job_of(server, connection_timeout=1000, proxy=proxy.url("you:hushhush"))
        async with http_peers(job, trust) as (source, _):
            with pytest.raises((UnavailableError, AccessError)) as caught:
                await source.ask(ReadInfo())
        assert "hush" not in str(caught.value)
    async with http_peers(job, trust) as (source, _):
        with pytest.raises(UnavailableError) as caught:
            await source.ask(ReadInfo())
    assert "hush" not in str(caught.value)
    assert caught.value.code == "unreachable"
