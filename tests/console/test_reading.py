"""Files as documents, however the text is cut into pieces. The modules run in the browser."""

from typing import Any

import pytest

from support.console.console import Console

LINES = '\ufeff{"a":[{"c":2}]}\r\n\r\n{"b":"\\\\"}\n'
SEMICOLONS = "\ufeffa;b;\r\n1,5;true;07\r\n;;"
CASES = {
    "array": ("json", '[{"a":1},\n {"b":"],}{\\"["}]', [{"a": 1}, {"b": '],}{"['}]),
    "lines": ("json", LINES, [{"a": [{"c": 2}]}, {"b": "\\"}]),
    "nothing": ("json", " \n", []),
    "commas": ("csv", 'a,b\n1,x\n2,"y,\n""z"""\n', [{"a": 1, "b": "x"}, {"a": 2, "b": 'y,\n"z"'}]),
    "semicolons": ("csv", SEMICOLONS, [{"a": "1,5", "b": True, "column3": "07"}, {}]),
    "no last line end": ("csv", "a\tb\n-0.5\t1e3", [{"a": -0.5, "b": "1e3"}]),
    "only names": ("csv", "a,b", []),
}  # fmt: skip
READ = """async ([kind, text, size]) => {
    const base = document.querySelector('script[type=module]').src.replace(/app[.]js$/, '');
    const module = await import(`${base}pages/documents/reading.js`);
    const reader = kind === 'csv' ? module.csvReader() : module.jsonReader();
    const pieces = [];
    for (let at = 0; at < text.length; at += size) pieces.push(text.slice(at, at + size));
    return [...pieces, null].flatMap((piece) => reader(piece));
}"""


def _read(console: Console, kind: str, text: str, size: int) -> Any:
    return console.page.evaluate(READ, [kind, text, size])


def test_pieces_of_any_size_give_the_same_documents(console: Console) -> None:
    console.open("documents")
    for name, (kind, text, documents) in CASES.items():
        for size in (1, 2, 3, 7, 1000):
            assert _read(console, kind, text, size) == documents, (name, size)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json", '{"a": 1', "ends within a document"),
        ("json", '{"a": 1} x', "Not a JSON object: x"),
        ("json", "[1, 2]", "Not a JSON object: 1"),
        ("csv", 'a\n"b', "a quotation mark missing"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(console: Console, kind: str, text: str, why: str) -> None:
    console.open("documents")
    with pytest.raises(Exception, match=why):
        _read(console, kind, text, 3)
