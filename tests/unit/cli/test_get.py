import json
from typing import Any

from millstream.client.documents import FLAGS_BINARY, FLAGS_JSON, Document


def test_json_documents_end_with_a_line(call: Any, client: Any) -> None:
    client.documents[b"k"] = Document(b'{"a": 1}', 5, FLAGS_JSON, 1)
    assert call("get", "b", "k") == (0, b'{"a": 1}\n', "")
    found = json.loads(call("get", "b", "k", "--json").out)
    assert found == {"key": "k", "cas": 5, "flags": FLAGS_JSON, "datatype": 1, "value": {"a": 1}}


def test_other_values_come_as_they_are(call: Any, client: Any) -> None:
    client.documents[b"\xff"] = Document(b"\x00\xff\n", 5, FLAGS_BINARY, 0)
    assert call("get", "b", "\\xff").out == b"\x00\xff\n"
    assert json.loads(call("get", "b", "\\xff", "--json").out)["value_base64"] == "AP8K"


def test_missing_document_fails(call: Any, client: Any) -> None:
    code, out, err = call("get", "b", "k")
    assert (code, out) == (1, b"")
    assert "no document 'k' in bucket 'b'" in err
