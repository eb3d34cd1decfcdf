"""One way to ask for a Completion, whatever runs its model."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from inference.backends.vllm import VllmClient
from inference.catalogue import ModelEntry
from inference.client import InferenceClient, Patience
from inference.engine.messages import EngineRequest, Event


class Inference:
    """The backends of a process; it lives in the event loop that started it."""

    def __init__(self) -> None:
        self._workers = InferenceClient()
        self._vllm = VllmClient()

    async def start(self) -> None:
        """Begin; call it once, in the loop that will ask."""
        await self._workers.start()

    async def close(self) -> None:
        """Fail what is under way and stop."""
        await self._workers.close()
        await self._vllm.close()

    def complete(
        self, model: ModelEntry, request: EngineRequest, patience: Patience
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Run a request on the model's backend.

        The context's value iterates the events up to the terminal one, which is Finished or
        Failed; leaving the context before it ends the request, wherever it runs.
        """
        if model.backend.kind == "vllm":
            return self._vllm.complete(model, request, patience)
        return self._workers.complete(model.id, request, patience)
