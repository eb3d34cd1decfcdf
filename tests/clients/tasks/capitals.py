"""A small task for Inspect."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def capitals() -> Task:
    return Task(
        dataset=[
            Sample(input="The capital of France is", target="Paris"),
            Sample(input="The capital of Italy is", target="Rome"),
            Sample(input="The capital of Japan is", target="Tokyo"),
        ],
        solver=generate(),
        scorer=includes(),
    )
