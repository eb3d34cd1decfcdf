"""lm-eval with `local-completions`, on small tasks of `tasks/`."""

import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.clients.conftest import run_client
from tests.conftest import DEFAULT_MODEL, Caller
from tests.live import Web

TASKS = ("facts_choice", "facts_rolling", "facts_generate")
NEAR = 2e-4
"""Nats between two float32 computations of one text's log probability, as lm-eval sums it."""


@pytest.fixture(scope="module")
def weights() -> Path:
    return Path(os.environ["MODELS_DIR"]) / DEFAULT_MODEL


@pytest.fixture(scope="module")
def outcome(
    clients: Path,
    default_web: Web,
    researcher: Caller,
    weights: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[dict]]:
    """The samples of each task as lm-eval keeps them, with its scores under `results`."""
    folder = tmp_path_factory.mktemp("lm-eval")
    model = {
        "base_url": f"{default_web.address}/v1/completions",
        "model": DEFAULT_MODEL,
        "tokenizer_backend": "huggingface",
        "tokenizer": str(weights),
        "num_concurrent": "2",
    }
    run_client(
        clients / "bin" / "lm_eval",
        *("run", "--model", "local-completions", "--batch_size", "2", "--log_samples"),
        *("--model_args", ",".join(f"{name}={value}" for name, value in model.items())),
        *("--tasks", ",".join(TASKS), "--include_path", "tasks"),
        *("--output_path", folder / "out"),
        folder=folder,
        OPENAI_API_KEY=researcher.secret,
    )
    (results,) = folder.glob("out/*/results_*.json")
    found = {"results": json.loads(results.read_text())["results"]}
    for task in TASKS:
        (samples,) = folder.glob(f"out/*/samples_{task}_*.jsonl")
        lines = map(json.loads, samples.read_text().splitlines())
        found[task] = sorted(lines, key=lambda sample: sample["doc_id"])
    return found


class Plain:
    """The model under transformers alone."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(self, context: str, ending: str) -> tuple[float, bool]:
        """The log probability of `ending` after `context`, and whether greedy sampling takes it."""
        ids = self.tokenizer(context + ending)["input_ids"]
        start = len(self.tokenizer(context)["input_ids"])
        with torch.inference_mode():
            rows = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        pairs = [(rows[place - 1], ids[place]) for place in range(start, len(ids))]
        total = sum(float(row[token]) for row, token in pairs)
        return total, all(int(row.argmax()) == token for row, token in pairs)

    def greedy(self, context: str, count: int) -> str:
        ids = self.tokenizer(context, return_tensors="pt")
        out = self.model.generate(**ids, max_new_tokens=count, do_sample=False, pad_token_id=0)
        return self.tokenizer.decode(out[0, ids["input_ids"].shape[1] :])


@pytest.fixture(scope="module")
def plain(weights: Path) -> Plain:
    return Plain(weights)


def arguments(sample: dict) -> list[tuple[str, ...]]:
    """What lm-eval asked for, in order."""
    return [tuple(each.values()) for each in sample["arguments"].values()]


@pytest.mark.case("P02")
def test_loglikelihoods_are_those_of_transformers(outcome, plain: Plain) -> None:
    compared = 0
    for sample in outcome["facts_choice"]:
        for (context, ending), [[number, greedy]] in zip(
            arguments(sample), sample["resps"], strict=True
        ):
            expected, is_greedy = plain.score(context, ending)
            assert float(number) == pytest.approx(expected, abs=NEAR)
            assert greedy == str(is_greedy)
            compared += 1
    assert compared == 8
    assert outcome["results"]["facts_choice"]["acc,none"] == 1.0


@pytest.mark.case("P02")
def test_rolling_loglikelihoods_are_those_of_transformers(outcome, plain: Plain) -> None:
    """The first token is scored too, after the token that lm-eval puts in front of a text."""
    start = plain.tokenizer.bos_token
    for sample in outcome["facts_rolling"]:
        ((text,),) = arguments(sample)
        expected, _ = plain.score(start, text)
        assert float(sample["resps"][0][0]) == pytest.approx(expected, abs=NEAR)
    assert len(outcome["facts_rolling"]) == 4


def test_generated_texts_are_those_of_transformers(outcome, plain: Plain) -> None:
    for sample in outcome["facts_generate"]:
        context = arguments(sample)[0][0]
        assert sample["resps"] == [[plain.greedy(context, 8).split(".")[0]]]
    assert len(outcome["facts_generate"]) == 4
