"""A request's prompts as the model's own tokenizer counts them, without holding the loop up."""

import asyncio
from dataclasses import dataclass

import structlog

from completions.failures import context_exceeded, invalid, not_prepared
from completions.request import CompletionRequest
from inference.catalogue import ModelEntry
from inference.tokenizers import EncodedText, TokenizerMissing, counter_for

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class CountedRequest:
    """A request with its model and its prompts as token ids."""

    request: CompletionRequest
    model: ModelEntry
    prompts: tuple[EncodedText, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Tokens of each prompt, as the Hold counts them (C-190)."""
        return tuple(prompt.count for prompt in self.prompts)


async def count(request: CompletionRequest, model: ModelEntry) -> CountedRequest:
    """Count and encode the prompts (C-328 to C-331), without holding the event loop up.

    Raises:
        Failure: on `prompt`, for one without a token (U-37).
    """
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    await _check_tokenizer(request, model)
    if texts:
        prompts = await asyncio.to_thread(_encode, texts, model, request.add_special_tokens)
    else:
        prompts = tuple(
            EncodedText(ids=ids, count=len(ids))
            for ids in request.prompts
            if not isinstance(ids, str)
        )
    if any(prompt.count == 0 for prompt in prompts):
        raise invalid("prompt", "The decoder prompt cannot be empty")
    return CountedRequest(request=request, model=model, prompts=prompts)


async def _check_tokenizer(request: CompletionRequest, model: ModelEntry) -> None:
    """Refuse what needs the model's tokenizer where the API has none.

    Raises:
        Failure: `invalid_request` on the field for a model that is served without one, 502
            `upstream_unreachable` for one that has not been prepared.
    """
    needs = {
        "echo": request.echo,
        "logprobs": request.logprobs is not None,
        "prompt_logprobs": request.prompt_logprobs is not None,
    }
    asked = [name for name, is_asked in needs.items() if is_asked]
    if not model.tokenizer and asked:
        raise invalid(
            asked[0],
            f"{model.served_name} is served without a tokenizer, so the API cannot write its "
            f"tokens as text: leave {asked[0]} out.",
        )
    if asked:
        await asyncio.to_thread(_encode, [], model, False)


def _encode(texts: list[str], model: ModelEntry, special: bool) -> tuple[EncodedText, ...]:
    try:
        return tuple(counter_for(model).encode_texts(texts, add_special_tokens=special))
    except TokenizerMissing as missing:
        log.error("a served model is not prepared", cause=str(missing))
        raise not_prepared(model.id) from None


def check_ids(counted: CountedRequest) -> None:
    """Refuse token ids outside the model's vocabulary (C-177)."""
    size = counted.model.vocab_size
    for prompt in counted.prompts:
        if prompt.ids is None and not counted.model.tokenizer:
            raise invalid(
                "prompt",
                f"{counted.model.served_name} is served without a tokenizer: send the prompt as "
                "token ids.",
            )
        if prompt.ids is None:
            raise context_exceeded(counted.model.max_model_len, prompt.count, 1)
        worst = max(prompt.ids) if min(prompt.ids) >= 0 else min(prompt.ids)
        if not 0 <= worst < size:
            raise invalid("prompt", f"Token id {worst} is out of vocabulary")
