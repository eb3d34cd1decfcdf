"""What every template knows of the deployment."""

from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest


@dataclass(frozen=True)
class Site:
    """How the deployment calls itself, and where its parts are."""

    name: str
    support_email: str
    api_url: str
    """Address of the API, without a slash at its end."""
    chat_url: str
    """Address of the community chat; empty when there is none."""


def site() -> Site:
    """Return the deployment's words, from its settings."""
    env = settings.BASALT
    return Site(
        name=env.site_name,
        support_email=env.support_email,
        api_url=env.api_url.rstrip("/"),
        chat_url=env.discord_url,
    )


def context(request: HttpRequest) -> dict[str, Site]:
    """Give templates the deployment as `site`."""
    return {"site": site()}
