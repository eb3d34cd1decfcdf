"""The chat route, which Base models do not have (C-046)."""

from rest_framework.request import Request
from rest_framework.response import Response

from api.views import ContractView
from completions.failures import Failure


class CreateChatCompletion(ContractView):
    """`POST /v1/chat/completions`: refused without a look at the key (U-01)."""

    def post(self, request: Request) -> Response:
        """Refuse."""
        raise Failure(
            400,
            "This API serves Base models, which have no chat format: send POST /v1/completions "
            "with a prompt instead of POST /v1/chat/completions with messages.",
            "chat_completions_unsupported",
        )
