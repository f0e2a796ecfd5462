import pytest

from millstream.coordination.core.client.events import ErrorReply


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [("NOPERM not yours", "NOPERM", "not yours"), ("GONE", "GONE", ""), ("", "", "")],
)
def test_an_error_begins_with_its_code(text: str, code: str, words: str) -> None:
    reply = ErrorReply(text)
    assert (reply.code, reply.words, str(reply)) == (code, words, text)
