"""The ASGI application: the edge around the API's streams and Django."""

from typing import cast

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

django_application = get_asgi_application()

from api.app import Dispatch  # noqa: E402 -- after Django is set up
from api.edge import App, Edge  # noqa: E402

application = ProtocolTypeRouter({"http": Edge(Dispatch(cast(App, django_application)))})
