"""Open in Loom: a Run's prompt becomes a root, its choices the Nodes under it."""

from uuid import uuid4

import msgspec
import numpy as np
from django.db import transaction
from django.http import HttpResponse
from django.views.decorators.http import require_POST

from completions.admission import find_model
from completions.failures import Failure, invalid
from jobs import runs
from jobs.models import Run
from looms.edits import drawn_title, plant
from looms.growth import identity_of
from looms.models import Loom, Node
from looms.options import OPTION_NAMES, NodeRequest, write_options
from looms.tokens import Sample, TokenLists, spans_of, without_nul, write_lists
from looms.tree import Status
from pages.playground import shown
from pages.playground_runs import own_run
from pages.run_state import OutputChoice, read_output
from pages.shell import AppRequest, refused, signed_in


@require_POST
@signed_in
def open_in_loom(request: AppRequest, number: int) -> HttpResponse:
    """Make a Loom of a Run and answer with its address."""
    try:
        loom = loom_of_run(own_run(request, number))
    except Failure as failure:
        return refused(request, failure)
    return shown({"path": f"/loom/{loom.id}"})


def loom_of_run(run: Run) -> Loom:
    """Make a Loom of an ended Run, with the tokens that were drawn and their log probabilities.

    Raises:
        Failure: when the Run has no text yet.
    """
    raw = runs.output_of(run)
    output = read_output(raw) if raw else None
    if output is None or not output.choices:
        raise invalid(None, "The Run has no text yet.")
    asked = _request(run)
    root = Node(id=uuid4(), number=0, text=run.prompt)
    grown = [
        _node(run, root, place, choice, asked) for place, choice in enumerate(output.choices, 1)
    ]
    with transaction.atomic():
        title = drawn_title(run.prompt)
        loom = plant(user_id=run.user_id, title=title, nodes=[root, *grown])
        kept = msgspec.to_builtins(asked) | {"n": len(grown)}
        loom.branch_options = msgspec.json.encode(kept).decode()
        loom.branch_nodes = len(grown)
        loom.save(update_fields=["branch_options", "branch_nodes"])
    return loom


def _request(run: Run) -> NodeRequest:
    """Return the settings of a Run as those of a Branch."""
    names = {name: run.settings[name] for name in OPTION_NAMES if name in run.settings}
    return msgspec.convert(names | {"model": run.model}, NodeRequest)


def _node(run: Run, root: Node, number: int, choice: OutputChoice, asked: NodeRequest) -> Node:
    seed = None if asked.seed is None else asked.seed + choice.index
    lists, begin = _own_lists(choice)
    text = without_nul(choice.text[begin:])
    return Node(
        id=uuid4(),
        number=number,
        parent=root,
        text=text,
        logprobs=None if lists is None else write_lists(lists),
        sample=msgspec.msgpack.encode(_sample(choice, lists, text)),
        options=write_options(msgspec.structs.replace(asked, seed=seed)),
        model=run.model,
        identity=identity_of(find_model(run.model)),
        finish_reason=choice.finish_reason or "",
        prompt_tokens=run.prompt_tokens,
        status=Status.CANCELLED if choice.finish_reason is None else Status.COMPLETED,
    )


def _own_lists(choice: OutputChoice) -> tuple[TokenLists | None, int]:
    """Return the lists of what was generated, and where that begins: after an echoed prompt."""
    lists = choice.logprobs
    if lists is None:
        return None, 0
    first = len(lists.tokens) - len(choice.token_ids)
    begin = lists.text_offset[first] if first < len(lists.tokens) else len(choice.text)
    own = TokenLists(
        tokens=[without_nul(token) for token in lists.tokens[first:]],
        token_logprobs=lists.token_logprobs[first:],
        top_logprobs=[
            None if top is None else {without_nul(name): value for name, value in top.items()}
            for top in lists.top_logprobs[first:]
        ],
        text_offset=[offset - begin for offset in lists.text_offset[first:]],
    )
    return own, begin


def _sample(choice: OutputChoice, lists: TokenLists | None, text: str) -> Sample:
    rows = choice.alternatives or []
    width = max(map(len, rows), default=0)
    packed = [[*row, *[-1] * (width - len(row))] for row in rows]
    spans = None if lists is None else spans_of(lists.tokens, text)
    return Sample(
        token_ids=np.array(choice.token_ids, "<i4").tobytes(),
        spans=None if spans is None else np.array(spans, "<i4").tobytes(),
        width=width,
        alternatives=np.array(packed, "<i4").tobytes() if packed else b"",
    )
