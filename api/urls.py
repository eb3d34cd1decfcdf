"""Django's addresses of the API's views, made from the table of routes."""

from importlib import import_module

from django.urls import URLPattern, re_path

from api.routes import ROUTES


def _patterns() -> list[URLPattern]:
    patterns = []
    for route in ROUTES:
        for operation in route.operations.values():
            if operation.streams:
                continue
            module, _, name = operation.handler.partition(":")
            view = getattr(import_module(module), name)
            patterns.append(re_path(route.pattern.pattern, view.as_view()))
    return patterns


urlpatterns = _patterns()
