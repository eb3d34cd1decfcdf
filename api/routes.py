"""The one table of the API's paths.

Addresses, `Allow`, rate buckets, body caps and the OpenAPI document are read from it.
"""

from django.conf import settings

from api.bodies import CompletionJobRequest, CompletionPayload
from api.harvest_bodies import HarvestPayload
from api.harvest_schemas import HarvestJob
from api.limits import Bucket
from api.loom_routes import LOOM_ROUTES
from api.routing import MISSING, Operation, Route
from api.schemas import (
    Completion,
    CompletionChunk,
    CompletionJob,
    ErrorResponse,
    Health,
    Model,
    ModelList,
    ModelStatus,
)

INFERENCE_FAILS = dict.fromkeys((502, 503, 504), ErrorResponse)
FEEDBACK = "/feedback"
"""The App's one form with files."""


JOB = "/v1/completion-jobs/{job_id}"

ANY_NAME = {"model_id": "(?s:.+)"}
"""A served name has a slash (C-124). One that is not served may hold anything, line ends too."""

ROUTES: tuple[Route, ...] = (
    Route(
        path="/v1/models",
        operations={
            "GET": Operation(
                operation_id="models.listModels",
                tag="models",
                handler="api.model_views:ListModels",
                bucket=Bucket.OTHER,
                answers={200: ModelList},
            )
        },
    ),
    Route(
        path="/v1/models/{model_id}/status",
        patterns=ANY_NAME,
        operations={
            "GET": Operation(
                operation_id="models.getModelStatus",
                tag="models",
                handler="api.model_views:RetrieveModelStatus",
                bucket=Bucket.OTHER,
                answers={200: ModelStatus},
            )
        },
    ),
    Route(
        path="/v1/models/{model_id}",
        patterns=ANY_NAME,
        operations={
            "GET": Operation(
                operation_id="models.retrieveModel",
                tag="models",
                handler="api.model_views:RetrieveModel",
                bucket=Bucket.OTHER,
                answers={200: Model},
            )
        },
    ),
    Route(
        path="/v1/completions",
        operations={
            "POST": Operation(
                operation_id="completions.createCompletion",
                tag="completions",
                handler="api.completions:CreateCompletion",
                bucket=Bucket.WORK,
                streams=True,
                event=CompletionChunk,
                idempotent=True,
                body=CompletionPayload,
                answers={200: Completion, **INFERENCE_FAILS},
            )
        },
    ),
    Route(
        path="/v1/completion-jobs",
        operations={
            "POST": Operation(
                operation_id="completionJobs.createCompletionJob",
                tag="completionJobs",
                handler="api.jobs:CreateCompletionJob",
                bucket=Bucket.WORK,
                streams=True,
                idempotent=True,
                body=CompletionJobRequest,
                answers={200: CompletionJob, 202: CompletionJob, **MISSING},
            )
        },
    ),
    Route(
        path=JOB,
        operations={
            "GET": Operation(
                operation_id="completionJobs.getCompletionJob",
                tag="completionJobs",
                handler="api.jobs:ReadCompletionJob",
                bucket=Bucket.OTHER,
                answers={200: CompletionJob, **MISSING},
            )
        },
    ),
    Route(
        path=f"{JOB}/result",
        operations={
            "GET": Operation(
                operation_id="completionJobs.getCompletionJobResult",
                tag="completionJobs",
                handler="api.jobs:ReadCompletionJobResult",
                bucket=Bucket.OTHER,
                streams=True,
                answers={
                    200: Completion,
                    202: CompletionJob,
                    409: ErrorResponse,
                    410: ErrorResponse,
                    **MISSING,
                    **INFERENCE_FAILS,
                },
            )
        },
    ),
    Route(
        path=f"{JOB}/cancel",
        operations={
            "POST": Operation(
                operation_id="completionJobs.cancelCompletionJob",
                tag="completionJobs",
                handler="api.jobs:CancelCompletionJob",
                bucket=Bucket.OTHER,
                answers={200: CompletionJob, **MISSING},
            )
        },
    ),
    *LOOM_ROUTES,
    Route(
        path="/v1/harvest",
        large_bodies=True,
        operations={
            "POST": Operation(
                operation_id="harvest.createHarvest",
                tag="harvest",
                handler="api.harvests:CreateHarvest",
                bucket=Bucket.WORK,
                streams=True,
                idempotent=True,
                body=HarvestPayload,
                answers={202: HarvestJob},
            )
        },
    ),
    Route(
        path="/v1/harvest/{job_id}",
        operations={
            "GET": Operation(
                operation_id="harvest.getHarvest",
                tag="harvest",
                handler="api.harvests:ReadHarvest",
                bucket=Bucket.OTHER,
                streams=True,
                queries=("wait",),
                answers={200: HarvestJob, **MISSING},
            ),
            "DELETE": Operation(
                operation_id="harvest.cancelHarvest",
                tag="harvest",
                handler="api.harvests:CancelHarvest",
                bucket=Bucket.OTHER,
                streams=True,
                answers={200: HarvestJob, 409: ErrorResponse, **MISSING},
            ),
        },
    ),
    Route(
        path="/v1/lab/harvest/{job_id}/progress",
        operations={
            "GET": Operation(
                operation_id="lab.getHarvestProgress",
                tag="lab",
                handler="api.harvests:ReadHarvestProgress",
                bucket=Bucket.OTHER,
                streams=True,
                documented=False,
            )
        },
    ),
    Route(
        path="/files/harvests/{job_id}/{file}",
        operations={
            "GET": Operation(
                operation_id="files.readHarvestFile",
                tag="files",
                handler="api.harvest_files:ReadHarvestFile",
                streams=True,
                documented=False,
            )
        },
    ),
    Route(
        path="/v1/chat/completions",
        operations={
            "POST": Operation(
                operation_id="chat.createChatCompletion",
                tag="chat",
                handler="api.chat:CreateChatCompletion",
                deprecated=True,
            )
        },
    ),
    Route(
        path="/health",
        operations={
            "GET": Operation(
                operation_id="health.health",
                tag="health",
                handler="api.health:ReadHealth",
                answers={200: Health, 503: Health},
            )
        },
    ),
    Route(
        path="/openapi.json",
        operations={
            "GET": Operation(
                operation_id="openapi",
                tag="openapi",
                handler="api.openapi:ReadDocument",
                documented=False,
            )
        },
    ),
)


def match(path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of a path with its parameters, or None when there is no such path."""
    for route in ROUTES:
        found = route.pattern.fullmatch(path.removeprefix("/"))
        if found:
            return route, found.groupdict()
    return None


def body_cap(path: str) -> int:
    """Return how many bytes of a body the path takes."""
    env = settings.BASALT
    if path == FEEDBACK:
        return env.feedback_images * env.feedback_image_bytes + env.max_body_size // 8
    found = match(path)
    return found[0].body_cap if found else env.max_body_size


def is_api(path: str) -> bool:
    """Whether the contract's API owns the path, so that every answer has its form (C-064)."""
    roots = ("/v1/", "/files/")
    return path.startswith(roots) or path in ("/v1", "/health", "/openapi.json")
