"""`GET /v1/models` and its kin (sections 4 and 20): from the catalogue and the workers' reports."""

import time

from django.conf import settings
from django.http import HttpResponse
from rest_framework.request import Request

from api.schemas import BootStage, Capabilities, Model, ModelList, ModelStatus
from api.views import KeyView, answer
from completions.admission import find_model
from inference import catalogue, valkey
from inference.catalogue import ModelEntry
from inference.fleet import Boot, Fleet


def capabilities(model: ModelEntry) -> Capabilities:
    """Return what requests to a model may ask for: the numbers that are enforced (C-120)."""
    env = settings.BASALT
    return Capabilities(
        max_model_len=model.max_model_len,
        max_logprobs=env.max_logprobs,
        max_output_work_tokens=env.max_output_tokens,
        max_inflight_per_key=env.max_inflight_per_key,
        max_queued_per_key=env.max_queued_per_key,
        rate_limit_per_minute=env.rate_limit_per_minute,
        logprobs=True,
        prompt_logprobs=True,
        prompt_logprobs_full_vocab=True,
        full_vocab_max_prompt_tokens=env.full_vocab_max_prompt_tokens,
        activations=True,
        max_steering_vectors=env.max_steering_vectors,
        max_activation_prompt_tokens=model.max_activation_prompt_tokens(env.max_capture_numbers),
        n_layers=model.n_layers,
        hidden_size=model.hidden_size,
        chat_template=None,
    )


def model_object(model: ModelEntry) -> Model:
    """Return one entry of the list (C-116)."""
    return Model(
        id=model.id,
        object="model",
        owned_by="acs",
        served_model_name=model.served_name,
        gpu_shape=model.gpu_shape,
        status="live",
        default=model.default,
        capabilities=capabilities(model),
    )


def boot_object(boot: Boot | None) -> BootStage | None:
    """Return a start that is under way (C-129 to C-131)."""
    if boot is None:
        return None
    return BootStage(
        stage=boot.stage,
        stage_label=boot.stage.label,
        stage_age_s=max(0, int(time.time() - boot.since)),
    )


class ListModels(KeyView):
    """`GET /v1/models` (C-115)."""

    def get(self, request: Request) -> HttpResponse:
        """Return the served models in the catalogue's order."""
        data = [model_object(model) for model in catalogue.current().enabled]
        return answer(ModelList(object="list", data=data))


class RetrieveModel(KeyView):
    """`GET /v1/models/{model_id}` (C-123, C-124)."""

    def get(self, request: Request, model_id: str) -> HttpResponse:
        """Return one model by its id or served name."""
        return answer(model_object(find_model(model_id)))


class RetrieveModelStatus(KeyView):
    """`GET /v1/models/{model_id}/status` (C-128 to C-135)."""

    def get(self, request: Request, model_id: str) -> HttpResponse:
        """Return whether the model is warm, from reports alone."""
        model = find_model(model_id)
        state = Fleet(valkey.connection()).state(model)
        boot = boot_object(state.boot)
        return answer(
            ModelStatus(
                id=model.id,
                object="model.status",
                warm=state.warm,
                boot=boot,
                activation_boot=boot,
            )
        )
