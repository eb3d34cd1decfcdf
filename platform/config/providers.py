"""allauth's settings of the providers that a deployment has set up."""

from typing import Any

from config.environment import Environment

GITHUB = "https://github.com"


def providers_settings(env: Environment) -> dict[str, dict[str, Any]]:
    """Return the settings of GitHub, Google and Hugging Face; one without a client id is left out.

    Google and Hugging Face are spoken to as OpenID providers, whose addresses they publish
    themselves; GitHub has no OpenID and tells its verified addresses over its own API.
    """
    found: dict[str, dict[str, Any]] = {}
    if env.github_client_id:
        found["github"] = {
            "APPS": [{"client_id": env.github_client_id, "secret": env.github_client_secret}],
            "SCOPE": ["user:email"],
            "OAUTH_PKCE_ENABLED": True,
            # An Enterprise server has its API under its own address; GitHub itself has not.
            **({} if env.github_url == GITHUB else {"GITHUB_URL": env.github_url.rstrip("/")}),
        }
    openid = [
        {
            "provider_id": provider_id,
            "name": name,
            "client_id": client_id,
            "secret": secret,
            "settings": {"server_url": address.rstrip("/"), "oauth_pkce_enabled": True},
        }
        for provider_id, name, client_id, secret, address in (
            ("google", "Google", env.google_client_id, env.google_client_secret, env.google_url),
            (
                "huggingface",
                "Hugging Face",
                env.huggingface_client_id,
                env.huggingface_client_secret,
                env.huggingface_url,
            ),
        )
        if client_id
    ]
    if openid:
        found["openid_connect"] = {"APPS": openid, "SCOPE": ["openid", "profile", "email"]}
    return found
