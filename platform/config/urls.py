"""Every address that Django answers."""

from django.contrib import admin
from django.urls import include, path

from operations.metrics import metrics

urlpatterns = [
    path("", include("api.urls")),
    path("", include("pages.urls")),
    path("", include("access.urls")),
    path("", include("feedback.urls")),
    path("metrics", metrics, name="metrics"),
    path("admin/", admin.site.urls),
]

handler500 = "pages.faults.server_fault"
