"""The addresses of the pages: public ones without a sign-in (C-651), and those of the App."""

from django.urls import include, path, re_path
from django.views.generic import RedirectView

from pages import api_keys, jobs, loom, playground, token_requests, usage, views

urlpatterns = [
    path("", views.front, name="front"),
    path("docs", views.contents, name="docs"),
    path("docs/", RedirectView.as_view(pattern_name="docs"), name="docs-slash"),
    re_path(r"^docs/(?P<name>[a-z0-9-]+(?:/[a-z0-9-]+)?)$", views.document, name="document"),
    re_path(r"^docs/(?P<name>[a-z0-9-]+(?:/[a-z0-9-]+)?)\.md$", views.markdown, name="markdown"),
    path("llms.txt", views.llms, name="llms"),
    path("llms-full.txt", views.llms_full, name="llms-full"),
    path("community", views.community, name="community"),
    path("api-keys", api_keys.page, name="api-keys"),
    path("api-keys/table", api_keys.table, name="api-keys-table"),
    path("api-keys/new", api_keys.create, name="new-api-key"),
    path("api-keys/<uuid:key_id>/rename", api_keys.rename, name="rename-api-key"),
    path("api-keys/<uuid:key_id>/pause", api_keys.pause, name="pause-api-key"),
    path("api-keys/<uuid:key_id>/resume", api_keys.resume, name="resume-api-key"),
    path("api-keys/<uuid:key_id>/revoke", api_keys.revoke, name="revoke-api-key"),
    path("usage", usage.page, name="usage"),
    path("usage/numbers", usage.numbers, name="usage-numbers"),
    path("usage/request", token_requests.page, name="token-request"),
    path("playground", playground.page, name="playground"),
    path("playground/", include("pages.playground_urls")),
    path("jobs", jobs.page, name="jobs"),
    path("loom", loom.newest, name="loom"),
    path("loom/", include("pages.loom_urls")),
]
