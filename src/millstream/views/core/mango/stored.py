"""Selectors on documents as they are stored, for readers of the change stream.

Invariants:
1. A document is an object; the selector sees its key as member `_id`. No other value matches.
2. `may_match` is true wherever `stored_condition` is.

Elsewhere: streams that leave documents out (`upr.core.selecting`), Spark's source, which judges
exactly what it is sent (`pipelines.change_stream.reading`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.documents.json_text import parse, parse_object
from millstream.errors import UsageError
from millstream.model.partitions import text_of_key
from millstream.views.core.mango.selectors import Selector, parse_selector

__all__ = ["JUDGED_BYTES_MAX", "may_match", "stored_condition"]

JUDGED_BYTES_MAX: Final = 64 * 1024
"""A larger document is passed by `may_match`: the decoder would hold up other threads."""
_STEPS_MAX: Final = 256 * 1024
"""Bytes of a document times steps for each: some tens of milliseconds if all are needed."""


def stored_condition(text: bytes) -> Callable[[str, bytes], bool]:
    """Return a function that says of a key's text form and a value whether a selector matches.

    Args:
        text: of the selector, a JSON object.

    Raises:
        UsageError: as of `parse_selector`; `bad_json`, `too_large`.
    """
    selector = parse_selector(parse_object(text))
    return lambda key, value: _matches(selector, key, value)


def may_match(text: bytes) -> Callable[[bytes, bytes], bool]:
    """Return a function that is false of documents that surely do not match; raises the same.

    It passes what would take long to judge.
    """
    selector = parse_selector(parse_object(text))
    bytes_max = min(JUDGED_BYTES_MAX, _STEPS_MAX // max(1, selector.steps_per_byte))

    def judged(key: bytes, value: bytes) -> bool:
        return len(value) > bytes_max or _matches(selector, text_of_key(key), value)

    return judged


def _matches(selector: Selector, key: str, value: bytes) -> bool:
    try:
        document = parse(value)
    except UsageError:
        return False
    if not isinstance(document, dict):
        return False
    document["_id"] = key
    return selector.matches(document)
