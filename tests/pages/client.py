"""A signed-in browser for tests in this process."""

import json

from django.test import Client

from accounts.models import User


def signed_in(user: User) -> Client:
    browser = Client()
    browser.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return browser


def send(browser: Client, path: str, body: object = None):
    """POST JSON, as a page's script does."""
    return browser.post(
        path,
        json.dumps(body),
        content_type="application/json",
        headers={"X-Requested-With": "basalt"},
    )
