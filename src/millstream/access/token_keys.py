"""The keys of an identity provider, kept fresh, and what is judged by them.

    tokens = TokenKeys(rules, "https://id.example.org/keys"); tokens.start()
    bearer = await tokens.check(token)

Invariants:
1. Keys are read again each `REFRESH_S`, and for a token with an unknown key, but not twice within
   `RETRY_S`, whoever shows such tokens. Who waits for that waits `FETCH_S_MAX` at most.
2. Keys that were read stay good when reading them again fails.
3. No redirection is followed: keys come from where it was said.

Elsewhere: judging (`access.tokens`), which sources are taken (`model.addresses`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from millstream.access.tokens import (
    KEY_SET_BYTES_MAX,
    Bearer,
    Keys,
    TokenRules,
    believed,
    parse_keys,
)
from millstream.errors import AccessError, MillstreamError, UsageError
from millstream.runtime.tasks import Tasks

__all__ = ["FETCH_S_MAX", "REFRESH_S", "RETRY_S", "TokenKeys", "wants"]

_LOG = logging.getLogger(__name__)
REFRESH_S: Final = 300.0
"""How old keys get."""
RETRY_S: Final = 30.0
"""Interval between two readings if the first one failed or lacked the key of a token."""
FETCH_S_MAX: Final = 10.0
"""How long reading them may take."""
_Fetch = Callable[[], Awaitable[bytes]]


def wants(since_s: float, is_missing: bool) -> bool:
    """Return whether keys are to be read again that long after the last attempt."""
    return since_s >= (RETRY_S if is_missing else REFRESH_S)


class TokenKeys:
    """Judges tokens; begun by `start`, ended by `close`.

    Args:
        rules: of the tokens.
        source: of the keys: a file's name or a URL, https unless it is of this machine.
        now_s: seconds of the epoch.
        fetch: reads the keys, in place of `source`.
    """

    def __init__(
        self,
        rules: TokenRules,
        source: str,
        *,
        now_s: Callable[[], float] = lambda: time.time_ns() / 1e9,
        fetch: _Fetch | None = None,
    ) -> None:
        self._rules, self._source, self._now_s = rules, source, now_s
        default = self._fetch_url if "://" in source else self._read_file
        self._fetch: _Fetch = fetch or default
        self._keys: Keys = {}
        self._loop = asyncio.get_running_loop()
        self._tried_at = float("-inf")
        self._has_failed = False
        self._reading: asyncio.Task[None] | None = None
        self._tasks = Tasks()

    def start(self) -> None:
        """Begin to read keys; a provider that does not answer is asked again later."""
        self._tasks.start(self._keep(), name="keys of tokens")

    async def close(self) -> None:
        """Read no more."""
        await self._tasks.stop()

    async def check(self, token: bytes) -> Bearer:
        """Return whom a token is about.

        Raises:
            AccessError: as `tokens.believed`.
        """
        try:
            return believed(token, self._keys, self._rules, self._now_s())
        except AccessError as error:
            if error.code != "unknown_token_key" or not await self._read_again(is_missing=True):
                raise
        return believed(token, self._keys, self._rules, self._now_s())

    def lasts(self, bearer: Bearer) -> bool:
        """Return whether the token of a bearer has not ended yet."""
        return self._now_s() < bearer.until_s

    async def _keep(self) -> None:
        while True:
            await self._read_again(is_missing=self._has_failed)
            await asyncio.sleep(RETRY_S)

    async def _read_again(self, *, is_missing: bool) -> bool:
        """Read keys if it is time to; return whether they were read, by this or another call."""
        if self._reading is None:
            if not wants(self._loop.time() - self._tried_at, is_missing):
                return False
            self._tried_at = self._loop.time()
            self._reading = self._tasks.start(self._read(), name="reading keys of tokens")
        await asyncio.wait([self._reading])
        return True

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                self._keys = parse_keys(await self._fetch())
            self._has_failed = False
            _LOG.info("read %d token keys from %s", len(self._keys), self._source)
        except (MillstreamError, OSError) as error:
            self._has_failed = True
            _LOG.warning(
                "token keys cannot be read from %s; the known ones stay valid: %s",
                self._source, error or type(error).__name__,
            )  # fmt: skip
        finally:
            self._reading = None

    async def _read_file(self) -> bytes:
        def read() -> bytes:
            with Path(self._source).open("rb") as file:
                return file.read(KEY_SET_BYTES_MAX + 1)

        return await asyncio.to_thread(read)

    async def _fetch_url(self) -> bytes:
        import aiohttp  # only where keys come from elsewhere

        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(self._source, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise UsageError(f"it answers {response.status}", code="bad_key_set")
                data = b""
                async for part in response.content.iter_any():
                    data += part
                    if len(data) > KEY_SET_BYTES_MAX:
                        break  # refused by who reads it
                return data
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error
