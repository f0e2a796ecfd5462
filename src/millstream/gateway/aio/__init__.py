"""The HTTP front door's shell on aiohttp."""
