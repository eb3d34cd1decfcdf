"""What a researcher does with the `openai` package; runs with any of its versions since 1.57.

Reads BASE_URL, KEY, SPENT_KEY and MODEL; prints one JSON object with each case's result or error.
"""

import asyncio
import json
import os
import uuid
from collections.abc import Callable

import openai
from openai import AsyncOpenAI, OpenAI

BASE_URL, KEY, SPENT_KEY, MODEL = (
    os.environ[name] for name in ("BASE_URL", "KEY", "SPENT_KEY", "MODEL")
)
SKY = {"model": MODEL, "prompt": "The sky is", "max_tokens": 8, "temperature": 0}

client = OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
Case = Callable[[], object]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


@case
def models() -> object:
    found = client.models.retrieve(MODEL)
    return {"ids": [model.id for model in client.models.list()], "found": found.id}


@case
def text() -> object:
    answer = client.completions.create(**SKY)
    return {
        "text": answer.choices[0].text,
        "finish_reason": answer.choices[0].finish_reason,
        "usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
        "request_id": answer._request_id,
        "object": answer.object,
    }


@case
def stream() -> object:
    chunks = list(
        client.completions.create(**SKY, stream=True, stream_options={"include_usage": True})
    )
    return {
        "text": "".join(choice.text for chunk in chunks for choice in chunk.choices),
        "chunks": len(chunks),
        "ids": len({chunk.id for chunk in chunks}),
        "usage": [chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens],
    }


@case
def left_stream() -> object:
    with client.completions.create(**{**SKY, "max_tokens": 400}, stream=True) as chunks:
        first = next(iter(chunks)).choices[0].text
    return {"first": first, "afterwards": client.completions.create(**SKY).choices[0].text}


@case
def choices() -> object:
    answer = client.completions.create(
        model=MODEL,
        prompt=["The sky is", "The sea is"],
        n=2,
        max_tokens=8,
        seed=7,
        extra_body={"min_p": 0.05},
    )
    return [[choice.index, choice.text] for choice in answer.choices]


@case
def score() -> object:
    answer = client.completions.create(
        model=MODEL, prompt="The sky is blue", max_tokens=0, echo=True, logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    return {
        "text": answer.choices[0].text,
        "tokens": logprobs.tokens,
        "token_logprobs": logprobs.token_logprobs,
        "top": logprobs.top_logprobs,
        "text_offset": logprobs.text_offset,
    }


@case
def extensions() -> object:
    answer = client.completions.create(
        **{**SKY, "max_tokens": 1},
        extra_body={
            "prompt_logprobs": 0,
            "output_residual_stream": [0, 29],
            "apply_steering_vectors": [
                {"activations": [[0.5] * 576], "layer_indices": [15], "scale": 4.0}
            ],
        },
    )
    return {
        "prompt_logprobs": answer.choices[0].prompt_logprobs,
        "shape": answer.activations["residual_stream"]["shape"],
    }


@case
def repeat() -> object:
    key = str(uuid.uuid4())
    ids = [
        client.completions.create(**SKY, extra_headers={"Idempotency-Key": key}).id
        for _ in range(2)
    ]
    return {"same": ids[0] == ids[1]}


@case
def raw_answer() -> object:
    raw = client.completions.with_raw_response.create(
        **SKY, extra_headers={"X-Request-Id": "from-the-sdk"}
    )
    return {"header": raw.headers["x-request-id"], "text": raw.parse().choices[0].text}


@case
def at_once() -> object:
    async def one(answers: AsyncOpenAI) -> str:
        chunks = await answers.completions.create(**SKY, stream=True)
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def every() -> list[str]:
        async with AsyncOpenAI(base_url=BASE_URL, api_key=KEY) as answers:
            return await asyncio.gather(*(one(answers) for _ in range(4)))

    return asyncio.run(every())


def refused(run: Case) -> object:
    try:
        run()
    except openai.APIStatusError as error:
        return {
            "class": type(error).__name__,
            "status": error.status_code,
            "code": error.code,
            "param": error.param,
            "message": error.message,
            "ids": [error.request_id, error.response.json()["request_id"]],
        }
    raise AssertionError("no error")


@case
def unknown_field() -> object:
    return refused(lambda: client.completions.create(**SKY, extra_body={"temprature": 1}))


@case
def unknown_field_of_a_stream() -> object:
    return refused(
        lambda: client.completions.create(**SKY, stream=True, extra_body={"temprature": 1})
    )


@case
def wrong_key() -> object:
    other = client.with_options(api_key="sk-acs-" + "0" * 32)
    return refused(lambda: other.completions.create(**SKY))


@case
def chat() -> object:
    return refused(
        lambda: client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}]
        )
    )


@case
def spent() -> object:
    """With the SDK's own retries: a request that can never succeed is sent once."""
    sent: list[object] = []
    http = openai.DefaultHttpxClient(event_hooks={"request": [sent.append]})
    with OpenAI(base_url=BASE_URL, api_key=SPENT_KEY, http_client=http) as other:
        return {"refused": refused(lambda: other.completions.create(**SKY)), "sent": len(sent)}


def run(function: Case) -> dict[str, object]:
    try:
        return {"result": function()}
    except Exception as error:  # noqa: BLE001 - the test of this case reports it
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    results = {name: run(function) for name, function in CASES.items()}
    print(json.dumps({"version": {"result": openai.__version__}, **results}))
