"""What a browser may load on a page: on ours next to nothing, in the admin what Django's needs."""

from csp.constants import NONE, SELF
from csp.middleware import CSPMiddleware, PolicyParts
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from api.routes import is_api

STRICT: dict[str, list[str]] = {
    "default-src": [NONE],
    "style-src": [SELF],
    "img-src": [SELF],
    "base-uri": [NONE],
    "form-action": [NONE],
    "frame-ancestors": [NONE],
}
"""No script at all, no style but that of files, no form."""

ADMIN: dict[str, list[str]] = {
    "default-src": [SELF],
    "style-src": [SELF, "'unsafe-inline'"],
    "img-src": [SELF, "data:"],
    "object-src": [NONE],
    "base-uri": [NONE],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
}
"""Django's own pages have scripts in files, forms, and some styles in their markup."""


class PolicyMiddleware(CSPMiddleware):
    """Sends the strict policy, the looser one under `/admin/`, and none with the API's answers."""

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        """Choose the policy by the path."""
        parts = super().get_policy_parts(request, response, report_only)
        if not report_only and not is_api(request.path_info):
            parts.config = ADMIN if request.path_info.startswith("/admin/") else STRICT
        return parts
