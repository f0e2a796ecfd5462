from email import message_from_bytes
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from millstream.gateway.core.multipart import (
    PART_END,
    attachment_head,
    end,
    inner_head,
    json_head,
    missing_part,
)


def json_part(boundary, text):
    return json_head(boundary) + text + PART_END


def parsed(kind, boundary, body):
    return message_from_bytes(
        b'Content-Type: %b; boundary="%b"\r\n\r\n%b' % (kind.encode(), boundary.encode(), body)
    )


def test_a_document_with_attachments_can_be_read_by_others():
    body = (
        json_part("b", b'{"_id":"x"}')
        + attachment_head("b", "a.txt", "text/plain", 5, "gzip") + b"hello\r\n"
        + end("b")
    )  # fmt: skip
    document, attachment = parsed("multipart/related", "b", body).get_payload()
    assert document.get_content_type() == "application/json"
    assert document.get_payload(decode=True) == b'{"_id":"x"}'
    assert attachment.get_filename() == "a.txt"
    assert attachment["Content-Encoding"] == "gzip"
    assert attachment["Content-Length"] == "5"
    assert attachment.get_payload() == "hello"


def test_several_revisions():
    inner = json_part("i", b"{}") + end("i") + b"\r\n"
    body = (
        json_part("o", b"1") + missing_part("o", b'{"missing":"1-a"}') + inner_head("o", "i")
        + inner + end("o")
    )  # fmt: skip
    parts = parsed("multipart/mixed", "o", body).get_payload()
    assert [part.get_content_type() for part in parts] == [
        "application/json", "application/json", "multipart/related",
    ]  # fmt: skip
    assert parts[1].get_param("error") == "true"
    assert parts[2].get_payload()[0].get_payload() == "{}"


@given(st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_no_name_or_type_breaks_a_head(name, content_type):
    name = name.encode(errors="replace").decode()
    head = attachment_head("b", name, content_type, 1, "")
    assert head.endswith(b"\r\n\r\n")
    assert len(head.split(b"\r\n")) == 6
    said = head.split(b"\r\n")[1].decode().removeprefix("Content-Disposition: attachment; ")
    coded = said.removeprefix("filename*=UTF-8''")
    assert unquote(coded) == name if coded != said else said == f'filename="{name}"'
