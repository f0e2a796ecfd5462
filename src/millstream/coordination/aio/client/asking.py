"""Asks one node of the coordination service by itself: no session, and no other node is asked.

    reply = await ask_node(client, "ADMIN", "GROUP", "FORCE", "1")

So it also works at a node whose group has no primary.

Elsewhere: calls of a group (`group_client`), the commands (`core.pool.admin_commands`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from millstream.coordination.aio.client.group_clients import GroupClients, words_of
from millstream.coordination.aio.client.link import Link
from millstream.coordination.core.client.errors import error_of
from millstream.coordination.core.client.events import ErrorReply, Outcome
from millstream.coordination.core.client.wire import is_push, packed
from millstream.errors import UnavailableError

__all__ = ["ANSWER_S", "ask_node"]

ANSWER_S: Final = 10.0
"""How long the node may take to connect and to answer."""


async def ask_node(client: GroupClients, *words: str | bytes, limit_s: float = ANSWER_S) -> Any:
    """Return the reply of the first node that a client was given.

    Args:
        client: says where the node is, and who asks; it need not be entered.
        words: the command.
        limit_s: longest wait.

    Raises:
        UnavailableError: `unreachable`, `timeout`: it is not reached, or did not answer.
        MillstreamError: an error reply; `code` is the reply's in small letters.
    """
    replies: asyncio.Queue[Any] = asyncio.Queue()
    address, asked = client.addresses[0], words_of(words)
    link = Link(
        lambda _, reply: None if is_push(reply) else replies.put_nowait(reply),
        lambda _, error: replies.put_nowait(error or ConnectionResetError("it was closed")),
    )
    try:
        async with asyncio.timeout(limit_s):
            await link.connect(address, client.tls)
            try:
                for command in (client.greeting, asked):
                    link.send(packed(command))
                    reply = await replies.get()
                    if isinstance(reply, ErrorReply):
                        raise error_of(command, Outcome.FAILED, reply)
                    if isinstance(reply, Exception):
                        raise OSError(str(reply)) from reply
            finally:
                link.transport.abort()
    except TimeoutError as error:
        raise UnavailableError(
            f"coordination at {address} did not answer within {limit_s:g} s", code="timeout"
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"coordination at {address} is not reached: {error}", code="unreachable"
        ) from error
    return reply
