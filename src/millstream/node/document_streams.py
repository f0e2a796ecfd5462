"""Streams of documents as this node opens them: their conditions are Mango selectors.

Elsewhere: the streams (`upr.aio.server`), selectors (`views.core.mango.stored`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from millstream.upr.aio.server import StreamSession
from millstream.views.core.mango.stored import may_match

__all__ = ["open_streams"]

open_streams: Final = partial(StreamSession, conditions=may_match)
"""Makes a `StreamSession`."""
