"""What the scripted engine answers while it is fuzzed: whatever shape a request asks for."""

import numpy as np

from inference.engine.messages import EngineRequest, PackedLogprobs, Residuals
from tests.scripted import Asked

LETTERS = (65, 66, 67)
"""Tokens of every answer."""
VOCABULARY = 384
HIDDEN = 64


def answer_as_asked(asked: Asked) -> None:
    """Up to three tokens for each choice, with log probabilities and Layers where asked."""
    request = asked.request
    choices = len(request.prompts) * request.n
    for index in range(choices):
        _say(asked, index)
    generated = 1 if request.max_tokens == 0 else min(request.max_tokens, len(LETTERS))
    asked.finish(completion_tokens=generated * choices, residuals=_residuals(request, generated))


def _say(asked: Asked, index: int) -> None:
    request = asked.request
    first = _of_prompt(request, request.prompts[index // request.n])
    if request.max_tokens == 0:
        asked.say("", index=index, finish="length", token_ids=(), prompt_logprobs=first)
        return
    letters = LETTERS[: request.max_tokens]
    for place, letter in enumerate(letters):
        logprobs = None if request.logprobs is None else _packed((letter,), request.logprobs)
        asked.say(
            chr(letter),
            index=index,
            finish="length" if place == len(letters) - 1 else None,
            token_ids=(letter,),
            logprobs=logprobs,
            prompt_logprobs=first if place == 0 else None,
        )


def _of_prompt(request: EngineRequest, prompt: tuple[int, ...]) -> PackedLogprobs | None:
    widths = [request.prompt_logprobs, request.logprobs if request.echo else None]
    asked = [width for width in widths if width is not None]
    if not asked:
        return None
    return _packed(prompt[1:], -1 if -1 in asked else max(asked))


def _packed(tokens: tuple[int, ...], likeliest: int) -> PackedLogprobs:
    """Each token as the least likely of its row, after the lowest ids."""
    count = VOCABULARY - 1 if likeliest == -1 else likeliest
    ids = [[token, *[id_ for id_ in range(count + 1) if id_ != token][:count]] for token in tokens]
    ranks = [count + 1, *range(1, count + 1)]
    shape = (len(tokens), count + 1)
    return PackedLogprobs(
        rows=len(tokens),
        width=count + 1,
        ids=np.array(ids, "<i4").reshape(shape).tobytes(),
        logprobs=np.broadcast_to(np.array(ranks, "<f4") * -0.5, shape).tobytes(),
        ranks=np.broadcast_to(np.array(ranks, "<i4"), shape).tobytes(),
    )


def _residuals(request: EngineRequest, generated: int) -> Residuals | None:
    if not request.read_layers:
        return None
    shape = (len(request.read_layers), len(request.prompts[0]) + generated - 1, HIDDEN)
    return Residuals(shape=shape, dtype="float32", data=np.zeros(shape, "<f4").tobytes())
