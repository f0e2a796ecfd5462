"""What things are called: by workloads, and where there are several groups.

Invariants:
1. A name lives in one group: /h of group 3 is /h3. What is no path of theirs stays as it is.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["ALONE", "Names"]


class Names:
    """Of the namespaces of one group."""

    def __init__(self, group: str = "") -> None:
        self._group = group
        self._called = re.compile(r"^/([hn])(?=/|$)")
        self._is = re.compile(rf"^/([hn]){group}(?=/|$)")

    def real(self, word: Any) -> Any:
        """Return what a word is for nodes."""
        return self._called.sub(rf"/\g<1>{self._group}", word) if self._is_named(word) else word

    def plain(self, said: Any) -> Any:
        """Return what nodes say as workloads would."""
        if isinstance(said, list):
            return [self.plain(one) for one in said] if self._group else said
        return self._is.sub(r"/\1", said) if self._is_named(said) else said

    def _is_named(self, word: Any) -> bool:
        return bool(self._group) and isinstance(word, str) and word[:1] == "/"


ALONE = Names()
