"""Branches: Nodes are asked for here, and their work is queued (C-543 to C-553)."""

import secrets
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec
from django.db import transaction
from django.utils import timezone

from completions import caps
from completions.admission import check_moment, find_model
from completions.failures import invalid
from completions.payer import Payer
from completions.request import CompletionRequest
from inference.catalogue import ModelEntry
from inference.tokenizers import TokenCounter, TokenizerMissing, counter_for
from jobs import queue
from jobs.states import WorkState, before
from looms import history, tree
from looms.edits import drawn_title, locked
from looms.models import ChangeKind, Growth, Loom, Node
from looms.notices import announce
from looms.options import BranchOptions, NodeRequest, write_options
from looms.reads import loom_of, read_tree
from looms.tree import Status, Tree

KIND = "node"
"""What rings of Nodes name."""
LARGEST_DRAWN_SEED = 2_147_483_647
"""A Branch without a seed draws one up to this (C-546)."""
LARGEST_SEED = 9_007_199_254_740_991


def completion_request(request: NodeRequest, prompt: str) -> CompletionRequest:
    """Return the Completion that samples a Node: one choice of the path's one text (C-551)."""
    return CompletionRequest(
        model=request.model,
        prompts=(prompt,),
        max_tokens=request.max_tokens,
        stop=request.stop_texts(),
        sampling=request.sampling(),
        logprobs=request.logprobs,
        stream=True,
    )


def branch(
    *, payer: Payer, loom_id: UUID, node_id: UUID, options: BranchOptions
) -> tuple[Loom, list[UUID]]:
    """Put `n` queued Nodes under a Node, and return the Loom and their ids (C-545, C-546).

    Raises:
        Failure: 400 on a field, 400 `model_not_found`, 429 `spend_cap` or `budget_exceeded`
            (C-549, C-361).
        LoomMissing, NodeMissing, TreeFault: C-520, C-548, C-550.
    """
    model = find_model(options.request.model)
    caps.check_output(completion_request(options.request, ""))
    seed = _first_seed(options)
    found = read_tree(loom_of(payer.user_id, loom_id))
    found.check_branch(node_id)
    found.check_room(options.n)
    prompt = found.path_text(node_id)
    check_moment(payer, _count(model, prompt) + max(options.request.max_tokens, 1))
    with transaction.atomic():
        return _make(payer, loom_id, node_id, options, model, seed)


def _first_seed(options: BranchOptions) -> int:
    seed = options.request.seed
    if seed is None:
        return secrets.randbelow(LARGEST_DRAWN_SEED + 1)
    if seed + options.n - 1 > LARGEST_SEED:
        raise invalid(
            "seed",
            f"Invalid value for 'seed': {seed} plus {options.n - 1} for the last of "
            f"{options.n} Nodes is above {LARGEST_SEED}.",
        )
    return seed


def _count(model: ModelEntry, prompt: str) -> int:
    """Return how many tokens the Hold of a path counts (C-333)."""
    try:
        counter = counter_for(model)
    except TokenizerMissing:
        counter = TokenCounter(None, model.max_model_len)
    return counter.encode_texts([prompt])[0].count


def _make(
    payer: Payer,
    loom_id: UUID,
    node_id: UUID,
    options: BranchOptions,
    model: ModelEntry,
    seed: int,
) -> tuple[Loom, list[UUID]]:
    """Write the Nodes, their work and the Loom's marks, under the Loom's lock."""
    loom = locked(payer.user_id, loom_id)
    grown = read_tree(loom)
    requests = [
        msgspec.structs.replace(options.request, model=model.id, seed=seed + place)
        for place in range(options.n)
    ]
    made = [(uuid4(), write_options(request)) for request in requests]
    step = tree.branch(grown, node_id, made)
    asked = msgspec.to_builtins(msgspec.structs.replace(options.request, model=model.id))
    loom.branch_options = msgspec.json.encode({**asked, "n": options.n}).decode()
    loom.branch_nodes = options.n
    history.commit(loom, ChangeKind.BRANCH, step, key_id=payer.key_id, title=_title(loom, grown))
    _choose(grown, node_id)
    ids = [each for each, _ in made]
    now = timezone.now()
    Node.objects.filter(id__in=ids).update(model=model.id)
    Growth.objects.bulk_create(
        Growth(
            node_id=each,
            user_id=payer.user_id,
            key_id=payer.key_id,
            model=model.id,
            # So the Nodes of a Branch run in their order.
            created_at=now + timedelta(microseconds=place),
        )
        for place, each in enumerate(ids)
    )
    queue.ring(KIND)
    return loom, ids


def _title(loom: Loom, grown: Tree) -> str | None:
    """Return the title that the first Branch of an untitled Loom gives it (C-537, C-538, U-30)."""
    if loom.title:
        return None
    return drawn_title(grown.children(None)[0].text) or None


def _choose(grown: Tree, node_id: UUID) -> None:
    """Note of each Node of a path that somebody went on from it."""
    path = [node.id for node in grown.path(node_id)]
    Node.objects.filter(id__in=path, chosen_at=None).update(chosen_at=timezone.now())


def cancel(*, user_id: UUID, loom_id: UUID) -> Loom:
    """Cancel every Node of a Loom that grows (C-560); with none, nothing changes.

    A queued one never runs. A running one keeps its text: its runner stops it within a moment,
    saves its last tokens and pays for them (C-561).
    """
    loom_of(user_id, loom_id)
    with transaction.atomic():
        # The work's rows come before the Loom's, as in every transaction that ends work.
        live = Growth.objects.filter(
            node__loom_id=loom_id, state__in=before(WorkState.CANCELLED)
        ).order_by("id")
        ids = list(live.select_for_update(of=("self",)).values_list("node_id", flat=True))
        queue.cancel(Growth.objects.filter(node_id__in=ids))
        loom = locked(user_id, loom_id)
        if ids:
            loom.revision += 1
            loom.save(update_fields=["revision"])
            Node.objects.filter(id__in=ids).update(status=Status.CANCELLED, changed=loom.revision)
            announce([loom.id])
    return loom
