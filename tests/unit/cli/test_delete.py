import json
from typing import Any


def test_delete(call: Any, client: Any) -> None:
    client.upsert(b"k", 1)
    code, out, _ = call("delete", "b", "k", "--json", "--cas", "4")
    assert (code, json.loads(out)["seqno"]) == (0, 9)
    assert client.calls[-1] == ("remove", {"cas": 4, "durability": "persisted"})
    code, out, err = call("delete", "b", "k")
    assert (code, out) == (1, b"")
    assert "no such document" in err
