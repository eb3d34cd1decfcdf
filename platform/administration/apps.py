"""The apps of the admin: Django's own with our site, and the pages that we add to it."""

from django.apps import AppConfig
from django.contrib.admin import apps as django_admin


class SiteConfig(django_admin.AdminConfig):
    """Django's admin, with our site in place of its own."""

    default = False
    default_site = "administration.site.BasaltAdminSite"


class AdministrationConfig(AppConfig):
    """What the admin shows."""

    name = "administration"
    default = True
    default_auto_field = "django.db.models.BigAutoField"
