"""The outside for programs with asyncio."""
