"""The pages that operations add to the admin; rows of theirs are changed by no raw form."""

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

# The addresses of tabs that there were.
add_page("usage", RedirectView.as_view(url="/admin/analytics/usage"), "old_usage")
add_page("spend", RedirectView.as_view(url="/admin/analytics/spend"), "old_spend")
