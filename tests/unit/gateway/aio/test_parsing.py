import asyncio
import os

import pytest

from millstream.documents import json_text, large_texts
from millstream.documents.json_text import (
    LARGE_BYTES,
    is_plain_object,
    judge_large_values,
)
from millstream.documents.revision_ids import signature_of
from millstream.documents.sent import parse_sent
from millstream.errors import UsageError
from millstream.gateway.aio import parsing
from millstream.gateway.aio.parsing import SMALL_TEXT_BYTES, parsed, taken_apart

SMALL = b'{"_id":"x","a":[1,1.0,{"b":null}]}'
LARGE = b'{"_id":"x","a":[1,1.0,{"b":"%b"}]}' % (b"x" * SMALL_TEXT_BYTES)


@pytest.mark.parametrize("text", [SMALL, LARGE])
async def test_a_document_is_the_same_wherever_it_is_read(text):
    sent, same = await parsed(text), parse_sent(text)
    assert sent._replace(term=None) == same
    assert (sent.term is None) == (text is SMALL)
    made = signature_of(sent.body, sent.content, term=sent.term)
    assert made == signature_of(same.body, same.content)


async def test_large_ones_are_read_in_another_process(monkeypatch):
    monkeypatch.setattr(parsing, "parse_sent", lambda _: os.abort())
    monkeypatch.setattr(large_texts, "parse_sent", lambda _: os.abort())
    sent = await parsed(LARGE)
    assert dict(sent.content) == dict(parse_sent(LARGE).content)


@pytest.mark.parametrize("size", [1, 4000])
async def test_the_documents_of_a_body_are_the_same_wherever_it_is_read(size):
    docs = [b'{"n":%d}' % n for n in range(size)]
    found = await taken_apart(b'{"docs":[%b],"new_edits":false}' % b" , ".join(docs), 9999)
    assert list(map(bytes, found.texts)) == docs
    assert not found.new_edits


async def test_a_large_value_is_judged_in_another_process(monkeypatch):
    parsing.judge_apart()
    try:
        value = b'{"a":"%b"}' % (b"x" * LARGE_BYTES)
        judged = asyncio.to_thread(is_plain_object, value)
        monkeypatch.setattr(json_text, "_check", lambda _: os.abort())
        assert await judged
        assert not await asyncio.to_thread(is_plain_object, b"[%b]" % value)
    finally:
        judge_large_values(None)


async def test_what_is_wrong_with_them_is_told():
    with pytest.raises(UsageError) as refused:
        await parsed(LARGE[:-1])
    assert refused.value.code == "bad_json"
