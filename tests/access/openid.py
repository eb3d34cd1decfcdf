"""A provider of our own for tests: OpenID Connect, and the parts of GitHub that a sign-in uses."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import uuid4

import jwt

SECRET = "the provider's own secret of 32 characters"


@dataclass
class Account:
    """Who signs in at the provider."""

    id: str = field(default_factory=lambda: uuid4().hex)
    email: str | None = None
    verified: bool = True
    others: list[tuple[str, bool]] = field(default_factory=list)
    """GitHub only: further addresses, and whether each is verified."""


class Provider:
    """The server, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.grants: dict[str, tuple[Account, dict[str, str]]] = {}
        self.tokens: dict[str, Account] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def approve(self, location: str, account: Account) -> str:
        """Sign in at the provider and press Allow; returns the address that it sends back to."""
        place = urlsplit(location)
        assert location.startswith(self.address)
        asked = {name: values[0] for name, values in parse_qs(place.query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = uuid4().hex
        self.grants[code] = (account, asked)
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def _token(self, form: dict[str, str]) -> dict[str, object]:
        account, asked = self.grants.pop(form["code"])
        assert form["redirect_uri"] == asked["redirect_uri"]
        assert form["code_verifier"]
        token = uuid4().hex
        self.tokens[token] = account
        claims = {
            "iss": self.address,
            "aud": asked["client_id"],
            "sub": account.id,
            "iat": int(time.time()),
            "exp": int(time.time()) + 60,
        }
        id_token = jwt.encode(claims, SECRET, "HS256")
        return {"access_token": token, "token_type": "bearer", "id_token": id_token}

    def _read(self, path: str, token: str) -> object:
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.address,
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token",
                "userinfo_endpoint": f"{self.address}/userinfo",
                "jwks_uri": f"{self.address}/keys",
                "token_endpoint_auth_methods_supported": ["client_secret_post"],
            }
        account = self.tokens[token]
        if path == "/userinfo":
            told = {"sub": account.id, "name": "Ada", "picture": "https://example.org/ada"}
            if account.email:
                told |= {"email": account.email, "email_verified": account.verified}
            return told
        if path == "/api/v3/user":
            return {"id": account.id, "login": "ada", "email": "public@example.org", "bio": "x"}
        assert path == "/api/v3/user/emails"
        own = [(account.email, account.verified)] if account.email else []
        return [
            {"email": email, "verified": verified, "primary": index == 0}
            for index, (email, verified) in enumerate([*own, *account.others])
        ]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                token = self.headers.get("Authorization", " ").split(" ")[-1]
                self.answer(provider._read(urlsplit(self.path).path, token))

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.answer(provider._token({k: v[0] for k, v in parse_qs(body).items()}))

            def answer(self, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler


@contextmanager
def running() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
        thread.join(5)
