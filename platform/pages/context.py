"""What every template knows of the deployment."""

from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest

from pages.documents import DOCS_PATH
from pages.shell import shell_of


@dataclass(frozen=True)
class Site:
    """How the deployment calls itself, and where its parts are."""

    name: str
    support_email: str
    api_url: str
    """Address of the API, without a slash at its end."""
    app_url: str
    """Address of the App, without a slash at its end."""
    docs_url: str
    """Address of the docs, without a slash at its end."""
    chat_url: str
    """Address of the community chat; empty when there is none."""


def site() -> Site:
    """Return the deployment's words, from its settings."""
    env = settings.BASALT
    return Site(
        name=env.site_name,
        support_email=env.support_email,
        api_url=env.api_url.rstrip("/"),
        app_url=env.app_address,
        docs_url=docs_address(),
        chat_url=env.discord_url,
    )


def docs_address() -> str:
    """Return the address of the docs, without a slash at its end."""
    env = settings.BASALT
    return env.docs_url.rstrip("/") or f"{env.app_address}{DOCS_PATH}"


def context(request: HttpRequest) -> dict[str, object]:
    """Give templates the deployment as `site`, and what surrounds a page as `shell`."""
    return {"site": site(), "shell": shell_of(request)}
