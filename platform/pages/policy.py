"""What a browser may load on a page: in the docs next to nothing, in the App only our own files."""

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

APP: dict[str, list[str]] = {
    "default-src": [NONE],
    "script-src": [SELF],
    "style-src": [SELF],
    "img-src": [SELF, "data:", "blob:"],
    "connect-src": [SELF],
    "base-uri": [NONE],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
}
"""Scripts and styles of our own files alone, nothing inline, no `eval`."""

PUBLIC = frozenset({"front", "docs", "docs-slash", "document", "markdown", "llms", "llms-full"})
"""Names of the addresses whose pages need neither script nor form."""

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
    """Sends each page its policy, and none with the API's answers."""

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        """Choose the policy by who answered."""
        parts = super().get_policy_parts(request, response, report_only)
        if not report_only and not is_api(request.path_info):
            parts.config = policy_of(request)
        return parts


def policy_of(request: HttpRequest) -> dict[str, list[str]]:
    """Return what the browser may do on this page."""
    if request.path_info.startswith("/admin/"):
        return ADMIN
    match = request.resolver_match
    return STRICT if match is None or match.url_name in PUBLIC else APP
