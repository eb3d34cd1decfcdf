"""Loom routes beyond the contract, under `/v1/lab` (`+`)."""

from django.http import HttpResponse
from rest_framework.request import Request

from api.json_body import read_json
from api.loom_bodies import any_loom_file
from api.loom_views import LoomView, Made, made, written
from looms import exchange
from looms.provenance import provenance

FILE_DEPTH = 900
"""Levels of a file of another tool at most: socketteer's loom puts a Node inside its parent."""


class ImportAnyLoom(LoomView):
    """`/v1/lab/looms/import`."""

    def post(self, request: Request) -> HttpResponse:
        """Make a Loom of a Loom file, or of the file of another loom tool."""
        value = read_json(request._request.body, depth=FILE_DEPTH)

        def read() -> Made:
            file = any_loom_file(value)
            return made(exchange.import_loom(user_id=self.key.user_id, file=file))

        return self.write_value(value, read)


class ReadProvenance(LoomView):
    """`/v1/lab/looms/{loom_id}/provenance`."""

    def get(self, request: Request, **ids: str) -> HttpResponse:
        """Say where each Node came from: weights, settings, token ids, and what was chosen."""
        return written(provenance(user_id=self.key.user_id, loom_id=self.loom_id))
