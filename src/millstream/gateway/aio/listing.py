"""What a request for a list of documents asks for.

Elsewhere: the query (`gateway.core.listing`), the pages (`gateway.aio.documents.listing_pages`,
`gateway.aio.databases.design_pages`, and others).
"""

from __future__ import annotations

from aiohttp import web

from millstream.gateway.aio.answers import read_body
from millstream.gateway.aio.parsing import interpreted
from millstream.gateway.core.listing import parse_listing
from millstream.views.core.query.parameters import QUERY_BODY_BYTES_MAX, Query, url_options

__all__ = ["asked_list"]


async def asked_list(request: web.Request, *, is_of_all: bool = False) -> Query:
    """Return the query in a request's address and body.

    Args:
        request: GET, HEAD or POST.
        is_of_all: whether it is a list of all documents; other keys than ids are good then.

    Raises:
        UsageError: as `parse_listing`; `too_large`, `body_timeout`.
    """
    body = b""
    if request.method == "POST":
        body = await read_body(request, QUERY_BODY_BYTES_MAX)
    return await interpreted(parse_listing, body, url_options(request.query.items()), is_of_all)
