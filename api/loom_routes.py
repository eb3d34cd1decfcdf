"""The paths of Looms: a part of the table of `api.routes`."""

from pydantic import BaseModel

from api.limits import Bucket
from api.loom_bodies import (
    BranchPayload,
    LoomChangePayload,
    LoomFilePayload,
    LoomPayload,
    NodeTextPayload,
    SplitPayload,
)
from api.loom_schemas import Branch, DeletedLoom, Loom, LoomList, Node
from api.routing import MISSING, Operation, Route


def loom_read(name: str, view: str, answer: type[BaseModel], *, by_id: bool = True) -> Operation:
    """Return a read of Looms."""
    return Operation(
        operation_id=f"looms.{name}",
        tag="looms",
        handler=f"api.loom_views:{view}",
        bucket=Bucket.OTHER,
        answers={200: answer} | (MISSING if by_id else {}),
    )


def loom_write(
    name: str,
    view: str,
    body: type[BaseModel] | None,
    *,
    answer: type[BaseModel] = Loom,
    bucket: Bucket = Bucket.OTHER,
) -> Operation:
    """Return a write of Looms; each takes an `Idempotency-Key` (C-383)."""
    return Operation(
        operation_id=f"looms.{name}",
        tag="looms",
        handler=f"api.loom_views:{view}",
        bucket=bucket,
        idempotent=True,
        body=body,
        answers={200: answer, **MISSING},
    )


LOOM = "/v1/looms/{loom_id}"
NODE = f"{LOOM}/nodes/{{node_id}}"

LOOM_ROUTES = (
    Route(
        path="/v1/looms",
        operations={
            "GET": loom_read("listLooms", "Looms", LoomList, by_id=False),
            "POST": loom_write("createLoom", "Looms", LoomPayload),
        },
    ),
    Route(
        path="/v1/looms/import",
        operations={"POST": loom_write("importLoom", "ImportLoom", LoomFilePayload)},
    ),
    Route(
        path=f"{LOOM}/export",
        operations={"GET": loom_read("exportLoom", "ExportLoom", LoomFilePayload)},
    ),
    Route(
        path=f"{LOOM}/stream",
        operations={
            "GET": Operation(
                operation_id="looms.streamLoom",
                tag="looms",
                handler="api.loom_stream:StreamLoom",
                bucket=Bucket.OTHER,
                streams=True,
                event=Node,
                answers=MISSING,
            )
        },
    ),
    Route(
        path=f"{LOOM}/cancel",
        operations={"POST": loom_write("cancelLoom", "CancelLoom", None)},
    ),
    Route(
        path=f"{LOOM}/root",
        operations={"POST": loom_write("setRoot", "SetRoot", NodeTextPayload)},
    ),
    Route(
        path=LOOM,
        operations={
            "GET": loom_read("getLoom", "OneLoom", Loom),
            "POST": loom_write("updateLoom", "OneLoom", LoomChangePayload),
            "DELETE": loom_write("deleteLoom", "OneLoom", None, answer=DeletedLoom),
        },
    ),
    Route(
        path=f"{NODE}/branch",
        operations={
            "POST": loom_write(
                "createBranch", "CreateBranch", BranchPayload, answer=Branch, bucket=Bucket.WORK
            )
        },
    ),
    Route(
        path=f"{NODE}/split",
        operations={"POST": loom_write("splitNode", "SplitNode", SplitPayload)},
    ),
    Route(
        path=f"{NODE}/sibling",
        operations={"POST": loom_write("addSibling", "AddSibling", NodeTextPayload)},
    ),
    Route(
        path=NODE,
        operations={
            "POST": loom_write("editNode", "OneNode", NodeTextPayload),
            "DELETE": loom_write("deleteNode", "OneNode", None),
        },
    ),
    Route(
        path="/v1/lab/looms/import",
        operations={
            "POST": Operation(
                operation_id="lab.importLoom",
                tag="lab",
                handler="api.loom_lab:ImportAnyLoom",
                bucket=Bucket.OTHER,
                idempotent=True,
                documented=False,
            )
        },
    ),
    Route(
        path="/v1/lab/looms/{loom_id}/provenance",
        operations={
            "GET": Operation(
                operation_id="lab.getLoomProvenance",
                tag="lab",
                handler="api.loom_lab:ReadProvenance",
                bucket=Bucket.OTHER,
                documented=False,
            )
        },
    ),
)
