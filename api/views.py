"""What the API's views share: the key, the limits, and the contract's errors."""

from typing import Any

import structlog
from django.http.response import HttpResponse, HttpResponseBase
from rest_framework.request import Request
from rest_framework.views import APIView

from accounts.keys import KeyState
from api.app import OPERATION
from api.authentication import authenticate, client_address
from api.edge import TOO_LARGE, request_id
from api.errors import error_body, error_headers, too_large
from api.routing import Operation
from api.schemas import Shape
from completions.database import is_busy
from completions.failures import Failure, database_busy, internal

log = structlog.get_logger()


def answer(shape: Shape, status: int = 200) -> HttpResponse:
    """Write a shape as the whole answer."""
    return HttpResponse(shape.model_dump_json(), status=status, content_type="application/json")


class ContractView(APIView):
    """A view whose every error has the contract's form."""

    def handle_exception(self, exc: Exception) -> HttpResponseBase:  # type: ignore[override]
        """Return the answer of a failure, of a busy database, or of a fault of our own."""
        if isinstance(exc, Failure):
            failure = exc
        elif is_busy(exc):
            failure = database_busy()
        else:
            log.exception("a view failed", path=self.request.path, exc_info=exc)
            failure = internal()
        headers = {name.decode(): value.decode() for name, value in error_headers(failure)}
        return HttpResponse(
            error_body(failure, request_id(self.asgi_scope)),
            status=failure.status,
            headers=headers,
        )

    @property
    def default_response_headers(self) -> dict[str, str]:
        """No headers of the framework's own: `Allow` belongs to a 405 (C-043)."""
        return {}

    @property
    def asgi_scope(self) -> dict[str, Any]:
        """What the server and the edge know of the request."""
        scope: dict[str, Any] = self.request._request.scope  # type: ignore[attr-defined]
        return scope

    def check_size(self) -> None:
        """Refuse a body over its cap."""
        if self.asgi_scope.get(TOO_LARGE):
            raise too_large(self.asgi_scope[TOO_LARGE])

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the size of the body."""
        super().initial(request, *args, **kwargs)
        self.check_size()


class KeyView(ContractView):
    """A view that asks for an API key first (C-001, C-002)."""

    key: KeyState

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the key, then the size of the body."""
        scope = self.asgi_scope
        operation: Operation = scope[OPERATION]
        assert operation.bucket is not None
        headers = scope["headers"]
        address = client_address(scope["client"][0] if scope["client"] else None, headers)
        self.key = authenticate(headers, address, operation.bucket)
        super().initial(request, *args, **kwargs)
