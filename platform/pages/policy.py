"""What a browser may load on a page: in the docs next to nothing, in the App only our own files."""

from urllib.parse import urlsplit

from csp.constants import NONE, SELF
from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
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
    "script-src": [SELF, "'unsafe-eval'"],
    "style-src": [SELF, "'unsafe-inline'"],
    "img-src": [SELF, "data:"],
    "object-src": [NONE],
    "base-uri": [NONE],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
}
"""The admin's pages (unfold) have scripts in files that read expressions out of the markup, forms,
and some styles in their markup. Nothing but the admin has this policy."""

WITH_PROVIDERS = frozenset({"account_login", "profile", "github_login", "openid_connect_login"})
"""Names of the addresses whose forms end at a provider: browsers look at redirects too."""


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
    if match is None or match.url_name in PUBLIC:
        return STRICT
    if match.url_name in WITH_PROVIDERS:
        return {**APP, "form-action": [SELF, *_providers()]}
    return APP


def _providers() -> list[str]:
    """Return the origins of the providers that are set up."""
    env = settings.BASALT
    known = (
        (env.github_client_id, env.github_url),
        (env.google_client_id, env.google_url),
        (env.huggingface_client_id, env.huggingface_url),
    )
    return [
        "{0.scheme}://{0.netloc}".format(urlsplit(url)) for client_id, url in known if client_id
    ]
