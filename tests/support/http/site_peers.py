"""Databases in memory as peers of a runner."""

import asyncio

from millstream.replication.core.asking import Changes


class SitePeer:
    """Asks a `sites.database.Database`; waits for changes as a source does."""

    def __init__(self, database):
        self.database = database
        self.changed = asyncio.Event()
        self.asked = []

    async def ask(self, request):
        self.asked.append(request)
        await asyncio.sleep(0)
        if isinstance(request, Changes) and request.wait_ms:
            await self.changed.wait()
            self.changed.clear()
        return self.database.serve(request)
