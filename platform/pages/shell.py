"""What surrounds every page of the App: navigation, the token notice, and who may see it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Concatenate, ParamSpec, cast

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from accounts.models import User
from api.edge import REQUEST_ID
from api.errors import error_body, error_headers
from billing.standing import Standing, standing_of
from completions.failures import Failure

THEMES = ("light", "dark")
THEME_COOKIE = "theme"
NAV_COOKIE = "nav"
NOTICE_COOKIE = "notice"

P = ParamSpec("P")


class AppRequest(HttpRequest):
    """A request whose User is signed in."""

    user: User


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the navigation (A-088)."""

    label: str
    path: str


PLACES = (
    Place("Playground", "/playground"),
    Place("Loom", "/loom"),
    Place("Usage", "/usage"),
    Place("Jobs", "/jobs"),
    Place("API Keys", "/api-keys"),
)


class Shell:
    """What `templates/app/base.html` shows around a page; read only where it is used."""

    places = PLACES

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @property
    def theme(self) -> str:
        """The browser's choice of `light` or `dark`; empty for the system's own."""
        chosen = self._request.COOKIES.get(THEME_COOKIE, "")
        return chosen if chosen in THEMES else ""

    @property
    def nav_closed(self) -> bool:
        """Whether this browser closed the navigation (A-110)."""
        return self._request.COOKIES.get(NAV_COOKIE) == "closed"

    @property
    def here(self) -> str:
        """The path of the navigation's entry that this page belongs to."""
        path = self._request.path
        return next(
            (each.path for each in PLACES if path == each.path or path.startswith(each.path + "/")),
            "",
        )

    @cached_property
    def standing(self) -> Standing | None:
        """Where the User stands this month; None without a sign-in."""
        user = getattr(self._request, "user", None)
        return standing_of(user.id) if isinstance(user, User) else None

    @property
    def notice(self) -> Standing | None:
        """What the notice under the title tells, if it shows (A-101 to A-106)."""
        standing = self.standing
        if standing is None or not standing.is_near_end:
            return None
        is_closed = self._request.COOKIES.get(NOTICE_COOKIE) == "closed"
        return None if is_closed and standing.left else standing


def shell_of(request: HttpRequest) -> Shell:
    """Return what surrounds this request's page; what it read is read once."""
    shell = getattr(request, "shell", None)
    if not isinstance(shell, Shell):
        shell = Shell(request)
        request.shell = shell  # type: ignore[attr-defined]
    return shell


def signed_in(
    view: Callable[Concatenate[AppRequest, P], HttpResponseBase],
) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Let only a signed-in User see a page; others go to the sign-in and come back (A-071).

    A read or a press from a page gets 401 with the address of the sign-in, which the page's
    script follows (A-072).
    """

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        user = getattr(request, "user", None)
        if isinstance(user, User):
            answer = view(cast("AppRequest", request), *args, **kwargs)
            # Also keeps the page out of the browser's back cache, where the next person finds it.
            answer.headers.setdefault("Cache-Control", "no-store")
            return answer
        if from_script(request):
            return _ended()
        return redirect_to_login(request.get_full_path())

    return guarded


def from_script(request: HttpRequest) -> bool:
    """Whether a page's script asks, not a person's browser for a page."""
    return "X-Requested-With" in request.headers or "HX-Request" in request.headers


def refused(request: HttpRequest, failure: Failure) -> HttpResponse:
    """Answer a script with an error, in the API's one form of errors."""
    answer = HttpResponse(error_body(failure, request_id_of(request)), status=failure.status)
    for name, value in error_headers(failure):
        answer.headers[name.decode()] = value.decode()
    return answer


def request_id_of(request: HttpRequest) -> str:
    """Return the id that the answer's `X-Request-Id` has."""
    scope = getattr(request, "scope", {})
    return str(scope.get(REQUEST_ID, ""))


def _ended() -> HttpResponse:
    answer = HttpResponse(status=401, content_type="text/plain")
    answer.headers["X-Sign-In"] = str(settings.LOGIN_URL)
    return answer
