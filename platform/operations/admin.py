"""The pages that operations add to the admin; rows of theirs are changed by no raw form."""

from collections.abc import Callable

from django.http.response import HttpResponseBase
from django.views.generic import RedirectView

from administration.site import add_page
from operations import model_pages, reports

add_page("analytics", reports.opened, "analytics")
add_page("analytics/<slug:tab>", reports.page, "analytics_tab")
add_page("analytics/<slug:tab>/numbers", reports.numbers, "analytics_numbers")
add_page("analytics/<slug:tab>/<slug:table>.csv", reports.as_csv, "analytics_csv")
add_page("spend/lock", reports.lock, "spend_lock")
add_page("spend/clear", reports.clear, "spend_clear")

add_page("models", model_pages.models, "models")
add_page("models/<str:model_id>/window", model_pages.add_window, "add_window")
add_page("models/<str:model_id>/warm", model_pages.warm_now, "warm_now")
add_page("models/<str:model_id>/cost", model_pages.preview, "window_cost")
add_page("windows/<int:window_id>/remove", model_pages.remove, "remove_window")


def _moved(tab: str) -> Callable[..., HttpResponseBase]:
    """Lead to a tab of Analytics, with the days of the address (A-390)."""
    return RedirectView.as_view(url=f"/admin/analytics/{tab}", query_string=True)


# The addresses of tabs that there were.
add_page("usage", _moved("usage"), "old_usage")
add_page("spend", _moved("spend"), "old_spend")
