"""The answers to what a page could not do: the database was busy or away, or there is a fault."""

import sys

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from completions.database import is_busy
from completions.failures import database_busy, internal
from pages.context import context
from pages.shell import from_script, refused


def server_fault(request: HttpRequest) -> HttpResponse:
    """Answer for an error that no page expected: 503 while the database is away, else 500.

    The page is made of the settings and the cookies alone: a look at the request's session would
    need the database again.
    """
    is_away = is_busy(sys.exc_info()[1])
    failure = database_busy() if is_away else internal()
    if from_script(request):
        return refused(request, failure)
    name = "503.html" if is_away else "500.html"
    answer = HttpResponse(render_to_string(name, context(request)), status=failure.status)
    answer.headers["Cache-Control"] = "no-store"
    if failure.retry_after is not None:
        answer.headers["Retry-After"] = str(failure.retry_after)
    return answer
