"""Every address that Django answers."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("api.urls")),
    path("", include("pages.urls")),
    path("", include("access.urls")),
    path("", include("feedback.urls")),
    path("admin/", admin.site.urls),
]
