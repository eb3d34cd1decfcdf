"""With the compiled products a request's numbers are the same to the last bit in any batch."""

import msgspec
import numpy as np
import pytest
import torch

from inference.engine.limits import EngineLimits
from inference.engine.messages import EngineRequest, Sampling
from tests.engine.harness import Answer, Bench, house_kernels

CHUNKED = EngineLimits(cache_bytes=256 << 20, step_tokens=7, max_sequences=5)
PROMPT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on without a word."


@pytest.fixture(autouse=True)
def _products() -> None:
    if not house_kernels().multiplies(torch.float32):
        pytest.skip("products are torch's on this processor, and depend on the batch")


def numbers(answer: Answer) -> tuple[list[int], bytes, list[bytes]]:
    """Tokens, rows and log probabilities as they came."""
    parts = answer.choices[0].logprobs
    joined = np.concatenate([np.frombuffer(part.logprobs, np.float32) for part in parts])
    return answer.tokens, answer.rows.tobytes(), [joined.tobytes()]


def measured(bench: Bench) -> EngineRequest:
    return bench.request(
        PROMPT,
        max_tokens=12,
        logprobs=3,
        read_layers=(0, bench.loaded.stream.layers - 1),
        sampling=Sampling(temperature=0.8, seed=11),
    )


def neighbours(bench: Bench) -> list[EngineRequest]:
    texts = ("One", "Two more words", "A longer prompt that takes several blocks " * 3, "Four")
    return [
        bench.request(text, max_tokens=4 + 5 * number, sampling=Sampling(temperature=1))
        for number, text in enumerate(texts)
    ]


@pytest.mark.row("C-223")
@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_alone_in_a_batch_in_chunks_and_from_the_cache(
    model: str, request: pytest.FixtureRequest
) -> None:
    bench = request.getfixturevalue(model).fresh()
    first = measured(bench)
    alone = numbers(bench.run([first])[0])
    again = numbers(bench.run([replace_id(first, "from the cache")])[0])
    assert again == alone
    joined = [*neighbours(bench), replace_id(first, "in a batch")]
    assert numbers(bench.fresh().run(joined)[-1]) == alone
    chunked = [*neighbours(bench), replace_id(first, "in chunks")]
    assert numbers(bench.fresh(CHUNKED).run(chunked)[-1]) == alone


@pytest.mark.row("C-223")
def test_joined_mid_way(tiny: Bench) -> None:
    first = measured(tiny)
    alone = numbers(tiny.fresh().run([first])[0])
    late = tiny.fresh()
    for each in neighbours(tiny):
        late.core.accept(each, "worker")
    for _ in range(3):
        late.core.step()
    assert numbers(late.run([replace_id(first, "late")])[0]) == alone


def replace_id(request: EngineRequest, name: str) -> EngineRequest:
    """The same request under another name."""
    return msgspec.structs.replace(request, request_id=name)
