"""The Python clients of coordination: asyncio, and blocking."""
