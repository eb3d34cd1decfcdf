"""The addresses of the pages: public ones without a sign-in (C-651), and those of the App."""

from django.urls import path, re_path
from django.views.generic import RedirectView

from pages import views

urlpatterns = [
    path("", views.front, name="front"),
    path("docs", views.contents, name="docs"),
    path("docs/", RedirectView.as_view(pattern_name="docs"), name="docs-slash"),
    re_path(r"^docs/(?P<name>[a-z0-9-]+)$", views.document, name="document"),
    re_path(r"^docs/(?P<name>[a-z0-9-]+)\.md$", views.markdown, name="markdown"),
    path("llms.txt", views.llms, name="llms"),
    path("llms-full.txt", views.llms_full, name="llms-full"),
]
