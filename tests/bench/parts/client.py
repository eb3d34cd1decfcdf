"""Streams completions and takes their times."""

import asyncio
import base64
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
import numpy as np
import zstandard

HIDDEN = 576
Body = dict[str, object]


@dataclass(frozen=True)
class Wave:
    """Requests that were sent together."""

    first: list[float]
    """Seconds to the first token of each."""
    seconds: float
    """From the first request to the end of the last answer."""
    tokens: int
    """Generated, as the answers count them."""

    @property
    def rate(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds


def vector(seed: int, *, layers: tuple[int, ...]) -> dict[str, object]:
    """A steering vector for each of the Layers, small enough to keep the text sane."""
    rows = np.random.default_rng(seed).standard_normal((len(layers), HIDDEN)).astype(np.float32)
    return {
        "layer_indices": list(layers),
        "activations": {
            "data": base64.b64encode(zstandard.compress(rows.tobytes())).decode(),
            "compression": "zstd",
            "dtype": "float32",
            "original_dtype": "torch.float32",
            "shape": list(rows.shape),
        },
        "scale": 0.1,
    }


class Client:
    """One caller at one server."""

    def __init__(self, address: str, key: str, model: str) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {key}"}
        self._model = model
        self._dice = random.Random(time.time_ns())

    def fresh(self, tokens: int, **fields: object) -> Body:
        """A greedy request with a prompt that no cache knows."""
        prompt = [self._dice.randrange(200, 49000) for _ in range(tokens)]
        return {"model": self._model, "prompt": prompt, "temperature": 0, **fields}

    def patient(self, attempt: Callable[[], Wave], seconds: float = 120) -> Wave:
        """Try until it succeeds: the server may still be starting."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return attempt()
            except (httpx.HTTPError, RuntimeError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    async def wave(self, bodies: Sequence[Body]) -> Wave:
        """Send all requests at once, streamed, and wait for their ends."""
        limits = httpx.Limits(max_connections=len(bodies) + 1)
        async with httpx.AsyncClient(
            base_url=self._address, headers=self._headers, timeout=600, limits=limits
        ) as client:
            began = time.perf_counter()
            ends = await asyncio.gather(*(_one(client, body) for body in bodies))
            seconds = time.perf_counter() - began
        return Wave([first for first, _ in ends], seconds, sum(tokens for _, tokens in ends))

    def read(self, body: Body) -> tuple[np.ndarray, int]:
        """Send one request that reads; returns its rows as they are and the bytes that came."""
        with httpx.Client(base_url=self._address, headers=self._headers, timeout=600) as client:
            answer = client.post("/v1/completions", json=body)
        answer.raise_for_status()
        sent = answer.json()["activations"]["residual_stream"]
        data = zstandard.ZstdDecompressor().decompress(base64.b64decode(sent["data"]))
        return np.frombuffer(data, dtype=sent["dtype"]).reshape(sent["shape"]), len(answer.content)


async def _one(client: httpx.AsyncClient, body: Body) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens came."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    began = time.perf_counter()
    first = tokens = 0
    seconds = 0.0
    async with client.stream("POST", "/v1/completions", json=body | options) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if not first:
                first, seconds = 1, time.perf_counter() - began
            if '"usage":{' in line or '"usage": {' in line or '"error"' in line:
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(line)
                tokens = chunk["usage"]["completion_tokens"]
    return seconds, tokens
