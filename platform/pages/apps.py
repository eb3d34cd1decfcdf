"""The room of the front page and the docs."""

from django.apps import AppConfig


class PagesConfig(AppConfig):
    """Server-rendered pages that need no sign-in and no script."""

    name = "pages"
    verbose_name = "Pages"
