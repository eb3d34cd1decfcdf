"""Pages that follow something leave the database's connections to others."""

from contextlib import ExitStack
from uuid import uuid4

import httpx
from django.conf import settings
from django.test import Client

from looms import edits
from looms.models import Node
from tests.accounts.factory import make_user


def test_many_open_pages_hold_no_connection(web, database) -> None:
    user = make_user()
    loom = edits.plant(user_id=user.id, title="", nodes=[Node(id=uuid4(), number=0, text="Once")])
    browser = Client()
    browser.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    cookies = {settings.SESSION_COOKIE_NAME: browser.cookies[settings.SESSION_COOKIE_NAME].value}
    with ExitStack() as stack:
        client = stack.enter_context(
            httpx.Client(base_url=web.address, cookies=cookies, timeout=20)
        )
        for _ in range(settings.BASALT.db_pool_size + 4):
            page = stack.enter_context(client.stream("GET", f"/loom/{loom.id}/events"))
            assert page.status_code == 200
            assert next(page.iter_text()).startswith(": here")
        state = client.get(f"/loom/{loom.id}/state")
        assert state.status_code == 200
        assert client.get("/usage").status_code == 200
