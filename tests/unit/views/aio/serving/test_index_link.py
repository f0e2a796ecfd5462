"""Engine's and index process's side of the socket, in one loop."""

import asyncio
import time

import pytest

from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.views.aio.serving import index_link
from millstream.views.aio.serving.index_link import LINKS_MAX, SHARE_MAX, IndexLink
from millstream.views.aio.serving.index_server import OUT_BYTES_MAX, Answer, IndexServer


class CallsDouble:
    """Echoes; streams; fails; waits for ever."""

    def __init__(self):
        self.made = 0
        self.cancelled = 0
        self.ended = 0
        self.waiting = 0

    async def call(self, name, arguments):
        match name:
            case "echo":
                return Answer(arguments)
            case "pieces":
                return Answer({"n": arguments["count"]}, self.pieces(**arguments))
            case "refuse":
                raise ConditionError("not there", code="missing")
            case "wait":
                self.waiting += 1
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
        raise AssertionError(name)

    async def pieces(self, count, size, fails=False):
        try:
            for number in range(count):
                self.made += 1
                yield b"%d" % (number % 10) * size
        finally:
            self.ended += 1
        if fails:
            raise UnavailableError("in the middle", code="timeout")


@pytest.fixture
async def both(tmp_path):
    calls = CallsDouble()
    server = IndexServer(calls)
    await server.start(tmp_path / "i.sock")
    link = IndexLink(tmp_path / "i.sock")
    yield calls, server, link
    link.close()
    await server.stop()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - several kinds of it
            await asyncio.sleep(0.001)


async def read(answer):
    return [piece async for piece in answer]


async def test_a_call_is_answered_and_its_connection_used_again(both):
    _, server, link = both
    for number in range(3):
        assert await link.ask("echo", number=number, text="é") == {"number": number, "text": "é"}
    assert len(server.connections) == 1


async def test_calls_at_the_same_time_have_a_connection_each(both):
    _, server, link = both
    found = await asyncio.gather(*(link.ask("echo", number=n) for n in range(10)))
    assert [head["number"] for head in found] == list(range(10))
    assert len(server.connections) == 10


async def test_a_long_answer_comes_in_pieces_and_waits_for_its_reader(both):
    calls, _, link = both
    size, count = 100_000, 100
    answer = await link.call("pieces", count=count, size=size)
    assert answer.head == {"n": count}
    await until(lambda: calls.made > 2)
    await asyncio.sleep(0)
    made = 0
    while made != calls.made:  # it comes to rest although nobody reads
        made = calls.made
        await asyncio.sleep(0.05)
    held = (index_link.HELD_BYTES_MAX + OUT_BYTES_MAX) // size
    assert made <= held + 30, "what the two sides and the socket hold, and no more"
    assert await read(answer) == [b"%d" % (n % 10) * size for n in range(count)]
    assert await link.ask("echo", a=1) == {"a": 1}


async def test_a_refusal_is_an_error_and_the_connection_goes_on(both):
    _, server, link = both
    for _ in range(2):
        with pytest.raises(ConditionError, match="not there") as raised:
            await link.ask("refuse")
        assert raised.value.code == "missing"
    assert await link.ask("echo") == {}
    assert len(server.connections) == 1


async def test_an_error_in_the_middle_comes_after_the_pieces_before_it(both):
    _, _, link = both
    with pytest.raises(UnavailableError, match="in the middle"):
        await link.call("pieces", count=3, size=10, fails=True)  # nothing was sent yet
    answer = await link.call("pieces", count=3, size=100_000, fails=True)
    pieces = aiter(answer)
    assert [len(await anext(pieces)) for _ in range(2)] == [100_000] * 2
    with pytest.raises(UnavailableError, match="in the middle"):
        await anext(pieces)
    # the third was not sent yet, and is left out
    assert await link.ask("echo") == {}


async def test_an_unexpected_error_reveals_no_details(both, caplog):
    _, _, link = both
    with pytest.raises(MillstreamError, match="the log says more") as raised:
        await link.ask("no such call")
    assert raised.value.code == "internal_error"
    assert "AssertionError" in caplog.text


async def test_abandoning_an_answer_cancels_the_call(both):
    calls, server, link = both
    task = asyncio.ensure_future(link.ask("wait"))
    await until(lambda: calls.waiting)
    task.cancel()
    await until(lambda: calls.cancelled)
    answer = await link.call("pieces", count=10_000, size=100_000)
    await answer.close()
    await until(lambda: not server.connections and not server.tasks)
    assert calls.made < 1000
    assert calls.ended == 1, "what is behind the answer is let go at once"
    assert await link.ask("echo") == {}


async def test_a_closed_peer_ends_the_calls(both):
    calls, server, link = both
    await link.ask("echo")
    task = asyncio.ensure_future(link.ask("wait"))
    await until(lambda: calls.waiting)
    await server.stop()
    with pytest.raises(UnavailableError) as raised:
        await task
    assert raised.value.code == "index_unavailable"
    with pytest.raises(UnavailableError):
        await link.ask("echo")
    link.close()
    with pytest.raises(UnavailableError, match="has ended"):
        await link.ask("echo")


async def test_calls_beyond_the_connections_wait_with_a_limit(both, monkeypatch):
    calls, _, link = both
    monkeypatch.setattr(index_link, "WAIT_S", 0.05)
    tasks = [asyncio.ensure_future(link.ask("wait")) for _ in range(LINKS_MAX)]
    await until(lambda: calls.waiting == LINKS_MAX)
    with pytest.raises(UnavailableError) as raised:
        await link.ask("echo")
    assert raised.value.code == "too_many_calls"
    tasks[0].cancel()
    assert await link.ask("echo") == {}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_round_trip_is_quick(both):
    """Processor time of both sides together: the target is a quarter of a millisecond."""
    _, _, link = both
    await link.ask("echo")
    best = 1.0
    for _ in range(5):
        start = time.process_time()
        for _ in range(100):
            await link.ask("echo", key=[1, 2, 3])
        best = min(best, (time.process_time() - start) / 100)
    assert best < 0.001, f"{best * 1000:.3f} ms"


async def test_calls_of_one_share_leave_room_for_others(both, monkeypatch):
    calls, _, link = both
    monkeypatch.setattr(index_link, "WAIT_S", 0.05)
    tasks = [asyncio.ensure_future(link.ask("wait", share="a")) for _ in range(SHARE_MAX)]
    await until(lambda: calls.waiting == SHARE_MAX)
    with pytest.raises(UnavailableError, match="queries of a are") as raised:
        await link.ask("echo", share="a")
    assert raised.value.code == "too_many_calls"
    assert await link.ask("echo", share="b") == {}
    tasks[0].cancel()
    assert await link.ask("echo", share="a") == {}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not link._shares
