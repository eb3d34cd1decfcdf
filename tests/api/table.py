"""Every operation of the table of routes, for tests that must hold for each of them."""

import re
from dataclasses import dataclass
from uuid import uuid4

from api.routes import ROUTES
from api.routing import Operation, Route

MODEL = "tiny"


@dataclass(frozen=True)
class Call:
    """One method of one path."""

    method: str
    route: Route
    operation: Operation

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parameters."""
        return tuple(re.findall(r"\{(\w+)\}", self.route.path))

    def path(self, **parameters: str) -> str:
        """The path, of nobody's objects where none are named."""
        given = {
            name: MODEL if name == "model_id" else str(uuid4()) for name in self.parameters
        } | parameters
        return self.route.path.format(**given)

    def __str__(self) -> str:
        return f"{self.method} {self.route.path}"


CALLS = [
    Call(method, route, operation)
    for route in ROUTES
    for method, operation in route.operations.items()
]
KEYED = [call for call in CALLS if call.operation.bucket is not None]
OWNED = [call for call in KEYED if set(call.parameters) - {"model_id"}]
"""Operations on an object of one User."""
