"""Finds who answers a request: a stream consumer or Django, by the table of routes.

For the API's paths an unknown path and a wrong method are answered here, so that they read the
same whoever would have answered.
"""

from functools import cache
from importlib import import_module

from api.edge import TOO_LARGE, App, Receive, Scope, Send, answer_failure
from api.errors import no_route, too_large, wrong_method
from api.routes import is_api, match
from api.routing import Operation
from completions.failures import Failure

PARAMETERS = "basalt.parameters"
OPERATION = "basalt.operation"


def operation_of(scope: Scope) -> tuple[Operation, dict[str, str]]:
    """Return who answers, with the path's parameters; a HEAD is answered as its GET.

    Raises:
        Failure: 404 or 405.
    """
    path, method = scope["path"], scope["method"]
    found = match(path)
    if found is None:
        raise no_route(path)
    route, parameters = found
    operation = route.operations.get("GET" if method == "HEAD" else method)
    if operation is None:
        raise wrong_method(method, path, route.methods)
    return operation, parameters


@cache
def consumer(handler: str) -> App:
    """Return the ASGI application of a stream consumer."""
    module, _, name = handler.partition(":")
    app: App = getattr(import_module(module), name).as_asgi()
    return app


class Dispatch:
    """Sends a request to its handler."""

    def __init__(self, django: App) -> None:
        self._django = django

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not is_api(scope["path"]):
            if scope.get(TOO_LARGE):
                await answer_failure(too_large(scope[TOO_LARGE]), scope, send)
                return
            await self._django(scope, receive, send)
            return
        try:
            operation, parameters = operation_of(scope)
        except Failure as failure:
            await answer_failure(failure, scope, send)
            return
        scope[OPERATION], scope[PARAMETERS] = operation, parameters
        app = consumer(operation.handler) if operation.streams else self._django
        await app(scope, receive, send)
