"""The asyncio shells of the data engine."""
