"""The admin's site: who may open it, and the pages that are no lists of rows.

It has no sign-in of its own (A-493): who is not signed in goes to the App's, and a User without a
role there gets a 404 of which nothing can be read (A-090). Staff need two-factor sign-in where
`STAFF_TWO_FACTOR` says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST
from unfold.sites import UnfoldAdminSite

from accounts.sessions import sign_out
from accounts.two_factor import lacks_two_factor

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


@dataclass(frozen=True)
class Page:
    """A page of the admin that is no list of a model's rows."""

    route: str
    view: Callable[..., HttpResponseBase]
    name: str


_pages: list[Page] = []


def add_page(route: str, view: Callable[..., HttpResponseBase], name: str) -> None:
    """Put a page at `/admin/<route>`, named `admin:<name>`; call it from an app's `admin` module.

    Everybody with a role opens it; wrap `view` with `admins_only` where only admins may.
    """
    _pages.append(Page(route, view, name))


def admins_only(view: View[P]) -> View[P]:
    """Refuse staff who are no admins, with 403."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not getattr(request.user, "is_admin", False):
            raise PermissionDenied("This page is for admins.")
        return view(request, *args, **kwargs)

    return cast("View[P]", guarded)


class BasaltAdminSite(UnfoldAdminSite):  # type: ignore[misc]
    """Django's admin behind the App's sign-in."""

    index_title = "Admin"

    def has_permission(self, request: HttpRequest) -> bool:
        """Whether the User has a role and what the role asks for; a suspended one has none."""
        user = request.user
        return user.is_active and user.is_staff and not lacks_two_factor(request)

    def admin_view(self, view: Callable[..., HttpResponseBase], cacheable: bool = False) -> Any:
        """Check the role before every page (A-391); without one nothing of it is answered."""
        inner = super().admin_view(view, cacheable)

        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not self.has_permission(request):
                return self.turn_away(request, request.get_full_path())
            return cast(HttpResponseBase, inner(request, *args, **kwargs))

        return guarded

    def turn_away(self, request: HttpRequest, wanted: str) -> HttpResponseBase:
        """Answer who may not see a page: sign in, set up two-factor sign-in, or 404 (A-090)."""
        if not request.user.is_authenticated:
            return redirect_to_login(wanted, settings.LOGIN_URL)
        if not (request.user.is_staff and request.user.is_active):
            raise Http404("There is no such page.")
        return HttpResponseRedirect(reverse("two_factor"))

    def _get_is_tab_active(self, *known: object) -> bool:
        """Leave each entry of the menu active on its own page alone."""
        return False

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of the admin: our pages first."""
        own = [path(page.route, self.admin_view(page.view), name=page.name) for page in _pages]
        return [*own, *super().get_urls()]

    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Send to the App's sign-in, or to the admin who is signed in already (A-493)."""
        if self.has_permission(request):
            return HttpResponseRedirect(reverse("admin:index"))
        return self.turn_away(request, reverse("admin:index"))

    def logout(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Sign out as the App does: with a POST (A-074)."""
        return csrf_protect(require_POST(sign_out))(request)

    def password_change(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Send to the page that mails a link: a password has one way to be set."""
        return HttpResponseRedirect(reverse("forgot_password"))

    def password_change_done(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Send where `password_change` does."""
        return self.password_change(request)


def page_context(request: HttpRequest, title: str) -> dict[str, object]:
    """Return what the admin's templates need, for a page of `add_page`."""
    return {**admin.site.each_context(request), "title": title}
