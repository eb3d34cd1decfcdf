"""The way to Inference of this web process."""

import asyncio

from inference.backends.router import Inference

_client: Inference | None = None
_loop: asyncio.AbstractEventLoop | None = None


async def start_client() -> Inference:
    """Start the client in the running event loop; the server does so before it listens."""
    global _client, _loop
    _client, _loop = Inference(), asyncio.get_running_loop()
    await _client.start()
    return _client


def client() -> Inference:
    """Return the client.

    Raises:
        RuntimeError: when the server has not started one in this loop.
    """
    if _client is None or _loop is not asyncio.get_running_loop():
        raise RuntimeError("no inference client runs in this event loop")
    return _client
