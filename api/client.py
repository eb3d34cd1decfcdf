"""The inference client of this web process."""

import asyncio

from inference.client import InferenceClient

_client: InferenceClient | None = None
_loop: asyncio.AbstractEventLoop | None = None


async def start_client() -> InferenceClient:
    """Start the client in the running event loop; the server does so before it listens."""
    global _client, _loop
    _client, _loop = InferenceClient(), asyncio.get_running_loop()
    await _client.start()
    return _client


def client() -> InferenceClient:
    """Return the client.

    Raises:
        RuntimeError: when the server has not started one in this loop.
    """
    if _client is None or _loop is not asyncio.get_running_loop():
        raise RuntimeError("no inference client runs in this event loop")
    return _client
