"""`Send feedback`: takes the dialog's note (A-377 to A-386)."""

from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from access.limits import Tried, refusal, seconds_to_wait
from completions.failures import ErrorType, Failure, invalid
from feedback.sending import NoteRefused, check_note, store
from pages.shell import AppRequest, refused, signed_in


@require_POST
@signed_in
def send(request: AppRequest) -> HttpResponse:
    """Store a note, or say which field to mend; the dialog keeps what was written."""
    if seconds := seconds_to_wait(request, Tried.FEEDBACK):
        words = refusal(Tried.FEEDBACK, seconds)
        failure = Failure(429, words, "rate_limited", ErrorType.RATE_LIMIT, retry_after=seconds)
        return refused(request, failure)
    anonymous = request.POST.get("anonymous") == "on"
    try:
        written = check_note(
            kind=request.POST.get("kind", ""),
            text=request.POST.get("text", ""),
            page=request.POST.get("page", ""),
            images=[(each.name or "", each.read()) for each in request.FILES.getlist("images")],
            browser=request.headers.get("User-Agent", ""),
            errors=request.POST.get("errors", ""),
            anonymous=anonymous,
        )
    except NoteRefused as why:
        return refused(request, invalid(why.about, str(why)))
    store(written=written, user=None if anonymous else request.user)
    return JsonResponse({"told": "Thanks, your note reached the team."})
