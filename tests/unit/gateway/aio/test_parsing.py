import threading

import pytest

from millstream.documents.json_text import emptied
from millstream.documents.revision_ids import signature_of
from millstream.documents.sent import parse_sent
from millstream.errors import UsageError
from millstream.gateway.aio import parsing
from millstream.gateway.aio.parsing import SMALL_TEXT_BYTES, parsed, shallow

SMALL = b'{"_id":"x","a":[1,1.0,{"b":null}]}'
LARGE = b'{"_id":"x","a":[1,1.0,{"b":"%b"}]}' % (b"x" * SMALL_TEXT_BYTES)


@pytest.mark.parametrize("text", [SMALL, LARGE])
async def test_a_document_is_the_same_wherever_it_is_read(text):
    sent, same = await parsed(text), parse_sent(text)
    assert sent._replace(term=None) == same
    assert (sent.term is None) == (text is SMALL)
    made = signature_of(sent.body, sent.content, term=sent.term)
    assert made == signature_of(same.body, same.content)


async def test_large_ones_are_read_in_a_thread(monkeypatch):
    threads = []

    def noted(text):
        threads.append(threading.current_thread())
        return parse_sent(text)

    monkeypatch.setattr(parsing, "parse_sent", noted)
    await parsed(SMALL)
    await parsed(LARGE)
    assert [one is threading.main_thread() for one in threads] == [True, False]


async def test_what_is_wrong_with_them_is_told():
    with pytest.raises(UsageError) as refused:
        await parsed(LARGE[:-1])
    assert refused.value.code == "bad_json"


async def test_what_lies_too_deep_is_left_out_in_a_thread(monkeypatch):
    threads = []

    def noted(text, depth):
        threads.append(threading.current_thread())
        return emptied(text, depth)

    monkeypatch.setattr(parsing, "emptied", noted)
    assert await shallow(b'{"a":[[1]]}', 1) == b'{"a":[]}'
    assert threads != [threading.current_thread()]
