"""Thin asyncio shells around the stream cores."""
