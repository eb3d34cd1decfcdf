"""The page Jobs: the way to the script that runs one (A-372, A-373)."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from pages.shell import AppRequest, signed_in


@require_safe
@signed_in
def page(request: AppRequest) -> HttpResponse:
    """Show where the recipe is."""
    return render(request, "app/jobs.html")
